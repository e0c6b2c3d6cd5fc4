"""Rows to messages, and messages to a new store: encoded by all tasks, appended by one.

    task     rows ─▶ Arrow's compute kernels ─▶ batches of encoded messages (formats.batch), one topic and queue each
    Spark    the batches, in order, to one task
    task     DefaultMessageStore.put_messages() ─▶ PATH.writing-… ─▶ renamed to PATH when it is closed

A row has the columns of the sink `rocketmq` (body, topic, tags, keys, properties, shardingKey), and may have
queueId, flag and bornTimestamp. Rows keep their order within a partition, partitions theirs.

Each run, and each attempt of its task, has a directory beside PATH of its own, which goes when it fails: what is in it
can be made again, and half of it is of no use. Those of other runs are left alone.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import itertools
import logging
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import BinaryType, StringType

from mqlake.base.clock import now_ms
from mqlake.base.config_file import ConfigFile
from mqlake.errors import ConfigError, MessageError, PropertiesTooLargeError, StoreError, UnknownKeyError
from mqlake.formats.arrow import Ints, encode_items
from mqlake.formats.record import PROPERTIES_LENGTH_MAX
from mqlake.message import (
    PROPERTY_CRC32,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    MessageExtBatch,
    java_hash,
)
from mqlake.spark.error_messages import short_errors_of
from mqlake.spark.jobs.parallel import rows_batch
from mqlake.spark.jobs.search import first_line
from mqlake.spark.schema import table_schemas
from mqlake.store import PutMessageStatus, open_store
from mqlake.store.written_pages import WrittenPages

logger = logging.getLogger(__name__)

BATCH_BYTES_MAX = 1 << 20
"""About so much of one queue is one put; a message is never divided."""
HOST = ("127.0.0.1", 0)
WRITING = ".writing-"
KILLED_S = 5.0
"""At least as long as Spark lets a task run on after it asked it to end."""
PIECE_BYTES = 8 << 20
PERM_READ_WRITE = 6

MESSAGE_COLUMNS: dict[str, str] = {
    "topic": "string",
    "body": "binary",
    "tags": "string",
    "keys": "string",
    "shardingKey": "string",
    "properties": "map",
    "queueId": "int",
    "flag": "int",
    "bornTimestamp": "timestamp",
}
_BATCHES: dict[str, str] = {
    "part": "int",
    "number": "long",
    "topic": "string",
    "queueId": "int",
    "bornTimestamp": "timestamp",
    "messages": "int",
    "batch": "binary",
}
_WRITTEN: dict[str, str] = {"topic": "string", "queueId": "int", "messages": "long"}


@dataclass(frozen=True)
class Shape:
    """The way rows become messages: SQL over their columns. `topic` is a name, `topic_sql` an expression.

    Without `body` it is the column of that name, or else the row as JSON.
    """

    topic: str | None = None
    topic_sql: str | None = None
    body: str | None = None
    tags: str | None = None
    keys: str | None = None
    sharding_key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def shaped(rows: DataFrame, shape: Shape) -> DataFrame:
    """Any rows as messages. ConfigError for an invalid expression, or without a topic."""
    names = rows.columns
    if shape.topic is not None:
        topic: Column = F.lit(shape.topic)
    elif shape.topic_sql is not None or "topic" in names:
        topic = F.expr(shape.topic_sql or "topic")
    else:
        raise ConfigError("neither a topic is named nor do the rows have a column 'topic'")
    if shape.body is not None or "body" in names:
        body = F.expr(shape.body or "body")
    else:
        body = F.to_json(F.struct(*names))
    columns = [topic.cast("string").alias("topic"), body.alias("body")]
    for name, given in (("tags", shape.tags), ("keys", shape.keys), ("shardingKey", shape.sharding_key)):
        if given is not None or name in names:
            columns.append(F.expr(given or name).cast("string").alias(name))
    if shape.properties:
        pairs = [
            part
            for name, sql in shape.properties.items()
            for part in (F.lit(name), F.expr(sql).cast("string"))
        ]
        columns.append(F.create_map(*pairs).alias("properties"))
    elif "properties" in names:
        columns.append(F.col("properties"))
    columns += [
        F.col(name) for name in ("queueId", "flag", "bornTimestamp") if name in names and shape.body is None
    ]
    try:
        found = rows.select(*columns)
        kind = found.schema["body"].dataType
    except (AnalysisException, ParseException) as error:
        raise ConfigError(f"the rows cannot be made messages: {first_line(error)}") from error
    if isinstance(kind, BinaryType | StringType):
        return found.withColumn("body", F.col("body").cast("binary"))
    raise ConfigError(
        f"the body is {kind.simpleString()}; it has to be binary or string (to_json() makes one)"
    )


# ---------------------------------------------------------------------- encoding


def encoded(messages: DataFrame, queues: int) -> DataFrame:
    """Batches of encoded messages, `queues` a topic where rows do not say queueId."""
    for name in messages.columns:
        if name not in MESSAGE_COLUMNS:
            raise UnknownKeyError(name, MESSAGE_COLUMNS, what="column of a message")
    casts = [F.col(name).cast(_SQL_TYPES[MESSAGE_COLUMNS[name]]).alias(name) for name in messages.columns]
    numbered = messages.select(*casts, F.spark_partition_id().alias("part"))
    return numbered.mapInArrow(functools.partial(_encode, queues=queues), table_schemas(_BATCHES)[0])


_SQL_TYPES = {
    "string": "string",
    "binary": "binary",
    "int": "int",
    "timestamp": "timestamp",
    "map": "map<string,string>",
}


@short_errors_of
def _encode(batches: Iterator[pa.RecordBatch], queues: int) -> Iterator[pa.RecordBatch]:
    begun = 0
    now_us = now_ms() * 1000
    for number, batch in enumerate(batches):
        if batch.num_rows:
            yield _encode_batch(batch, queues, begun, number, now_us)
        begun += batch.num_rows


def _encode_batch(batch: pa.RecordBatch, queues: int, begun: int, number: int, now_us: int) -> pa.RecordBatch:
    """The rows of one Arrow batch, by topic, queue and born time."""
    given = {name: batch.column(name) for name in batch.schema.names}
    for name in ("topic", "body"):
        if given[name].null_count:
            raise MessageError(f"a row has no {name}")
    topics = given["topic"].dictionary_encode()
    topic_id = topics.indices.to_numpy()
    queue_id = _queue_ids(given, batch.num_rows, queues, begun)
    born = np.full(batch.num_rows, now_us)
    if "bornTimestamp" in given:
        times = given["bornTimestamp"].cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
        born = pc.fill_null(times, now_us).to_numpy()
    order = np.lexsort((queue_id, topic_id))
    topic_id, queue_id, born = topic_id[order], queue_id[order], born[order]
    items = encode_rows({name: column.take(pa.array(order)) for name, column in given.items()})
    offsets = np.frombuffer(items.buffers()[1], np.int32, batch.num_rows + 1)
    data = items.buffers()[2]
    changes = (np.diff(topic_id) != 0) | (np.diff(queue_id) != 0) | (np.diff(born // 1000) != 0)
    changes |= np.diff(offsets[1:].astype(np.int64) // BATCH_BYTES_MAX) != 0
    firsts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    lasts = np.append(firsts[1:], batch.num_rows)
    names = topics.dictionary
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(batch.column("part")[0].as_py(), pa.int32()), len(firsts)),
            pa.array((number << 32) + np.arange(len(firsts), dtype=np.int64)),
            names.take(pa.array(topic_id[firsts])).cast(pa.string()),
            pa.array(queue_id[firsts].astype(np.int32)),
            pa.array(born[firsts]).view(pa.timestamp("us", tz="UTC")),
            pa.array((lasts - firsts).astype(np.int32)),
            pa.BinaryArray.from_buffers(
                pa.binary(),
                len(firsts),
                [None, pa.py_buffer(np.append(offsets[firsts], offsets[-1]).astype(np.int32)), data],
            ),
        ],
        schema=table_schemas(_BATCHES)[1],
    )


def _queue_ids(given: Mapping[str, pa.Array], rows: int, queues: int, begun: int) -> Ints:
    """As rows say; by the hash of a sharding key, as RocketMQ's SelectMessageQueueByHash; else in turn."""
    found = (begun + np.arange(rows, dtype=np.int64)) % queues
    if "shardingKey" in given:
        keys = given["shardingKey"].dictionary_encode()
        hashed = np.array(
            [abs(java_hash(key)) % queues for key in keys.dictionary.to_pylist()] + [0], np.int64
        )
        has_key = given["shardingKey"].is_valid().to_numpy(zero_copy_only=False)
        code = pc.fill_null(keys.indices, len(hashed) - 1).to_numpy()
        found = np.where(has_key, hashed[code], found)
    if "queueId" in given:
        said = given["queueId"].is_valid().to_numpy(zero_copy_only=False)
        found = np.where(said, pc.fill_null(given["queueId"], 0).to_numpy(), found)
    return found


def encode_rows(columns: Mapping[str, pa.Array]) -> pa.Array:
    """Each row as formats.batch has a message. MessageError for invalid properties."""
    body = columns["body"].cast(pa.binary())
    properties = _properties(columns, len(body))
    longest = pc.max(pc.binary_length(properties)).as_py() or 0
    if longest > PROPERTIES_LENGTH_MAX:
        raise PropertiesTooLargeError(
            f"the properties have {longest} bytes; a message holds {PROPERTIES_LENGTH_MAX}"
        )
    flags = pc.fill_null(columns["flag"], 0).to_numpy() if "flag" in columns else 0
    return encode_items(body, properties, flags)


def _properties(columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """`name \\1 value \\2 …`, those of columns last, since of equal names the last counts."""
    parts: list[pa.Array] = []
    if "properties" in columns:
        parts.append(_map_texts(columns["properties"]))
    for name, prop in (
        ("keys", PROPERTY_KEYS),
        ("tags", PROPERTY_TAGS),
        ("shardingKey", PROPERTY_SHARDING_KEY),
    ):
        if name in columns:
            _refuse_separators(columns[name])
            text = pc.binary_join_element_wise(prop, columns[name], "\x01")
            has_value = pc.greater(pc.fill_null(pc.binary_length(columns[name]), 0), 0)
            parts.append(pc.if_else(has_value, pc.binary_join_element_wise(text, "", "\x02"), ""))
    if not parts:
        return pa.repeat(pa.scalar(b""), rows)
    return pc.binary_join_element_wise(*parts, "").cast(pa.binary())


def _map_texts(maps: pa.Array) -> pa.Array:
    """Each map as text; null values are left out, and the checksum of another record."""
    entries = pa.ListArray.from_arrays(
        maps.offsets, pa.StructArray.from_arrays([maps.keys, maps.items], ["k", "v"])
    )
    if maps.null_count:
        entries = pc.if_else(maps.is_valid(), entries, pa.scalar([], entries.type))
    flat, row = entries.flatten(), pc.list_parent_indices(entries)
    names, values = flat.field("k"), flat.field("v")
    is_name = pc.and_(pc.greater(pc.binary_length(names), 0), pc.not_equal(names, PROPERTY_CRC32))
    kept = pc.and_(values.is_valid(), is_name)
    names, values, row = names.filter(kept), values.filter(kept), row.filter(kept)
    for texts in (names, values):
        _refuse_separators(texts)
    pairs = pc.binary_join_element_wise(pc.binary_join_element_wise(names, values, "\x01"), "", "\x02")
    offsets = np.searchsorted(row.to_numpy(), np.arange(len(maps) + 1)).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), pairs), "")


def _refuse_separators(texts: pa.Array) -> None:
    bad = pc.match_substring_regex(texts, "[\x01\x02]")
    if pc.any(bad).as_py():
        text = texts.filter(pc.fill_null(bad, False))[0].as_py()
        raise MessageError(f"a property cannot have the characters 1 and 2 in it: {text!r:.100}")


# ---------------------------------------------------------------------- the new store


def write_store(
    messages: DataFrame, path: str, *, queues: int = 4, settings: Mapping[str, object] | None = None
) -> DataFrame:
    """Writes the messages to a new store and gives topic, queueId, messages. Nothing is lazy about it.

    The executor that writes has to see `path`. Raises ConfigError, UnknownKeyError, StoreError (`path` is there).
    Nothing is left of a run that fails, unless it is killed itself: the next one names what that has left.
    """
    path = os.path.abspath(path)
    if os.path.exists(path):
        raise StoreError(f"{path}: is there already; a new store is made")
    if queues < 1:
        raise ConfigError(f"{queues} queues a topic; at least one is needed")
    for left in glob.glob(f"{glob.escape(path)}{WRITING}*"):
        logger.warning(
            "%s: another run is at work, or was killed and has left it, in which case delete it", left
        )
    beside = f"{path}{WRITING}{uuid.uuid4().hex[:8]}"
    ordered = encoded(messages, queues).repartition(1).sortWithinPartitions("part", "number")
    write = functools.partial(_write, path=path, beside=beside, settings=dict(settings or {}))
    try:
        rows = ordered.mapInArrow(write, table_schemas(_WRITTEN)[0]).collect()
    finally:
        _clear(f"{glob.escape(beside)}.*")
    return messages.sparkSession.createDataFrame(rows, table_schemas(_WRITTEN)[0])


@short_errors_of
def _write(
    batches: Iterator[pa.RecordBatch], path: str, beside: str, settings: Mapping[str, object]
) -> Iterator[pa.RecordBatch]:
    """In one task."""
    context = TaskContext.get()
    beside = f"{beside}.{context.attemptNumber() if context else 0}"
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, beside, ignore_errors=True)
        written = _write_log(batches, beside, settings)
        _write_topics(beside, list(written))
        if os.path.exists(path):
            raise StoreError(f"{path}: was made meanwhile")
        os.rename(beside, path)
    rows: Sequence[dict[str, object]] = [
        {"topic": topic, "queueId": queue_id, "messages": count}
        for (topic, queue_id), count in sorted(written.items())
    ]
    yield rows_batch(rows, _WRITTEN)


def _write_log(
    batches: Iterator[pa.RecordBatch], root: str, settings: Mapping[str, object]
) -> Counter[tuple[str, int]]:
    """Messages by topic and queue."""
    written: Counter[tuple[str, int]] = Counter()
    with open_store(root, settings) as store:
        pages = WrittenPages(store.commit_log_files, store.index)
        for batch in itertools.chain.from_iterable(map(_pieces, batches)):
            pages.add(batch.nbytes)
            columns = [batch.column(name).to_pylist() for name in ("topic", "queueId", "messages", "batch")]
            born = (
                batch.column("bornTimestamp").cast(pa.timestamp("us", tz="UTC")).view(pa.int64()).to_pylist()
            )
            for topic, queue_id, count, blob, born_us in zip(*columns, born, strict=True):
                result = store.put_messages(
                    MessageExtBatch(
                        topic,
                        blob,
                        queue_id=queue_id,
                        born_timestamp=born_us // 1000,
                        born_host=HOST,
                        store_host=HOST,
                    )
                )
                if result.status is not PutMessageStatus.PUT_OK:
                    raise MessageError(f"{topic}, queue {queue_id}: {result.status.name}: {result.reason}")
                written[topic, queue_id] += count
    return written


def _clear(pattern: str) -> None:
    """Deletes what attempts left that were killed; one that Spark asked to end may still be writing."""
    deadline = time.monotonic() + KILLED_S
    while (left := glob.glob(pattern)) and time.monotonic() < deadline:
        for each in left:
            shutil.rmtree(each, ignore_errors=True)
        time.sleep(0.1)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, which may have 64 MB, in parts of about PIECE_BYTES: a part's blobs become Python's."""
    rows = max(1, batch.num_rows * PIECE_BYTES // max(1, batch.nbytes))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def _write_topics(root: str, queues: Sequence[tuple[str, int]]) -> None:
    """config/topics.json, so that a broker serves the topics."""
    counts: dict[str, int] = {}
    for topic, queue_id in queues:
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    table = {
        topic: {
            "attributes": {},
            "order": False,
            "perm": PERM_READ_WRITE,
            "readQueueNums": count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }
        for topic, count in sorted(counts.items())
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": now_ms()}
    ConfigFile(os.path.join(root, "config", "topics.json")).persist(
        {"dataVersion": version, "topicConfigTable": table}
    )
