from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource as ds

from mqlake.lake.arrow.filters import RowFilter
from mqlake.lake.log.splits import Damage, open_window, splits_of_store, walk
from mqlake.message import MessageExt
from mqlake.spark.filters import conditions
from mqlake.spark.options import log_options
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
    (ds.EqualTo(("tags",), "TagA"), lambda m: m.tags == "TagA" or m.topic == "SCHEDULE_TOPIC_XXXX"),
    (ds.In(("tags",), ["TagA", "b"]), lambda m: m.tags in ("TagA", "b") or m.topic == "SCHEDULE_TOPIC_XXXX"),
    (ds.EqualTo(("keys",), "key-8 shared"), lambda m: "key-8" in (m.keys or "").split() or rolled_back(m)),
    (
        ds.EqualTo(("uniqKey",), f"7F00000100{14:022X}"),
        lambda m: m.uniq_key == f"7F00000100{14:022X}" or rolled_back(m),
    ),
    (ds.EqualTo(("keys",), " "), lambda m: True),
    (ds.GreaterThan(("tags",), "TagA"), lambda m: True),
    (ds.Not(ds.EqualTo(("topic",), "Batch")), lambda m: True),
    (ds.IsNotNull(("topic",)), lambda m: True),
    (ds.EqualTo(("properties", "a"), "b"), lambda m: True),
]


def rolled_back(message: MessageExt) -> bool:
    return message.sys_flag & 0xC == 0xC


def passing(root: Path, filters: list[ds.Filter], **options: str) -> list[int]:
    found = []
    wanted = RowFilter(
        log_options({"path": str(root), "unpack": "false", **options}), tuple(conditions(filters))
    )
    for split in splits_of_store(str(root)):
        window = open_window(split)
        for scan in walk(split, window):
            assert not isinstance(scan, Damage)
            rows = wanted.rows(window.array, scan)
            found += (scan.physical_offset if rows is None else scan.physical_offset[rows]).tolist()
    return found


@pytest.mark.parametrize(("given", "holds"), TESTS, ids=[repr(given) for given, _ in TESTS])
def test_each_filter(every_kind: Path, given: ds.Filter, holds: Any) -> None:
    assert passing(every_kind, [given]) == [m.physical_offset for m in decoded(every_kind) if holds(m)]


def test_together_with_topics(every_kind: Path) -> None:
    filters = [ds.In(("topic",), ["Topic-1", "Topic-2"]), ds.GreaterThan(("queueOffset",), 3)]
    assert passing(every_kind, filters, topics="Topic-2,Topic-3") == [
        m.physical_offset for m in decoded(every_kind) if m.topic == "Topic-2" and m.queue_offset > 3
    ]


def test_no_filters_choose_nothing(every_kind: Path) -> None:
    assert passing(every_kind, []) == [m.physical_offset for m in decoded(every_kind)]


def test_what_a_consumer_sees(every_kind: Path) -> None:
    hidden = {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"}
    expected = [
        m.physical_offset
        for m in decoded(every_kind)
        if m.topic not in hidden and m.sys_flag & 0xC in (0, 0x8)
    ]
    assert 0 < len(expected) < len(decoded(every_kind))
    assert passing(every_kind, [], unpack="true") == expected
    delayed = [m.physical_offset for m in decoded(every_kind) if m.topic == "SCHEDULE_TOPIC_XXXX"]
    assert passing(every_kind, [], unpack="true", topics="SCHEDULE_TOPIC_XXXX") == delayed != []


@pytest.mark.parametrize("keys", ["shared", "key-8,key-13", f"7F00000100{14:022X}", "none"])
def test_keys_are_exact(every_kind: Path, keys: str) -> None:
    wanted = set(keys.split(","))
    assert passing(every_kind, [], keys=keys) == [
        m.physical_offset for m in decoded(every_kind) if wanted & {m.uniq_key, *(m.keys or "").split(" ")}
    ]


POSITIONS: list[tuple[dict[str, str], Any]] = [
    ({"startingOffsets": "20000", "endingOffsets": "30000"}, lambda m: 20000 <= m.physical_offset < 30000),
    (
        {
            "startingOffsets": '{"Topic-1": {"0": 4, "1": -2}}',
            "endingOffsets": '{"Topic-1": {"0": 6, "1": -1}}',
        },
        lambda m: (m.topic, m.queue_id) != ("Topic-1", 0) or 4 <= m.queue_offset < 6,
    ),
    ({"endingOffsets": '{"Topic-1": {"0": 0}}'}, lambda m: (m.topic, m.queue_id) != ("Topic-1", 0)),
]


@pytest.mark.parametrize(("options", "holds"), POSITIONS)
def test_positions(every_kind: Path, options: dict[str, str], holds: Any) -> None:
    assert passing(every_kind, [], **options) == [m.physical_offset for m in decoded(every_kind) if holds(m)]


def test_positions_in_time(every_kind: Path) -> None:
    messages = decoded(every_kind)
    middle = messages[len(messages) // 2].store_timestamp
    expected = [m.physical_offset for m in messages if m.store_timestamp >= middle]
    assert passing(every_kind, [], startingTimestamp=str(middle)) == expected
    by_queue = f'{{"Topic-1": {{"0": {middle}}}}}'
    assert passing(every_kind, [], topics="Topic-1", endingOffsetsByTimestamp=by_queue) == [
        m.physical_offset
        for m in messages
        if m.topic == "Topic-1" and (m.queue_id != 0 or m.store_timestamp < middle)
    ]
