"""The derived files as tables: against what the store itself reads from them, and in Spark, joined with the log."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from mqlake.errors import StoreCorruptError
from mqlake.formats.index import build_key, index_key_hash
from mqlake.lake.log.queue_files import index_files, queue_files
from mqlake.lake.log.storage import Storage
from mqlake.spark.log import queue_and_index as derived
from mqlake.spark.log.queue_and_index import ConsumeQueueDataSource, MqIndexDataSource
from mqlake.spark.schema import spark_schema
from mqlake.store.read_only import ReadOnlyStore
from tests.golden import Golden, unpack
from tests.spark.stores import copy_store, decoded, overwrite

Rows = list[dict[str, object]]


def rows(source: type, root: Path, **options: str) -> Rows:
    found = source({"path": str(root), **options})
    reader = found.reader(found.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def expected_units(golden: Golden) -> Rows:
    found = []
    sizes = {name: golden.config[name] for name in ("maxHashSlotNum", "maxIndexNum")}
    with ReadOnlyStore(golden.root, sizes) as store:
        for queue in store.consume_queues:
            offset, batches = queue.min_offset_in_queue, "batch" in type(queue).__name__.lower()
            while offset < queue.max_offset_in_queue:
                units = queue.get_range(offset, 1 << 20)
                if not batches:  # with the addresses of an extension, as they are in the file
                    units = np.frombuffer(queue.get_range_bytes(offset, len(units)), queue.dtype)
                for n, unit in enumerate(units):
                    found.append(
                        {
                            "topic": queue.topic,
                            "queueId": queue.queue_id,
                            "queueOffset": int(unit["msg_base_offset"]) if batches else offset + n,
                            "physicalOffset": int(unit["offset"]),
                            "size": int(unit["size"]),
                            "tagsCode": int(unit["tags_code"]),
                            "batchSize": int(unit["batch_size"]) if batches else 1,
                        }
                    )
                last = found[-1]
                offset = last["queueOffset"] + last["batchSize"]
    return found


def by_place(row: dict[str, object]) -> tuple[object, ...]:
    return row["topic"], row["queueId"], row["queueOffset"]


@pytest.mark.parametrize("split_size", ["64m", "1"])
def test_units_of_java(golden: Golden, split_size: str) -> None:
    found = rows(ConsumeQueueDataSource, golden.root, splitSize=split_size)
    expected = expected_units(golden)
    assert expected
    names = list(expected[0])
    assert sorted(({name: row[name] for name in names} for row in found), key=by_place) == sorted(
        expected, key=by_place
    )


def test_runs_of_units(golden: Golden, every_kind: Path) -> None:
    for root in (golden.root, every_kind):
        files = queue_files(Storage(str(root)))
        assert files
        for file in files:
            units, queue_offsets = file.units()
            run = file.run()
            assert run is not None
            assert (run.units == units).all() and (run.number == queue_offsets).all()


@pytest.mark.parametrize("damage", ["hole", "unit twice", "cut"])
def test_a_run_ends_before_damage(every_kind: Path, tmp_path: Path, damage: str) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    path = next((root / "consumequeue" / "Topic-1" / "0").iterdir())
    units = path.read_bytes()
    if damage == "hole":
        overwrite(path, 40, bytes(20))
    elif damage == "unit twice":
        overwrite(path, 40, units[20:40])
    else:
        os.truncate(path, 47)
    file = next(each for each in queue_files(Storage(str(root)), ["Topic-1"]) if each.path == str(path))
    run = file.run()
    if damage == "unit twice":
        assert run is None
    else:
        assert run is None or (run.units.tobytes(), list(run.number)) == (units[:40], [0, 1])


def test_entries_of_java(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "BATCH_RECORDS_MAX", 7)
    slots = str(golden.config["maxHashSlotNum"])
    found = rows(MqIndexDataSource, golden.root, splitSize="200", maxHashSlotNum=slots)
    expected = {
        (index_key_hash(build_key(message.topic, key)), message.physical_offset)
        for message in decoded(golden.root)
        if message.sys_flag & 0xC != 0xC
        for key in filter(None, [message.uniq_key, *(message.keys or "").split(" ")])
    }
    pairs = {(row["keyHash"], row["physicalOffset"]) for row in found}
    assert pairs <= expected
    assert len(pairs) >= 0.9 * len(expected)  # Java may have died with an index file unfinished
    numbers = [row["entry"] for row in found if row["file"] == found[0]["file"]]
    assert numbers == list(range(1, len(numbers) + 1))


def test_an_index_of_another_size(tmp_path: Path) -> None:
    root = unpack("index-rolled", tmp_path).root
    slots = index_files(Storage(str(root)))[0].slots
    assert rows(MqIndexDataSource, root) == rows(MqIndexDataSource, root, maxHashSlotNum=str(slots))
    with pytest.raises(
        StoreCorruptError, match=f"if the store's maxHashSlotNum is not {slots + 1}, say it as an option"
    ):
        rows(MqIndexDataSource, root, maxHashSlotNum=str(slots + 1))


@pytest.mark.spark
def test_in_spark(spark: SparkSession, every_kind: Path) -> None:
    queues = spark.read.format("consumequeue").load(str(every_kind))
    log = (
        spark.read.format("commitlog")
        .options(unpack=False, columns="topic,physicalOffset")
        .load(str(every_kind))
    )
    joined = queues.where("topic = 'Topic-1' and queueId = 1").join(log, ["topic", "physicalOffset"])
    assert joined.count() == sum(
        m.topic == "Topic-1" and m.queue_id == 1 and m.sys_flag & 0xC in (0, 8) for m in decoded(every_kind)
    )
    index = spark.read.format("mqindex").load(str(every_kind))
    shared = index_key_hash(build_key("Topic-1", "shared"))
    assert index.where(f"keyHash = {shared}").join(log, "physicalOffset").count() == sum(
        m.topic == "Topic-1" and "shared" in (m.keys or "").split() and m.sys_flag & 0xC != 0xC
        for m in decoded(every_kind)
    )
    with pytest.raises(AnalysisException, match="unknown option 'mode'"):
        spark.read.format("mqindex").option("mode", "x").load(str(every_kind))
    with pytest.raises(AnalysisException, match="there is no such directory"):
        spark.read.format("consumequeue").load(str(every_kind / "nowhere"))


def test_another_schema_is_refused(every_kind: Path) -> None:
    with pytest.raises(Exception, match="has one schema"):
        ConsumeQueueDataSource({"path": str(every_kind)}).reader(spark_schema(["topic"]))
