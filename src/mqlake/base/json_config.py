"""The JSON of RocketMQ's config files and bodies: fastjson's dialect, which is wider than JSON.

    {
        "dataVersion":{
                "counter":3,
                "stateVersion":0,
                "timestamp":1700000000000
        },
        "offsetTable":{
                "T@G":{0:12,1:7
                }
        }
    }

Keys that are numbers stand without quotes and, when printed pretty, without a line of their own; a key may
even be an object. Fields are sorted by name and null fields are left out.

Here an int key is a number's, and a key that is a tuple of (name, value) pairs is an object's: `loads` gives
what `dumps` takes.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from mqlake.errors import FormatError

DEPTH_MAX = 200
"""Deeper nesting is refused; RocketMQ's own files have less than ten levels."""

# --- writing -----------------------------------------------------------------------------------------------

_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    "/": "\\/",
}
_ESCAPED = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029\ud800-\udfff]')
_ESCAPED_BROWSER = re.compile('[\x00-\x1f"\\\\/\x7f-\U0010ffff]')


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    code = ord(character)
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 | code >> 10:04X}\\u{0xDC00 | code & 0x3FF:04X}"
    return f"\\u{code:04X}"


class _Writer:
    def __init__(self, pretty: bool, browser_compatible: bool) -> None:
        self.pretty = pretty
        self.browser_compatible = browser_compatible
        self.escaped = _ESCAPED_BROWSER if browser_compatible else _ESCAPED
        self.indent = 0
        self.parts: list[str] = []
        self.put = self.parts.append

    def new_line(self) -> None:
        if self.pretty:
            self.put("\n" + "\t" * self.indent)

    def string(self, text: str) -> None:
        self.put(f'"{self.escaped.sub(_escape, text)}"')

    def value(self, value: Any) -> None:
        if isinstance(value, str):
            self.string(value)
        elif value is None:
            self.put("null")
        elif value is True or value is False:
            self.put("true" if value else "false")
        elif isinstance(value, enum.Enum):
            self.string(value.name)
        elif isinstance(value, int):
            self.put(str(value))
        elif isinstance(value, float):
            # JSON has no NaN.
            self.put(repr(value) if value - value == 0 else "null")
        elif isinstance(value, dict):
            self.object(value)
        elif isinstance(value, list):
            self.java_list(value)
        elif isinstance(value, tuple | set | frozenset):
            self.java_set(sorted(value) if isinstance(value, set | frozenset) else value)
        else:
            raise TypeError(f"{type(value).__name__} has no place in a config file: {value!r}")

    def object(self, fields: dict[Any, Any]) -> None:
        if not fields:
            self.put("{}")
            return
        self.put("{")
        self.indent += 1
        new_line = "\n" + "\t" * self.indent if self.pretty else ""
        first = True
        for key in _sorted_keys(fields):
            value = fields[key]
            if value is None:
                continue
            if not first:
                self.put(",")
            first = False
            if isinstance(key, str):
                self.put(f'{new_line}"{self.escaped.sub(_escape, key)}"')
            elif self.browser_compatible:
                self.string(dumps(_key_value(key), pretty=False))
            else:
                self.value(_key_value(key))
            self.put(":")
            if type(value) is int:  # most values, and most files are made of small objects
                self.put(str(value))
            else:
                self.value(value)
        self.indent -= 1
        self.new_line()
        self.put("}")

    def java_list(self, items: list[Any]) -> None:
        """A Java List: a line for each item."""
        if not items:
            self.put("[]")
            return
        self.put("[")
        self.indent += 1
        for i, item in enumerate(items):
            if i:
                self.put(",")
            self.new_line()
            self.value(item)
        self.indent -= 1
        self.new_line()
        self.put("]")

    def java_set(self, items: Iterable[Any]) -> None:
        """A Java Set or array: items have no lines of their own."""
        self.put("[")
        for i, item in enumerate(items):
            if i:
                self.put(",")
            self.value(item)
        self.put("]")


def _sorted_keys(fields: dict[Any, Any]) -> list[Any]:
    try:
        return sorted(fields)
    except TypeError:  # of more than one kind
        return sorted(fields, key=_sort_key)


def _sort_key(key: Any) -> tuple[str, Any]:
    return type(key).__name__, key


def _key_value(key: Any) -> Any:
    return dict(key) if isinstance(key, tuple) else key


def dumps(value: Any, *, pretty: bool = True, browser_compatible: bool = False) -> str:
    """The text of `value`: dicts, lists, tuples, sets (sorted), str, int, float, bool, enums (by name), None.

    Printed pretty, a list has a line for each item, as RocketMQ's Lists have; a tuple or set has none, as its Sets
    and arrays. Keys are str, int, or a tuple of (name, value) pairs for an object. `browser_compatible` gives plain
    ASCII JSON: every key in quotes, `/` and all beyond ASCII escaped. Raises TypeError for any other type.
    """
    writer = _Writer(pretty, browser_compatible)
    writer.value(value)
    return "".join(writer.parts)


# --- reading -----------------------------------------------------------------------------------------------

# The quantifiers are possessive: without a closing quote they give up in linear time.
_DOUBLE_QUOTED = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'([^'\\]*+(?:\\.[^'\\]*+)*+)'", re.DOTALL)
# not *+, which up to Python 3.11.4 also takes a comment that does not end
_SPACE = re.compile(r"(?:[ \t\r\n\f\b]++|//[^\n]*+|/\*.*?\*/)*", re.DOTALL)
_SPACE_AND_COMMAS = re.compile(r"(?:[ \t\r\n\f\b,]++|//[^\n]*+|/\*.*?\*/)*", re.DOTALL)
_NUMBER = re.compile(r"(-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?)([LSBFD])?")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_UNESCAPES = {
    '"': '"',
    "'": "'",
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "F": "\f",
    "r": "\r",
    **{str(i): chr(i) for i in range(8)},
}
_JAVA_SETS = ("Set", "TreeSet")
"""May stand before a list."""
_LITERALS = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}

ObjectKey = Callable[[dict[Any, Any]], Hashable]


def object_key_pairs(fields: dict[Any, Any]) -> Hashable:
    """The key for an object where a key stands: its (name, value) pairs, sorted by name."""
    return tuple(sorted(fields.items(), key=lambda item: _sort_key(item[0])))


class _Reader:
    def __init__(self, text: str, object_key: ObjectKey) -> None:
        self.text = text
        self.object_key = object_key
        self.pos = 0
        self.depth = 0

    def fail(self, reason: str) -> FormatError:
        return FormatError(self.pos, reason)

    def skip(self, what: re.Pattern[str] = _SPACE) -> str:
        """Move over `what`; the character that comes then, empty at the end."""
        match = what.match(self.text, self.pos)
        assert match is not None  # both patterns match the empty string
        self.pos = match.end()
        return self.text[self.pos : self.pos + 1]

    def document(self) -> Any:
        value = self.value()
        if self.skip():
            raise self.fail("text after the end of the document")
        return value

    def value(self) -> Any:
        character = self.skip()
        if character == "{":
            return self.object()
        if character == "[":
            return self.array()
        if character == '"' or character == "'":
            return self.string(character)
        if match := _NUMBER.match(self.text, self.pos):
            return self.number(match)
        if match := _NAME.match(self.text, self.pos):
            if match[0] in _LITERALS:
                self.pos = match.end()
                return _LITERALS[match[0]]
            if match[0] in _JAVA_SETS:
                start, self.pos = self.pos, match.end()
                if self.skip() == "[":
                    return self.array()
                self.pos = start
        raise self.fail(
            f"no value begins with {character!r}" if character else "the text ends where a value belongs"
        )

    def number(self, match: re.Match[str]) -> int | float:
        try:
            whole = not (match[2] or match[3] or match[4] in ("F", "D"))
            number = int(match[1]) if whole else float(match[1])
        except ValueError as e:  # more digits than Python converts
            raise self.fail(f"a number of {len(match[0])} characters") from e
        self.pos = match.end()
        return number

    def string(self, quote: str) -> str:
        match = (_DOUBLE_QUOTED if quote == '"' else _SINGLE_QUOTED).match(self.text, self.pos)
        if match is None:
            raise self.fail("a string without an end")
        text = match[1]
        if "\\" in text:
            text = _ESCAPE.sub(self.unescape, text)
            if "\\u" in match[1]:  # two escapes may be one character
                text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        self.pos = match.end()
        return text

    def unescape(self, match: re.Match[str]) -> str:
        code = match[1]
        if len(code) > 1:
            return chr(int(code[1:], 16))
        if code not in _UNESCAPES:
            raise self.fail(f"the escape \\{code} is not known")
        return _UNESCAPES[code]

    def enter(self) -> None:
        self.pos += 1
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self.fail(f"more than {DEPTH_MAX} levels of nesting")

    def array(self) -> list[Any]:
        self.enter()
        items: list[Any] = []
        while self.skip(_SPACE_AND_COMMAS) != "]":
            items.append(self.value())
            if self.skip() not in (",", "]"):
                raise self.fail("a list lacks a comma")
        self.pos += 1
        self.depth -= 1
        return items

    def object(self) -> dict[Any, Any]:
        self.enter()
        fields: dict[Any, Any] = {}
        while (character := self.skip(_SPACE_AND_COMMAS)) != "}":
            key = self.key(character)
            if self.skip() != ":":
                raise self.fail("a key without a colon")
            self.pos += 1
            fields[key] = self.value()
            if self.skip() not in (",", "}"):
                raise self.fail("an object lacks a comma")
        self.pos += 1
        self.depth -= 1
        return fields

    def key(self, character: str) -> Hashable:
        if character == '"' or character == "'":
            return self.string(character)
        if character == "{":
            start = self.pos
            try:
                key = self.object_key(self.object())
                hash(key)
            except TypeError as e:
                self.pos = start
                raise self.fail("this object cannot be a key") from e
            return key
        if match := _NUMBER.match(self.text, self.pos):
            number = self.number(match)
            return number if isinstance(number, int) else match[0]
        if match := _NAME.match(self.text, self.pos):
            self.pos = match.end()
            return match[0]
        raise self.fail(
            f"no key begins with {character!r}" if character else "the text ends inside an object"
        )


def loads(text: str | bytes, *, object_key: ObjectKey = object_key_pairs) -> Any:
    """The value of a JSON document, as fastjson writes it or stricter.

    Unquoted whole numbers become int keys, objects where a key stands become `object_key(fields)`. Accepted
    beyond JSON are single quotes, unquoted names as keys, comments, spare commas, fastjson's escapes, suffixes of
    numbers (`5L`), and `Set` before a list.
    Raises FormatError with the position (in characters) and nothing else.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as e:
            raise FormatError(e.start, "not UTF-8") from e
    try:
        # Most documents are plain JSON, which the standard library reads many times faster.
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return _Reader(text.removeprefix("\ufeff"), object_key).document()
