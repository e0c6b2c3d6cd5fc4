"""Arrow expressions as conditions: what is told, and what is left to Arrow."""

from __future__ import annotations

import operator
from datetime import UTC, datetime

import pyarrow.compute as pc
import pytest

from mqlake.lake.arrow.expressions import columns_of, conditions_of
from mqlake.lake.arrow.filters import Condition
from mqlake.lake.arrow.schema import COLUMNS

TIME = datetime(2024, 2, 29, 12, tzinfo=UTC)
topic, queue, size, time = (pc.field(name) for name in ("topic", "queueId", "size", "storeTimestamp"))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (topic == "it's", [Condition("topic", operator.eq, ("it's",))]),
        (topic == "line\nline: 'x'", [Condition("topic", operator.eq, ("line\nline: 'x'",))]),
        (queue.isin([1, 2]), [Condition("queueId", None, (1, 2))]),
        ((queue == 1) | (queue == 2), [Condition("queueId", None, (1, 2))]),
        (
            (topic == "a") & (time >= TIME) & (size < 9),
            [
                Condition("topic", operator.eq, ("a",)),
                Condition("storeTimestamp", operator.ge, (TIME,)),
                Condition("size", operator.lt, (9,)),
            ],
        ),
        (pc.scalar(5) > size, [Condition("size", operator.lt, (5,))]),
        (pc.scalar(5) == size, [Condition("size", operator.eq, (5,))]),
        # of an alternative over two columns, of a negation and of calls nothing is known
        ((queue == 1) | (topic == "a"), []),
        (~(queue == 1), []),
        (queue != 1, []),
        (pc.match_substring(topic, "a"), []),
        (topic > "a", []),
        (queue + size == 3, []),
        (queue == size, []),
        (pc.field("body") == b"x", []),
        (queue.is_null(), []),
        (pc.scalar(True), []),
        (queue.isin([]), []),
        (pc.field("no such column") == 1, []),
        ((queue == 1) & ~(topic == "a"), [Condition("queueId", operator.eq, (1,))]),
    ],
    ids=str,
)
def test_conditions(expression: pc.Expression, expected: list[Condition]) -> None:
    assert list(conditions_of(expression)) == expected


def test_a_null_among_the_values_gives_no_condition() -> None:
    assert conditions_of(queue.isin([1, None])) == ()
    assert conditions_of(topic == pc.scalar(None)) == ()


def test_no_expression() -> None:
    assert conditions_of(None) == () and columns_of(None, list(COLUMNS)) == []


def test_columns_that_are_needed() -> None:
    assert columns_of((topic == "a") | ~(queue > size), list(COLUMNS)) == ["topic", "queueId", "size"]
