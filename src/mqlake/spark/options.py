"""The options of the `commitlog` sources, typed. Names are not case-sensitive, as everywhere in Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.spark.schema import COLUMNS, CORRUPT_COLUMN
from mqlake.spark.splits import DEFAULT_SPLIT_SIZE, VERIFY_CRC, VERIFY_FULL, VERIFY_NONE

OPTIONS = ("path", "paths", "topics", "columns", "includeBody", "verify", "mode", "splitSize")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Mode(Enum):
    """What becomes of damage."""

    FAIL_FAST = "failFast"
    """An error that names file and offset."""
    PERMISSIVE = "permissive"
    """A row whose column `_corrupt` names file and offset; reading goes on at the next record."""
    DROP_MALFORMED = "dropMalformed"
    """Nothing: reading goes on at the next record."""


@dataclass(frozen=True)
class LogOptions:
    """One read of one or more store directories. `topics` None: all of them."""

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    topics: frozenset[str] | None = None
    verify: str = VERIFY_CRC
    mode: Mode = Mode.FAIL_FAST
    split_size: int = DEFAULT_SPLIT_SIZE

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> LogOptions:
        """Raises UnknownKeyError for an option nobody knows, ConfigError for a value that cannot be used."""
        known = {name.lower(): name for name in OPTIONS}
        given: dict[str, str] = {}
        for key, value in options.items():
            if key.lower() not in known:
                raise UnknownKeyError(key, OPTIONS, what="option")
            given[known[key.lower()]] = str(value)
        mode = _mode(given.get("mode", Mode.FAIL_FAST.value))
        return cls(
            paths=_paths(given),
            columns=_columns(given, mode),
            topics=frozenset(_listed(given["topics"])) if "topics" in given else None,
            verify=_one_of("verify", given.get("verify", VERIFY_CRC), (VERIFY_NONE, VERIFY_CRC, VERIFY_FULL)),
            mode=mode,
            split_size=parse_size("splitSize", given["splitSize"])
            if "splitSize" in given
            else DEFAULT_SPLIT_SIZE,
        )


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    paths = _listed(given.get("path", ""))
    if "paths" in given:  # load([...]) arrives as JSON
        try:
            paths += [str(path) for path in json.loads(given["paths"])]
        except ValueError as error:
            raise ConfigError(f"option 'paths' is not a JSON list: {given['paths']!r}") from error
    if not paths:
        raise ConfigError("option 'path' is missing: name one or more store directories, separated by commas")
    return tuple(path.removeprefix("file://") for path in paths)


def _columns(given: Mapping[str, str], mode: Mode) -> tuple[str, ...]:
    names = _listed(given["columns"]) if "columns" in given else list(COLUMNS)
    for name in names:
        if name not in COLUMNS and name != CORRUPT_COLUMN:
            raise UnknownKeyError(name, COLUMNS, what="column")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"option 'columns' must name columns, each once: {given['columns']!r}")
    include_body = _one_of("includeBody", given.get("includeBody", "true"), ("true", "false"))
    if include_body == "false":
        names = [name for name in names if name != "body"]
    if mode is Mode.PERMISSIVE and CORRUPT_COLUMN not in names:
        names.append(CORRUPT_COLUMN)
    return tuple(names)


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    for each in allowed:
        if value.lower() == each.lower():
            return each
    raise ConfigError(f"option {option!r} is {value!r}; it can be {', '.join(allowed[:-1])} or {allowed[-1]}")


def _mode(value: str) -> Mode:
    return Mode(_one_of("mode", value, tuple(mode.value for mode in Mode)))


def parse_size(option: str, text: str) -> int:
    """Bytes: a number, or one with k, m or g behind it."""
    match = re.fullmatch(r"(\d+)\s*([kmg]?)b?", text.strip().lower())
    if match is None or int(match.group(1)) == 0:
        raise ConfigError(f"option {option!r} is {text!r}; it takes bytes, or a number with k, m or g")
    return int(match.group(1)) * _UNITS[match.group(2)]
