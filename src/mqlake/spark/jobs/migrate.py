"""migrate: a MetaQ data directory becomes a RocketMQ store that RocketMQ's broker opens, mqlake's too.

    orders-0/*.meta ─▶ columns ─▶ batches ─▶ topic orders, queue 0         one writer: a store has one log
    orders-1/*.meta ─▶                       topic orders, queue 1
    then, read again from both:  messages, bytes, digests per partition ─▶ equal or not

    data            the body                              id          KEYS, so that messages are found by it
    attribute       TAGS (or METAQ_ATTRIBUTE)             byte offset METAQ_OFFSET
    flag            flag; an empty attribute is a flag with bit 0 and no tag

A run that was killed goes on where the store ends: each queue's last message says what it was in MetaQ. MetaQ keeps no
times, so a message is born when its segment was last written. Beside the store's own directories there will be

    metaq/migration.json                  what was asked for, so that a later run can be held to it
    metaq/offsets/<topic>-<n>.parquet     a row a message: offset (bytes), queueOffset, id
    config/topics.json                    the topics, for the broker; config/consumerOffset.json: see migrate_positions
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mqlake.base.durable import fsync_dir, write_durably
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import (
    ConfigError,
    FormatError,
    IllegalTopicError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    StoreError,
)
from mqlake.formats.batch import PROPERTIES_LENGTH_MAX
from mqlake.formats.columns import gather
from mqlake.message import PROPERTY_KEYS, PROPERTY_TAGS, Host, MessageExtBatch, validate_topic
from mqlake.metaq.formats.record import HEADER_SIZE, decode_header
from mqlake.metaq.store.inspect import DataDirectory, PartitionFiles, open_data_directory
from mqlake.spark.arrow.memory import WrittenPages
from mqlake.spark.arrow.properties import Bytes, Ints
from mqlake.spark.jobs.migrate_positions import (
    GroupPosition,
    MigratedPosition,
    PositionCounter,
    write_consumer_offsets,
    write_topics,
)
from mqlake.spark.log.storage import Storage
from mqlake.spark.metaq.segments import Damage, Records, check_gaps, splits, walk
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import detect_settings
from mqlake.store.files.store_directory import check_is_store
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.results import PutMessageStatus

PROPERTY_OFFSET = "METAQ_OFFSET"
PROPERTY_ATTRIBUTE = "METAQ_ATTRIBUTE"
ATTRIBUTE_AS = {"tag": PROPERTY_TAGS, "property": PROPERTY_ATTRIBUTE}
DIRECTORY = "metaq"
HOST: Host = ("127.0.0.1", 10911)
BATCH_RECORDS = 4096
BATCH_BYTES = 1 << 20
MESSAGE_SIZE_MAX = 128 << 20
BUSY_WAIT_S = 0.01

_ITEM_HEAD = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
_BINARY = pa.binary()


@dataclasses.dataclass(slots=True)
class MigratedPartition:
    """One partition and its queue. `messages`: whole ones in MetaQ; `stored`: in the queue; `before`: before now."""

    topic: str
    partition: int
    to_topic: str
    messages: int = 0
    stored: int = 0
    before: int = 0
    body_bytes: int = 0
    same: bool = False
    """Whether both sides hold the same messages in the same order: bodies, ids, offsets, attributes, flags."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclasses.dataclass(slots=True)
class MigrationReport:
    source: str
    store: str
    source_in_use: bool
    partitions: list[MigratedPartition]
    positions: list[MigratedPosition]
    changed_attributes: int = 0
    """Attributes of this run's messages in which control characters 1 and 2, RocketMQ's separators, are now blanks."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return all(each.same and each.messages == each.stored for each in self.partitions)


def migrate(
    source: str,
    store: str,
    *,
    topics: Mapping[str, str] | None = None,
    attribute_as: str = "tag",
    positions: Sequence[GroupPosition] = (),
    settings: Mapping[str, Any] | None = None,
    progress: Progress = no_progress,
) -> MigrationReport:
    """Migrates what of `source` is not in `store` yet, and compares all of it.

    `topics`: those to migrate, and what they are called then; None: all, under their names. `settings`: RocketMQ's
    keys. Raises NotAStoreError, StoreCorruptError (damage in the source; nothing behind it is migrated),
    IllegalTopicError, ConfigError when the store was begun otherwise or holds other messages in these queues,
    OffsetOutOfRangeError when MetaQ has deleted segments meanwhile, StoreLockedError, OSError.
    """
    began = time.monotonic()
    directory = _chosen(open_data_directory(source), topics)
    check_gaps(directory)
    found = [
        MigratedPartition(each.topic, each.partition, (topics or {}).get(each.topic, each.topic))
        for each in directory.partitions
    ]
    _check_names(found)
    check_is_store(store, must_exist=False)
    report = MigrationReport(source, store, directory.in_use, found, [])
    total = 3 * sum(each.size for each in directory.partitions)
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress(min(done, total), total)

    with _open(store, settings or {}) as target:
        _hold_to_the_beginning(store, directory, found, attribute_as)
        appender = _Appender(target, attribute_as)
        for files, partition in zip(directory.partitions, found, strict=True):
            appender.run(directory.path, files, partition, advance)
        target.wait_until_dispatched()
    report.changed_attributes = appender.changed_attributes
    counters = [PositionCounter(each) for each in positions]
    tallies = [
        _read_source(directory.path, files, partition, attribute_as, store, counters, advance)
        for files, partition in zip(directory.partitions, found, strict=True)
    ]
    _compare(store, settings or {}, found, tallies, advance)
    write_topics(store, {each.to_topic: each.partition + 1 for each in found})
    names = {each.topic: each.to_topic for each in found}
    report.positions = write_consumer_offsets(store, counters, names)
    report.seconds = time.monotonic() - began
    return report


def _chosen(directory: DataDirectory, topics: Mapping[str, str] | None) -> DataDirectory:
    if topics is not None:
        there = {each.topic for each in directory.partitions}
        for topic in topics:
            if topic not in there:
                raise ConfigError(f"{directory.path}: there is no topic {topic!r}")
        directory.partitions = [each for each in directory.partitions if each.topic in topics]
    return directory


def _check_names(partitions: Sequence[MigratedPartition]) -> None:
    queues: dict[tuple[str, int], str] = {}
    for each in partitions:
        try:
            validate_topic(each.to_topic)
        except IllegalTopicError as error:
            raise IllegalTopicError(f"{error}; give it another name: --topic {each.topic}=NAME") from None
        other = queues.setdefault((each.to_topic, each.partition), each.name)
        if other != each.name:
            raise ConfigError(
                f"{other} and {each.name} would both become queue {each.partition} of {each.to_topic}"
            )


def _hold_to_the_beginning(
    store: str, directory: DataDirectory, found: Sequence[MigratedPartition], attribute_as: str
) -> None:
    """What was asked for when the migration began, written before its first message."""
    path = os.path.join(store, DIRECTORY, "migration.json")
    known: dict[str, Any] = {"attribute": attribute_as, "topics": {}, "firstOffsets": {}}
    if os.path.exists(path):
        known = _read_beginning(path, known)
    if known["attribute"] != attribute_as:
        raise ConfigError(f"{store}: this migration began with attributes as {known['attribute']}")
    for files, partition in zip(directory.partitions, found, strict=True):
        to_topic = known["topics"].setdefault(partition.topic, partition.to_topic)
        if to_topic != partition.to_topic:
            raise ConfigError(f"{store}: this migration began with topic {partition.topic} as {to_topic}")
        first = known["firstOffsets"].setdefault(files.name, files.min_offset)
        if first != files.min_offset:
            raise OffsetOutOfRangeError(
                f"{files.name} begins at offset {files.min_offset} now, and began at {first}: MetaQ has deleted what "
                "was migrated first, so it can no longer be compared"
            )
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_durably(path, orjson.dumps(known, option=orjson.OPT_INDENT_2))


def _read_beginning(path: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """StoreError unless it has the keys of `form`, with values of the same types."""
    with open(path, "rb") as file:
        try:
            known = orjson.loads(file.read())
        except orjson.JSONDecodeError as error:
            raise StoreError(f"{path}: not JSON: {error}") from None
    if not isinstance(known, dict) or any(type(known.get(key)) is not type(form[key]) for key in form):
        raise StoreError(f"{path}: not what a migration was begun with: {', '.join(form)} are needed")
    return known


# ---------------------------------------------------------------------- appending


def _open(root: str, settings: Mapping[str, Any]) -> DefaultMessageStore:
    known = {"maxMessageSize": MESSAGE_SIZE_MAX, **detect_settings(root), **settings}
    store = DefaultMessageStore(MessageStoreConfig.from_mapping({**known, "storePathRootDir": root}))
    try:
        store.load()
        store.start()
    except BaseException:
        store.shutdown()
        raise
    store.wait_until_dispatched()
    return store


class _Appender:
    def __init__(self, store: DefaultMessageStore, attribute_as: str) -> None:
        self._store = store
        self._attribute_as = attribute_as
        self._batch_bytes = min(BATCH_BYTES, store.config.mapped_file_size_commit_log // 4)
        self._pages = WrittenPages(store.log, store.index)
        self.changed_attributes = 0

    def run(
        self,
        directory: str,
        files: PartitionFiles,
        partition: MigratedPartition,
        advance: Callable[[int], None],
    ) -> None:
        start, partition.before = self._end_of_migrated(files, partition)
        advance(start - files.min_offset)
        for split in splits(Storage(directory), files, start=start):
            born = int(os.path.getmtime(split.file) * 1000)
            for found in walk(split):
                if isinstance(found, Damage):
                    raise found.error()
                for records in found.pieces(BATCH_RECORDS, self._batch_bytes):
                    self._put(records, partition, born)
                    advance(int(records.size.sum(dtype=np.int64)))

    def _end_of_migrated(self, files: PartitionFiles, partition: MigratedPartition) -> tuple[int, int]:
        """The offset that the queue has not got yet, and how many messages it has."""
        topic, queue_id = partition.to_topic, partition.partition
        count = self._store.max_offset_in_queue(topic, queue_id)
        if count == 0:
            return files.min_offset, 0
        last = list(self._store.get_message("migrate", topic, queue_id, count - 1, 1).messages())
        text = last[0].properties.get(PROPERTY_OFFSET, "") if last else ""
        if not text.isdecimal():
            raise ConfigError(
                f"queue {queue_id} of topic {topic} in the store holds messages of another origin"
            )
        offset = int(text)
        for segment in files.segments:
            if segment.start <= offset and offset + HEADER_SIZE <= segment.end:
                with open(segment.path, "rb") as file:
                    file.seek(offset - segment.start)
                    try:
                        header = decode_header(file.read(HEADER_SIZE))
                    except FormatError as error:
                        raise ConfigError(f"{segment.path}: byte {offset - segment.start}: {error}") from None
                if str(header.id) == last[0].properties.get(PROPERTY_KEYS):
                    return offset + HEADER_SIZE + header.length, count
        raise ConfigError(
            f"{files.name} has no message {last[0].properties.get(PROPERTY_KEYS)} at offset {offset}, the last one in "
            "the store: this is not the directory that the migration began with"
        )

    def _put(self, records: Records, partition: MigratedPartition, born: int) -> None:
        properties, changed = properties_of(records, self._attribute_as)
        batch = MessageExtBatch(
            partition.to_topic,
            encode(records, properties),
            queue_id=partition.partition,
            born_timestamp=born,
            born_host=HOST,
            store_host=HOST,
        )
        while True:
            result = self._store.put_messages(batch)
            if result.is_ok:
                self.changed_attributes += changed
                self._pages.add(len(batch.body))
                return
            if result.status is not PutMessageStatus.OS_PAGECACHE_BUSY:
                break
            time.sleep(BUSY_WAIT_S)
        text = f"{partition.name}: messages from offset {records.offset[0]} on: {result.reason or result.status.value}"
        too_large = result.status in (
            PutMessageStatus.MESSAGE_ILLEGAL,
            PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
        )
        raise MessageTooLargeError(text) if too_large else StoreError(text)


def properties_of(records: Records, attribute_as: str) -> tuple[pa.Array, int]:
    """Each message's properties as RocketMQ stores them (Arrow binary), and how many attributes had to be changed."""
    attributes = records.attributes()
    cleaned = pc.replace_substring_regex(attributes, "[\x01\x02]", " ")
    changed = pc.sum(pc.not_equal(attributes, cleaned)).as_py() or 0
    cleaned = pc.if_else(pc.equal(pc.binary_length(cleaned), 0), None, cleaned)
    name = ATTRIBUTE_AS[attribute_as]
    joined = pc.binary_join_element_wise(
        f"{PROPERTY_KEYS}\x01",
        pa.array(records.scan.message_id).cast(pa.string()),
        f"\x02{PROPERTY_OFFSET}\x01",
        pa.array(records.offset).cast(pa.string()),
        "\x02",
        pc.binary_join_element_wise(f"{name}\x01", cleaned, "\x02", ""),
        "",
        null_handling="replace",
        null_replacement="",
    )
    return joined.cast(_BINARY), int(changed)


def encode(records: Records, properties: pa.Array) -> bytes:
    """The records as the body of a batch: mqlake.formats.batch, a column at a time."""
    n = len(records)
    lengths = pc.binary_length(properties).to_numpy().astype(np.int64)
    if lengths.max() > PROPERTIES_LENGTH_MAX:
        row = int(lengths.argmax())
        raise MessageTooLargeError(
            f"the message at offset {records.offset[row]} has an attribute of {records.attribute_length[row]} bytes; "
            f"RocketMQ has room for {PROPERTIES_LENGTH_MAX} bytes of properties"
        )
    head = np.zeros(n, _ITEM_HEAD)
    head["size"] = _ITEM_HEAD.itemsize + records.body_length + 2 + lengths
    head["flag"] = records.scan.flag
    head["body"] = records.body_length
    joined = pc.binary_join_element_wise(
        _fixed(head), records.bodies(), _fixed(lengths.astype(">u2")), properties, b""
    )
    data: bytes = joined.buffers()[2].slice(0, int(head["size"].sum(dtype=np.int64))).to_pybytes()
    return data


def _fixed(items: npt.NDArray[Any]) -> pa.Array:
    """The items' bytes as Arrow binary."""
    offsets = np.arange(len(items) + 1, dtype=np.int32) * np.int32(items.dtype.itemsize)
    return pa.BinaryArray.from_buffers(
        _BINARY, len(items), [None, pa.py_buffer(offsets), pa.py_buffer(items.tobytes())]
    )


# ---------------------------------------------------------------------- comparing


class _Tally:
    """What one side has of a queue: messages, body bytes, and digests of all there is, in its order."""

    def __init__(self) -> None:
        self.messages = 0
        self.body_bytes = 0
        self._digests = [hashlib.blake2b(digest_size=16) for _ in range(3)]

    def add(self, bodies: Bytes, properties: Bytes, numbers: Sequence[Ints]) -> None:
        """`numbers`: body length, properties' length and flag of each."""
        self.messages += len(numbers[0])
        self.body_bytes += len(bodies)
        self._digests[0].update(bodies.data)
        self._digests[1].update(properties.data)
        self._digests[2].update(np.stack(numbers, axis=1).astype("<i8").tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tally) and self._seen() == other._seen()

    __hash__ = None  # type: ignore[assignment]

    def _seen(self) -> tuple[object, ...]:
        return self.messages, self.body_bytes, *(each.digest() for each in self._digests)


def _read_source(
    directory: str,
    files: PartitionFiles,
    partition: MigratedPartition,
    attribute_as: str,
    store: str,
    counters: Sequence[PositionCounter],
    advance: Callable[[int], None],
) -> _Tally:
    """One more time through a partition: its tally, its table of offsets, and where groups are in it."""
    tally = _Tally()
    here = [each for each in counters if each.is_in(files.topic, files.partition)]
    with _OffsetTable(store, files.name) as table:
        for split in splits(Storage(directory), files):
            for found in walk(split):
                if isinstance(found, Damage):
                    raise found.error()
                properties, _ = properties_of(found, attribute_as)
                lengths = pc.binary_length(properties).to_numpy().astype(np.int64)
                bodies = gather(found.buf, found.body_start, found.body_length, large=True)[1]
                text = np.frombuffer(properties.buffers()[2], np.uint8)[: int(lengths.sum())]
                first = tally.messages
                tally.add(bodies, text, (found.body_length, lengths, found.scan.flag.astype(np.int64)))
                table.add(found.offset, first, found.scan.message_id)
                for counter in here:
                    counter.count(found.offset + found.size)
                advance(int(found.size.sum(dtype=np.int64)))
    partition.messages, partition.body_bytes = tally.messages, tally.body_bytes
    return tally


class _OffsetTable:
    """metaq/offsets/<partition>.parquet, there as a whole or as it was before."""

    def __init__(self, store: str, name: str) -> None:
        self._directory = os.path.join(store, DIRECTORY, "offsets")
        os.makedirs(self._directory, exist_ok=True)
        self._path = os.path.join(self._directory, f"{name}.parquet")
        kinds = [("offset", pa.int64()), ("queueOffset", pa.int64()), ("id", pa.int64())]
        self._schema = pa.schema(kinds)
        self._writer = pq.ParquetWriter(f"{self._path}.tmp", self._schema, compression="zstd")

    def __enter__(self) -> _OffsetTable:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._writer.close()
        if kind is None:
            os.replace(f"{self._path}.tmp", self._path)
            fsync_dir(self._directory)

    def add(self, offsets: Ints, first: int, ids: Ints) -> None:
        columns = [offsets, np.arange(first, first + len(offsets)), ids]
        self._writer.write_batch(pa.record_batch([pa.array(each) for each in columns], self._schema))


def _compare(
    store: str,
    settings: Mapping[str, Any],
    partitions: Sequence[MigratedPartition],
    sources: Sequence[_Tally],
    advance: Callable[[int], None],
) -> None:
    """Fills in what the store holds, read from its log and its consume queues."""
    tallies = {(each.to_topic, each.partition): _Tally() for each in partitions}
    in_order = dict.fromkeys(tallies, True)
    with ReadOnlyStore(store, {"maxMessageSize": MESSAGE_SIZE_MAX, **settings}) as view:
        for buf, scan, rows, key in _queues_of(view):
            if key not in tallies:
                continue
            tally = tallies[key]
            numbers = np.arange(tally.messages, tally.messages + len(rows))
            in_order[key] &= bool(np.array_equal(scan.queue_offset[rows], numbers))
            body_length, length = scan.body_length[rows], scan.properties_length[rows]
            bodies = gather(buf, scan.body_start[rows], body_length, large=True)[1]
            properties = gather(buf, scan.properties_start[rows], length, large=True)[1]
            columns = (body_length, length, scan.flag[rows])
            tally.add(bodies, properties, [each.astype(np.int64) for each in columns])
            advance(int(scan.size[rows].sum(dtype=np.int64)))
        for partition, source in zip(partitions, sources, strict=True):
            key = (partition.to_topic, partition.partition)
            first = max(0, view.min_offset_in_queue(*key))  # below 0: an empty partition has made no queue
            partition.stored = view.max_offset_in_queue(*key) - first
            partition.same = in_order[key] and tallies[key] == source


def _queues_of(view: ReadOnlyStore) -> Iterator[tuple[Bytes, Any, Ints, tuple[str, int]]]:
    """The log's records by topic and queue, chunk by chunk."""
    pages = WrittenPages(view.log, None)
    for chunk in view.scan():
        pages.add(chunk.end - chunk.start)
        scan = chunk.scan
        if len(scan) == 0:
            continue
        queue = scan.topic_id.astype(np.int64) << 32 | scan.queue_id
        for each in np.unique(queue).tolist():
            topic = scan.topics[each >> 32].decode("utf-8", "replace")
            yield chunk.mapped_file.array, scan, np.flatnonzero(queue == each), (topic, each & 0xFFFFFFFF)
