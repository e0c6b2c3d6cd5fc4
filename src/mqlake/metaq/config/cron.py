"""Quartz cron expressions, for the times of delete jobs.

    second minute hour day-of-month month day-of-week [year]      0 0 6,18 * * ?   at 6:00 and 18:00

Each field is `*`, `?` (days only), a list of numbers, names (JAN, MON) and ranges, any of them with `/step`.
Days of the week are 1 (SUN) to 7 (SAT). `L` is the last day of the month, `6L` the last Friday, `6#3` the
third. `W` (the nearest weekday) is not supported.
"""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mqlake.errors import ConfigError

# three letters each, back to back
_MONTH_NAMES, _DAY_NAMES = "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC", "SUNMONTUEWEDTHUFRISAT"
_MONTHS = {_MONTH_NAMES[3 * i : 3 * i + 3]: str(i + 1) for i in range(12)}
_DAYS = {_DAY_NAMES[3 * i : 3 * i + 3]: str(i + 1) for i in range(7)}
_FIELDS = (
    ("second", 0, 59),
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 1, 7),
    ("year", 1970, 2199),
)
_YEARS_AHEAD = 5


@dataclass(frozen=True, slots=True)
class CronExpression:
    """Made by `parse_cron`; times are naive and local, as in the original."""

    text: str
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int] | None
    """Days of the month, 0 is the last; None: any."""
    months: frozenset[int]
    weekdays: frozenset[tuple[int, int]] | None
    """(1 SUN .. 7 SAT, which one in the month: 0 any, 1 to 5, -1 the last); None: any."""
    years: frozenset[int] | None

    def next_after(self, moment: datetime.datetime) -> datetime.datetime | None:
        """The first time after `moment`; None if there is none within the next five years."""
        start = moment.replace(microsecond=0) + datetime.timedelta(seconds=1)
        for day in self._days_from(start.date()):
            earliest = start.time() if day == start.date() else datetime.time()
            for hour in sorted(self.hours):
                for minute in sorted(self.minutes):
                    if (hour, minute, 59) < (earliest.hour, earliest.minute, earliest.second):
                        continue
                    for second in sorted(self.seconds):
                        found = datetime.time(hour, minute, second)
                        if found >= earliest:
                            return datetime.datetime.combine(day, found)
        return None

    def _days_from(self, day: datetime.date) -> Iterator[datetime.date]:
        for offset in range(366 * _YEARS_AHEAD):
            candidate = day + datetime.timedelta(days=offset)
            if (
                candidate.month in self.months
                and (self.years is None or candidate.year in self.years)
                and self._has_day(candidate)
            ):
                yield candidate

    def _has_day(self, day: datetime.date) -> bool:
        last = calendar.monthrange(day.year, day.month)[1]
        if self.days is not None and day.day not in self.days and not (0 in self.days and day.day == last):
            return False
        if self.weekdays is None:
            return True
        weekday = day.isoweekday() % 7 + 1
        places = (0, (day.day - 1) // 7 + 1, -1 if day.day + 7 > last else 0)
        return any((weekday, place) in self.weekdays for place in places)


def parse_cron(text: str) -> CronExpression:
    """ConfigError, with the invalid field."""
    fields = text.upper().split()
    if not 6 <= len(fields) <= 7:
        raise ConfigError(f"cron expression {text!r}: 6 or 7 fields are needed, there are {len(fields)}")
    try:
        seconds, minutes, hours = (_numbers(fields[i], i) for i in range(3))
        months = _numbers(fields[4], 4)
        assert seconds is not None and minutes is not None and hours is not None and months is not None
        return CronExpression(
            text,
            seconds,
            minutes,
            hours,
            None if fields[3] == "?" else _numbers(fields[3], 3),
            months,
            _weekdays(fields[5]),
            _numbers(fields[6], 6) if len(fields) == 7 and fields[6] != "*" else None,
        )
    except ValueError as error:
        raise ConfigError(f"cron expression {text!r}: {error}") from None


def _numbers(text: str, field: int) -> frozenset[int]:
    name, low, high = _FIELDS[field]
    found: set[int] = set()
    for part in text.split(","):
        if part == "L" and field == 3:
            found.add(0)
            continue
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            start, end = low, high
        else:
            start = _number(first, name, low, high)
            end = _number(last, name, low, high) if dash else high if slash else start
        width = _number(step, name, 1, high) if slash else 1
        found.update(range(start, end + 1, width))
        if end < start:  # FRI-MON, 22-4
            found.update(
                i if i <= high else i - (high - low + 1) for i in range(start, end + high - low + 2, width)
            )
    return frozenset(found)


def _number(text: str, name: str, low: int, high: int) -> int:
    text = _MONTHS.get(text, text) if name == "month" else _DAYS.get(text, text) if "week" in name else text
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise ValueError(f"{text!r} is not a {name} ({low} to {high})")
    return int(text)


def _weekdays(text: str) -> frozenset[tuple[int, int]] | None:
    if text in ("?", "*"):
        return None
    found: set[tuple[int, int]] = set()
    for part in text.split(","):
        special = re.fullmatch(r"(\w+?)(L|#([1-5]))", part)
        if special is not None:
            place = -1 if special[2] == "L" else int(special[3])
            found.add((_number(special[1], "day of week", 1, 7), place))
        elif part == "L":
            found.add((7, 0))
        else:
            found.update((day, 0) for day in _numbers(part, 5))
    return frozenset(found)
