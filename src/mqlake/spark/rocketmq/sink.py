# mypy: disable-error-code="misc"
"""The sink `rocketmq`: rows become messages, at least once, or exactly once where a stream asks for it.

    column        type                         needed
    body          binary or string             yes
    topic         string                       unless the option `topic` names one
    tags, keys    string                       no; keys are separated by spaces
    properties    map<string,string>           no; `tags` and `keys` go before what it says of them
    shardingKey   string                       no; rows with equal ones keep their order, in one queue
    queueId       int                          no; the same for equal numbers: of n queues the one that is left modulo n
    delayLevel    int                          no; 1 to 18

A task sends batches, some at the same time, and ends when the brokers have stored all of them. What fails fails
the task; Spark runs it again, and what had been stored before is then there twice: each message with another
UNIQ_KEY, since rows have no identity of their own. With delivery=exactlyOnce a task writes half messages, and the
driver commits them with the epoch: see `rocketmq_epochs`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, IntegerType, MapType, StringType, StructType

from mqlake.client import MessageQueue
from mqlake.client.config import ClientConfig
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.produce.producer import MessageQueueSelector, Producer, is_busy, select_by_hash
from mqlake.client.produce.transaction_producer import TransactionMQProducer
from mqlake.client.results import SendStatus
from mqlake.errors import ConfigError, SendError, UnknownKeyError
from mqlake.lake.live.cluster import Cluster
from mqlake.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    Message,
)
from mqlake.spark.error_messages import short_errors
from mqlake.spark.rocketmq.epochs import (
    Epochs,
    Half,
    QueueHalves,
    by_queue,
    half_of,
    transaction_producer,
)
from mqlake.spark.rocketmq.options import WriteOptions

T = TypeVar("T")

_TEXT: tuple[type[DataType], ...] = (StringType,)
COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _TEXT,
    "properties": (MapType,),
    "shardingKey": _TEXT,
    "queueId": (IntegerType,),
    "delayLevel": (IntegerType,),
}
_PROPERTIES = {
    "tags": PROPERTY_TAGS,
    "keys": PROPERTY_KEYS,
    "shardingKey": PROPERTY_SHARDING_KEY,
    "delayLevel": PROPERTY_DELAY_TIME_LEVEL,
}

BATCH_MESSAGES_MAX = 128
BATCH_BYTES_MAX = 512 << 10
IN_FLIGHT_MAX = 16
HALVES_IN_FLIGHT_MAX = 256
BUSY_PAUSE_S, BUSY_MAX_S = 0.1, 60.0
"""Sends to a broker that is too busy are retried for so long."""
SEND_TIMEOUT_S = 15.0


class _Placed(Message):
    """A message for the queue with this number."""

    __slots__ = ("queue_number",)
    queue_number: int


@dataclass
class SentMessages(WriterCommitMessage):
    count: int


@dataclass
class SentHalves(WriterCommitMessage):
    queues: list[QueueHalves]


@short_errors
class _Writer:
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Sends all of a task's rows. Raises SendError and its like, MessageError for a row that is no message."""
        return SentMessages(asyncio.run(_send(self._options, messages_of(iterator, self._options.topic))))


class RocketMQWriter(_Writer, DataSourceArrowWriter):
    pass


class RocketMQStreamWriter(_Writer, DataSourceStreamArrowWriter):
    pass


@short_errors
class RocketMQExactlyOnceWriter(DataSourceStreamArrowWriter):
    """A task sends half messages; the driver decides an epoch and ends them."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        if "delayLevel" in schema.fieldNames():
            raise ConfigError("column 'delayLevel': delivery=exactlyOnce cannot delay messages")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Sends all of a task's rows as half messages. Raises as at least once does."""
        messages = messages_of(iterator, self._options.topic)
        return SentHalves(by_queue(asyncio.run(_send_halves(self._options, _labelled(messages)))))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with self._epochs() as epochs:
            epochs.commit(batchId, _queues(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with self._epochs() as epochs:
            epochs.abort(_queues(messages))

    def _epochs(self) -> Epochs:
        assert self._options.checkpoint is not None
        return Epochs(self._options.cluster, self._options.checkpoint)


def _queues(messages: Iterable[WriterCommitMessage | None]) -> list[QueueHalves]:
    return [each for message in messages if isinstance(message, SentHalves) for each in message.queues]


def _labelled(messages: Iterator[Message]) -> Iterator[Message]:
    """Says in a message which query sent it in which epoch and task, for those who find it half-sent."""
    context = TaskContext.get()
    labels = {}
    if context is not None:
        labels = {
            "SPARK_QUERY": context.getLocalProperty("sql.streaming.queryId") or "",
            "SPARK_EPOCH": context.getLocalProperty("streaming.sql.batchId") or "",
            "SPARK_PARTITION": str(context.partitionId()),
        }
    for message in messages:
        message.properties.update(labels)
        yield message


def check_columns(schema: StructType, topic: str | None) -> None:
    """UnknownKeyError or ConfigError for columns that make no message."""
    for field in schema:
        if field.name not in COLUMNS:
            raise UnknownKeyError(field.name, COLUMNS, what="column of a message")
        allowed = COLUMNS[field.name]
        if not isinstance(field.dataType, allowed):
            names = " or ".join(each.typeName() for each in allowed)
            raise ConfigError(
                f"column {field.name!r} is {field.dataType.simpleString()}; it has to be {names}"
            )
    if "body" not in schema.fieldNames():
        raise ConfigError("there is no column 'body'")
    if topic is None and "topic" not in schema.fieldNames():
        raise ConfigError("neither a column 'topic' nor the option 'topic' says where the messages go")


def messages_of(batches: Iterable[pa.RecordBatch], topic: str | None) -> Iterator[Message]:
    """A message a row. ConfigError for a row without a topic or a body."""
    for batch in batches:
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            properties = {
                name: value for name, value in (row.get("properties") or {}).items() if value is not None
            }
            for column, name in _PROPERTIES.items():
                if row.get(column) is not None:
                    properties[name] = str(row[column])
            body, where = row["body"], topic if topic is not None else row["topic"]
            if body is None or where is None:
                raise ConfigError(f"a row has no {'body' if body is None else 'topic'}: {row!r:.200}")
            body = body.encode() if isinstance(body, str) else body
            if row.get("queueId") is None:
                yield Message(where, body, properties=properties)
            else:
                placed = _Placed(where, body, properties=properties)
                placed.queue_number = row["queueId"]
                yield placed


def _order(message: Message) -> str | int | None:
    """A key: messages with the same one keep their order, in one queue."""
    if isinstance(message, _Placed):
        return message.queue_number
    return message.properties.get(PROPERTY_SHARDING_KEY) or None


def _selector(order: str | int | None) -> MessageQueueSelector | None:
    if isinstance(order, int):
        return lambda queues, _: queues[order % len(queues)]
    return None if order is None else select_by_hash(order)


def _client_config(cluster: Cluster) -> ClientConfig:
    return ClientConfig(
        namesrv_addr=cluster.namesrv_addr, access_key=cluster.access_key, secret_key=cluster.secret_key
    )


async def _send(options: WriteOptions, messages: Iterator[Message]) -> int:
    cluster = options.cluster
    sent = 0
    under_way: set[asyncio.Task[Any]] = set()
    in_order: dict[tuple[str, str | int], asyncio.Task[Any]] = {}
    async with (
        MQClientInstance(_client_config(cluster)) as client,
        Producer(cluster.group, client) as producer,
    ):
        try:
            for batch in batched(messages):
                topic, order = batch[0].topic, _order(batch[0])
                before = None if order is None else in_order.get((topic, order))
                task = asyncio.ensure_future(_send_batch(producer, batch, _selector(order), before))
                if order is not None:
                    in_order[topic, order] = task
                under_way.add(task)
                sent += len(batch)
                if len(under_way) >= IN_FLIGHT_MAX:
                    under_way = await _settled(under_way, asyncio.FIRST_COMPLETED)
                    in_order = {key: each for key, each in in_order.items() if not each.done()}
            await _settled(under_way, asyncio.ALL_COMPLETED)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
    return sent


async def _send_halves(options: WriteOptions, messages: Iterator[Message]) -> list[tuple[MessageQueue, Half]]:
    """In the messages' order. Which is stored first does not matter: they get their places later."""
    cluster = options.cluster
    halves: dict[int, tuple[MessageQueue, Half]] = {}
    under_way: set[asyncio.Task[Any]] = set()
    async with (
        MQClientInstance(_client_config(cluster)) as client,
        transaction_producer(client, cluster.group) as producer,
    ):

        async def send(number: int, message: Message) -> None:
            halves[number] = await _send_half(producer, message)

        try:
            for number, message in enumerate(messages):
                under_way.add(asyncio.ensure_future(send(number, message)))
                if len(under_way) >= HALVES_IN_FLIGHT_MAX:
                    under_way = await _settled(under_way, asyncio.FIRST_COMPLETED)
            await _settled(under_way, asyncio.ALL_COMPLETED)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
    return [halves[number] for number in range(len(halves))]


async def _send_half(producer: TransactionMQProducer, message: Message) -> tuple[MessageQueue, Half]:
    selector = _selector(_order(message))
    sent = await patiently(
        lambda: producer.send_half_message(message, selector=selector, timeout_s=SEND_TIMEOUT_S)
    )
    if sent.send_status is not SendStatus.SEND_OK:  # an epoch must not be decided on what may be lost
        broker = sent.message_queue.broker_name
        raise SendError(message.topic, sent.send_status.value, [(broker, sent.send_status.name)])
    return half_of(sent)


async def _settled(under_way: set[asyncio.Task[Any]], until: str) -> set[asyncio.Task[Any]]:
    """Returns the tasks still in flight; raises the failure of one that has ended."""
    if not under_way:
        return under_way
    done, pending = await asyncio.wait(under_way, return_when=until)
    for task in done:
        task.result()
    return pending


async def _send_batch(
    producer: Producer,
    batch: list[Message],
    selector: MessageQueueSelector | None,
    before: asyncio.Task[Any] | None,
) -> None:
    if before is not None:
        await before
    if len(batch) == 1:
        await patiently(lambda: producer.send(batch[0], selector=selector, timeout_s=SEND_TIMEOUT_S))
    else:
        await patiently(lambda: producer.send_batch(batch, selector=selector, timeout_s=SEND_TIMEOUT_S))


async def patiently(send: Callable[[], Awaitable[T]]) -> T:
    """Sends again, for BUSY_MAX_S, what a broker was too busy to take: it has stored nothing, so the order holds.

    SendError for anything else, and when the broker stays busy.
    """
    deadline, pause_s = time.monotonic() + BUSY_MAX_S, BUSY_PAUSE_S
    while True:
        try:
            return await send()
        except SendError as error:
            if not is_busy(error) or time.monotonic() + pause_s > deadline:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 1.0)


def batched(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Messages that follow each other and may travel together: one topic, one order, no delay."""
    for _, group in itertools.groupby(messages, _together):
        batch: list[Message] = []
        size = 0
        for message in group:
            alone = PROPERTY_DELAY_TIME_LEVEL in message.properties
            if batch and (
                alone or len(batch) == BATCH_MESSAGES_MAX or size + len(message.body) > BATCH_BYTES_MAX
            ):
                yield batch
                batch, size = [], 0
            batch.append(message)
            size += len(message.body)
        yield batch


def _together(message: Message) -> tuple[object, ...]:
    return message.topic, _order(message), message.properties.get(PROPERTY_DELAY_TIME_LEVEL)
