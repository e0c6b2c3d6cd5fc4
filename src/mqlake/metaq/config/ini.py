r"""Parsing server.ini as ini4j 0.5.1 does.

    ; a comment        # another
    [system]
    brokerId = 0
    dataPath : /home/admin/meta
    [topic=orders]
    deletePolicy = archive,24, \
                   true

`=` or `:` ends the key, a backslash at the end continues the line, \t \n \r \f \\ \uXXXX and a backslash before
any other character are escapes. The last value of a key counts; sections of the same name are merged.
"""

from __future__ import annotations

import re

from mqlake.errors import ConfigError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "b": "\b"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_OPTION = re.compile(r"((?:\\.|[^\\=:])*)[=:](.*)", re.DOTALL)


def parse_ini(text: str) -> dict[str, dict[str, str]]:
    """Section → key → value, all without surrounding white space. ConfigError, with the line number."""
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] | None = None
    for number, line in _logical_lines(text):
        if line.startswith("["):
            if not line.endswith("]"):
                raise ConfigError(f"line {number}: {line!r} is not a section: the ] is missing")
            section = sections.setdefault(_unescape(line[1:-1].strip()), {})
            continue
        option = _OPTION.fullmatch(line)
        if option is None:
            raise ConfigError(f"line {number}: {line!r} is neither key = value nor [section]")
        if section is None:
            raise ConfigError(f"line {number}: {line!r} comes before the first [section]")
        section[_unescape(option[1].strip())] = _unescape(option[2].strip())
    return sections


def replace_sections(text: str, other: str, prefix: str) -> str:
    """`text` with its sections whose names begin with `prefix` replaced by those of `other`, at the end."""
    kept = [lines for name, lines in _sections(text) if not name.startswith(prefix)]
    taken = [lines for name, lines in _sections(other) if name.startswith(prefix)]
    return "".join(line if line.endswith("\n") else f"{line}\n" for part in kept + taken for line in part)


def _sections(text: str) -> list[tuple[str, list[str]]]:
    """(name, lines with the header) in the order of the file; lines before the first section have no name."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    continued = False
    for natural in text.removeprefix("\ufeff").splitlines(keepends=True):
        line = natural.strip()
        if not continued and line.startswith("["):
            sections.append((_unescape(line[1:].removesuffix("]").strip()), []))
        is_comment = not continued and line[:1] in (";", "#")
        continued = not is_comment and (len(line) - len(line.rstrip("\\"))) % 2 == 1
        sections[-1][1].append(natural)
    return sections


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """(number of its first line, text) of each logical line, without comments, blank lines and outer white space."""
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
