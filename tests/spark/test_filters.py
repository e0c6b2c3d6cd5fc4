from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource as ds

from mqlake.spark.filters import conditions, rows_passing
from mqlake.spark.splits import Damage, map_file, plan, walk
from tests.spark.stores import BORN, decoded, time_of

MOMENT = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=BORN + 50)
TESTS: list[tuple[ds.Filter, Any]] = [
    (ds.EqualTo(("topic",), "Topic-1"), lambda m: m.topic == "Topic-1"),
    (ds.In(("topic",), ["Topic-1", "Batch", "none"]), lambda m: m.topic in ("Topic-1", "Batch")),
    (ds.EqualTo(("queueId",), 2), lambda m: m.queue_id == 2),
    (ds.In(("queueId",), [0, 2]), lambda m: m.queue_id in (0, 2)),
    (ds.GreaterThan(("queueOffset",), 3), lambda m: m.queue_offset > 3),
    (ds.LessThanOrEqual(("physicalOffset",), 20000), lambda m: m.physical_offset <= 20000),
    (ds.GreaterThanOrEqual(("bornTimestamp",), MOMENT), lambda m: time_of(m.born_timestamp) >= MOMENT),
    (
        ds.LessThan(("bornTimestamp",), MOMENT + timedelta(microseconds=1)),
        lambda m: time_of(m.born_timestamp) <= MOMENT,
    ),
    (ds.EqualTo(("bornTimestamp",), MOMENT), lambda m: time_of(m.born_timestamp) == MOMENT),
    (ds.EqualTo(("tags",), "TagA"), lambda m: True),
    (ds.Not(ds.EqualTo(("topic",), "Batch")), lambda m: True),
    (ds.IsNotNull(("topic",)), lambda m: True),
    (ds.EqualTo(("properties", "a"), "b"), lambda m: True),
]


def passing(root: Path, filters: list[ds.Filter], topics: frozenset[str] | None = None) -> list[int]:
    found = []
    for split in plan(str(root)):
        for scan in walk(split, map_file(split)):
            assert not isinstance(scan, Damage)
            rows = rows_passing(scan, topics, conditions(filters))
            found += (scan.physical_offset if rows is None else scan.physical_offset[rows]).tolist()
    return found


@pytest.mark.parametrize(("given", "holds"), TESTS, ids=[repr(given) for given, _ in TESTS])
def test_each_filter(every_kind: Path, given: ds.Filter, holds: Any) -> None:
    assert passing(every_kind, [given]) == [m.physical_offset for m in decoded(every_kind) if holds(m)]


def test_together_with_topics(every_kind: Path) -> None:
    filters = [ds.In(("topic",), ["Topic-1", "Topic-2"]), ds.GreaterThan(("queueOffset",), 3)]
    assert passing(every_kind, filters, frozenset({"Topic-2", "Topic-3"})) == [
        m.physical_offset for m in decoded(every_kind) if m.topic == "Topic-2" and m.queue_offset > 3
    ]


def test_no_filters_choose_nothing(every_kind: Path) -> None:
    assert passing(every_kind, []) == [m.physical_offset for m in decoded(every_kind)]
