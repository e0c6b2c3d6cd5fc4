"""Holds the functions of src/mqlake to 50 lines and 10 arguments.

Lines are counted from `def` to the end, without the docstring; arguments without `self`. `tools/functions.toml` names
the exceptions, by the reason why they stay. An exception that is no longer one is an offence too. Exit status 1 with a
line per offence.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "mqlake"
EXCEPTIONS = ROOT / "tools" / "functions.toml"
GENERATED = "proxy/v2/"
LINES_MAX = 50
ARGUMENTS_MAX = 10


def functions(tree: ast.Module, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Name (`module.py:Class.function`), lines and arguments of each function, also of those inside others."""
    waiting: list[tuple[ast.AST, str]] = [(tree, prefix)]
    while waiting:
        parent, within = waiting.pop()
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                waiting.append((node, within))
                continue
            name = f"{within}{node.name}"
            waiting.append((node, f"{name}."))
            if isinstance(node, ast.ClassDef):
                continue
            documented = 0
            if ast.get_docstring(node) is not None:
                documented = (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            arguments = sum(each.arg not in ("self", "cls") for each in taken)
            yield name, (node.end_lineno or 0) - node.lineno + 1 - documented, arguments


def offences(source: Path, exceptions: Path) -> list[str]:
    """A line for each function that is too long or takes too much, and for each exception that is not needed."""
    rules = tomllib.loads(exceptions.read_text(encoding="utf-8"))
    long, wide = ({name for group in rules[kind].values() for name in group} for kind in ("long", "wide"))
    found = []
    for path in sorted(source.rglob("*.py")):
        module = str(path.relative_to(source))
        if module.startswith(GENERATED):
            continue
        for name, lines, arguments in functions(ast.parse(path.read_bytes()), f"{module}:"):
            for known, count, most, what in (
                (long, lines, LINES_MAX, "lines"),
                (wide, arguments, ARGUMENTS_MAX, "arguments"),
            ):
                if count > most and name not in known:
                    found.append(
                        f"{name} has {count} {what}, more than {most}: "
                        f"split it, or say in {exceptions.name} why it stays"
                    )
                if count > most:
                    known.discard(name)
    return found + [f"{name}: take it out of {exceptions.name}" for name in sorted(long | wide)]


def main() -> int:
    found = offences(SOURCE, EXCEPTIONS)
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        rules = tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))
        long, wide = (sum(map(len, rules[kind].values())) for kind in ("long", "wide"))
        print(
            f"functions: {long} of over {LINES_MAX} lines, {wide} of over {ARGUMENTS_MAX} arguments, all named"
        )
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
