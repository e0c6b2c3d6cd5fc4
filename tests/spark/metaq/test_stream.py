"""`metaq` as a stream: the same rows however the batches are cut, and exactly once whatever is stopped."""

from __future__ import annotations

import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from mqlake.errors import ConfigError, NotAStoreError, OffsetOutOfRangeError, StoreCorruptError
from mqlake.metaq.formats.record import encode_record
from mqlake.metaq.store.inspect import open_data_directory
from mqlake.metaq.store.message_store import MessageStore
from mqlake.spark.metaq import segments as metaq_segments
from mqlake.spark.metaq.options import MetaqOptions
from mqlake.spark.metaq.source import MetaqReader
from mqlake.spark.metaq.stream import Json, MetaqStreamReader
from tests.metaq.records import SEGMENT, fill
from tests.spark.metaq.test_source import expected
from tests.spark.streams import catch_up, follow

COLUMNS = ["topic", "partition", "offset", "id"]
Row = dict[str, object]


def stream(root: object, **options: str) -> MetaqStreamReader:
    return MetaqStreamReader(MetaqOptions.parse({"path": str(root), **options}, stream=True), COLUMNS)


def batch(reader: MetaqStreamReader, start: Json, end: Json) -> list[Row]:
    return [
        row
        for part in reader.partitions(start, end)
        for found in reader.read(part)
        for row in found.to_pylist()
    ]


def in_order(rows: list[Row]) -> list[tuple[object, ...]]:
    return sorted(tuple(row[name] for name in COLUMNS) for row in rows)


def append(root: Path, topic: str, partition: int, *bodies: bytes) -> None:
    store = MessageStore(str(root), topic, partition, max_segment_size=SEGMENT)
    for body in bodies:
        store.append(encode_record(body, 7, 0))
    store.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    for topic, partition in (("orders", 0), ("orders", 1), ("a-topic", 0)):
        fill(root, topic, partition, 200)
    return root


@pytest.fixture
def remote(data: Path) -> Iterator[str]:
    """A copy in the memory file system, which stands for any object store."""
    fs = fsspec.filesystem("memory")
    root = f"/{uuid.uuid4().hex}"
    fs.put(str(data) + "/", root + "/", recursive=True)
    yield f"memory:/{root}"
    fs.rm(root, recursive=True)


# ---------------------------------------------------------------------- without Spark


@pytest.mark.parametrize(
    "limit", [ReadAllAvailable(), ReadMaxBytes(3000), ReadMaxBytes(1), ReadMaxRows(3), ReadMaxRows(50)]
)
def test_every_record_once_however_batches_are_cut(data: Path, limit: object) -> None:
    reader = stream(data)
    at, found, batches = reader.initialOffset(), [], 0
    while (end := reader.latestOffset(at, limit)) != at:
        for _ in range(20 if limit in (ReadMaxBytes(1), ReadMaxRows(3)) else 0):
            end = reader.latestOffset(end, limit)
        rows = in_order(batch(reader, at, end))
        assert rows == in_order(batch(stream(data), at, end))  # replayed by another process
        if limit == ReadMaxRows(50):
            assert len(rows) <= 51
        found += rows
        at, batches = end, batches + 1
    assert sorted(found) == in_order(expected(data))
    assert batches > 1 or isinstance(limit, ReadAllAvailable)


def test_where_a_stream_begins(data: Path) -> None:
    ends = stream(data).reportLatestOffset()
    assert stream(data, startingOffsets="latest").initialOffset() == ends
    record = next(row for row in expected(data)[50:] if (row["topic"], row["partition"]) == ("orders", 0))
    given = f'{{"orders": {{"0": {record["offset"]}, "1": -1}}, "a-topic": {{"{data}:0": -1}}}}'
    reader = stream(data, startingOffsets=given)
    rows = batch(reader, reader.initialOffset(), ends)
    assert (rows[0]["offset"], {row["topic"] for row in rows}) == (record["offset"], {"orders"})
    with pytest.raises(ConfigError, match="names partition 9 of topic orders, which does not exist"):
        stream(data, startingOffsets='{"orders": {"9": 0}}').initialOffset()
    with pytest.raises(OffsetOutOfRangeError, match="offset 99999999 is not in the partition"):
        stream(data, startingOffsets='{"orders": {"0": 99999999}}').initialOffset()
    with pytest.raises(ConfigError, match="'endingOffsets' is for a batch"):
        stream(data, endingOffsets='{"orders": {"0": 5}}')


def test_a_batch_between_offsets(data: Path) -> None:
    rows = [row for row in expected(data) if (row["topic"], row["partition"]) == ("orders", 0)]
    first, last = rows[20]["offset"], rows[160]["offset"]
    options = {
        "path": str(data),
        "topics": "orders",
        "startingOffsets": f'{{"orders": {{"0": {first}}}}}',
        "endingOffsets": f'{{"orders": {{"0": {last}, "1": 0}}}}',
    }
    reader = MetaqReader(MetaqOptions.parse(options, stream=False), COLUMNS)
    found = [row for part in reader.partitions() for each in reader.read(part) for row in each.to_pylist()]
    assert in_order(found) == in_order(rows[20:160])
    with pytest.raises(ConfigError, match="a batch cannot begin there"):
        MetaqOptions.parse({"path": "/d", "startingOffsets": "latest"}, stream=False)


def test_available_now_ends_where_the_directory_ended(data: Path) -> None:
    reader = stream(data, maxOffsetsPerTrigger="1000")
    assert reader.getDefaultReadLimit() == ReadMaxRows(1000)
    count = len(expected(data))
    reader.prepareForTriggerAvailableNow()
    append(data, "orders", 0, b"later")
    append(data, "new", 3, b"first")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10_000))
    assert len(batch(reader, start, end)) == count
    assert reader.latestOffset(end, ReadMaxRows(1000)) == end
    rest = stream(data).latestOffset(end, ReadAllAvailable())
    assert [row["topic"] for row in batch(stream(data), end, rest)] == ["new", "orders"]


def test_a_record_that_is_being_written_is_not_read_before_it_is_whole(data: Path) -> None:
    """Also when its body holds what looks like a record."""
    reader = stream(data)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    path = Path(open_data_directory(str(data)).partition("orders", 1).segments[-1].path)
    inner = encode_record(b"inner", 5, 0)
    outer = encode_record(inner * 20, 9, 0)
    for written in (10, 25, 20 + 2 * len(inner), len(outer) - 1):
        whole = path.read_bytes()
        path.write_bytes(whole + outer[:written])
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        assert stream(data).latestOffset({}, ReadAllAvailable()) == start
        path.write_bytes(whole)
    path.write_bytes(path.read_bytes() + outer)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [row["id"] for row in batch(reader, start, end)] == [9]


def test_retention_passes_under_the_reader(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader = stream(data, topics="orders")
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    end = reader.reportLatestOffset()
    planned = reader.partitions(start, end)
    first, second, *_ = open_data_directory(str(data)).partition("orders", 0).segments
    os.unlink(first.path)
    at = start["orders"][f"{data}:0"]
    lost = f"orders-0 of {data}: offsets {at} to {second.start} are gone"
    with pytest.raises(OffsetOutOfRangeError, match=lost):
        reader.partitions(start, end)
    with pytest.raises(OffsetOutOfRangeError, match="deleted while it was read"):
        [row for part in planned for row in reader.read(part)]
    going_on = stream(data, topics="orders", failOnDataLoss="false")
    rows = [row for row in batch(going_on, start, end) if row["partition"] == 0]
    assert rows[0]["offset"] == second.start
    assert lost in caplog.text


def test_a_partition_that_is_gone_or_shorter(data: Path) -> None:
    end = stream(data).reportLatestOffset()
    more = {"orders": {f"{data}:{n}": end["orders"][f"{data}:{n}"] for n in (0, 1)}, "x": {f"{data}:0": 5}}
    with pytest.raises(OffsetOutOfRangeError, match=f"x-0 of {data}: there is no such partition"):
        stream(data).partitions(end, {**end, **more})
    name = f"{data}:0"
    ahead = {**end, "orders": {**end["orders"], name: end["orders"][name] + 100}}
    with pytest.raises(OffsetOutOfRangeError, match="it was read up to"):
        stream(data).partitions(ahead, end)
    assert batch(stream(data, failOnDataLoss="false"), ahead, end) == []


@pytest.mark.parametrize("piece", [64, 1000, 1 << 20])
def test_a_place_that_fsspec_opens(
    data: Path, remote: str, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(metaq_segments, "PIECE_BYTES", piece)
    reader = MetaqReader(MetaqOptions.parse({"path": remote}), COLUMNS)
    rows = [row for part in reader.partitions() for each in reader.read(part) for row in each.to_pylist()]
    assert in_order(rows) == in_order(expected(data))
    streaming = stream(remote)
    end = streaming.latestOffset(streaming.initialOffset(), ReadAllAvailable())
    assert in_order(batch(streaming, {}, end)) == in_order(expected(data))


def test_damage_in_a_place_that_fsspec_opens(
    data: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metaq_segments, "PIECE_BYTES", 500)
    fs = fsspec.filesystem("memory")
    name = f"{remote.removeprefix('memory:/')}/orders-1/00000000000000000000.meta"
    rows = [row for row in expected(data) if (row["topic"], row["partition"]) == ("orders", 1)]
    hit = next(row for row in rows[10:] if row["size"] > 100)
    raw = bytearray(fs.cat_file(name))
    raw[hit["offset"] + 60] ^= 1
    fs.pipe_file(name, bytes(raw))
    reader = MetaqReader(MetaqOptions.parse({"path": remote}), COLUMNS)
    with pytest.raises(StoreCorruptError, match=f"meta: corrupt at byte {hit['offset']}: the payload"):
        [row for part in reader.partitions() for row in reader.read(part)]
    dropping = MetaqReader(MetaqOptions.parse({"path": remote, "mode": "dropMalformed"}), COLUMNS)
    found = [r for part in dropping.partitions() for each in dropping.read(part) for r in each.to_pylist()]
    assert len(found) == len(expected(data)) - 1


def test_a_foreign_place() -> None:
    with pytest.raises(NotAStoreError, match="memory://nowhere is not a MetaQ data directory"):
        MetaqOptions.parse({"path": "memory://nowhere"}).place().bounds()


# ---------------------------------------------------------------------- in Spark


def start(spark: SparkSession, root: Path, **options: object):
    return (
        spark.readStream.format("metaq")
        .options(columns="partition,id", **options)
        .load(str(root / "data"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(root / "checkpoint"))
        .option("path", str(root / "parquet"))
    )


@pytest.mark.spark
def test_exactly_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """A writer at work all the time; queries are stopped anywhere in a batch."""
    root = tmp_path / "data"
    root.mkdir()
    stores = [MessageStore(str(root), "t", n, max_segment_size=5000) for n in range(3)]
    chance, count = random.Random(3), 0

    def write() -> None:
        nonlocal count
        for _ in range(20):
            stores[count % 3].append(encode_record(chance.randbytes(chance.randrange(300)), count + 1, 0))
            count += 1

    write()
    for _ in range(2):
        query = follow(lambda: start(spark, tmp_path, maxOffsetsPerTrigger=25).start(), write)
        time.sleep(chance.random() / 4)
        write()
        query.stop()
        assert query.exception() is None
    write()
    for store in stores:
        store.close()
    catch_up(lambda: start(spark, tmp_path, maxBytesPerTrigger="200k"))
    rows = spark.read.parquet(str(tmp_path / "parquet")).collect()
    assert Counter((row.partition, row.id) for row in rows) == Counter((n % 3, n + 1) for n in range(count))
