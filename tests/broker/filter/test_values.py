from __future__ import annotations

import math

import pytest

from mqlake.broker.filter.values import Long, NotComparableError, compare, compare_in_order, parse_double

DOUBLES = {
    "1": 1.0,
    "-1.5": -1.5,
    ".5": 0.5,
    "5.": 5.0,
    "1e3": 1000.0,
    "+1E-1": 0.1,
    " 7\t": 7.0,
    "2d": 2.0,
    "2F": 2.0,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
    "1e999": math.inf,
}


@pytest.mark.parametrize(("text", "value"), DOUBLES.items())
def test_doubles(text, value):
    assert parse_double(text) == value


@pytest.mark.parametrize("text", ["", " ", "x", "1_0", "inf", "nan", "0x1p3", "1e", ".", "1 2", "٣", "--1"])
def test_no_doubles(text):
    with pytest.raises(NotComparableError):
        parse_double(text)


def test_kinds_meet():
    assert compare("5", 5) == 0 and compare(5, "6") == -1
    assert compare("3000000000", Long(3000000000)) == 0
    assert compare("2.5", 2.5) == 0 and compare(2.5, "3") == -1
    assert compare(5, Long(6)) == -1 and compare(Long(5), 5) == 0
    assert compare(1, 1.5) == -1 and compare(Long(2), 1.5) == 1
    assert compare("TRUE", True) == 0 and compare("no", True) == -1
    assert compare(True, 5) == -1 and compare(5, True) == -1


def test_numbers_as_texts_are_ordered_as_numbers_and_equal_as_texts():
    assert compare_in_order("10", "9") == 1
    assert compare("10", "9") == -1
    assert compare("1", "1.0") != 0


def test_javas_order_of_doubles():
    assert compare(math.nan, math.nan) == 0
    assert compare(math.nan, math.inf) == 1
    assert compare(-0.0, 0.0) == -1 and compare(0.0, 0.0) == 0


@pytest.mark.parametrize(
    ("left", "right"), [("x", 5), ("5.0", 5), ("2147483648", 5), ("9" * 19, Long(1 << 40)), (True, "true")]
)
def test_what_cannot_be_compared(left, right):
    with pytest.raises(NotComparableError):
        compare(left, right)
