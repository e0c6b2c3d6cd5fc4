"""The options of the sources over stores, typed. Names are not case-sensitive, as everywhere in Spark.

Spark's source `commitlog`, its siblings and `mqlake.lake` give their options as texts; here they become a LogOptions
once, in the driver. ConfigError names the option, the value, and what it takes.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mqlake.base.settings import parse_size
from mqlake.errors import ConfigError, OffsetOutOfRangeError, UnknownKeyError, did_you_mean
from mqlake.lake.arrow.schema import COLUMNS, CORRUPT_COLUMN, ON_REQUEST
from mqlake.lake.log.splits import DEFAULT_SPLIT_SIZE, VERIFY_CRC, VERIFY_FULL, VERIFY_NONE
from mqlake.lake.log.storage import Storage
from mqlake.lake.offsets import ENDING, STARTING, Position, PositionKind

PLACE_OPTIONS = ("path", "paths", "storageOptions")
OPTIONS = (
    *PLACE_OPTIONS,
    "archive",
    "topics",
    "keys",
    *STARTING,
    *ENDING,
    "columns",
    "includeBody",
    "unpack",
    "verify",
    "mode",
    "splitSize",
    "skipping",
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
)
QUEUE_OPTIONS = (*PLACE_OPTIONS, "topics", "splitSize")
INDEX_OPTIONS = (*PLACE_OPTIONS, "splitSize", "maxHashSlotNum")

NO_TABLE = (
    "CREATE TABLE … USING keeps no options for a source in Python (Spark's PythonTable): use CREATE TEMPORARY VIEW … "
    "USING … OPTIONS (…)"
)

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
    """Options that the reads of all sources share. Sizes are bytes."""

    columns: tuple[str, ...] = tuple(COLUMNS)
    start: Position = field(default_factory=lambda: Position(PositionKind.EARLIEST, STARTING[0]))
    end: Position = field(default_factory=lambda: Position(PositionKind.LATEST, ENDING[0]))
    mode: Mode = Mode.FAIL_FAST
    split_size: int = DEFAULT_SPLIT_SIZE
    max_bytes_per_trigger: int | None = None
    max_offsets_per_trigger: int | None = None
    fail_on_data_loss: bool = True

    def data_loss(self, what: str) -> None:
        """OffsetOutOfRangeError, or with failOnDataLoss=false a warning."""
        if self.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{what} (failOnDataLoss=false reads on with what is there)")
        logger.warning("%s; reading goes on with what is there", what)


def common(
    given: Mapping[str, str],
    columns: Iterable[str] = COLUMNS,
    modes: Iterable[Mode] = Mode,
    on_request: Iterable[str] = (),
) -> dict[str, Any]:
    """The fields of SourceOptions but start and end; `columns`, `modes`: those of the source; `on_request`: columns
    that it has if they are named. Raises ConfigError and UnknownKeyError."""
    mode = Mode(one_of(given, "mode", tuple(mode.value for mode in modes), Mode.FAIL_FAST.value))
    if "maxBytesPerTrigger" in given and "maxOffsetsPerTrigger" in given:
        raise ConfigError("one of the options 'maxBytesPerTrigger' and 'maxOffsetsPerTrigger' at most")
    return {
        "columns": chosen_columns(given, columns, on_request, permissive=mode is Mode.PERMISSIVE),
        "mode": mode,
        "split_size": _size(given, "splitSize") or DEFAULT_SPLIT_SIZE,
        "max_bytes_per_trigger": _size(given, "maxBytesPerTrigger"),
        "max_offsets_per_trigger": count(given, "maxOffsetsPerTrigger"),
        "fail_on_data_loss": flag(given, "failOnDataLoss", default=True),
    }


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

    @classmethod
    def parse(cls, options: Mapping[str, str], known: Iterable[str] = OPTIONS) -> LogOptions:
        """Raises UnknownKeyError for an unknown option, ConfigError for an invalid value."""
        given = named(options, known)
        found = stores(given)
        skipping = _skipping(given)
        return cls(
            stores=found,
            archive=_archive(given, found),
            topics=some_of(given, "topics"),
            keys=some_of(given, "keys"),
            start=Position.parse(given, STARTING, PositionKind.EARLIEST, physical=True),
            end=Position.parse(given, ENDING, PositionKind.LATEST, physical=True),
            unpack=flag(given, "unpack", default=True),
            verify=one_of(given, "verify", (VERIFY_NONE, VERIFY_CRC, VERIFY_FULL), VERIFY_CRC),
            skipping=skipping != "false",
            known_topics=skipping == "known",
            **common(given, on_request=ON_REQUEST),
        )

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(store.root for store in self.stores)

    def check_batch(self) -> None:
        """ConfigError for positions that make sense in a stream only."""
        if self.start.kind is PositionKind.LATEST:
            raise ConfigError("option 'startingOffsets' is 'latest'; a batch cannot begin there")
        if self.end.kind is PositionKind.EARLIEST:
            raise ConfigError("option 'endingOffsets' is 'earliest'; a batch cannot end there")


def option_texts(paths: Sequence[str], options: Mapping[str, object]) -> dict[str, str]:
    """Options as Spark takes them: texts; lists and dictionaries as JSON."""
    return {"path": json.dumps(paths), **{name: _text(value) for name, value in options.items()}}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return str(value)
    return json.dumps([str(item) for item in value])


ELSEWHERE = {"topic": "subscribe", "topics": "subscribe", "subscribe": "topics"}
"""Options that the sources of stores and of brokers have under different names."""


def named(options: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """The options under their own names. UnknownKeyError, which names the nearest known one; ConfigError for a table in
    Spark's catalog, whose options Spark hands on when it makes the table, but not when it reads it."""
    known = tuple(known)
    by_lower = {name.lower(): name for name in known}
    if {"owner", "provider"} <= {key.lower() for key in options}:
        raise ConfigError(NO_TABLE)
    given: dict[str, str] = {}
    for key, value in options.items():
        if key.lower() not in by_lower:
            if (other := ELSEWHERE.get(key.lower())) in known:
                raise ConfigError(f"unknown option {key!r}{did_you_mean(other)}")
            raise UnknownKeyError(key, known, what="option")
        given[by_lower[key.lower()]] = str(value)
    return given


def listed(option: str, text: str) -> list[str]:
    """Items separated by commas, or a JSON list of strings (for items with commas in them)."""
    if not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        return [str(item) for item in json.loads(text)]
    except ValueError as error:
        raise ConfigError(f"option {option!r} is not a JSON list: {text!r}") from error


def some_of(given: Mapping[str, str], option: str) -> frozenset[str] | None:
    """The names in a list, None (all) if it is not given. ConfigError for an empty one."""
    if option not in given:
        return None
    names = frozenset(listed(option, given[option]))
    if not names:
        raise ConfigError(f"option {option!r} is {given[option]!r}, which names none")
    return names


def stores(given: Mapping[str, str]) -> tuple[Storage, ...]:
    """The stores that the PLACE_OPTIONS name. ConfigError."""
    paths = listed("path", given.get("path", ""))
    if "paths" in given:  # load([...]) arrives as JSON
        if not given["paths"].lstrip().startswith("["):
            raise ConfigError(f"option 'paths' is not a JSON list: {given['paths']!r}")
        paths += listed("paths", given["paths"])
    if not paths:
        raise ConfigError(
            "option 'path' is missing: name one or more store directories, separated by commas"
            + ("" if given else f". {NO_TABLE}")
        )
    options: Any = {}
    if "storageOptions" in given:
        try:
            options = json.loads(given["storageOptions"])
        except ValueError:
            options = None
        if not isinstance(options, dict):
            raise ConfigError(f"option 'storageOptions' is not a JSON object: {given['storageOptions']!r}")
    return tuple(Storage(_tidy(path), options) for path in paths)


def _skipping(given: Mapping[str, str]) -> str:
    if given.get("skipping", "").lower() == "sampled":
        raise ConfigError(
            "option 'skipping' no longer takes 'sampled': leave the option out, and write the log's heads "
            "(`mqlake store heads`), which skip by store time without leaving out a row"
        )
    return one_of(given, "skipping", ("true", "false", "known"), "true")


def _archive(given: Mapping[str, str], found: tuple[Storage, ...]) -> Storage | None:
    if "archive" not in given:
        return None
    if len(found) > 1:
        raise ConfigError(
            "option 'archive' is of one store: read several stores with their archives one by one"
        )
    return Storage(_tidy(given["archive"]).rstrip("/"), found[0].options)


def _tidy(path: str) -> str:
    """One name for one local directory, which a checkpoint knows it by."""
    path = path.removeprefix("file://")
    return path if "://" in path else os.path.normpath(os.path.expanduser(path))


def chosen_columns(
    given: Mapping[str, str],
    known: Iterable[str],
    on_request: Iterable[str] = (),
    *,
    permissive: bool = False,
) -> tuple[str, ...]:
    """The columns that the options `columns` and `includeBody` name, of those of the source."""
    known = tuple(known)
    names = listed("columns", given["columns"]) if "columns" in given else list(known)
    check_columns(names, (*known, *on_request))
    if not flag(given, "includeBody", default=True):
        names = [name for name in names if name != "body"]
    if permissive and CORRUPT_COLUMN not in names:
        names.append(CORRUPT_COLUMN)
    return tuple(names)


def check_columns(names: Sequence[str], known: Iterable[str]) -> None:
    """UnknownKeyError; ConfigError for a repeated name, or no names."""
    known = tuple(known)
    for name in names:
        if name not in known and name != CORRUPT_COLUMN:
            raise UnknownKeyError(name, known, what="column")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"option 'columns' must name columns, each once: {', '.join(names)!r}")


def one_of(given: Mapping[str, str], option: str, allowed: tuple[str, ...], default: str) -> str:
    value = given.get(option, default)
    for each in allowed:
        if value.lower() == each.lower():
            return each
    raise ConfigError(f"option {option!r} is {value!r}; it can be {', '.join(allowed[:-1])} or {allowed[-1]}")


def flag(given: Mapping[str, str], option: str, *, default: bool) -> bool:
    return one_of(given, option, ("true", "false"), str(default)) == "true"


def count(given: Mapping[str, str], option: str) -> int | None:
    """A number above 0, None when it is not given."""
    if option not in given:
        return None
    text = given[option].strip()
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(f"option {option!r} is {text!r}; it takes a number above 0")
    return int(text)


def _size(given: Mapping[str, str], option: str) -> int | None:
    return parse_size(option, given[option]) if option in given else None
