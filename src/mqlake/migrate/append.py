"""Appending the messages of MetaQ partitions to a RocketMQ store, a batch at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import ConfigError, FormatError, MessageTooLargeError, StoreError
from mqlake.formats.arrow import encode_items
from mqlake.formats.record import PROPERTIES_LENGTH_MAX
from mqlake.message import PROPERTY_KEYS, PROPERTY_TAGS, Host, MessageExt, MessageExtBatch
from mqlake.metaq.formats.record import HEADER_SIZE, decode_header
from mqlake.metaq.store.columns import Records, read_partition
from mqlake.metaq.store.inspect import PartitionFiles
from mqlake.migrate.report import MigratedPartition
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import detect_settings
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.results import PutMessageStatus
from mqlake.store.written_pages import WrittenPages

PROPERTY_OFFSET = "METAQ_OFFSET"
PROPERTY_ATTRIBUTE = "METAQ_ATTRIBUTE"
ATTRIBUTE_AS = {"tag": PROPERTY_TAGS, "property": PROPERTY_ATTRIBUTE}
HOST: Host = ("127.0.0.1", 10911)
BATCH_RECORDS = 4096
BATCH_BYTES = 1 << 20
MESSAGE_SIZE_MAX = 128 << 20
BUSY_WAIT_S = 0.01


def open_target(root: str, settings: Mapping[str, Any]) -> DefaultMessageStore:
    """The store, running; one that exists keeps its file sizes. Raises what opening a store raises."""
    known = {"maxMessageSize": MESSAGE_SIZE_MAX, **detect_settings(root), **settings}
    store = DefaultMessageStore(MessageStoreConfig.from_mapping({**known, "storePathRootDir": root}))
    store.load_and_start()
    store.wait_until_dispatched()
    return store


class Appender:
    """`run` for one partition after the other."""

    def __init__(self, store: DefaultMessageStore, attribute_as: str) -> None:
        self._store = store
        self._attribute_as = attribute_as
        self._batch_bytes = min(BATCH_BYTES, store.config.mapped_file_size_commit_log // 4)
        self._pages = WrittenPages(store.commit_log_files, store.index)
        self.changed_attributes = 0

    def run(
        self, files: PartitionFiles, partition: MigratedPartition, advance: Callable[[int], None]
    ) -> None:
        """Appends what the queue does not have yet. `advance` is given the bytes of MetaQ's records as they are done.

        Raises StoreCorruptError, ConfigError, MessageTooLargeError, StoreError, OSError.
        """
        start, partition.before = self._end_of_migrated(files, partition)
        advance(start - files.min_offset)
        born = {each.start: int(os.path.getmtime(each.path) * 1000) for each in files.segments}
        for found in read_partition(files, start):
            for records in found.batches(BATCH_RECORDS, self._batch_bytes):
                self._put(records, partition, born[found.base])
                advance(int(records.size.sum(dtype=np.int64)))

    def _end_of_migrated(self, files: PartitionFiles, partition: MigratedPartition) -> tuple[int, int]:
        """MetaQ's offset of the first message that the queue does not have, and how many messages it has."""
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
        return _end_of_record(files, int(text), last[0]), count

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
        result = self._store.put_messages(batch)
        while result.status is PutMessageStatus.OS_PAGECACHE_BUSY:
            time.sleep(BUSY_WAIT_S)
            result = self._store.put_messages(batch)
        if result.is_ok:
            self.changed_attributes += changed
            self._pages.add(len(batch.body))
            return
        text = f"{partition.name}: messages from offset {records.offset[0]} on: {result.reason or result.status.value}"
        too_large = result.status in (
            PutMessageStatus.MESSAGE_ILLEGAL,
            PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
        )
        raise MessageTooLargeError(text) if too_large else StoreError(text)


def _end_of_record(files: PartitionFiles, offset: int, message: MessageExt) -> int:
    """The offset after MetaQ's record at `offset`. ConfigError unless it is the one that became `message`."""
    key = message.properties.get(PROPERTY_KEYS)
    for segment in files.segments:
        if segment.start <= offset and offset + HEADER_SIZE <= segment.end:
            with open(segment.path, "rb") as file:
                file.seek(offset - segment.start)
                try:
                    header = decode_header(file.read(HEADER_SIZE))
                except FormatError as error:
                    raise ConfigError(f"{segment.path}: byte {offset - segment.start}: {error}") from None
            if str(header.id) == key:
                return offset + HEADER_SIZE + header.length
    raise ConfigError(
        f"{files.name} has no message {key} at offset {offset}, the last one in the store: "
        "this is not the directory that the migration began with"
    )


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
    return joined.cast(pa.binary()), int(changed)


def encode(records: Records, properties: pa.Array) -> bytes:
    """The records as the body of a batch. MessageTooLargeError for properties that RocketMQ has no room for."""
    lengths = pc.binary_length(properties).to_numpy()
    if lengths.max() > PROPERTIES_LENGTH_MAX:
        row = int(lengths.argmax())
        raise MessageTooLargeError(
            f"the message at offset {records.offset[row]} has an attribute of {records.attribute_length[row]} bytes; "
            f"RocketMQ has room for {PROPERTIES_LENGTH_MAX} bytes of properties"
        )
    _, offsets, data = encode_items(records.bodies(), properties, records.scan.flag).buffers()
    end = int(np.frombuffer(offsets, np.int32)[len(records)])
    body: bytes = data.slice(0, end).to_pybytes()
    return body
