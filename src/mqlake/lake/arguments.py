"""The arguments of scan() as options. ConfigError names the argument, its value and what it takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from numbers import Integral
from types import MappingProxyType
from typing import Any, TypeGuard

from mqlake.errors import ConfigError
from mqlake.lake.arrow.schema import COLUMNS
from mqlake.lake.log.storage import Storage
from mqlake.lake.offsets import EARLIEST, Position, PositionKind, QueueOffsets, to_ms
from mqlake.lake.options import Mode, check_columns, columns_in, mode_of

Moment = int | str | datetime | Mapping[str, Mapping[str, int]] | None
"""A physical offset, a time (datetime), `earliest`, `latest`, or offsets of queues: {"topic": {"0": 123}}."""


def stores_at(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    storage_options: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Storage, ...]:
    """The places, which need not be stores. ConfigError for none."""
    paths = [path] if isinstance(path, str | os.PathLike) else list(path or ())
    if not paths:
        raise ConfigError("path is missing: name one or more store directories")
    return tuple(Storage.at(os.fspath(each), dict(storage_options)) for each in paths)


def shared_options(
    columns: str | Sequence[str] | None,
    start: Moment,
    end: Moment,
    mode: str,
    unpack: object,
    *,
    known: Iterable[str] = COLUMNS,
    modes: Iterable[Mode] = Mode,
    is_store: bool = True,
) -> dict[str, Any]:
    """Returns fields of SourceOptions. ConfigError, UnknownKeyError for a column that is not in `known`."""
    names = list(COLUMNS) if columns is None else names_in("columns", columns)
    check_columns(names, known)
    if not isinstance(unpack, bool):
        raise ConfigError(f"unpack is {unpack!r}; it can be True or False")
    on_damage = mode_of("mode", mode, modes)
    return {
        "columns": columns_in(on_damage, names),
        "start": _position("start", start, PositionKind.EARLIEST, is_store=is_store),
        "end": _position("end", end, PositionKind.LATEST, is_store=is_store),
        "mode": on_damage,
        "unpack": unpack,
    }


def names_in(argument: str, given: str | Iterable[str] | None) -> list[str]:
    """The names in a list, or one alone; [] for None. ConfigError for an empty list."""
    if given is None:
        return []
    names = [given] if isinstance(given, str) else [str(each) for each in given]
    if not names:
        raise ConfigError(f"{argument} names none")
    return names


def _position(argument: str, moment: Moment, default: PositionKind, *, is_store: bool) -> Position:
    """ConfigError for what is no position."""
    if moment is None:
        return Position(default, name=argument)
    if isinstance(moment, datetime):
        return Position(PositionKind.TIMESTAMP, to_ms(moment), name=argument)
    if isinstance(moment, Mapping):
        return Position(PositionKind.QUEUES, queues=_queue_offsets(argument, moment, is_store), name=argument)
    if isinstance(moment, str):
        for kind in (PositionKind.EARLIEST, PositionKind.LATEST):
            if moment.strip().lower() == kind.value:
                return Position(kind, name=argument)
    elif is_store and _is_number(moment) and moment >= 0:
        return Position(PositionKind.PHYSICAL, int(moment), name=argument)
    raise ConfigError(
        f"{argument} is {moment!r}; it can be a datetime, earliest, latest, a physical offset as a number (of a "
        'store), or offsets of queues such as {"topic": {"0": 123}}'
    )


def _queue_offsets(argument: str, given: Mapping[str, Mapping[str, int]], is_store: bool) -> QueueOffsets:
    found = {}
    for topic, queues in given.items():
        for queue, offset in queues.items() if isinstance(queues, Mapping) else [("", None)]:
            number = str(queue) if is_store else str(queue).rpartition(":")[2]
            if not number.isdecimal() or not _is_number(offset) or offset < EARLIEST:
                raise ConfigError(
                    f'{argument} is {given!r}; offsets of queues are such as {{"topic": {{"0": 123, "1": -2}}}}, where '
                    "-2 is the earliest, -1 the latest"
                )
            found[topic, str(queue)] = int(offset)
    return found


def _is_number(value: object) -> TypeGuard[int]:
    """True for numpy's integers, too."""
    return isinstance(value, Integral) and not isinstance(value, bool)
