"""Values as people and JSON see them: sizes, counts and times as text, dataclasses as objects."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from typing import Any

from mqlake.base.names import camel_case

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def as_object(value: Any) -> Any:
    """A value as JSON can hold it: dataclasses as objects with names in camelCase, enums as their values, bytes in
    hexadecimal."""
    if dataclasses.is_dataclass(value):
        return {
            camel_case(field.name): as_object(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): as_object(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_object(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    return value


def size_text(size: float) -> str:
    """1536 → `1.5 KiB`."""
    for unit in UNITS[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {UNITS[-1]}"


def count_text(count: int, thing: str, things: str = "") -> str:
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def time_text(timestamp_ms: int) -> str:
    """ISO 8601 in local time with milliseconds; `-` for 0 or less, the number for a time beyond the calendar."""
    if timestamp_ms <= 0:
        return "-"
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds")
