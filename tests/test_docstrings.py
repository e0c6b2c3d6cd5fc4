"""A docstring says what a thing is or returns: with a noun or a verb, never with a pronoun that has no noun."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.check_layers import SOURCE

NO_NOUN = re.compile(r"(Of|Its|That|Those|What|Where|Who|Whom|Whose)\b")
TOLD = re.compile(r"(^|[.;]\s+)[Ww]hether\b")
"""The value of a bool: "Returns True if …"."""


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Line, text, and True for a function's own."""
    for node in ast.walk(tree):
        body = getattr(node, "body", [])
        for place, each in enumerate(body if isinstance(body, list) else []):
            match each:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    is_own = place == 0 and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                    yield each.lineno, text.strip(), is_own


def faults(source: str) -> list[int]:
    return [
        line
        for line, text, is_of_function in docstrings(ast.parse(source))
        if NO_NOUN.match(text) or (is_of_function and TOLD.search(text))
    ]


def test_docstrings_say_what_things_are() -> None:
    """Hundreds began with "Of" or "What": one had to read the code to know of what."""
    assert [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in SOURCE.rglob("*.py")
        if not path.name.endswith("_pb2.py")
        for line in faults(path.read_text(encoding="utf-8"))
    ] == []


def test_the_check_finds_them() -> None:
    source = 'A = 1\n"""Of B."""\n\ndef f() -> bool:\n    """Tries; whether it did."""\n    return True\n'
    assert faults(source) == [2, 5]
    assert faults(source.replace("Of B", "Size of B").replace("whether", "returns True if")) == []
