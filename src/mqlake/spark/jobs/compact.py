"""compact: the last message of each key, as a new store.

The rule is that of RocketMQ's compaction topics: all of KEYS is one key; of a key's messages in a topic the one
that was stored last stays; a message with an empty body deletes its key; messages without keys are left out.
What stays keeps topic, queue, properties, flag and born time, and in its queue its place after what is older; offsets
are new.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from mqlake.spark.jobs.messages import write_store

COLUMNS = (
    "topic,queueId,queueOffset,physicalOffset,keys,properties,flag,bornTimestamp,storeTimestamp,body,path,"
    "brokerName"
)
"""The columns that are needed."""
STORE = ("path", "brokerName")
"""Which store a message is of; a directory knows no broker, a broker no directory."""


def latest(messages: DataFrame) -> DataFrame:
    """The messages that stay. In a store physical offsets say what is later, between stores their store times."""
    one_key = Window.partitionBy("topic", "keys", *STORE).orderBy(
        F.desc("physicalOffset"), F.desc("queueOffset")
    )
    of_stores = Window.partitionBy("topic", "keys").orderBy(F.desc("storeTimestamp"), *map(F.desc, STORE))
    last = messages.where("keys <> ''").repartition("topic", "keys")
    for newest_first in (one_key, of_stores):
        last = last.withColumn("_age", F.row_number().over(newest_first)).where("_age = 1")
    return last.where("length(body) > 0").drop("_age")


def compact(messages: DataFrame, path: str, *, settings: Mapping[str, object] | None = None) -> DataFrame:
    """Writes latest() of the messages to a new store; topic, queueId, messages. Raises what write_store() raises."""
    # a clock that was set back does not change the order within a store
    so_far = Window.partitionBy(*STORE).orderBy("physicalOffset", "queueOffset")
    timed = latest(messages).withColumn("_time", F.max("storeTimestamp").over(so_far))
    ordered = timed.orderBy("_time", *STORE, "physicalOffset", "queueOffset")
    kept = ordered.select("topic", "queueId", "properties", "flag", "bornTimestamp", "body")
    return write_store(kept, path, settings=settings)
