"""How a listing is printed: as a table (with all columns: wide), JSON or YAML; once, or again and again.

-o table | wide | json | yaml        --json is -o json
--watch SECONDS                      a terminal is cleared each time; elsewhere the listings follow one another
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import click

from mqlake.cli.standard_streams import unguarded

FORMATS = ("table", "wide", "json", "yaml")
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
_format = ContextVar("format", default="table")


def is_wide() -> bool:
    """Returns True if tables have all their columns."""
    return _format.get() == "wide"


def is_yaml() -> bool:
    """Returns True if YAML is printed in place of JSON."""
    return _format.get() == "yaml"


@contextlib.contextmanager
def printed_as(name: str) -> Iterator[None]:
    token = _format.set(name)
    try:
        yield
    finally:
        _format.reset(token)


def clear_screen() -> None:
    """Between two listings."""
    if sys.stdout.isatty():
        out = unguarded()
        out.write(CLEAR.encode())
        out.flush()
    else:
        click.echo()


_PLAIN = re.compile(r"[A-Za-z%/][A-Za-z0-9_%/. @+()-]*(?<! )")
_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"])


def yaml_text(value: Any, indent: int = 0) -> str:
    """A value of JSON as YAML in blocks, with a newline at its end."""
    space = "  " * indent
    if isinstance(value, dict) and value:
        return "".join(f"{space}{_scalar(str(key))}:{_after(each, indent)}" for key, each in value.items())
    if isinstance(value, list) and value:
        return "".join(f"{space}-{_after(each, indent, in_list=True)}" for each in value)
    return f"{space}{_scalar(value)}\n"


def _after(value: Any, indent: int, *, in_list: bool = False) -> str:
    """Returns the text that follows a key or a dash."""
    if not (isinstance(value, dict | list) and value):
        return f" {_scalar(value)}\n"
    text = yaml_text(value, indent + 1)
    return " " + text.lstrip(" ") if in_list else "\n" + text


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if not isinstance(value, str):
        return json.dumps(value)
    return '"' + "".join(_escaped(each) for each in value) + '"'


def _escaped(character: str) -> str:
    """JSON's escapes are YAML's, but for what is beyond 16 bits."""
    return f"\\U{ord(character):08x}" if ord(character) > 0xFFFF else json.dumps(character)[1:-1]
