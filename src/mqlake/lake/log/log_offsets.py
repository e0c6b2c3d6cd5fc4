"""The offsets of `commitlog` in a checkpoint: how far a stream has read each log, and how it recognises the log.

    {"stores": {"/data/a": {"offset": 7340032, "tail": 2744115212}}, "topics": ["Orders"]}

`offset` is physical, `tail` the CRC-32 of what lies before it: a log that was cut off there and written on, or another
store at the same path, has other bytes. `topics` is the option of that name, left out when it was not given.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mqlake.errors import ConfigError
from mqlake.lake.log.splits import LogFile
from mqlake.lake.log.storage import Storage

Json = dict[str, Any]

TAIL = 64 << 10
"""Bytes that `tail` is of, fewer where a file begins: some records with their store times, unless one is larger."""


@dataclass(frozen=True)
class Mark:
    """A place in one log. `tail` None: nothing is known of what lies before it."""

    offset: int
    tail: int | None = None

    @classmethod
    def at(cls, storage: Storage, files: Sequence[LogFile], offset: int) -> Mark:
        return cls(offset, _tail(storage, files, offset))

    def fits(self, storage: Storage, files: Sequence[LogFile]) -> bool:
        """True if the log has the same bytes before it, as far as they are there still."""
        tail = None if self.tail is None else _tail(storage, files, self.offset)
        return tail is None or tail == self.tail


def _tail(storage: Storage, files: Sequence[LogFile], offset: int) -> int | None:
    for file in files:
        if file.base_offset < offset <= file.base_offset + file.file_size:
            end = offset - file.base_offset
            try:
                return zlib.crc32(storage.read(file.file, max(0, end - TAIL), end).tobytes())
            except FileNotFoundError:  # deleted since it was listed
                return None
    return None


@dataclass(frozen=True)
class LogOffsets:
    """The offsets of all stores of a stream, by their directories. `topics` None: all of them."""

    marks: Mapping[str, Mark]
    topics: frozenset[str] | None = None

    def to_json(self) -> Json:
        stores = {
            root: {"offset": mark.offset} | ({} if mark.tail is None else {"tail": mark.tail})
            for root, mark in sorted(self.marks.items())
        }
        return {"stores": stores} | ({} if self.topics is None else {"topics": sorted(self.topics)})

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> LogOffsets:
        """ConfigError for what another source wrote."""
        try:
            marks = {root: Mark(each["offset"], each.get("tail")) for root, each in text["stores"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"the checkpoint is not of the source commitlog: {dict(text)}") from error
        topics = text.get("topics")
        return cls(marks, None if topics is None else frozenset(topics))
