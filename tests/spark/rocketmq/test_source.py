"""Live brokers, mqlake's and Java's: what was sent comes out once, whatever ranges it is read in."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from mqlake.client.admin import Admin
from mqlake.client.produce.producer import Producer, ProducerConfig
from mqlake.errors import (
    ConfigError,
    NoNameServerError,
    OffsetOutOfRangeError,
    SendError,
    TopicNotFoundError,
    UndecodableMessageError,
)
from mqlake.formats.record import encode_record
from mqlake.lake.arrow.schema import COLUMNS
from mqlake.lake.live.cluster import Cluster, Live, Queue, missing, scans_of
from mqlake.lake.live.ranges import QueueRange, _scanned, divided
from mqlake.lake.options import Mode
from mqlake.message import Message, MessageSysFlag, crc32, host_bytes
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.spark.partitions import TaskPartition, as_partitions
from mqlake.spark.rocketmq import sink as rocketmq_sink
from mqlake.spark.rocketmq.options import read_options
from mqlake.spark.rocketmq.source import RocketMQDataSource
from tests.client.consume.test_undecodable import poisoned
from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker
from tests.spark.log.test_commitlog_stream import spark_log
from tests.spark.streams import catch_up, follow
from tests.waiting import until

Row = dict[str, Any]

FILE = 64 << 10
SETTINGS = {
    "mappedFileSizeCommitLog": FILE,
    # a busy machine is no reason to refuse a message, which would then go to another queue than its turn is
    "waitTimeMillsInSendQueue": 30_000,
    "osPageCacheBusyTimeOutMills": 30_000,
}


@pytest.fixture(scope="module", params=["mqlake", pytest.param("java", marks=pytest.mark.java)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    kind = {"mqlake": MqlakeBroker, "java": JavaBroker}[request.param]
    settings = SETTINGS | (
        {"timerWheelEnable": "true"} if kind is JavaBroker else {}
    )  # else it deletes no topic
    with kind(tmp_path_factory.mktemp("broker") / request.param, settings) as running:
        yield running


AT_NIGHT_WITH_JAVA = pytest.mark.parametrize(
    "broker", ["mqlake", pytest.param("java", marks=[pytest.mark.java, pytest.mark.nightly])], indirect=True
)
"""For whole streams of Spark: that both brokers answer readers alike is seen in a smaller way."""


def sending(broker: Broker, work: Callable[[Producer], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Producer("p", broker.namesrv, ProducerConfig(send_msg_timeout_s=30)) as producer:
            await work(producer)

    asyncio.run(main())


def fill(broker: Broker, topic: str, count: int, first: int = 0) -> None:
    """Messages number `first` on, their numbers in their bodies, some of which are long enough to be compressed."""

    async def work(producer: Producer) -> None:
        for n in range(first, first + count):
            body = json.dumps([n] * (2000 if n % 20 == 3 else 1 + n % 5)).encode()
            await producer.send(Message(topic, body, tags=f"tag-{n % 3}", keys=f"key-{n}"))

    sending(broker, work)
    options = {"namesrvAddr": broker.namesrv, "subscribe": topic}
    until(
        lambda: sum(part.task.end - part.task.start for part in source(options).partitions()) >= first + count
    )


def deleted(broker: Broker, topic: str) -> None:
    async def delete() -> None:
        async with Admin(broker.namesrv) as admin:
            await admin.delete_topic(topic)

    asyncio.run(delete())


@pytest.fixture
def topic(broker: Broker) -> str:
    """A new topic with a hundred messages in four queues."""
    name = f"T-{uuid.uuid4().hex[:8]}"
    fill(broker, name, 100)
    return name


def options(broker: Broker, topic: str, **more: str) -> dict[str, str]:
    return {"namesrvAddr": broker.namesrv, "subscribe": topic, **more}


def source(given: dict[str, str], columns: tuple[str, ...] = tuple(COLUMNS)) -> Any:
    found = RocketMQDataSource({**given, "columns": ",".join(columns)})
    return found.reader(found.schema())


def stream(given: dict[str, str]) -> Any:
    found = RocketMQDataSource({"startingOffsets": "earliest", **given})
    return found.streamReader(found.schema())


def rows(reader: Any, partitions: list[TaskPartition[QueueRange]]) -> list[Row]:
    return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]


def numbers(found: list[Row]) -> list[int]:
    return sorted(json.loads(row["body"])[0] for row in found)


def offsets(found: list[Row]) -> list[tuple[int, int]]:
    return sorted((row["queueId"], row["queueOffset"]) for row in found)


# ---------------------------------------------------------------------- batch


def test_every_message_once(broker: Broker, topic: str) -> None:
    reader = source(options(broker, topic))
    found = rows(reader, reader.partitions())
    assert numbers(found) == list(range(100))
    assert Counter(row["queueId"] for row in found) == dict.fromkeys(range(4), 25)
    assert {row["brokerName"] for row in found} == {reader.partitions()[0].task.queue.broker}
    for row in found:
        (number,) = set(json.loads(row["body"]))
        assert (row["tags"], row["keys"]) == (f"tag-{number % 3}", f"key-{number}")
        assert row["msgId"].endswith(f"{row['physicalOffset']:016X}")
        assert dict(row["properties"])["UNIQ_KEY"] == row["uniqKey"]
    raw = source(options(broker, topic, unpack="false"))
    packed = [row for row in rows(raw, raw.partitions()) if row["sysFlag"] & 1]
    assert len(packed) == 5 and all(not row["body"].startswith(b"[") for row in packed)


@pytest.mark.parametrize("min_partitions", ["3", "13", "1000"])
def test_ranges_are_divided(broker: Broker, topic: str, min_partitions: str) -> None:
    reader = source(options(broker, topic, minPartitions=min_partitions))
    parts = reader.partitions()
    assert len(parts) == {"3": 4, "13": 12, "1000": 100}[min_partitions]
    assert numbers(rows(reader, parts)) == list(range(100))


def test_filters_say_what_is_pulled(broker: Broker, topic: str) -> None:
    """A query of one queue's last messages pulled all of the topic."""
    reader = source(options(broker, topic))
    wanted = [ds.EqualTo(("queueId",), 2), ds.GreaterThanOrEqual(("queueOffset",), 20)]
    assert list(reader.pushFilters(wanted)) == wanted
    parts = reader.partitions()
    assert [(part.task.queue.queue_id, part.task.start, part.task.end) for part in parts] == [(2, 20, 25)]
    assert offsets(rows(reader, parts)) == [(2, offset) for offset in range(20, 25)]
    reader = source(options(broker, topic))
    reader.pushFilters([ds.EqualTo(("tags",), "tag-1")])
    assert numbers(rows(reader, reader.partitions())) == list(range(1, 100, 3))
    reader = source(options(broker, topic))
    reader.pushFilters([ds.EqualTo(("topic",), "another")])
    assert reader.partitions() == []


def test_positions(broker: Broker, topic: str) -> None:
    def read(**positions: str) -> list[tuple[int, int]]:
        reader = source(options(broker, topic, **positions), ("queueId", "queueOffset"))
        return offsets(rows(reader, reader.partitions()))

    whole = [(queue, offset) for queue in range(4) for offset in range(25)]
    assert read() == whole
    name = source(options(broker, topic)).partitions()[0].task.queue.broker
    some = json.dumps({topic: {"0": 20, f"{name}:1": 5, "2": -1, "3": -2}})
    assert read(startingOffsets=some) == [
        place for place in whole if place[1] >= {0: 20, 1: 5, 2: 25, 3: 0}[place[0]]
    ]
    ends = json.dumps({topic: {"0": 3, "1": -1}})
    assert read(endingOffsets=ends) == [place for place in whole if place[0] != 0 or place[1] < 3]

    time.sleep(0.01)
    now = int(time.time() * 1000)
    time.sleep(0.01)
    fill(broker, topic, 8, first=100)
    assert read(startingTimestamp=str(now)) == [(queue, offset) for queue in range(4) for offset in (25, 26)]
    assert read(endingTimestamp=str(now)) == whole
    by_queue = json.dumps({topic: {"1": now}})
    assert len(read(startingOffsetsByTimestamp=by_queue)) == 108 - 25


def test_what_is_wrong_is_said_on_the_driver(broker: Broker, topic: str) -> None:
    def partitions(**given: str) -> list[TaskPartition[QueueRange]]:
        return source({"namesrvAddr": broker.namesrv, **given}).partitions()

    beyond = json.dumps({topic: {"0": 26}})
    with pytest.raises(
        OffsetOutOfRangeError, match=r"queue 0: offset 26 is not there; the broker has 0 to 25"
    ):
        partitions(subscribe=topic, startingOffsets=beyond)
    (first, *_) = partitions(subscribe=topic, startingOffsets=beyond, failOnDataLoss="false")
    assert first.task.queue.queue_id == 1
    with pytest.raises(ConfigError, match="names queue 7 of topic"):
        partitions(subscribe=topic, startingOffsets=json.dumps({topic: {"7": 0}}))
    with pytest.raises(TopicNotFoundError, match=f"topic {topic}x: no broker has it .*; did you mean 'T-"):
        partitions(subscribe=f"{topic}x")
    with pytest.raises(
        OffsetOutOfRangeError, match="queue 0: offset 26 is not there; the broker has 0 to 25"
    ):
        stream(options(broker, topic, startingOffsets=beyond)).initialOffset()
    with pytest.raises(ConfigError, match="no topic matches it"):
        partitions(subscribePattern="none.*")
    assert {part.task.queue.topic for part in partitions(subscribePattern=f"{topic[:-2]}..")} == {topic}


def test_no_name_server() -> None:
    with pytest.raises(NoNameServerError, match=r"127\.0\.0\.1:1"):
        source({"namesrvAddr": "127.0.0.1:1", "subscribe": "T"}).partitions()


def test_messages_that_are_not_there(broker: Broker, topic: str) -> None:
    reader = source(options(broker, topic))
    queue = reader.partitions()[0].task.queue
    with (
        Live(Cluster(broker.namesrv, "g")) as live,
        pytest.raises(OffsetOutOfRangeError, match="there is no such queue"),
    ):
        list(live.pull(Queue(topic, queue.broker, 9), 0, 1))


# ---------------------------------------------------------------------- stream


def batches(reader: Any, at: Any, limit: Any = ReadAllAvailable()) -> Iterator[list[Row]]:  # noqa: B008
    while (end := reader.latestOffset(at, limit)) != at:
        yield rows(reader, reader.partitions(at, end))
        at = end


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(30), ReadMaxRows(1)])
def test_batches_hold_every_message_once(broker: Broker, topic: str, limit: Any) -> None:
    reader = stream(options(broker, topic))
    found = list(batches(reader, reader.initialOffset(), limit))
    assert sorted(numbers([row for batch in found for row in batch])) == list(range(100))
    if isinstance(limit, ReadMaxRows):
        assert max(map(len, found)) <= max(4, limit.max_rows)  # a queue gives at least one


def test_a_batch_again_is_the_same(broker: Broker, topic: str) -> None:
    reader = stream(options(broker, topic, maxOffsetsPerTrigger="50", minPartitions="7"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    first = rows(reader, reader.partitions(start, end))
    fill(broker, topic, 10, first=100)
    again = stream(options(broker, topic))
    assert offsets(rows(again, again.partitions(start, json.loads(json.dumps(end))))) == offsets(first)
    assert len(first) == 48  # the share of each of four queues, rounded down


def test_available_now_and_where_a_stream_begins(broker: Broker, topic: str) -> None:
    reader = stream(options(broker, topic))
    reader.prepareForTriggerAvailableNow()
    latest = stream(options(broker, topic, startingOffsets="latest"))
    at = latest.initialOffset()
    fill(broker, topic, 20, first=100)
    assert numbers([r for b in batches(reader, reader.initialOffset()) for r in b]) == list(range(100))
    assert numbers([r for b in batches(latest, at) for r in b]) == list(range(100, 120))


def test_new_topics_and_queues_begin_at_their_beginning(broker: Broker) -> None:
    prefix = f"N-{uuid.uuid4().hex[:8]}"
    fill(broker, f"{prefix}-a", 10)
    reader = stream(
        {"namesrvAddr": broker.namesrv, "subscribePattern": f"{prefix}-.*", "startingOffsets": "latest"}
    )
    at = reader.initialOffset()
    assert list(at) == [f"{prefix}-a"]
    fill(broker, f"{prefix}-b", 12)
    until(lambda: set(reader.latestOffset(at, ReadAllAvailable())) == {f"{prefix}-a", f"{prefix}-b"})
    assert [numbers(found) for found in batches(reader, at)] == [list(range(12))]


def test_data_loss(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    reader = stream(options(broker, topic))
    end = reader.reportLatestOffset()
    (name,) = {queue.rpartition(":")[0] for queue in end[topic]}
    ahead = {topic: {**end[topic], f"{name}:0": 30}}
    with pytest.raises(OffsetOutOfRangeError, match="it had been read up to 40; the broker has 0 to 25"):
        reader.partitions(ahead, {topic: {**end[topic], f"{name}:0": 40}})
    gone = {topic: {f"{name}:9": 5}}
    with pytest.raises(OffsetOutOfRangeError, match="there is no such queue"):
        reader.partitions(gone, {topic: {f"{name}:9": 6}})
    with pytest.raises(OffsetOutOfRangeError, match="it had been read up to 30; the broker has up to 25"):
        reader.latestOffset(ahead, ReadAllAvailable())  # so that no end below it comes into the checkpoint
    going_on = stream(options(broker, topic, failOnDataLoss="false"))
    assert going_on.partitions(gone, {topic: {f"{name}:9": 6}}) == []
    assert "there is no such queue (any more); reading goes on" in caplog.text


def test_a_checkpoint_of_another_stream(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    reader, everything = stream(options(broker, topic)), ReadAllAvailable()
    end = reader.reportLatestOffset()
    other = {"Other": {"broker-x:0": 12}}
    with pytest.raises(
        OffsetOutOfRangeError, match=r"^topic Other: the checkpoint has it, it is not subscribed"
    ):
        reader.latestOffset({**end, **other}, everything)
    with pytest.raises(
        OffsetOutOfRangeError, match="broker elsewhere, queue 0: neither it nor any other queue of"
    ):
        reader.latestOffset({topic: {"elsewhere:0": 12}}, everything)
    with pytest.raises(ConfigError, match="the checkpoint is not of the source rocketmq"):
        reader.latestOffset({"stores": {"/data/store": {"offset": 12}}}, everything)
    going_on = stream(options(broker, topic, failOnDataLoss="false"))
    assert going_on.latestOffset({**end, **other}, everything) == end
    assert "topic Other: the checkpoint has it" in caplog.text


def test_other_messages_at_the_same_offsets(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Offsets alone fit after the topic was deleted and made again: the first messages would be passed over."""
    reader = stream(options(broker, topic))
    start, everything = reader.initialOffset(), ReadAllAvailable()
    middle = reader.latestOffset(start, ReadMaxRows(40))
    end = json.loads(json.dumps(reader.latestOffset(middle, everything)))
    assert len(rows(reader, reader.partitions(start, middle) + reader.partitions(middle, end))) == 100
    fill(broker, topic, 20, first=100)
    assert reader.latestOffset(end, everything) != end  # the same topic: nothing is said
    deleted(broker, topic)
    fill(broker, topic, 300)
    again = stream(options(broker, topic))
    for plan in (
        lambda: again.latestOffset(end, everything),
        lambda: again.partitions(middle, end),  # a batch whose end is in the checkpoint is read again
    ):
        with pytest.raises(
            OffsetOutOfRangeError,
            match=r"queue \d: the message stored at .*deleted and made again.*a new checkpoint reads it from",
        ):
            plan()
    going_on = stream(options(broker, topic, failOnDataLoss="false"))
    later = going_on.latestOffset(end, everything)
    assert "deleted and made again" in caplog.text
    assert len(rows(going_on, going_on.partitions(end, later))) == 200
    assert reader.latestOffset(later, everything) == later
    forgotten = {topic: {name: each["offset"] for name, each in end[topic].items()}}
    reader.latestOffset(forgotten, everything)  # of an earlier version, which noted offsets alone


def test_offsets_are_committed_for_dashboards(broker: Broker, topic: str) -> None:
    reader = stream(options(broker, topic, groupIdForCommit="lag"))
    start, end = reader.initialOffset(), reader.reportLatestOffset()
    assert len(rows(reader, reader.partitions(start, end))) == 100
    with Live(Cluster(broker.namesrv, "g")) as live:
        for queue in live.queues([topic]):
            handle = MessageQueue(topic=topic, broker_name=queue.broker, queue_id=queue.queue_id)
            address = live.client.find_broker_address_in_subscribe(queue.broker)

            def committed(address: str = address, handle: MessageQueue = handle) -> bool:
                reader.commit(end)  # what a busy broker did not take in time is only warned of
                return live.run(live.client.api.query_consumer_offset(address, "lag", handle)) == 25

            assert end[topic][queue.name] == 25
            until(committed)


def copying(spark: SparkSession, given: dict[str, str], directory: Path) -> DataStreamWriter:
    """The topic's queues and offsets to Parquet, from the beginning."""
    return (
        spark.readStream.format("rocketmq")
        .options(startingOffsets="earliest", columns="queueId,queueOffset", **given)
        .load()
        .writeStream.format("parquet")
        .options(path=str(directory / "parquet"), checkpointLocation=str(directory / "checkpoint"))
    )


def copied(spark: SparkSession, directory: Path) -> Counter[tuple[int, int]]:
    found = spark.read.parquet(str(directory / "parquet")).collect()
    return Counter((row.queueId, row.queueOffset) for row in found)


# ---------------------------------------------------------------------- retention


def retention(broker: Broker, topic: str) -> dict[int, tuple[int, int]]:
    """The broker has no log file but the last any more; what is left of each queue.

    It is done while the broker is away: they first clean when they have been up for a minute.
    """

    async def fill_files(producer: Producer) -> None:
        first = place = -1
        while first < 0 or place < first + 2 * FILE or place % FILE < FILE // 2:
            sent = await producer.send(Message(topic, b"[0]" + bytes([32]) * 700))
            place = int(sent.offset_msg_id[-16:], 16)
            first = place if first < 0 else first

    sending(broker, fill_files)
    broker.kill()
    for file in log_files_of(broker)[:-1]:
        file.unlink()
    broker.start()
    reader = source(options(broker, topic))
    found = offsets(rows(reader, reader.partitions()))
    left = {part.task.queue.queue_id: (part.task.start, part.task.end) for part in reader.partitions()}
    assert found == [(queue, offset) for queue in range(4) for offset in range(*left[queue])]
    return left


def log_files_of(broker: Broker) -> list[Path]:
    """Those that have messages; a broker makes the next one ahead."""
    directory = broker.directory if isinstance(broker, JavaBroker) else broker.log.parent
    (log,) = directory.rglob("commitlog")
    return [file for file in sorted(log.iterdir()) if any(file.read_bytes())]


@pytest.mark.spark
@AT_NIGHT_WITH_JAVA
def test_retention_passes_under_a_reader(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def copy(**more: str) -> None:
        catch_up(lambda: copying(spark, options(broker, topic, **more), tmp_path))

    copy()
    left = retention(broker, topic)
    low, high = left[0]
    kept = [(queue, offset) for queue in range(4) for offset in range(*left[queue])]
    name = source(options(broker, topic)).partitions()[0].task.queue.broker
    planned_before = as_partitions(
        QueueRange(Queue(topic, name, queue), 10, left[queue][1]) for queue in range(4)
    )
    start = {topic: {f"{name}:{queue}": 10 for queue in range(4)}}
    end = stream(options(broker, topic)).reportLatestOffset()

    def check(kind: Callable[[dict[str, str]], Any], **more: str) -> None:
        def partitions(reader: Any) -> list[TaskPartition[QueueRange]]:
            return reader.partitions() if kind is source else reader.partitions(start, end)

        strict = kind(options(broker, topic, **more))
        with pytest.raises(
            OffsetOutOfRangeError, match=rf"queue 0: offset.* 10 .* has {low} to {high} \(failOn"
        ):
            partitions(strict)
        with pytest.raises(OffsetOutOfRangeError, match=f"queue 0: offsets 10 to {low} were deleted before"):
            rows(strict, planned_before)
        going_on = kind(options(broker, topic, failOnDataLoss="false", **more))
        caplog.clear()
        assert offsets(rows(going_on, partitions(going_on))) == kept
        assert re.search(f"queue 0: offset.* 10 .* has {low} to {high}; reading goes on", caplog.text)
        assert offsets(rows(going_on, planned_before)) == kept
        for queue in range(4):
            assert f"queue {queue}: offsets 10 to {left[queue][0]} were deleted before they" in caplog.text

    check(source, startingOffsets=json.dumps(start), endingOffsets=json.dumps(end))
    check(stream)
    with pytest.raises(
        StreamingQueryException, match=rf"offsets 25 to {low} are gone; .* \(failOnDataLoss=false"
    ):
        copy()
    copy(failOnDataLoss="false")
    assert copied(spark, tmp_path) == Counter([*((n % 4, n // 4) for n in range(100)), *kept])
    log = spark_log(spark)
    assert (
        f"queue 0: offsets 25 to {low} are gone; the broker has {low} to {high}; reading goes on"
        in log.read_text()
    )


def test_offsets_that_are_missing_between() -> None:
    def scan(*offsets: int) -> Any:
        host = host_bytes(("127.0.0.1", 1))
        log = b""
        for n in offsets:
            inner = n % 100 == 50
            properties = b"INNER_NUM\x015\x02" if inner else b""
            flag = MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG if inner else 0
            log += encode_record(b"", 0, 0, 0, n, len(log), flag, 0, host, 0, host, 0, 0, b"T", properties, 1)
        return next(scans_of(log))

    assert missing(*scan(7, 8, 9), 7) == ([], 10)
    assert missing(*scan(7, 9, 12), 5) == ([(5, 7), (8, 9), (10, 12)], 13)
    assert missing(*scan(49, 50, 55, 56), 49) == ([], 57)
    assert missing(*scan(50, 56), 52) == ([(55, 56)], 57)
    assert missing(*scan(50), 53) == ([], 55)


# ---------------------------------------------------------------------- in Spark


@pytest.mark.spark
@AT_NIGHT_WITH_JAVA
def test_a_stream_into_parquet_and_back(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    def run(**more: object) -> None:
        catch_up(
            lambda: (
                spark.readStream.format("rocketmq")
                .options(
                    **options(broker, topic),
                    startingOffsets="earliest",
                    columns="queueId,queueOffset,body",
                    **more,
                )
                .load()
                .writeStream.format("parquet")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .option("path", str(tmp_path / "parquet"))
            )
        )

    run(maxOffsetsPerTrigger=64)
    fill(broker, topic, 20, first=100)
    run()
    written = spark.read.parquet(str(tmp_path / "parquet"))
    assert numbers([row.asDict() for row in written.collect()]) == list(range(120))

    sink = f"{topic}-copy"
    frame = written.select(
        "body", F.lit("k").alias("keys"), F.col("queueId").cast("string").alias("shardingKey")
    )
    with contextlib.suppress(TopicNotFoundError):  # it is made by the first that sends to it
        frame.write.format("rocketmq").mode("append").options(namesrvAddr=broker.namesrv, topic=sink).save()
    reader = source(options(broker, sink))
    until(lambda: sum(part.task.end - part.task.start for part in reader.partitions()) >= 120)
    copied = rows(reader, reader.partitions())
    assert numbers(copied) == list(range(120))
    assert {row["keys"] for row in copied} == {"k"}
    queues = {(dict(row["properties"])["__SHARDINGKEY"], row["queueId"]) for row in copied}
    assert len(queues) == 4  # a sharding key keeps to one queue


@pytest.mark.spark
def test_a_streaming_sink(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    catch_up(
        lambda: (
            spark.readStream.format("rocketmq")
            .options(**options(broker, topic), startingOffsets="earliest")
            .load()
            .select(F.lit(f"{topic}-sink").alias("topic"), F.col("body"), "properties")
            .writeStream.queryName("copy")  # Spark hands it on among the options
            .format("rocketmq")
            .options(namesrvAddr=broker.namesrv, checkpointLocation=str(tmp_path / "checkpoint"))
        )
    )
    reader = source(options(broker, f"{topic}-sink"))
    until(lambda: sum(part.task.end - part.task.start for part in reader.partitions()) >= 100)
    assert numbers(rows(reader, reader.partitions())) == list(range(100))


@pytest.mark.spark
def test_exactly_once_over_restarts_under_load(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    topic, sent, stop = f"L-{uuid.uuid4().hex[:8]}", 0, threading.Event()
    fill(broker, topic, 1)

    async def send(producer: Producer) -> None:
        nonlocal sent
        while not stop.is_set():
            await producer.send_batch([Message(topic, str(sent + n).encode()) for n in range(10)])
            sent += 10
            await asyncio.sleep(0.05)

    sender = threading.Thread(target=sending, args=(broker, send))
    sender.start()
    chance = random.Random(11)
    try:
        for _ in range(2):
            query = follow(
                lambda: copying(spark, options(broker, topic, maxOffsetsPerTrigger="300"), tmp_path).start()
            )
            time.sleep(chance.random() / 2)
            query.stop()
            assert query.exception() is None
    finally:
        stop.set()
        sender.join()
    parts = source(options(broker, topic)).partitions
    until(lambda: sum(part.task.end - part.task.start for part in parts()) >= 1 + sent)
    catch_up(lambda: copying(spark, options(broker, topic), tmp_path))
    assert copied(spark, tmp_path) == Counter(
        (part.task.queue.queue_id, offset)
        for part in parts()
        for offset in range(part.task.start, part.task.end)
    )
    assert copied(spark, tmp_path).total() == 1 + sent > 100


@pytest.mark.spark
def test_errors_in_spark(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="unknown option 'subscribes'; did you mean 'subscribe'"):
        spark.read.format("rocketmq").option("subscribes", "T").load()
    with pytest.raises(AnalysisException, match="option 'namesrvAddr' is missing"):
        spark.read.format("rocketmq").option("subscribe", "T").load()
    frame = spark.createDataFrame([(b"x", "y")], "body binary, tag string")
    with pytest.raises(PySparkException, match="unknown column of a message 'tag'; did you mean 'tags'"):
        frame.write.format("rocketmq").mode("append").options(namesrvAddr="h:1", topic="T").save()


def test_what_other_sources_call_topics_is_pointed_to() -> None:
    with pytest.raises(ConfigError, match="unknown option 'topic'; did you mean 'subscribe'"):
        read_options({"namesrvAddr": "n:1", "topic": "T"})


def test_division() -> None:
    queue = Queue("T", "b", 0)
    assert divided([QueueRange(queue, 5, 5)], None) == []
    assert divided([QueueRange(queue, 0, 10), QueueRange(queue, 3, 3)], 3) == [
        QueueRange(queue, 0, 3),
        QueueRange(queue, 3, 6),
        QueueRange(queue, 6, 10),
    ]


def test_a_busy_broker_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocketmq_sink, "BUSY_PAUSE_S", 0.001)
    answers: list[int | None] = [2, 2, None]

    async def send() -> str:
        if (code := answers.pop(0)) is not None:
            raise SendError("T", code, [("broker-0", "busy")])
        return "sent"

    assert asyncio.run(rocketmq_sink.patiently(send)) == "sent"
    answers += [2, 14]
    with pytest.raises(SendError, match="busy"):
        asyncio.run(rocketmq_sink.patiently(send))
    monkeypatch.setattr(rocketmq_sink, "BUSY_MAX_S", 0)
    answers += [2, None]
    with pytest.raises(SendError, match="busy"):
        asyncio.run(rocketmq_sink.patiently(send))
    assert answers == [None]


def test_what_cannot_be_decoded_is_named_or_left_out(
    broker: Broker, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"Poisoned-{uuid.uuid4().hex[:8]}"
    asyncio.run(poisoned(broker, topic))
    given = options(broker, topic)
    reader = source(given)
    with pytest.raises(UndecodableMessageError) as error:
        rows(reader, reader.partitions())
    says = str(error.value)
    assert "message ID2 of topic" in says and "queue offset 2 cannot be decoded" in says
    assert "mode=dropMalformed leaves it out" in says
    reader = source({**given, "mode": "dropMalformed"})
    found = rows(reader, reader.partitions())
    assert sorted(row["queueOffset"] for row in found) == [0, 1, 3, 4, 6, 7, 8]
    counting = source({**given, "mode": "dropMalformed"}, ("queueId",))
    assert len(rows(counting, counting.partitions())) == 7  # whatever columns are asked for
    assert [f"message ID{number} of" in caplog.text for number in (2, 5, 6)] == [True, True, False]
    reader = source({**given, "unpack": "false"})
    assert len(rows(reader, reader.partitions())) == 9
    with pytest.raises(PySparkException, match="queue offset 2 cannot be decoded"):
        spark.read.format("rocketmq").options(**given).load().collect()
    with pytest.raises(ConfigError, match="option 'mode'"):
        source({**given, "mode": "permissive"})


def test_records_that_a_broker_gives_out_damaged_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def record_at(offset: int) -> bytes:
        host = host_bytes(("127.0.0.1", 1))
        return encode_record(b"body", crc32(b"body"), 0, 0, offset, 0, 0, 1, host, 2, host, 0, 0, b"T", b"")

    given = read_options({"namesrvAddr": "n:1", "subscribe": "T", "mode": "dropMalformed"})
    queue = Queue("T", "b", 0)
    for position in (3, 7, 86, 89):
        damaged = bytearray(record_at(11))
        damaged[position] ^= 0x10
        records = record_at(10) + bytes(damaged) + record_at(12)
        scans, dropped = _scanned(given, queue, records, 100)
        assert [offset for _, scan in scans for offset in scan.queue_offset.tolist()] == [10, 12]
        assert dropped == {111}
        with pytest.raises(UndecodableMessageError, match="queue offset 111 cannot"):
            _scanned(dataclasses.replace(given, mode=Mode.FAIL_FAST), queue, records, 100)
    assert caplog.text.count("left out: message") == 4
