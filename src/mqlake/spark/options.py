"""Options as Spark has them: texts, with names that are not case-sensitive, as everywhere in Spark.

They become values (mqlake.lake.options) once, in the driver. ConfigError names the option, its value and what it takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mqlake.base.settings import parse_size
from mqlake.errors import ConfigError, UnknownKeyError, did_you_mean
from mqlake.lake.arrow.schema import COLUMNS, ON_REQUEST
from mqlake.lake.log.splits import DEFAULT_SPLIT_SIZE, VERIFY_CRC
from mqlake.lake.log.storage import Storage
from mqlake.lake.offsets import PositionKind
from mqlake.lake.options import VERIFY, LogOptions, Mode, archive_of, check_columns, columns_in, mode_of
from mqlake.lake.options import one_of as value_of
from mqlake.spark.positions import ENDING, STARTING, parse_position

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


def log_options(options: Mapping[str, str], known: Iterable[str] = OPTIONS) -> LogOptions:
    """The options of `commitlog`. UnknownKeyError for an unknown option, ConfigError for an invalid value."""
    given = named(options, known)
    found = stores(given)
    skipping = _skipping(given)
    return LogOptions(
        stores=found,
        archive=archive_of(called("archive"), given["archive"], found) if "archive" in given else None,
        topics=some_of(given, "topics"),
        keys=some_of(given, "keys"),
        start=parse_position(given, STARTING, PositionKind.EARLIEST, physical=True),
        end=parse_position(given, ENDING, PositionKind.LATEST, physical=True),
        unpack=flag(given, "unpack", default=True),
        verify=one_of(given, "verify", VERIFY, VERIFY_CRC),
        skipping=skipping != "false",
        known_topics=skipping == "known",
        **common(given, on_request=ON_REQUEST),
    )


def common(
    given: Mapping[str, str],
    columns: Iterable[str] = COLUMNS,
    modes: Iterable[Mode] = Mode,
    on_request: Iterable[str] = (),
) -> dict[str, Any]:
    """The fields of SourceOptions but start and end; `columns`, `modes`: those of the source; `on_request`: columns
    that it has if they are named. Raises ConfigError and UnknownKeyError."""
    mode = mode_of(called("mode"), given.get("mode", Mode.FAIL_FAST.value), modes)
    if "maxBytesPerTrigger" in given and "maxOffsetsPerTrigger" in given:
        raise ConfigError("one of the options 'maxBytesPerTrigger' and 'maxOffsetsPerTrigger' at most")
    return {
        "columns": columns_in(mode, _columns(given, tuple(columns), on_request)),
        "mode": mode,
        "split_size": _size(given, "splitSize") or DEFAULT_SPLIT_SIZE,
        "max_bytes_per_trigger": _size(given, "maxBytesPerTrigger"),
        "max_offsets_per_trigger": count(given, "maxOffsetsPerTrigger"),
        "fail_on_data_loss": flag(given, "failOnDataLoss", default=True),
        "reads_on": "failOnDataLoss=false",
    }


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
    return tuple(Storage.at(path, options, called("path")) for path in paths)


def _skipping(given: Mapping[str, str]) -> str:
    if given.get("skipping", "").lower() == "sampled":
        raise ConfigError(
            "option 'skipping' no longer takes 'sampled': leave the option out, and write the log's heads "
            "(`mqlake store heads`), which skip by store time without leaving out a row"
        )
    return one_of(given, "skipping", ("true", "false", "known"), "true")


def _columns(given: Mapping[str, str], known: tuple[str, ...], on_request: Iterable[str]) -> list[str]:
    """Returns the columns that the options `columns` and `includeBody` name."""
    names = listed("columns", given["columns"]) if "columns" in given else list(known)
    check_columns(names, (*known, *on_request), called("columns"))
    return names if flag(given, "includeBody", default=True) else [name for name in names if name != "body"]


def called(option: str) -> str:
    """Returns the name of an option as errors give it."""
    return f"option {option!r}"


def one_of(given: Mapping[str, str], option: str, allowed: Sequence[str], default: str) -> str:
    return value_of(called(option), given.get(option, default), allowed)


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
