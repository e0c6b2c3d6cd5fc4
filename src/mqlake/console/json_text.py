"""JSON as people read it: a value on each line, as far as a page shows it, of a document of any length.

Numbers, repeated names and the order of names stay as they are in the document.
"""

from __future__ import annotations

import json
import re

_SPACE = r"[ \t\r\n]*"
_STRING = r'"(?:[^"\\]|\\.)*"'
_SIGN = rf"[\[{{]{_SPACE}[\]}}]|[\[\]{{}},:]"
_LITERAL = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.+-])|true|false|null|NaN|-?Infinity"
_TOKEN = re.compile(f"{_SPACE}(?:({_STRING})|({_SIGN})|({_LITERAL}))", re.DOTALL)
_CUT_TOKEN = re.compile(r'[ \t\r\n]*(?:"(?:[^"\\]|\\.?)*|[\w.+-]*)\Z', re.DOTALL)
_CLOSES = {"{": "}", "[": "]"}


def indented(text: str, size: int, *, is_whole: bool = True) -> tuple[str, bool] | None:
    """Returns at most about `size` characters of indented JSON, and True if they are all. None for what is no JSON
    object or list.

    Of a text that is not whole only the brackets are checked.
    """
    if text.lstrip(" \t\r\n")[:1] not in _CLOSES:
        return None
    if is_whole:
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return None
    parts: list[str] = []
    closing: list[str] = []
    position = written = 0
    while written < size:
        token = _TOKEN.match(text, position)
        if token is None:
            if text[position:].strip(" \t\r\n") and (is_whole or not _CUT_TOKEN.match(text, position)):
                return None
            return "".join(parts), is_whole
        if parts and not closing:
            return None
        position = token.end()
        string, sign, literal = token.groups()
        part = literal or (_readable(string) if string else _sign(sign, closing))
        if part is None:
            return None
        parts.append(part)
        written += len(part)
    return "".join(parts)[:size], False


def _sign(sign: str, closing: list[str]) -> str | None:
    """The sign with the white space around it. None if it closes what is not open."""
    if len(sign) > 1:
        return sign[0] + sign[-1] if sign[-1] == _CLOSES[sign[0]] else None
    if sign == ":":
        return ": "
    if sign in _CLOSES:
        closing.append(_CLOSES[sign])
    elif sign in "]}":
        if not closing or closing.pop() != sign:
            return None
        return "\n" + "  " * len(closing) + sign
    return sign + "\n" + "  " * len(closing)


def _readable(string: str) -> str:
    """With the characters that escapes stand for, where they are characters."""
    try:
        shown = json.dumps(json.loads(string, strict=False), ensure_ascii=False)
        shown.encode()
    except ValueError:
        return string
    return shown
