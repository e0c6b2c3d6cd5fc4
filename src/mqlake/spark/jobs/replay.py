"""replay: messages of a store or of brokers sent again, to another topic or another cluster.

Properties that a broker or a client gave a message for its own delivery are left out; keys, tags and what the
application said go along. Messages without a body cannot be sent: brokers refuse them (`sendable`). With `ordered`
each queue's messages are sent by one task, in their order, to one queue; a topic's queues to as many, where there are.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from mqlake.message import (
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_BUYER_ID,
    PROPERTY_CORRELATION_ID,
    PROPERTY_EXTEND_UNIQ_INFO,
    PROPERTY_INSTANCE_ID,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    STRING_PROPERTY,
)

OF_THE_APPLICATION = frozenset(
    {
        PROPERTY_KEYS,
        PROPERTY_TAGS,
        PROPERTY_SHARDING_KEY,
        PROPERTY_BUYER_ID,
        PROPERTY_CORRELATION_ID,
        PROPERTY_INSTANCE_ID,
    }
)
LEFT_OUT = (
    STRING_PROPERTY | {PROPERTY_BORN_HOST, PROPERTY_BORN_TIMESTAMP, PROPERTY_EXTEND_UNIQ_INFO}
) - OF_THE_APPLICATION
"""Properties with a meaning in RocketMQ that belong to the first delivery."""
OF_A_QUEUE = ("path", "brokerName", "topic", "queueId")
"""The columns that identify a queue."""
QUEUE_NUMBERS = 1 << 30


def sendable(messages: DataFrame) -> DataFrame:
    """Returns the messages with a body."""
    return messages.where(F.length("body") > 0)


def as_new(messages: DataFrame, *, topic: str | None = None, ordered: bool = False) -> DataFrame:
    """The messages as the sink `rocketmq` takes them: topic (or their own), body, properties, with `ordered` also
    queueId."""
    kept = F.map_filter("properties", lambda name, _: ~name.isin(sorted(LEFT_OUT)))
    columns = [
        (F.lit(topic) if topic is not None else F.col("topic")).alias("topic"),
        F.col("body"),
        kept.alias("properties"),
    ]
    if not ordered:
        return messages.select(*columns)
    first = F.hash(*OF_A_QUEUE[:-1]).cast("long")  # not the same one for all topics and brokers
    queue = F.pmod(first + F.col("queueId"), F.lit(QUEUE_NUMBERS)).cast("int")
    in_order = messages.repartition(*OF_A_QUEUE).sortWithinPartitions(*OF_A_QUEUE, "queueOffset")
    return in_order.select(*columns, queue.alias("queueId"))


def replay(
    messages: DataFrame, namesrv: str, *, topic: str | None = None, ordered: bool = False, **options: str
) -> None:
    """Sends the messages that have a body, at least once; `options` are the sink's, and so are the errors."""
    found = as_new(sendable(messages), topic=topic, ordered=ordered)
    found.write.format("rocketmq").mode("append").options(namesrvAddr=namesrv, **options).save()
