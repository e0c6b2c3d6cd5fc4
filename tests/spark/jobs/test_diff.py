"""Differences between a store and others with something missing, changed, damaged or added, beside plain Python."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

import mqlake.spark
from mqlake.message import MessageExtBrokerInner
from mqlake.spark.jobs import diff as job
from mqlake.spark.jobs.diff import (
    DAMAGED_FIRST,
    DAMAGED_SECOND,
    DIFFERENT,
    ONLY_FIRST,
    ONLY_SECOND,
    Difference,
    collected,
    columns,
    describe,
    diff,
    hashed,
    ranges,
)
from mqlake.store import open_store
from tests.spark.jobs.oracle import Row, dumped
from tests.spark.stores import (
    BORN,
    V4,
    body_position,
    copy_store,
    decoded,
    log_files,
    overwrite,
    write_inner_batches,
)

FILE_SIZE = 4 << 10
COUNT = 150
SETTINGS = {"mappedFileSizeConsumeQueue": 2000, "maxHashSlotNum": 100, "maxIndexNum": 4000}
BORN_AT, STORED_AT = 40, 56
"""Where a record has its times."""


def a_store(root: Path, count: int, file_size: int = FILE_SIZE, more: str = "") -> Path:
    """The first messages of always the same ones; of topic `more`, too."""
    with open_store(root, {**SETTINGS, "mappedFileSizeCommitLog": file_size}) as store:
        for n in range(count):
            topics = [f"T{n % 2}", *([more] if n % 10 == 0 and more else [])]
            for topic in topics:
                message = MessageExtBrokerInner(
                    topic, b"body-%d" % n * (1 + n % 20), tags="t", keys=f"key-{n}", queue_id=n % 3,
                    born_timestamp=BORN + n, born_host=V4, store_host=V4,
                )  # fmt: skip
                message.properties["n"] = f"{n:04}"
                assert store.put_message(message).is_ok
    return root


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_store(tmp_path_factory.mktemp("diff") / "first", COUNT)


@pytest.fixture(autouse=True)
def _many_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "STRETCH", 8)


def expected(one: list[Row], two: list[Row], *, physical: bool = False) -> set[tuple[Any, ...]]:
    """what, topic, queue, first and last offset, messages, first store time."""
    a, b = ({(r["topic"], r["queueId"], r["queueOffset"]): r for r in rows} for rows in (one, two))
    left_out = {"msgId"} if physical else {
        "msgId", "physicalOffset", "size", "storeTimestamp", "storeHost", "bornHost", "reconsumeTimes",
        "preparedTransactionOffset",
    }  # fmt: skip
    kinds: list[tuple[str, tuple[str, int, int], Row]] = []
    for place in sorted({*a, *b}):
        if place not in b:
            kinds.append((ONLY_FIRST, place, a[place]))
        elif place not in a:
            kinds.append((ONLY_SECOND, place, b[place]))
        elif any(a[place][name] != b[place][name] for name in a[place].keys() - left_out):
            kinds.append((DIFFERENT, place, a[place]))
    found: list[list[Any]] = []
    for what in (ONLY_FIRST, ONLY_SECOND, DIFFERENT):
        for kind, (topic, queue_id, offset), row in kinds:
            if kind != what:
                continue
            if found and found[-1][:3] == [what, topic, queue_id] and found[-1][4] == offset - 1:
                found[-1][4] = offset
                found[-1][5] += 1
                found[-1][6] = min(found[-1][6], row["storeTimestamp"])
            else:
                found.append([what, topic, queue_id, offset, offset, 1, row["storeTimestamp"]])
    return {tuple(each) for each in found}


def told(found: list[Difference]) -> set[tuple[Any, ...]]:
    times = [each.first_store_timestamp for each in found if each.first_store_timestamp is not None]
    assert times == sorted(times)
    return {
        (
            each.what, each.topic, each.queue_id, each.first_offset, each.last_offset, each.messages,
            each.first_store_timestamp,
        )
        for each in found
        if each.reason is None
    }  # fmt: skip


@pytest.mark.spark
def test_what_changed_is_found(spark: SparkSession, first: Path, tmp_path: Path) -> None:
    """A byte of a property, a born time, a byte of a body, at the borders of files; a store time, for a replica."""
    second = copy_store(first, tmp_path / "second")
    messages = decoded(first)
    borders = [n for n in range(1, COUNT) if messages[n].physical_offset % FILE_SIZE == 0]
    assert len(borders) >= 5
    for n, change in zip(borders, ("property", "born", "body", "store", "property"), strict=False):
        record = messages[n].physical_offset % FILE_SIZE
        path = log_files(second)[messages[n].physical_offset // FILE_SIZE]
        if change == "property":
            data = path.read_bytes()
            overwrite(path, data.index(b"n\x01%04d" % n, record) + 2, b"x")
        elif change == "body":
            overwrite(path, record + body_position(messages[n]), b"X")
            damaged = (path, messages[n].physical_offset)
        else:
            at = BORN_AT if change == "born" else STORED_AT
            overwrite(path, record + at, struct.pack(">q", messages[n].born_timestamp + 1))
    one, two = dumped(first), dumped(second)
    assert len(two) == COUNT - 1
    found = diff(spark, str(first), str(second))
    assert told(found) == expected(one, two)
    assert len(found) == 5 and found[0].what == DAMAGED_SECOND
    assert found[0].first_offset == damaged[1] and str(damaged[0]) in (found[0].reason or "")
    assert describe(found) == f"1 {ONLY_FIRST}, 3 {DIFFERENT}, 1 {DAMAGED_SECOND}"
    found = diff(spark, str(second), str(first), physical=True)
    assert told(found) == expected(two, one, physical=True)
    assert len(found) == 6 and found[0].what == DAMAGED_FIRST


@pytest.mark.spark
def test_stores_of_other_lengths_and_file_sizes(spark: SparkSession, first: Path, tmp_path: Path) -> None:
    """One that has rolled elsewhere is the same; a shorter one with a topic more lacks what it lacks."""
    same = a_store(tmp_path / "same", COUNT, 2 * FILE_SIZE)
    assert diff(spark, str(first), str(same)) == []
    assert describe([]) == "no differences"
    assert diff(spark, str(first), str(first), physical=True) == []
    shorter = a_store(tmp_path / "shorter", 100, more="more")
    found = told(diff(spark, str(first), str(shorter)))
    assert found == expected(dumped(first), dumped(shorter))
    assert {each[:6] for each in found} >= {
        (ONLY_FIRST, "T0", 0, 17, 24, 8),
        (ONLY_SECOND, "more", 0, 0, 3, 4),
    }


@pytest.mark.spark
def test_a_store_without_messages(spark: SparkSession, first: Path, tmp_path: Path) -> None:
    with open_store(tmp_path / "empty", {**SETTINGS, "mappedFileSizeCommitLog": FILE_SIZE}):
        pass
    found = told(diff(spark, str(tmp_path / "empty"), str(first)))
    assert found == expected([], dumped(first)) and len(found) == 6
    assert diff(spark, str(tmp_path / "empty"), str(tmp_path / "empty")) == []


@pytest.fixture
def in_memory(spark: SparkSession, tmp_path: Path) -> Iterator[Any]:
    write_inner_batches(tmp_path / "batches")
    given = {"columns": columns(physical=True), "unpack": False}
    log = mqlake.spark.read_log(spark, str(tmp_path / "batches"), **given).cache()
    yield log
    log.unpersist()


def differing(one: Any, two: Any) -> Any:
    """As diff() has them, of messages in memory."""
    one, two = hashed(one), hashed(two)
    return job._in_stretches(one, two, job._unequal(one, two))


@pytest.mark.spark
def test_batches_and_places_that_were_taken_twice(in_memory: Any) -> None:
    """Batches that follow each other are one range; a topic that was deleted and made again has two of a place."""
    log, offset = in_memory, F.col("queueOffset")
    found = collected(ranges(differing(log, log.where(~offset.between(8, 23) & (offset != 32)))))
    assert [(each.what, each.first_offset, each.last_offset, each.messages) for each in found] == [
        (ONLY_FIRST, 8, 23, 16),
        (ONLY_FIRST, 32, 35, 4),
    ]
    again = log.withColumn("physicalOffset", F.col("physicalOffset") + 100_000).withColumn("flag", F.lit(9))
    twice, other = log.union(again), log.union(again.where(offset != 12))
    assert collected(ranges(differing(twice, twice))) == []
    (missing,) = collected(ranges(differing(twice, other)))
    assert (missing.what, missing.first_offset, missing.messages) == (ONLY_FIRST, 12, 4)
