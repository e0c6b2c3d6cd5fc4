"""Spark over a log beside Spark over Parquet of the same rows, a per-record parse, and pulls from a live broker.

All in one session on two cores; both sides of a round run one after the other, and a round's ratio is that of
their wall times. What a side did is checked: rows, or sums.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from tests.interop.brokers import JavaBroker
from tests.interop.java_client import JavaClients

import mqlake.spark
from bench.alternate import compared, spark_clock
from bench.columns import count_columns, parse_columns
from bench.context import MIB, Context
from bench.measure import Line
from bench.workload import make_log
from mqlake.client.produce.producer import Producer
from mqlake.formats.record import BLANK_MAGIC_CODE, decode_record
from mqlake.lake.arrow.schema import COLUMNS, arrow_schema
from mqlake.lake.log.splits import Damage, log_files, open_window, splits_of_store, walk
from mqlake.lake.log.storage import Storage
from mqlake.message import Message, MessageExt
from mqlake.spark.jobs.messages import Shape, shaped, write_store

WORKER_MEMORY_MAX = 500 * MIB
RSS_INTERVAL_S = 0.05


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    """Two local cores. One that runs already is taken, and left."""
    running = SparkSession.getActiveSession()
    spark = mqlake.spark.session("mqlake bench", master="local[2]")
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


def _drain(frame: DataFrame) -> None:
    """Every row and column, to nowhere."""
    frame.write.format("noop").mode("overwrite").save()


def spark(context: Context) -> Iterator[Line]:
    """Scans and counts of a log of 1 KB messages; and the memory of the workers meanwhile."""
    root = context.kept(
        "log",
        lambda path: make_log(
            path, context.scale.recovered, {"mappedFileSizeCommitLog": context.scale.recovered_file}
        ),
    )
    with session() as spark, context.scratch("parquet") as directory:
        path = str(directory / "rows")
        with context.progress.step("the same rows as Parquet"):
            mqlake.spark.read_log(spark, str(root)).write.parquet(path)
        rows = spark.read.parquet(path).count()

        def counted(*by: Column) -> object:
            grouped = spark.read.parquet(path).groupBy(*by)
            return _sums(grouped.agg(F.count("*").alias("records"), F.sum("size").alias("bytes")))

        both = spark_clock(spark)
        with memory_of_workers() as memory:
            yield compared(
                context,
                "Spark: full scan with CRC, 1 KB",
                lambda: _drain(mqlake.spark.read_log(spark, str(root))),
                lambda: _drain(spark.read.parquet(path)),
                peer_name="Parquet",
                amount=rows,
                unit="rows/s",
                ratio_min=0.5,
                clocks=(both, both),
            )
            yield compared(
                context,
                "Spark: count by topic and queue",
                lambda: _sums(mqlake.spark.count_by(spark, str(root), by="topic,queueId")),
                lambda: counted(F.col("topic"), F.col("queueId")),
                peer_name="Parquet",
                amount=rows,
                unit="rows/s",
                ratio_min=1,
                clocks=(both, both),
                warm_up=8,
            )
            yield compared(
                context,
                "Spark: histogram over store times",
                lambda: _sums(mqlake.spark.count_by(spark, str(root), by="storeTimestamp/1s")),
                lambda: counted(F.date_trunc("second", "storeTimestamp")),
                peer_name="Parquet",
                amount=rows,
                unit="rows/s",
                ratio_min=1,
                clocks=(both, both),
                warm_up=8,
            )
        yield memory.line("Spark: memory of a Python worker")
        with memory_of_workers() as memory, context.progress.step("the same rows as a new store"):
            messages = shaped(spark.read.parquet(path).select("topic", "body", "keys"), Shape())
            write_store(messages, str(directory / "store")).collect()
        yield memory.line("Spark: memory of the worker that writes a store")
    for name, ours, peer in (
        ("log counted by queue, one thread", count_columns, _count_each),
        ("log to Arrow rows, one thread", parse_columns, _parse_each),
    ):
        yield compared(
            context,
            name,
            functools.partial(ours, root),
            functools.partial(peer, root),
            peer_name="one by one",
            amount=rows,
            unit="records/s",
            ratio_min=20,
            rounds=4 * context.scale.recovery_rounds,
            clocks=(time.process_time, time.process_time),
        )


def _sums(frame: DataFrame) -> list[tuple[int, ...]]:
    return sorted((row.records, row.bytes) for row in frame.select("records", "bytes").collect())


def _count_each(root: Path) -> dict[object, object]:
    """The same with the decoder of one record."""
    found: Counter[object] = Counter()
    for file in log_files(Storage(str(root))):
        view, position = memoryview(Path(file.file).read_bytes()), 0
        while position < file.limit:
            size, magic = _HEAD.unpack_from(view, position)
            if magic != BLANK_MAGIC_CODE:
                message = decode_record(view, position)
                found[message.topic, message.queue_id] += 1
            position += size
    return dict(found)


_HEAD = Struct(">ii")


def _parse_each(root: Path) -> int:
    """The same batches from the decoder of one record, a dictionary a row."""
    rows = 0
    schema = arrow_schema(tuple(COLUMNS))
    for split in splits_of_store(str(root)):
        window = open_window(split)
        for scan in walk(split, window, verify="none"):
            assert not isinstance(scan, Damage)
            view = memoryview(window.array)  # type: ignore[arg-type]
            records = [_row(decode_record(view, position), str(root)) for position in scan.position.tolist()]
            rows += pa.RecordBatch.from_pylist(records, schema=schema).num_rows
    return rows


def _row(message: MessageExt, path: str) -> dict[str, object]:
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "msgId": message.msg_id,
        "uniqKey": message.uniq_key,
        "tags": message.tags,
        "keys": message.keys,
        "body": message.body,
        "bodyCrc": message.body_crc,
        "properties": message.properties,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp * 1000,
        "bornHost": "{}:{}".format(*message.born_host),
        "storeTimestamp": message.store_timestamp * 1000,
        "storeHost": "{}:{}".format(*message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "size": message.store_size,
        "path": path,
    }


class _Memory:
    def __init__(self) -> None:
        self.peak = 0

    def line(self, name: str) -> Line:
        return Line(
            name,
            self.peak / MIB,
            "MiB",
            target=f"<= {WORKER_MEMORY_MAX // MIB}",
            met=self.peak <= WORKER_MEMORY_MAX,
        )


@contextlib.contextmanager
def memory_of_workers() -> Iterator[_Memory]:
    """The most resident bytes that one of Spark's Python workers had meanwhile (mapped files count)."""
    memory, stopped = _Memory(), threading.Event()

    def watch() -> None:
        while not stopped.wait(RSS_INTERVAL_S):
            memory.peak = max([memory.peak, *map(_resident, _workers())])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        stopped.set()
        watcher.join()


def _workers() -> list[int]:
    """Processes below this one that are Spark's Python workers."""
    parents, commands = {}, {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit():
                stat = Path(f"/proc/{name}/stat").read_text()
                parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
                commands[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes()

    def is_below(pid: int) -> bool:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = parents.get(pid, 0)
        return False

    return [
        pid
        for pid, command in commands.items()
        if b"\0-m\0mqlake.spark.daemon\0" in command and is_below(pid)
    ]


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def spark_live(context: Context) -> Iterator[Line]:
    """The same messages from the log of a running Java broker, and pulled from it: by Spark, and by RocketMQ's own
    client, which counts them and makes no rows."""
    config = {"mappedFileSizeCommitLog": context.scale.broker_log_file}
    with (
        context.scratch("live") as directory,
        JavaBroker(directory / "java", config, small=False) as broker,
        JavaClients(directory / "client", jvm=context.scale.jvm) as clients,
        session() as spark,
    ):
        with context.progress.step("filling a Java broker"):
            count = asyncio.run(fill(broker.namesrv, _LIVE_TOPIC, context.scale.live_log))
        columns = "topic,queueId,queueOffset,body"
        clients.request("bench.open", name="live", namesrv=broker.namesrv)

        def pulled() -> int:
            frame = spark.read.format("rocketmq").options(
                namesrvAddr=broker.namesrv, subscribe=_LIVE_TOPIC, columns=columns, minPartitions=4
            )
            return frame.load().groupBy().agg(F.count("body")).collect()[0][0]  # type: ignore[no-any-return]

        def drained() -> int:
            return clients.request("bench.drain", name="live", topic=_LIVE_TOPIC)["count"]  # type: ignore[no-any-return]

        def scanned() -> int:
            log = mqlake.spark.read_log(
                spark, str(directory / "java" / "store"), topics=_LIVE_TOPIC, columns=columns
            )
            return log.groupBy().agg(F.count("body")).collect()[0][0]  # type: ignore[no-any-return]

        while pulled() < count:  # the broker makes its queues a little later
            time.sleep(0.05)
        for peer_name, peer in (("pulled by Spark", pulled), ("pulled by a Java client", drained)):
            yield compared(
                context,
                "Spark: log of a live Java broker",
                scanned,
                peer,
                peer_name=peer_name,
                amount=count,
                unit="rows/s",
                ratio_min=5,
            )
        clients.request("bench.close", name="live")


_LIVE_TOPIC = "Live"


async def fill(namesrv: str, topic: str, size: int) -> int:
    """Sends so many bytes of bodies of 1 KB; how many."""
    body, count = bytes(range(256)) * 4, 0
    async with Producer("bench", namesrv) as producer:
        while count * len(body) < size:
            batch = [Message(topic, body, keys=f"k{count + n}") for n in range(100)]
            await producer.send_batch(batch, timeout_s=30)
            count += len(batch)
    return count
