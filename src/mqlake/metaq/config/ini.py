r"""The text of server.ini, as ini4j 0.5.1 reads it.

    ; a comment        # another
    [system]
    brokerId = 0
    dataPath : /home/admin/meta
    [topic=orders]
    deletePolicy = archive,24, \
                   true

`=` or `:` ends the key, a backslash at the end continues the line, \t \n \r \f \\ \uXXXX and a backslash before
any other character are escapes. The last of a key counts; a section that comes twice is one section.
"""

from __future__ import annotations

import re

from mqlake.errors import ConfigError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "b": "\b"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_OPTION = re.compile(r"((?:\\.|[^\\=:])*)[=:](.*)", re.DOTALL)


def parse_ini(text: str) -> dict[str, dict[str, str]]:
    """Section → key → value, white space around each dropped. ConfigError, with the line's number."""
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] | None = None
    for number, line in _logical_lines(text):
        if line.startswith("["):
            if not line.endswith("]"):
                raise ConfigError(f"line {number}: {line!r} is no section: the ] is missing")
            section = sections.setdefault(_unescape(line[1:-1].strip()), {})
            continue
        option = _OPTION.fullmatch(line)
        if option is None:
            raise ConfigError(f"line {number}: {line!r} is neither key = value nor [section]")
        if section is None:
            raise ConfigError(f"line {number}: {line!r} comes before the first [section]")
        section[_unescape(option[1].strip())] = _unescape(option[2].strip())
    return sections


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """(number of the first natural line, text) without comments, blanks and the white space around."""
    lines: list[tuple[int, str]] = []
    held: tuple[int, str] | None = None
    for number, natural in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = natural.strip()
        if held is None and (not line or line[0] in ";#"):
            continue
        first, before = held or (number, "")
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            held = first, before + line[:-1]
        else:
            lines.append((first, (before + line).strip()))
            held = None
    if held is not None:
        lines.append(held)
    return lines


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPES.get(escape, escape)

    return _ESCAPE.sub(one, text)
