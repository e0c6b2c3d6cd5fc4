# mypy: disable-error-code="misc"
"""`rocketmq` as a stream that pops (option `popGroup`): topics as work that is shared with other consumers of a group.

    driver    pops ─▶ which messages, and their receipt handles ─▶ the batch's offset in Spark's checkpoint
    task      reads these messages at their places in the queues
    driver    the batch is done ─▶ they are acknowledged

A batch that is run again has the same messages, since its offset names them. What a failed query has popped comes
again, to it or to others of the group, when its invisible time is over; so does a batch that takes longer than that.

An offset: {"batch": 3, "popped": [["T", "broker-a", 0, "100 1795310521607 600000 3 0 broker-a 0", 100, 131], …]}:
topic, broker, queue, receipt handle without the message's own offset, first and last offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from mqlake.client.consume.pop_api import FROM_FIRST, POP_MAX, PopAPIWrapper
from mqlake.client.consume.subscription import build_subscription_data
from mqlake.client.records import MAX_BODY_SIZE, MessageClientExt
from mqlake.errors import ConfigError, MqlakeError
from mqlake.lake.live.cluster import Live, Queue
from mqlake.lake.live.options import ReadOptions
from mqlake.lake.live.ranges import QueueRange, divided, read_range, subscribed
from mqlake.message import ReceiptHandle, real_topic
from mqlake.spark.error_messages import short_errors
from mqlake.spark.partitions import TaskPartition, as_partitions
from mqlake.spark.stream_readers import LimitedStreamReader

logger = logging.getLogger(__name__)

BATCH_MAX = 10_000
"""Messages of a batch unless maxOffsetsPerTrigger says otherwise: they are named in its offset."""
Offset = dict[str, Any]
Entry = list[Any]


@short_errors
class RocketMQPopReader(LimitedStreamReader[Queue]):
    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        super().__init__(options)
        assert options.pop_group is not None
        self._options = options
        self._columns = columns
        self._group = options.pop_group

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, here and below
        return {"batch": 0, "popped": []}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return self.initialOffset()  # what is not popped has no offset here

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Pops until there is nothing more."""

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else BATCH_MAX
        with Live(self._options.cluster) as live:
            popped = self._pop(live, count)
        return {"batch": start["batch"] + 1, "popped": popped} if popped else start

    def _pop(self, live: Live, count: int) -> list[Entry]:
        pops = PopAPIWrapper(live.client, self._group, MAX_BODY_SIZE)
        entries: list[Entry] = []
        for topic in subscribed(live, self._options):
            queues = live.queues([topic])
            if not live.gaps.keys().isdisjoint(queues):
                raise ConfigError(
                    f"topic {topic} is a static one: pops bring its messages with offsets of physical queues, which "
                    "do not say where they are read again. Leave out popGroup"
                )
            brokers = sorted({queue.broker for queue in queues})
            while brokers and count > 0:
                for broker in list(brokers):
                    messages = live.run(
                        pops.pop(
                            live.any_queue(topic, broker),
                            build_subscription_data(topic),
                            max_num=min(count, POP_MAX),
                            invisible_s=self._options.pop_invisible_s,
                            poll_s=0.0,
                            init_mode=FROM_FIRST,
                        )
                    )
                    if not messages:
                        brokers.remove(broker)
                    count -= len(messages)
                    entries += _entries(topic, self._group, messages)
                    if count <= 0:
                        break
        return entries

    def partitions(self, start: Offset, end: Offset) -> list[TaskPartition[QueueRange]]:
        if start["batch"] == end["batch"]:
            return []
        ranges = [
            QueueRange(Queue(topic, broker, queue_id), first, last + 1)
            for topic, broker, queue_id, _, first, last in end["popped"]
        ]
        return as_partitions(divided(_joined(ranges), self._options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            yield from read_range(partition.task, self._options, self._columns)

    def commit(self, end: Offset) -> None:
        """Acknowledges the messages of a batch that is done. One that cannot be is popped again: a failure warns."""
        try:
            with Live(self._options.cluster) as live:
                pops = PopAPIWrapper(live.client, self._group, MAX_BODY_SIZE)
                for topic in {entry[0] for entry in end["popped"]}:
                    live.queues([topic])
                for topic, broker, _, handle, first, last in end["popped"]:
                    live.run(pops.ack_range(broker, topic, handle, range(first, last + 1)))
        except MqlakeError as error:
            logger.warning("messages of group %s come again: %s", self._group, error)


def _entries(topic: str, group: str, messages: list[MessageClientExt]) -> list[Entry]:
    """Runs of messages without a gap."""
    entries: list[Entry] = []
    for message in messages:
        handle = ReceiptHandle.parse(message.receipt_handle)
        place = [
            real_topic(topic, group, handle.flag),
            message.broker_name,
            handle.queue_id,
            handle._replace(queue_offset=-1).text,
        ]
        offset = handle.queue_offset
        if entries and entries[-1][:4] == place and entries[-1][5] in (offset, offset - 1):
            entries[-1][5] = offset
        else:
            entries.append([*place, offset, offset])
    return entries


def _joined(ranges: list[QueueRange]) -> list[QueueRange]:
    """Neighbours as one."""
    joined: list[QueueRange] = []
    for one in sorted(ranges, key=lambda one: (one.queue, one.start)):
        if joined and joined[-1].queue == one.queue and joined[-1].end == one.start:
            joined[-1] = QueueRange(one.queue, joined[-1].start, one.end)
        else:
            joined.append(one)
    return joined
