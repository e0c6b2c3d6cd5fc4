"""A topic of a running broker: its log into an Iceberg table, beside those who pull it and write Parquet.

    log of the broker, in place ─▶ files ─▶ one commit
    broker ─▶ source rocketmq in Spark ─▶ Spark's Parquet writer
    broker ─▶ mqlake's pull consumer   ─▶ pyarrow's Parquet writer

What pulling costs the broker is not counted.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.interop.brokers import MqlakeBroker
from tests.waiting import until

from bench.alternate import compared, spark_clock
from bench.context import Context
from bench.measure import Line
from bench.spark import fill, session
from mqlake.client.blocking import PullConsumer
from mqlake.lake.arrow.schema import arrow_schema
from mqlake.lake.tables.config import DEFAULT_COLUMNS, Lake, Topic
from mqlake.lake.tables.topic import TopicTable

TOPIC = "LakeLive"
POLLED = 4096
"""Rows of a batch of the consumer."""
RATIO_MIN = 5


def lake_live(context: Context) -> Iterator[Line]:
    """Five times the rows for the same processor time."""
    config = {"mappedFileSizeCommitLog": context.scale.broker_log_file}
    numbers = itertools.count()
    with (
        context.scratch("lake-live") as directory,
        MqlakeBroker(directory / "broker", config, small=False) as broker,
        session() as spark,
    ):
        store = directory / "broker" / "store" / "broker-0"
        with context.progress.step("filling a broker"):
            count = asyncio.run(fill(broker.namesrv, TOPIC, context.scale.live_log // 2))

        def as_table() -> int:
            place = directory / f"lake-{next(numbers)}"
            found = TopicTable.open(Lake(str(place)), Topic(TOPIC, {"bench": str(store)})).append_new().rows
            shutil.rmtree(place)
            return found

        def by_source() -> int:
            out = directory / f"source-{next(numbers)}"
            spark.read.format("rocketmq").options(
                namesrvAddr=broker.namesrv,
                subscribe=TOPIC,
                columns=",".join(DEFAULT_COLUMNS),
                minPartitions=4,
            ).load().write.option("compression", "zstd").parquet(str(out))
            found = sum(pq.read_metadata(file).num_rows for file in out.rglob("*.parquet"))
            shutil.rmtree(out)
            return found

        def by_consumer() -> int:
            path = directory / f"pulled-{next(numbers)}.parquet"
            pull_to_parquet(broker.namesrv, TOPIC, count, path)
            found = int(pq.read_metadata(path).num_rows)
            path.unlink()
            return found

        until(lambda: as_table() == count)  # dispatched
        for peer_name, peer, clock in (
            ("Spark's rocketmq to Parquet", by_source, spark_clock(spark)),
            ("pull consumer to Parquet", by_consumer, time.process_time),
        ):
            yield compared(
                context,
                "log of a live broker to a table",
                as_table,
                peer,
                peer_name=peer_name,
                amount=count,
                unit="rows/s",
                ratio_min=RATIO_MIN,
                clocks=(time.process_time, clock),
                by_cpu=True,
            )


def pull_to_parquet(namesrv: str, topic: str, count: int, path: Path) -> None:
    """What a program does that has no log to read: polls, makes columns, writes them."""
    schema = arrow_schema(DEFAULT_COLUMNS)
    with (
        pq.ParquetWriter(path, schema, compression="zstd") as writer,
        PullConsumer("bench-lake", namesrv) as consumer,
    ):
        queues = consumer.fetch_message_queues(topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        found: list[Any] = []
        written = 0
        while written < count:
            found += consumer.poll(max_messages=POLLED)
            if len(found) >= POLLED or written + len(found) >= count:
                writer.write_batch(_rows(found, schema))
                written += len(found)
                found = []


def _rows(messages: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = {
        "topic": [each.topic for each in messages],
        "brokerName": [each.broker_name for each in messages],
        "queueId": [each.queue_id for each in messages],
        "queueOffset": [each.queue_offset for each in messages],
        "physicalOffset": [each.physical_offset for each in messages],
        "uniqKey": [each.uniq_key for each in messages],
        "tags": [each.tags for each in messages],
        "keys": [each.keys for each in messages],
        "properties": [each.properties for each in messages],
        "bornTimestamp": [each.born_timestamp * 1000 for each in messages],
        "storeTimestamp": [each.store_timestamp * 1000 for each in messages],
        "reconsumeTimes": [each.reconsume_times for each in messages],
        "body": [each.body for each in messages],
    }
    properties = [list(each.items()) for each in columns["properties"]]
    arrays = [
        pa.array(properties if field.name == "properties" else columns[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
