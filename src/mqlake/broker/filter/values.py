"""How RocketMQ compares the values of a filter expression.

    text       a property's value, or a literal in quotes
    int, Long  an integer literal, by its size: 32 or 64 bits
    float      any other number
    bool       TRUE, FALSE, and what conditions give
    None       a missing property, and NULL

A text compared with a number becomes a number of the same kind; if it is not a number, NotComparableError ends the
whole evaluation and the message does not match, whatever the rest of the expression says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

Value = str | int | float | bool | None

_INTEGER = re.compile(r"[+-]?\d+")  # of any script, as in Java
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)")
_BLANKS = "".join(map(chr, range(33)))
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1


class Long(int):
    """An integer of 64 bits."""


class NotComparableError(Exception):
    """Two values cannot be compared, so the message does not match."""


def _parse_integer(text: str, low: int, high: int) -> int:
    if len(text) <= 20 and _INTEGER.fullmatch(text):
        value = int(text)
        if low <= value <= high:
            return value
    raise NotComparableError


def parse_double(text: str) -> float:
    """The number that Double.valueOf reads (without its hexadecimal form). NotComparableError."""
    text = text.strip(_BLANKS)
    if not _DOUBLE.fullmatch(text):
        raise NotComparableError
    return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)


def _compare(left: Any, right: Any) -> int:
    return 1 if left > right else -1 if left < right else 0


def _compare_doubles(left: float, right: float) -> int:
    """In Java's total order: -0.0 is less than 0.0, NaN is the greatest and equal to itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _compare((math.isnan(left), math.copysign(1, left)), (math.isnan(right), math.copysign(1, right)))


def _int_of(text: str) -> int:
    return _parse_integer(text, INT_MIN, INT_MAX)


def _long_of(text: str) -> int:
    return _parse_integer(text, LONG_MIN, LONG_MAX)


def _bool_of(text: str) -> bool:
    return text.lower() == "true"


def _cannot(left: Any, right: Any) -> int:  # noqa: ARG001
    raise NotComparableError


_COMPARATORS: dict[tuple[type, type], Callable[[Any, Any], int]] = {
    (str, str): _compare,
    (int, int): _compare,
    (int, Long): _compare,
    (Long, int): _compare,
    (Long, Long): _compare,
    (bool, bool): _compare,
    (float, float): _compare_doubles,
    (int, float): lambda left, right: _compare_doubles(float(left), right),
    (Long, float): lambda left, right: _compare_doubles(float(left), right),
    (float, int): lambda left, right: _compare_doubles(left, float(right)),
    (float, Long): lambda left, right: _compare_doubles(left, float(right)),
    (str, int): lambda left, right: _compare(_int_of(left), right),
    (int, str): lambda left, right: _compare(left, _int_of(right)),
    (str, Long): lambda left, right: _compare(_long_of(left), right),
    (Long, str): lambda left, right: _compare(left, _long_of(right)),
    (str, float): lambda left, right: _compare_doubles(parse_double(left), right),
    (float, str): lambda left, right: _compare_doubles(left, parse_double(right)),
    (str, bool): lambda left, right: _compare(_bool_of(left), right),
    (bool, str): _cannot,  # RocketMQ converts the wrong side and fails; so `TRUE = a` never matches
}


def compare(left: Value, right: Value) -> int:
    """-1, 0 or 1 for two values that are present; -1 for unrelated kinds. NotComparableError."""
    comparator = _COMPARATORS.get((type(left), type(right)))
    return -1 if comparator is None else comparator(left, right)


def compare_in_order(left: Value, right: Value) -> int:
    """compare() for `<` and other orders: two texts are compared as numbers. NotComparableError."""
    if type(left) is str and type(right) is str:
        return _compare_doubles(parse_double(left), parse_double(right))
    return compare(left, right)
