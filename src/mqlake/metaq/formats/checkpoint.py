"""The transaction checkpoint: where in the journal the oldest unfinished transaction begins.

The file `checkpoint.<n>` holds `{"number":3,"offset":4711}`: journal file `redo.3`, byte 4711. It may be empty.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import orjson

from mqlake.errors import FormatError

_NAME = re.compile(r"checkpoint\.([0-9]{1,9})")


class JournalLocation(NamedTuple):
    """Byte `offset` of the journal file `redo.<number>`."""

    number: int
    offset: int


def checkpoint_name(number: int) -> str:
    return f"checkpoint.{number}"


def checkpoint_number(name: str) -> int | None:
    found = _NAME.fullmatch(name)
    return int(found.group(1)) if found else None


def encode_checkpoint(location: JournalLocation) -> bytes:
    return orjson.dumps(location._asdict())


def decode_checkpoint(data: bytes) -> JournalLocation | None:
    """None for an empty file. Raises FormatError."""
    if not data.strip():
        return None
    try:
        value = orjson.loads(data)
        location = JournalLocation(value["number"], value["offset"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise FormatError(0, f"not a transaction checkpoint: {error}") from None
    if not all(isinstance(part, int) and part >= 0 for part in location):
        raise FormatError(0, f"not a transaction checkpoint: {value}")
    return location
