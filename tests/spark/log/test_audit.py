"""The partial results of splits, joined; without Spark, which test_commitlog.py and the demo use them with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import Row

from mqlake.spark.log.audit import VerifyReport, audit_split, report_of
from mqlake.spark.log.splits import plan
from mqlake.store import open_store
from tests.spark.log.test_splits import SPLIT_SIZES, place
from tests.spark.stores import copy_store, decoded, flip_bit, log_files, messages


def verify(root: Path, split_size: int = 5000) -> VerifyReport:
    rows = [
        Row(**row)
        for split in reversed(plan(str(root), split_size))
        for row in audit_split(split).to_pylist()
    ]
    return report_of((str(root),), rows)


@pytest.mark.parametrize("split_size", SPLIT_SIZES)
def test_a_sound_store(every_kind: Path, split_size: int) -> None:
    found = decoded(every_kind)
    report = verify(every_kind, split_size)
    assert report.problems == []
    assert (report.records, report.bytes) == (len(found), sum(m.store_size for m in found))
    assert report.files == len({m.physical_offset // (16 << 10) for m in found})
    assert {(q.topic, q.queue_id): q.records for q in report.queues} == Counter(
        (m.topic, m.queue_id) for m in found
    )
    hidden = sum(m.sys_flag & 0xC in (0x4, 0xC) for m in found)
    assert hidden > 0
    assert report.messages == len(found) - hidden
    assert "all sound" in report.describe()


def test_stores_of_java(golden_store: Path) -> None:
    report = verify(golden_store)
    assert report.damages == []
    assert report.breaks == []
    assert report.records == len(decoded(golden_store))


@pytest.mark.parametrize("split_size", SPLIT_SIZES)
def test_damage_and_the_gap_it_leaves(every_kind: Path, tmp_path: Path, split_size: int) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    position, _, offset = place(root, 1, 0)
    lost = next(m for m in decoded(root) if m.physical_offset == offset)
    assert any(
        (m.topic, m.queue_id, m.queue_offset) == (lost.topic, lost.queue_id, lost.queue_offset + 1)
        for m in decoded(root)
    )
    flip_bit(log_files(root)[1], position + 88)
    report = verify(root, split_size)
    (damage,), (gap,) = report.damages, report.breaks
    assert str(log_files(root)[1]) in damage
    assert f"at byte {position}" in damage
    assert (
        f"{lost.topic}, queue {lost.queue_id}: offset {lost.queue_offset + 1} follows where {lost.queue_offset}"
        in gap
    )
    assert not report.ok
    assert "1 damages, 1 breaks" in report.describe()


def test_a_queue_that_begins_anew(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(root) as store:
        for n, message in enumerate(messages()):
            message.topic, message.queue_id, message.sys_flag = "T", 0, 0
            message.properties.clear()
            if n == 100:
                store.commit_log.queue_offsets[("T", 0)] = 7
            store.put_message(message)
    for split_size in (64 << 20, 1000):
        (gap,) = verify(root, split_size).breaks
        assert "T, queue 0: offset 7 follows where 100 was expected" in gap
