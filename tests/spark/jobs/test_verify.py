"""The parallel verification beside the one of the store: reports are equal, on sound stores and on damaged ones."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mqlake.errors import NotAStoreError
from mqlake.spark.jobs import verify as job
from mqlake.spark.jobs.verify import StoresReport, verify_log, verify_stores
from mqlake.store import open_store
from mqlake.store.check.verify import VerifyReport, verify_store
from tests.golden import Golden
from tests.lake.log.test_splits import SPLIT_SIZES, place
from tests.spark.stores import body_position, copy_store, decoded, flip_bit, log_files, messages, overwrite

SETTINGS: dict[str, object] = {"maxHashSlotNum": 100, "maxIndexNum": 400}


def alike(report: VerifyReport) -> VerifyReport:
    return dataclasses.replace(report, seconds=0.0)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces one after the other in this process, without a JVM."""

    def per_piece(_spark: object, items: Any, work: Any, _columns: object) -> SimpleNamespace:
        rows = [SimpleNamespace(**row) for item in items for batch in work(item) for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: rows)

    monkeypatch.setattr(job, "per_piece", per_piece)
    monkeypatch.setattr(job, "parallelism", lambda _spark: 3)


def verified(*roots: Path, settings: dict[str, object] | None = None) -> StoresReport:
    return verify_stores(None, *map(str, roots), settings=settings, split_size=3000)  # type: ignore[arg-type]


@pytest.mark.usefixtures("here")
def test_stores_of_java(golden: Golden) -> None:
    settings = {name: golden.config[name] for name in ("maxHashSlotNum", "maxIndexNum")}
    found = verified(golden.root, settings=settings)
    assert [alike(report) for report in found.stores] == [alike(verify_store(golden.root, settings))]
    assert not found.in_doubt
    assert sum(topic.records for topic in found.topics) == found.stores[0].records


def flip_body(root: Path) -> None:
    message = next(m for m in decoded(root) if len(m.body) > 50)
    flip_bit(log_files(root)[0], message.physical_offset + body_position(message))


def zeros_in_the_log(root: Path) -> None:
    overwrite(log_files(root)[0], 6000, bytes(3000))


def torn_tail(root: Path) -> None:
    last = decoded(root)[-1]
    file = log_files(root)[-1]
    overwrite(file, last.physical_offset - int(file.name) + 40, bytes(last.store_size - 40))


def another_queue_offset(root: Path) -> None:
    message = decoded(root)[60]
    overwrite(log_files(root)[0], message.physical_offset + 20, (77).to_bytes(8, "big"))


def another_queue(root: Path) -> None:
    message = decoded(root)[60]
    overwrite(log_files(root)[0], message.physical_offset + 12, (message.queue_id ^ 1).to_bytes(4, "big"))


def a_unit(root: Path) -> None:
    overwrite(next((root / "consumequeue" / "Topic-1" / "1").iterdir()), 40, b"\x01")


def a_queue_gone(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "Topic-2" / "2")


def a_unit_too_many(root: Path) -> None:
    file = max((root / "consumequeue" / "Topic-1" / "1").iterdir())
    units = -(-len(file.read_bytes().rstrip(b"\0")) // 20)
    overwrite(file, units * 20, (1 << 40).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8))


def an_index_entry(root: Path) -> None:
    overwrite(min((root / "index").iterdir()), 40 + 400 + 20 * 9 + 4, b"\1\2")


def an_index_chain(root: Path) -> None:
    overwrite(min((root / "index").iterdir()), 40 + 4 * 7, (3).to_bytes(4, "big"))


def checkpoint_of_the_future(root: Path) -> None:
    overwrite(root / "checkpoint", 0, (1 << 50).to_bytes(8, "big"))


def not_closed(root: Path) -> None:
    (root / "abort").touch()
    torn_tail(root)


DAMAGES = [
    flip_body,
    zeros_in_the_log,
    torn_tail,
    another_queue_offset,
    another_queue,
    a_unit,
    a_queue_gone,
    a_unit_too_many,
    an_index_entry,
    an_index_chain,
    checkpoint_of_the_future,
    not_closed,
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage(damage: Callable[[Path], None], every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    damage(root)
    found = verified(root, settings=SETTINGS)
    expected = verify_store(root, SETTINGS)
    assert [alike(report) for report in found.stores] == [alike(expected)]
    assert expected.findings
    assert found.in_doubt


def verified_log(root: Path, split_size: int = 5000) -> StoresReport:
    return verify_log(None, str(root), split_size=split_size)  # type: ignore[arg-type]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("split_size", SPLIT_SIZES)
def test_a_sound_log(every_kind: Path, split_size: int) -> None:
    found = decoded(every_kind)
    report = verified_log(every_kind, split_size)
    [store] = report.stores
    assert report.problems == []
    assert (store.records, store.record_bytes) == (len(found), sum(m.store_size for m in found))
    assert store.files == len({m.physical_offset // (16 << 10) for m in found})
    assert {(q.topic, q.queue_id): q.records for q in report.queues} == Counter(
        (m.topic, m.queue_id) for m in found
    )
    hidden = sum(m.sys_flag & 0xC in (0x4, 0xC) for m in found)
    assert hidden > 0
    assert sum(queue.messages for queue in report.queues) == len(found) - hidden
    assert "all sound" in report.describe()
    whole = verify_store(every_kind, SETTINGS)
    assert (store.min_offset, store.end_offset) == (whole.min_offset, whole.end_offset)


@pytest.mark.usefixtures("here")
def test_logs_of_java(golden_store: Path) -> None:
    report = verified_log(golden_store)
    assert (report.problems, report.records) == ([], len(decoded(golden_store)))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("split_size", SPLIT_SIZES)
def test_damage_of_a_log_and_the_gap_it_leaves(every_kind: Path, tmp_path: Path, split_size: int) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    position, _, offset = place(root, 1, 0)
    lost = next(m for m in decoded(root) if m.physical_offset == offset)
    following = next(
        m
        for m in decoded(root)
        if (m.topic, m.queue_id, m.queue_offset) == (lost.topic, lost.queue_id, lost.queue_offset + 1)
    )
    flip_bit(log_files(root)[1], position + 88)
    report = verified_log(root, split_size)
    damage, gap = report.stores[0].findings
    assert (damage.kind, damage.path, damage.offset) == ("corruption", str(log_files(root)[1]), position)
    assert (gap.kind, gap.path, gap.offset) == (
        "queue offset",
        str(log_files(root)[following.physical_offset // (16 << 10)]),
        following.physical_offset % (16 << 10),
    )
    assert (
        f"{lost.topic}, queue {lost.queue_id}: offset {lost.queue_offset + 1} follows where {lost.queue_offset}"
        in gap.text
    )
    [hole] = report.stores[0].holes
    assert (hole.start, hole.end) == (offset, offset + lost.store_size)
    assert not report.ok
    assert "2 findings of damage" in report.describe()


@pytest.mark.usefixtures("here")
def test_a_queue_that_begins_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(root) as store:
        for n, message in enumerate(messages()):
            message.topic, message.queue_id, message.sys_flag = "T", 0, 0
            message.properties.clear()
            if n == 100:
                store.commit_log.queue_offsets[("T", 0)] = 7
            store.put_message(message)
    for split_size in (64 << 20, 1000):
        (gap,) = verified_log(root, split_size).problems
        assert "T, queue 0: offset 7 follows where 100 was expected" in gap


@pytest.mark.spark
def test_in_spark(spark: SparkSession, every_kind: Path, tmp_path: Path) -> None:
    damaged = copy_store(every_kind, tmp_path / "store")
    flip_body(damaged)
    found = verify_stores(spark, str(every_kind), str(damaged), settings=SETTINGS, split_size=20000)
    assert [alike(report) for report in found.stores] == [
        alike(verify_store(root, SETTINGS)) for root in (every_kind, damaged)
    ]
    assert [report.ok for report in found.stores] == [True, False]
    assert not found.ok
    with pytest.raises(NotAStoreError):
        verify_stores(spark, str(tmp_path / "nowhere"))
