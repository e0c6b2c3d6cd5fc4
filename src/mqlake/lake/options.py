"""The options of a read of stores, as values: `mqlake.lake` makes them of its arguments, mqlake.spark of texts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from mqlake.errors import ConfigError, OffsetOutOfRangeError, UnknownKeyError
from mqlake.lake.arrow.schema import COLUMNS, CORRUPT_COLUMN
from mqlake.lake.log.splits import DEFAULT_SPLIT_SIZE, VERIFY_CRC, VERIFY_FULL, VERIFY_NONE
from mqlake.lake.log.storage import Storage
from mqlake.lake.offsets import Position, PositionKind

VERIFY = (VERIFY_NONE, VERIFY_CRC, VERIFY_FULL)
START, END = Position(PositionKind.EARLIEST, name="start"), Position(PositionKind.LATEST, name="end")

logger = logging.getLogger(__name__)


class Mode(Enum):
    """The handling of damage."""

    FAIL_FAST = "failFast"
    """An error that names file and offset."""
    PERMISSIVE = "permissive"
    """A row whose column `_corrupt` names file and offset; reading goes on at the next record."""
    DROP_MALFORMED = "dropMalformed"
    """Nothing: reading goes on at the next record."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options that the reads of all sources share. Sizes are bytes. `reads_on`: what its user can give to read on in
    spite of data loss, as errors say it; empty: nothing."""

    columns: tuple[str, ...] = tuple(COLUMNS)
    start: Position = START
    end: Position = END
    mode: Mode = Mode.FAIL_FAST
    split_size: int = DEFAULT_SPLIT_SIZE
    max_bytes_per_trigger: int | None = None
    max_offsets_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    reads_on: str = field(default="", compare=False)

    def check_batch(self) -> None:
        """ConfigError for positions that make sense in a stream only."""
        if self.start.kind is PositionKind.LATEST:
            raise ConfigError(f"{self.start.name} is 'latest'; a batch cannot begin there")
        if self.end.kind is PositionKind.EARLIEST:
            raise ConfigError(f"{self.end.name} is 'earliest'; a batch cannot end there")

    def data_loss(self, what: str, go_on: str = "reads on with what is there") -> None:
        """OffsetOutOfRangeError, or a warning where that is no error."""
        if self.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{what} ({self.reads_on} {go_on})" if self.reads_on else what)
        logger.warning("%s; reading goes on with what is there", what)


@dataclass(frozen=True, kw_only=True)
class LogOptions(SourceOptions):
    """One read of one or more store directories. `topics` and `keys` None: all of them."""

    stores: tuple[Storage, ...]
    topics: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    unpack: bool = True
    verify: str = VERIFY_CRC
    skipping: bool = True
    known_topics: bool = False
    """Topics that the store's topics, queues and index do not know, such as a deleted one, do not count."""
    archive: Storage | None = None
    """The place of the log's older files (`mqlake store offload`)."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(store.root for store in self.stores)


# ---------------------------------------------------------------------- values; `name`: what errors call the option


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """The one that it is but for case. ConfigError."""
    for each in allowed:
        if value.lower() == each.lower():
            return each
    raise ConfigError(f"{name} is {value!r}; it can be {', '.join(allowed[:-1])} or {allowed[-1]}")


def mode_of(name: str, value: str, modes: Iterable[Mode] = Mode) -> Mode:
    return Mode(one_of(name, value, [mode.value for mode in modes]))


def archive_of(name: str, path: str, stores: Sequence[Storage]) -> Storage:
    if len(stores) > 1:
        raise ConfigError(f"{name} is of one store: read several stores with their archives one by one")
    archive = Storage.at(path, stores[0].options, name)
    return replace(archive, root=archive.root.rstrip("/"))


def check_columns(names: Sequence[str], known: Iterable[str], name: str = "columns") -> None:
    """UnknownKeyError; ConfigError for a repeated name, or no names."""
    known = tuple(known)
    for each in names:
        if each not in known and each != CORRUPT_COLUMN:
            raise UnknownKeyError(each, known, what="column")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"{name} must name columns, each once: {', '.join(names)!r}")


def columns_in(mode: Mode, names: Sequence[str]) -> tuple[str, ...]:
    """The columns of a read; in mode permissive `_corrupt`, too."""
    if mode is Mode.PERMISSIVE and CORRUPT_COLUMN not in names:
        return (*names, CORRUPT_COLUMN)
    return tuple(names)
