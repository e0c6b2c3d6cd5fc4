"""Changes of Cython (.pyx), which cosmic-ray's parser cannot read: token by token, as its operators do in Python.

    `if count == 0:` ─tokens─▶ `if count != 0:`, `if count == 1:`, `if not count == 0:`     one change each

Declarations, directives, docstrings and what only declares (`cdef extern`, `cdef struct`) are left as they are; so are
`*`, `&` and `<` where they may belong to pointers and casts. What is made nearly always compiles.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from tokenize import TokenInfo

_SWAPS: dict[str, tuple[str, ...]] = {
    "==": ("!=",),
    "!=": ("==",),
    "<=": ("<", ">"),
    ">=": (">", "<"),
    "+": ("-",),
    "-": ("+",),
    "+=": ("-=",),
    "-=": ("+=",),
    "//": ("*",),
    "<<": (">>",),
    ">>": ("<<",),
    "|=": ("&=",),
    "and": ("or",),
    "or": ("and",),
    "True": ("False",),
    "False": ("True",),
    "break": ("continue",),
    "continue": ("break",),
}
_SPACED = {" < ": ("<=", ">="), " > ": (">=", "<=")}
"""Comparisons: a cast has no space within its brackets."""
_DECLARES = re.compile(r"(cdef|cpdef|ctypedef|def|class|from|import|cimport|@|raise|assert)\b")
_HEAD_OF_BLOCK = re.compile(r"cdef (extern|struct|enum|union)\b|ctypedef (struct|enum)\b")
_CALL = re.compile(r"[\w.]+\(.*\)")
_CONDITION = re.compile(r"(?:if|elif|while) (.+):")


@dataclass(frozen=True)
class Change:
    """Characters [start, end) of the text become `new`."""

    start: int
    end: int
    new: str
    position: tuple[int, int]
    """Line, from 1, and column, from 0."""


def changes(text: str) -> list[Change]:
    """All of a module, in the order of its text."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: list[Change] = []
    for number, tokens in _statements(text):
        whole = text[
            starts[number - 1] + tokens[0].start[1] : starts[tokens[-1].end[0] - 1] + tokens[-1].end[1]
        ]
        if tokens[0].string in ("pass",) or (tokens[0].type == tokenize.STRING and len(tokens) == 1):
            continue
        first = starts[number - 1] + tokens[0].start[1]
        if _CALL.fullmatch(whole.replace("\n", " ")):
            found.append(Change(first, first + len(whole), "pass", tokens[0].start))
        if condition := _CONDITION.fullmatch(whole.replace("\n", " ")):
            start = first + condition.start(1)
            found.append(Change(start, first + condition.end(1), f"not ({condition[1]})", tokens[0].start))
        for token in tokens:
            at = starts[token.start[0] - 1] + token.start[1]
            for new in _replacements(token, text[at - 1 : at + len(token.string) + 1]):
                found.append(Change(at, at + len(token.string), new, token.start))
    return found


def _replacements(token: TokenInfo, around: str) -> tuple[str, ...]:
    if token.type == tokenize.NUMBER and re.fullmatch(r"[\d_]+", token.string):
        value = int(token.string)
        return str(value + 1), str(value - 1)
    if token.string in ("<", ">"):
        return _SPACED.get(around, ())
    if token.string in ("+", "-") and not around.startswith(" "):
        return ()
    return _SWAPS.get(token.string, ())


def _statements(text: str) -> Iterator[tuple[int, list[TokenInfo]]]:
    """Logical lines as their tokens, each with the number of its first line, without those that declare."""
    declared_until: int | None = None
    for tokens in _logical_lines(text):
        column = tokens[0].start[1]
        if declared_until is not None and column > declared_until:
            continue
        whole = tokens[0].line.strip()
        declared_until = column if _HEAD_OF_BLOCK.match(whole) else None
        if declared_until is None and not _DECLARES.match(whole):
            yield tokens[0].start[0], tokens


def _logical_lines(text: str) -> Iterator[list[TokenInfo]]:
    line: list[TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            if line:
                yield line
            line = []
        elif token.type not in (
            tokenize.NL,
            tokenize.COMMENT,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        ):
            line.append(token)
