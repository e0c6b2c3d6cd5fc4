"""The log as a stream: the same rows however the batches are cut, and exactly once whatever is stopped or killed."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from mqlake.errors import ConfigError, OffsetOutOfRangeError
from mqlake.lake.arrow.schema import CORRUPT_COLUMN
from mqlake.lake.log.log_offsets import Json, LogOffsets, Mark
from mqlake.message import MessageExtBrokerInner
from mqlake.spark.log.commitlog_stream import CommitLogStreamReader
from mqlake.spark.options import log_options
from mqlake.store import open_store
from mqlake.store.archive.offload import offload
from tests.spark.stores import SETTINGS, copy_store, decoded, flip_bit, log_files, seen
from tests.spark.streams import catch_up, follow

COLUMNS = ["physicalOffset", "topic", "queueId", "queueOffset"]


def stream(root: Path, **options: str) -> CommitLogStreamReader:
    columns = [*COLUMNS, CORRUPT_COLUMN] if options.get("mode") == "permissive" else COLUMNS
    return CommitLogStreamReader(log_options({"path": str(root), **options}), columns)


def at(*places: tuple[Path, int]) -> Json:
    """Offsets of which nothing is known but where they are."""
    return LogOffsets({str(root): Mark(offset) for root, offset in places}).to_json()


def places(offsets: Json) -> dict[str, int]:
    return {root: mark.offset for root, mark in LogOffsets.from_json(offsets).marks.items()}


def batch(reader: CommitLogStreamReader, start: Json, end: Json) -> list[dict[str, object]]:
    return [
        row
        for part in reader.partitions(start, end)
        for found in reader.read(part)
        for row in found.to_pylist()
    ]


def offsets(rows: list[dict[str, object]]) -> list[object]:
    """In the order of the log; what has to be unpacked comes behind the rest of its chunk."""
    return sorted(row["physicalOffset"] for row in rows)


# ---------------------------------------------------------------------- without Spark


@pytest.mark.parametrize(
    "limit", [ReadAllAvailable(), ReadMaxBytes(250), ReadMaxBytes(700), ReadMaxRows(1), ReadMaxRows(37)]
)
def test_every_record_once_however_batches_are_cut(every_kind: Path, limit: object) -> None:
    reader = stream(every_kind, unpack="false")
    at, found, batches = reader.initialOffset(), [], 0
    while (end := reader.latestOffset(at, limit)) != at:
        step = 5 if limit == ReadMaxBytes(250) else 1
        for _ in range(step - 1):
            end = reader.latestOffset(end, limit)
        rows = offsets(batch(reader, at, end))
        assert rows == offsets(
            batch(stream(every_kind, unpack="false"), at, end)
        )  # replayed by another process
        if isinstance(limit, ReadMaxRows):
            assert len(rows) <= limit.max_rows
        found += rows
        at, batches = end, batches + 1
    assert found == [message.physical_offset for message in decoded(every_kind)]
    assert batches > 1 or isinstance(limit, ReadAllAvailable)


def test_limits_are_shared_by_stores(every_kind: Path, tmp_path: Path) -> None:
    other = copy_store(every_kind, tmp_path / "other")
    reader = stream(every_kind, paths=f'["{other}"]')
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxBytes(10_000))
    assert places(start) == {str(every_kind): 0, str(other): 0}
    assert places(end) == {str(every_kind): 5000, str(other): 5000}


def test_available_now_ends_where_the_log_ended(every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    reader = stream(root, maxOffsetsPerTrigger="1000", unpack="false")
    assert reader.getDefaultReadLimit() == ReadMaxRows(1000)
    reader.prepareForTriggerAvailableNow()
    with open_store(root, SETTINGS) as store:
        assert store.put_message(MessageExtBrokerInner("T", b"later")).is_ok
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10_000))
    assert len(batch(reader, at((root, 0)), end)) == len(decoded(every_kind))
    assert reader.latestOffset(end, ReadMaxRows(1000)) == end
    later = stream(root).latestOffset(end, ReadAllAvailable())
    assert [row["topic"] for row in batch(reader, end, later)] == ["T"]


def test_where_a_stream_begins(every_kind: Path) -> None:
    messages = decoded(every_kind)
    last = messages[-1]
    end = last.physical_offset + last.store_size
    assert places(stream(every_kind, startingOffsets="latest").initialOffset()) == {str(every_kind): end}
    assert places(stream(every_kind, startingOffsets="777").initialOffset()) == {str(every_kind): 777}
    by_time = stream(every_kind, startingTimestamp=str(messages[9].store_timestamp), unpack="false")
    rows = batch(by_time, by_time.initialOffset(), at((every_kind, end)))
    assert offsets(rows) == [
        m.physical_offset for m in messages if m.store_timestamp >= messages[9].store_timestamp
    ]
    with pytest.raises(OffsetOutOfRangeError, match=r"option 'startingOffsets' is 99999999"):
        stream(every_kind, startingOffsets="99999999").initialOffset()
    with pytest.raises(ConfigError, match="'endingOffsets' is for a batch"):
        stream(every_kind, endingOffsets="5")


def test_retention_passes_under_the_reader(
    every_kind: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    start, end = at((root, 1000)), stream(root).reportLatestOffset()
    planned = stream(root).partitions(start, end)
    base = int(log_files(root)[1].name)
    log_files(root)[0].unlink()
    lost = f"{root}: physical offsets 1000 to {base} have been deleted"
    with pytest.raises(OffsetOutOfRangeError, match=lost):
        stream(root).partitions(start, end)
    with pytest.raises(OffsetOutOfRangeError, match=f"{base - (16 << 10):020d}: gone while it was read"):
        list(stream(root).read(planned[0]))
    kept = [m.physical_offset for m in seen(root) if m.physical_offset >= base]
    going_on = stream(root, failOnDataLoss="false")
    assert offsets(batch(going_on, start, end)) == kept
    assert offsets([r for p in planned for b in going_on.read(p) for r in b.to_pylist()]) == kept
    assert lost in caplog.text
    assert "gone while it was read" in caplog.text
    rows = batch(stream(root, failOnDataLoss="false", mode="permissive"), start, end)
    assert (rows[0]["physicalOffset"], rows[0][CORRUPT_COLUMN]) == (1000, lost)
    assert offsets(rows[1:]) == kept


def test_a_store_made_anew(every_kind: Path) -> None:
    ahead, end = at((every_kind, 10**9)), stream(every_kind).reportLatestOffset()
    what = "before 1000000000, up to which it had been read"
    with pytest.raises(
        OffsetOutOfRangeError, match=what
    ):  # an end below the start never reaches a checkpoint
        stream(every_kind).latestOffset(ahead, ReadAllAvailable())
    with pytest.raises(OffsetOutOfRangeError, match=what):
        stream(every_kind).partitions(ahead, end)
    going_on = stream(every_kind, failOnDataLoss="false")
    assert batch(going_on, ahead, going_on.latestOffset(ahead, ReadAllAvailable())) == []


def test_an_empty_store_fills(tmp_path: Path) -> None:
    root = tmp_path / "store"
    open_store(root, SETTINGS).shutdown()
    reader = stream(root)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start == at((root, 0))
    with open_store(root, SETTINGS) as store:
        assert store.put_message(MessageExtBrokerInner("T", b"first")).is_ok
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [row["topic"] for row in batch(reader, start, end)] == ["T"]


def test_a_checkpoint_of_other_stores(
    every_kind: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, other = copy_store(every_kind, tmp_path / "store"), copy_store(every_kind, tmp_path / "other")
    end = stream(root).reportLatestOffset()
    assert stream(Path(f"{root}/")).latestOffset(end, ReadAllAvailable()) == end
    with pytest.raises(OffsetOutOfRangeError, match=f"^{root}: the checkpoint has this store, option 'path'"):
        stream(other).latestOffset(end, ReadAllAvailable())
    with pytest.raises(OffsetOutOfRangeError, match=f"^{root}: the checkpoint has this store"):
        stream(other).partitions(end, stream(other).reportLatestOffset())
    going_on = stream(other, failOnDataLoss="false")
    rows = batch(going_on, end, going_on.latestOffset(end, ReadAllAvailable()))
    assert offsets(rows) == [m.physical_offset for m in seen(other)]
    assert f"{root}: the checkpoint has this store" in caplog.text
    # one more store is another matter: it is read from its beginning on, wherever that is
    log_files(other)[0].unlink()
    both = stream(root, paths=json.dumps([str(other)]))
    rows = batch(both, end, both.latestOffset(end, ReadAllAvailable()))
    assert offsets(rows) == [m.physical_offset for m in seen(other)]


def test_a_checkpoint_of_other_topics(every_kind: Path) -> None:
    one = stream(every_kind, topics="Topic-1")
    start, end = one.initialOffset(), one.reportLatestOffset()
    assert one.partitions(stream(every_kind).initialOffset(), end)  # fewer than before are nothing to lose
    for options, names in (({"topics": "Topic-1,Topic-2"}, "Topic-2"), ({}, "all")):
        wider = stream(every_kind, **options)
        with pytest.raises(OffsetOutOfRangeError, match=f"^option 'topics': {names} had not been asked for"):
            wider.latestOffset(start, ReadAllAvailable())
        with pytest.raises(OffsetOutOfRangeError, match=f"{names} had not been asked for"):
            wider.partitions(start, wider.reportLatestOffset())


def test_a_log_with_other_bytes_before_the_offset(every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    messages = decoded(root)
    reader = stream(root, unpack="false")
    start, half = reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ReadMaxRows(50))
    end = reader.latestOffset(half, ReadAllAvailable())
    rows = batch(reader, half, end)
    last = messages[49]
    file = log_files(root)[last.physical_offset // (16 << 10)]
    flip_bit(file, last.physical_offset % (16 << 10) + 45)  # its born time, as another message would have it
    what = f"before physical offset {places(half)[str(root)]} are other bytes than were read"
    for planned in ((half, end), (start, half)):
        with pytest.raises(OffsetOutOfRangeError, match=what):
            reader.partitions(*planned)
    with pytest.raises(OffsetOutOfRangeError, match=what):
        reader.latestOffset(half, ReadAllAvailable())
    assert offsets(batch(stream(root, unpack="false", failOnDataLoss="false"), half, end)) == offsets(rows)
    # a batch that was planned before the end of the log was cut off
    beyond = at((root, places(end)[str(root)] + 1))
    with pytest.raises(OffsetOutOfRangeError, match=f"the log ends at {places(end)[str(root)]}, before"):
        reader.partitions(end, beyond)


def test_a_checkpoint_of_another_source(every_kind: Path) -> None:
    for offsets_there in ({"Topic": {"broker-a:0": 12}}, {"stores": 1}):
        with pytest.raises(ConfigError, match="the checkpoint is not of the source commitlog"):
            stream(every_kind).latestOffset(offsets_there, ReadAllAvailable())


# ---------------------------------------------------------------------- with an archive


@pytest.fixture
def archive(every_kind: Path, tmp_path: Path) -> str:
    """Where the sealed files of `every_kind` were offloaded to: a place that is read through fsspec."""
    place = f"local://{tmp_path}/archive"
    assert offload(str(every_kind), place).copied == 2
    return place


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxBytes(1500), ReadMaxRows(37)])
def test_store_and_archive_are_one_log(every_kind: Path, tmp_path: Path, archive: str, limit: object) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    reader = stream(root, archive=archive, unpack="false")
    at, found, batches = reader.initialOffset(), [], 0
    while (end := reader.latestOffset(at, limit)) != at:
        found += offsets(batch(reader, at, end))
        at, batches = end, batches + 1
        for gone in log_files(root)[:-1][:1]:  # by retention, between any two batches
            gone.unlink()
    assert found == [message.physical_offset for message in decoded(every_kind)]
    assert batches > 2 or isinstance(limit, ReadAllAvailable)


def test_files_deleted_before_a_batch_is_read(every_kind: Path, tmp_path: Path, archive: str) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    reader = stream(root, archive=archive)
    start, end = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(1000)), reader.reportLatestOffset()
    planned, whole = reader.partitions(start, end), offsets(batch(reader, start, end))
    base = int(log_files(root)[2].name)
    for gone in log_files(root)[:2]:
        gone.unlink()
    late = [row for part in planned for found in reader.read(part) for row in found.to_pylist()]
    assert offsets(late) == whole == offsets(batch(stream(root, archive=archive), start, end))
    again = stream(root, archive=archive)  # a new query begins where the archive does
    assert again.initialOffset() == at((root, 0))
    assert places(stream(root, archive=archive, startingOffsets="777").initialOffset()) == {str(root): 777}
    time_ms = decoded(every_kind)[9].store_timestamp
    by_time = stream(root, archive=archive, startingTimestamp=str(time_ms), unpack="false")
    assert offsets(batch(by_time, by_time.initialOffset(), end)) == [
        m.physical_offset for m in decoded(every_kind) if m.store_timestamp >= time_ms
    ]
    for gone in log_files(root):
        gone.unlink()
    assert offsets(batch(again, at((root, 0)), at((root, base)))) == [
        m.physical_offset for m in seen(every_kind) if m.physical_offset < base
    ]


def test_an_archive_that_is_not_there(every_kind: Path, tmp_path: Path) -> None:
    """A stream with a typing error in its place began where the store begins, and said nothing."""
    root = copy_store(every_kind, tmp_path / "store")
    log_files(root)[0].unlink()
    begin, place = int(log_files(root)[0].name), f"local://{tmp_path}/nothing"
    with pytest.raises(OffsetOutOfRangeError, match=f"0 to {begin} are not in the store, and the archive"):
        stream(root, archive=place).initialOffset()
    going_on = stream(root, archive=place, failOnDataLoss="false")
    assert places(going_on.initialOffset()) == {str(root): begin}
    latest = stream(root, archive=place, startingOffsets="latest")  # asks no archive
    assert latest.initialOffset() == latest.reportLatestOffset()


def test_an_archive_that_lacks_a_file(every_kind: Path, tmp_path: Path, archive: str) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    end = stream(root).reportLatestOffset()
    second, third = (int(file.name) for file in log_files(root)[1:])
    for gone in log_files(root)[:2]:
        gone.unlink()
    (tmp_path / "archive" / "commitlog" / f"{second:020d}").unlink()
    what = f"physical offsets {second} to {third} are neither in the archive nor in the store"
    reader = stream(root, archive=archive)
    for act in (
        lambda: reader.latestOffset(at((root, 0)), ReadAllAvailable()),
        lambda: reader.partitions(at((root, 0)), end),
    ):
        with pytest.raises(OffsetOutOfRangeError, match=what):
            act()
    assert reader.partitions(at((root, 0)), at((root, second)))  # nothing is missing of this batch
    going_on = stream(root, archive=archive, failOnDataLoss="false")
    assert offsets(batch(going_on, at((root, 0)), end)) == [
        m.physical_offset for m in seen(every_kind) if not second <= m.physical_offset < third
    ]


def test_an_archive_is_asked_only_where_the_store_does_not_reach_back(every_kind: Path) -> None:
    reader = stream(every_kind, archive="nobody://opens/this")
    end = reader.latestOffset(at((every_kind, 0)), ReadMaxBytes(1000))
    assert batch(reader, at((every_kind, 0)), end)
    empty = stream(every_kind, archive="nobody://opens/this", startingOffsets="latest")
    assert empty.initialOffset() == empty.reportLatestOffset()


# ---------------------------------------------------------------------- in Spark


class Load:
    """A writer at work in a store: message n of its topic has n as its body."""

    def __init__(self, root: Path) -> None:
        self.count = 0
        self._store = open_store(root, {**SETTINGS, "mappedFileSizeCommitLog": 256 << 10})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._stop.wait(0.01):
            for _ in range(3):
                message = MessageExtBrokerInner(
                    "Load", str(self.count).encode() * 20, queue_id=self.count % 4
                )
                assert self._store.put_message(message).is_ok
                self.count += 1

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._store.shutdown()


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    writer = Load(tmp_path / "store")
    yield writer
    writer.close()


def start(spark: SparkSession, root: Path, **options: object):
    return (
        spark.readStream.format("commitlog")
        .options(columns="topic,queueId,queueOffset", **options)
        .load(str(root / "store"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(root / "checkpoint"))
        .option("path", str(root / "parquet"))
    )


def written(spark: SparkSession, root: Path) -> Counter[tuple[int, int]]:
    rows = spark.read.parquet(str(root / "parquet")).collect()
    return Counter((row.queueId, row.queueOffset) for row in rows)


def each_once(count: int) -> Counter[tuple[int, int]]:
    return Counter((n % 4, n // 4) for n in range(count))


@pytest.mark.spark
def test_exactly_once_over_restarts(spark: SparkSession, tmp_path: Path, load: Load) -> None:
    chance = random.Random(7)
    for _ in range(3):
        query = follow(lambda: start(spark, tmp_path, maxBytesPerTrigger="40k").start())
        time.sleep(chance.random() / 2)  # anywhere in a batch
        query.stop()
        assert query.exception() is None
    load.close()
    catch_up(lambda: start(spark, tmp_path))
    assert load.count > 100
    assert written(spark, tmp_path) == each_once(load.count)


@pytest.mark.spark
def test_a_stream_goes_on_in_the_archive(
    spark: SparkSession, tmp_path: Path, every_kind: Path, archive: str
) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    once_an_hour = {"processingTime": "1 hour"}
    options = {"maxBytesPerTrigger": "20000", "archive": archive}
    follow(lambda: start(spark, tmp_path, **options).trigger(**once_an_hour).start()).stop()
    for gone in log_files(root)[:2]:
        gone.unlink()
    catch_up(lambda: start(spark, tmp_path, **options))
    assert written(spark, tmp_path) == Counter((m.queue_id, m.queue_offset) for m in seen(every_kind))


@pytest.mark.spark
def test_data_loss_in_spark(spark: SparkSession, tmp_path: Path, every_kind: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    once_an_hour = {"processingTime": "1 hour"}
    follow(lambda: start(spark, tmp_path, maxBytesPerTrigger="1000").trigger(**once_an_hour).start()).stop()
    log_files(root)[0].unlink()
    base = int(log_files(root)[0].name)
    lost = f"{root}: physical offsets 1000 to {base} have been deleted"
    with pytest.raises(StreamingQueryException, match=rf"{lost} \(failOnDataLoss=false reads on"):
        catch_up(lambda: start(spark, tmp_path))
    catch_up(lambda: start(spark, tmp_path, failOnDataLoss="false"))
    assert written(spark, tmp_path) == Counter(
        (message.queue_id, message.queue_offset)
        for message in seen(every_kind)
        if not 1000 <= message.physical_offset < base
    )
    assert f"{lost}; reading goes on" in spark_log(spark).read_text()
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "parquet")
    with pytest.raises(
        StreamingQueryException, match=rf"option 'startingOffsets' is 100, but the log of .* holds {base}"
    ):
        catch_up(lambda: start(spark, tmp_path, startingOffsets="100"))


def spark_log(spark: SparkSession) -> Path:
    """What the session's processes have to say."""
    return Path(spark.conf.get("spark.local.dir") or "").parent / "spark.log"
