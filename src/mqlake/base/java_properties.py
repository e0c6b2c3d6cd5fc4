"""The text of a Java .properties file: broker.conf, namesrv.conf, and the bodies that carry settings.

    # a comment      ! another
    brokerName=a
    namesrvAddr = 10.0.0.1:9876; \\
                  10.0.0.2:9876
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mqlake.errors import ConfigError, NotThereError

LONGEST_SHOWN = 80
"""Characters of a value in an error: a file that is no text may have thousands in a line."""

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|$)", re.DOTALL)
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """The keys and values of a Java .properties text.

    Comments begin with # or !; `=`, `:` or white space ends the key; a backslash at the end continues the
    line; \\t \\n \\r \\f \\uXXXX are escapes. The last value of a key counts. ConfigError on a malformed \\u.
    """
    properties = {}
    for line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        assert match is not None  # both groups may be empty and the last takes anything
        key, value = (_unescape(part) for part in match.groups())
        properties[key] = value
    return properties


def read_properties(path: str) -> dict[str, str]:
    """The properties file at `path`, as UTF-8 or, if it is not UTF-8, as Latin-1, which Java reads.

    Raises ConfigError if it cannot be read, NotThereError if it is not there.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        kind = NotThereError if isinstance(error, FileNotFoundError) else ConfigError
        raise kind(f"{path or repr(path)}: {error.strerror}") from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    try:
        return parse_properties(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _logical_lines(text: str) -> list[str]:
    """Lines without comments and blanks, continued ones joined, white space before them dropped."""
    lines: list[str] = []
    continued = False
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not continued and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        ends_open = backslashes % 2 == 1
        body = line[:-1] if ends_open else line
        if continued:
            lines[-1] += body
        else:
            lines.append(body)
        continued = ends_open
    return lines


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
            raise ConfigError(f"malformed \\u escape in {shown!r}: four hexadecimal digits are needed")
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPES.get(escape, escape)

    plain = _ESCAPE.sub(one, text)
    # Two escapes may be the surrogates of one character.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_ESCAPED_VALUE = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})
_ESCAPED_KEY = _ESCAPED_VALUE | str.maketrans({c: "\\" + c for c in " =:#!"})


def format_properties(properties: Mapping[str, str]) -> str:
    """`key=value` lines in the mapping's order; `parse_properties` gives the mapping again."""
    lines = []
    for key, value in properties.items():
        text = value.translate(_ESCAPED_VALUE)
        if text.startswith(" "):  # would be taken for the space around the sign
            text = "\\" + text
        lines.append(f"{key.translate(_ESCAPED_KEY)}={text}\n")
    return "".join(lines)
