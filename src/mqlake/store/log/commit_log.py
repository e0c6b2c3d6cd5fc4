"""CommitLog: every message of every topic in one sequence, in the order of arrival.

    put ──▶ [encode] ──▶ lock: queue offset, physical offset, store time ──▶ MappedFile ──▶ unlock
                            │ does not fit (8 bytes must stay)
                            └──▶ blank record, next file, again

One writer at a time; what needs no order (properties, CRC, lengths) is done before the lock is taken.
Here a message becomes bytes at an offset. Whether the store takes messages at all, and when one counts as
stored, is DefaultMessageStore's to say.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from mqlake.errors import FormatError, IllegalTopicError, MessageError
from mqlake.formats.batch import BatchItem, decode_messages
from mqlake.formats.columns import NO_ROOM, PROPERTIES_TOO_LARGE, RECORD_TOO_LARGE, append_batch, warm_append
from mqlake.formats.record import (
    CRC32_TAIL_LENGTH,
    END_FILE_MIN_BLANK_LENGTH,
    HEADS,
    MESSAGE_MAGIC_CODE,
    PROPERTIES_LENGTH_MAX,
    RECORD_SIZE_MIN,
    calculate_message_length,
    encode_blank,
    encode_record,
)
from mqlake.message import (
    PROPERTY_CRC32,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_NUM,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageSysFlag,
    MessageTimeUp,
    crc32,
    delay_level_to_queue_id,
    host_bytes,
    parse_delay_levels,
    properties_to_bytes,
    validate_topic,
)
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import ZERO_SIZE, MappedFile, U8Array
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.results import (
    AppendMessageResult,
    AppendMessageStatus,
    PutMessageResult,
    PutMessageStatus,
)

log = logging.getLogger(__name__)

TOPIC_V1_LENGTH_MAX = 127
TOPIC_LENGTH_MAX = 255
# what a record may be over maxMessageSize: the header, the topic and the properties (RocketMQ 5.3.3)
RECORD_OVER_BODY_MAX = 64 * 1024
SLOW_PUT_MS = 500

_TRANSACTION_MASK = 0xC
_V6_FLAGS = MessageSysFlag.BORNHOST_V6_FLAG | MessageSysFlag.STOREHOSTADDRESS_V6_FLAG

# what is committed has an offset in its queue as any other message; the other bit is that of what has none
_UNUSUAL_FLAGS = (
    MessageSysFlag.TRANSACTION_PREPARED_TYPE
    | _V6_FLAGS
    | MessageSysFlag.INNER_BATCH_FLAG
    | MessageSysFlag.NEED_UNWRAP_FLAG
)
_UNUSUAL_PROPERTIES = frozenset((PROPERTY_DELAY_TIME_LEVEL, PROPERTY_INNER_NUM, PROPERTY_CRC32))

_pack_head = HEADS[0].pack
_pack_i16 = struct.Struct(">h").pack

QueueId = tuple[str, int]
"""Topic and number of a queue."""
QueueOffsets = dict[QueueId, int]


class WrittenMany(NamedTuple):
    """What a WriteMany wrote: so many `records` of `size` bytes together, the first of `first_size` bytes; and how many
    of them, how many bytes, and how many sends (a batch is one) belong to each queue."""

    records: int
    size: int
    first_size: int
    queue_counts: Sequence[int]
    queue_bytes: Sequence[int]
    queue_puts: Sequence[int]


class WriteMany(Protocol):
    """Writes whole records (v1, between IPv4 hosts, of usual messages) back to back to out[position:], as many as
    leave 8 bytes free, with 4 zero bytes behind them; but not the first one's TOTALSIZE.

    `base_offset` is the physical offset of out[0]; `queue_offsets` are those that the queues' next messages get.
    """

    def __call__(
        self,
        out: U8Array,
        position: int,
        base_offset: int,
        queue_offsets: Sequence[int],
        store_timestamp: int,
    ) -> WrittenMany: ...


class AppendedMany(NamedTuple):
    """Where many records went: physical offset of the first and one past the last, and what was written."""

    wrote_offset: int
    end_offset: int
    store_timestamp: int
    written: WrittenMany


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class _NoFile:
    """Stands where a file can be written the usual way when there is none: it has no room."""

    wrote_position = committed_position = file_size = file_from_offset = store_timestamp = wake_position = 0
    view = memoryview(b"")


_NO_FILE = _NoFile()


class CommitLog:
    """Appends to the files of `queue`. `queue_offsets` is (topic, queue id) → next queue offset, updated here."""

    def __init__(
        self,
        config: MessageStoreConfig,
        queue: MappedFileQueue,
        queue_offsets: QueueOffsets,
        *,
        clock_ms: Callable[[], int] = now_ms,
        is_batch_topic: Callable[[str], bool] = lambda topic: False,
        prefault: Callable[[MappedFile], None] | None = None,
    ) -> None:
        self.config = config
        self.queue = queue
        self._prefault = prefault
        self.queue_offsets = queue_offsets
        self.clock_ms = clock_ms
        self.is_batch_topic = is_batch_topic
        self.delay_levels = parse_delay_levels(config.message_delay_level)
        self.max_delay_level = max(self.delay_levels)
        self.begin_time_in_lock = 0
        self._lock = threading.Lock()
        self._topics: dict[str, bytes] = {}
        self._usual_topics: dict[str, bytes] = {}
        self._usual_file: MappedFile | _NoFile = _NO_FILE
        self._usual_size_max = min(config.max_message_size, config.mapped_file_size_commit_log)
        self._record_max = config.max_message_size + RECORD_OVER_BODY_MAX
        self._prop_crc = config.enabled_append_prop_crc
        self._prop_crc_length = CRC32_TAIL_LENGTH if self._prop_crc else 0

    # ------------------------------------------------------------------ one message

    def put_message(self, msg: MessageExtBrokerInner) -> PutMessageResult:
        """Appends one message. Statuses: PUT_OK, MESSAGE_ILLEGAL, PROPERTIES_SIZE_EXCEEDED,
        CREATE_MAPPED_FILE_FAILED. OSError from a device that fails under `writeWithoutMmap`."""
        # The common message, with everything looked up once; what is unusual in any way (a delay, a transaction,
        # IPv6, a file that is full, a limit that is exceeded) takes the other way, which checks and explains.
        properties = msg.properties
        topic = msg.topic
        topic_field = self._usual_topics.get(topic)
        body = msg.body
        if (
            topic_field is None
            or msg.sys_flag & _UNUSUAL_FLAGS
            or not _UNUSUAL_PROPERTIES.isdisjoint(properties)
        ):
            return self._put_unusual(msg)
        born_host, store_host = host_bytes(msg.born_host), host_bytes(msg.store_host)
        properties_bytes = properties_to_bytes(properties)
        properties_length = len(properties_bytes)
        body_length = len(body)
        size = RECORD_SIZE_MIN - 1 + body_length + len(topic_field) + properties_length
        if (
            size > self._usual_size_max
            or properties_length > PROPERTIES_LENGTH_MAX
            or len(born_host) + len(store_host) != 16
        ):
            return self._put_unusual(msg)
        body_crc = crc32(body)
        queue_id = msg.queue_id
        key = (topic, queue_id)
        with self._lock:
            mapped_file = self._usual_file
            start = mapped_file.wrote_position
            end = start + size
            if end + END_FILE_MIN_BLANK_LENGTH <= mapped_file.file_size:
                begin = self.clock_ms()
                queue_offset = self.queue_offsets.get(key, 0)
                physical_offset = mapped_file.file_from_offset + start
                try:
                    head = _pack_head(
                        size,
                        MESSAGE_MAGIC_CODE,
                        body_crc,
                        queue_id,
                        msg.flag,
                        queue_offset,
                        physical_offset,
                        msg.sys_flag,
                        msg.born_timestamp,
                        born_host,
                        begin,
                        store_host,
                        msg.reconsume_times,
                        msg.prepared_transaction_offset,
                        body_length,
                    )
                except struct.error as error:
                    return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, None, str(error))
                self.begin_time_in_lock = begin
                view = mapped_file.view
                view[start + 4 : end + 4] = b"".join(
                    (
                        head[4:],
                        body,
                        topic_field,
                        _pack_i16(properties_length),
                        properties_bytes,
                        ZERO_SIZE,
                    )
                )
                view[start : start + 4] = head[:4]
                mapped_file.wrote_position = mapped_file.committed_position = end
                mapped_file.store_timestamp = begin
                if end > mapped_file.wake_position and self._prefault is not None:
                    self._prefault(mapped_file)  # type: ignore[arg-type]  # _NO_FILE has no room
                self.begin_time_in_lock = 0
                self.queue_offsets[key] = queue_offset + 1
                msg.store_timestamp = begin
                msg.queue_offset = queue_offset
                msg.physical_offset = physical_offset
                return PutMessageResult(
                    PutMessageStatus.PUT_OK,
                    AppendMessageResult(
                        AppendMessageStatus.PUT_OK,
                        physical_offset,
                        size,
                        msg.store_host,
                        begin,
                        queue_offset,
                    ),
                )
        return self._put_unusual(msg)

    def _put_unusual(self, msg: MessageExtBrokerInner) -> PutMessageResult:
        sys_flag = msg.sys_flag
        transaction = sys_flag & _TRANSACTION_MASK
        advance = 1
        consumed = transaction in (
            MessageSysFlag.TRANSACTION_NOT_TYPE,
            MessageSysFlag.TRANSACTION_COMMIT_TYPE,
        )
        properties = msg.properties
        try:
            if consumed and PROPERTY_DELAY_TIME_LEVEL in properties and type(msg) is not MessageTimeUp:
                self._rewrite_delayed(msg)
            topic = self._topics.get(msg.topic) or self._check_topic(msg.topic)
            born_host, store_host = host_bytes(msg.born_host), host_bytes(msg.store_host)
        except MessageError as error:
            return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, None, str(error))
        body = msg.body
        if len(body) > self.config.max_message_size:
            return _too_large(
                f"the body has {len(body)} bytes, maxMessageSize allows {self.config.max_message_size}"
            )
        inner_batch = sys_flag & MessageSysFlag.INNER_BATCH_FLAG or PROPERTY_INNER_NUM in properties
        if inner_batch:
            refused = self._check_inner_batch(msg)
            if refused is not None:
                return refused
            advance = int(properties[PROPERTY_INNER_NUM])
        if sys_flag & _V6_FLAGS or len(born_host) != 8 or len(store_host) != 8:
            msg.sys_flag = sys_flag = _with_host_flags(sys_flag, born_host, store_host)
        if self._prop_crc:
            properties.pop(PROPERTY_CRC32, None)
        properties_bytes = properties_to_bytes(properties)
        body_crc = crc32(body)
        version = 1 if len(topic) <= TOPIC_V1_LENGTH_MAX else 2
        key = (msg.topic, msg.queue_id)
        with self._lock:
            self.begin_time_in_lock = begin = self.clock_ms()
            try:
                queue_offset = self.queue_offsets.get(key, 0) if consumed else 0
                if inner_batch:
                    properties[PROPERTY_INNER_BASE] = str(queue_offset)
                    properties_bytes = properties_to_bytes(properties)
                properties_length = len(properties_bytes) + self._prop_crc_length
                if properties_length > PROPERTIES_LENGTH_MAX:
                    return _properties_too_large(properties_length)
                size = calculate_message_length(sys_flag, len(body), len(topic), properties_length, version)
                if size > self._record_max:
                    return _too_large(
                        f"the record has {size} bytes, maxMessageSize allows {self._record_max}"
                    )
                mapped_file = self._file_with_room(size)
                if mapped_file is None:
                    return self._no_file(size)
                start = mapped_file.wrote_position
                physical_offset = mapped_file.file_from_offset + start
                record = encode_record(
                    body=body,
                    body_crc=body_crc,
                    queue_id=msg.queue_id,
                    flag=msg.flag,
                    queue_offset=queue_offset,
                    physical_offset=physical_offset,
                    sys_flag=sys_flag,
                    born_timestamp=msg.born_timestamp,
                    born_host=born_host,
                    store_timestamp=begin,
                    store_host=store_host,
                    reconsume_times=msg.reconsume_times,
                    prepared_transaction_offset=msg.prepared_transaction_offset,
                    topic=topic,
                    properties=properties_bytes,
                    version=version,
                    prop_crc=self._prop_crc,
                )
                mapped_file.append_record(record, begin)
                if consumed:
                    self.queue_offsets[key] = queue_offset + advance
                elapsed = self.clock_ms() - begin
            except MessageError as error:
                return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, None, str(error))
            finally:
                self.begin_time_in_lock = 0
        msg.store_timestamp = begin
        msg.queue_offset = queue_offset
        msg.physical_offset = physical_offset
        msg.body_crc = body_crc
        msg.store_size = len(record)
        if elapsed > SLOW_PUT_MS:
            log.warning(
                "put took %d ms under the lock: topic %s, body %d bytes", elapsed, msg.topic, len(body)
            )
        return PutMessageResult(
            PutMessageStatus.PUT_OK,
            AppendMessageResult(
                AppendMessageStatus.PUT_OK,
                physical_offset,
                len(record),
                msg.store_host,
                begin,
                queue_offset,
                elapsed,
                None,
                advance,
            ),
        )

    def _rewrite_delayed(self, msg: MessageExtBrokerInner) -> None:
        """A delayed message goes to SCHEDULE_TOPIC_XXXX, one queue a level; where it belongs is in its properties."""
        level = msg.delay_time_level
        if level <= 0 or msg.topic == SCHEDULE_TOPIC:
            return
        if level > self.max_delay_level:
            level = msg.delay_time_level = self.max_delay_level
        msg.properties[PROPERTY_REAL_TOPIC] = msg.topic
        msg.properties[PROPERTY_REAL_QUEUE_ID] = str(msg.queue_id)
        msg.topic = SCHEDULE_TOPIC
        msg.queue_id = delay_level_to_queue_id(level)

    def _check_topic(self, topic: str) -> bytes:
        """The topic's bytes, remembered. Raises IllegalTopicError."""
        encoded = topic.encode("utf-8")
        retry = topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        if len(encoded) > TOPIC_LENGTH_MAX or (len(encoded) > TOPIC_V1_LENGTH_MAX and not retry):
            allowed = TOPIC_LENGTH_MAX if retry else TOPIC_V1_LENGTH_MAX
            raise IllegalTopicError(f"the topic has {len(encoded)} bytes, {allowed} are allowed")
        validate_topic(topic[:TOPIC_V1_LENGTH_MAX] if retry else topic)
        if len(encoded) > TOPIC_V1_LENGTH_MAX and not self.config.auto_message_version_on_topic_len:
            raise IllegalTopicError("a topic this long needs autoMessageVersionOnTopicLen=true")
        self._topics[topic] = encoded
        if len(encoded) <= TOPIC_V1_LENGTH_MAX:
            self._usual_topics[topic] = len(encoded).to_bytes(1, "big") + encoded
        return encoded

    def _check_inner_batch(self, msg: MessageExtBrokerInner) -> PutMessageResult | None:
        flagged = bool(msg.sys_flag & MessageSysFlag.INNER_BATCH_FLAG)
        number = msg.properties.get(PROPERTY_INNER_NUM, "")
        if not flagged or not self.is_batch_topic(msg.topic):
            reason = f"an inner batch needs the topic attribute queue.type=BatchCQ on {msg.topic}"
        elif not (number.isascii() and number.isdigit() and 0 < int(number) <= 32767):
            reason = f"an inner batch needs INNER_NUM of 1 to 32767, not {number!r}"
        else:
            return None
        return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, None, reason)

    # ------------------------------------------------------------------ files

    def _file_with_room(self, size: int) -> MappedFile | None:
        """The file that takes `size` more bytes and keeps 8 spare, rolling to the next one when need be."""
        needed = size + END_FILE_MIN_BLANK_LENGTH
        if needed > self.config.mapped_file_size_commit_log:
            return None
        mapped_file = self.queue.get_last_mapped_file()
        if mapped_file is None:
            return None
        room = mapped_file.file_size - mapped_file.wrote_position
        if needed > room:
            mapped_file = self._roll(mapped_file, room)
        if mapped_file is not None:
            self._write_on_in(mapped_file)
        return mapped_file

    def _write_on_in(self, mapped_file: MappedFile) -> None:
        """What is usual goes to this file from now on, if it can be written the usual way."""
        if self._usual_file is not mapped_file and not self._prop_crc:
            plain = mapped_file.write_buffer is None and not mapped_file.without_mmap
            self._usual_file = mapped_file if plain else _NO_FILE

    def _roll(self, full: MappedFile, room: int) -> MappedFile | None:
        """Ends a file with a blank record over the `room` bytes left and gives the next file.

        The next file is made first: when the disk is full the old one stays as it is, able to take
        smaller messages, and a later put tries again.
        """
        following = self.queue.create_next()
        if following is None:
            return None
        start = full.wrote_position
        blank = encode_blank(room)
        if full.write_buffer is not None:
            full.write_buffer[start:] = bytes(room)
        full.write_at(start + 4, blank[4:])
        full.publish(start, blank[:4], full.file_size, full.store_timestamp)
        if self.config.warm_maped_file_enable:
            full.unlock_in_memory()
        return following

    def _no_file(self, size: int) -> PutMessageResult:
        limit = self.config.mapped_file_size_commit_log - END_FILE_MIN_BLANK_LENGTH
        if size > limit:
            return _too_large(f"the record has {size} bytes, a commit log file takes {limit}")
        error = self.queue.create_error
        reason = f"cannot create the next commit log file: {error or 'the file pool is short or slow'}"
        return PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED, None, reason)

    # ------------------------------------------------------------------ many messages at once

    def is_usual_topic(self, topic: str) -> bool:
        """Whether messages of this topic have been stored, as v1 records."""
        return topic in self._usual_topics

    def put_many(self, queues: Sequence[QueueId], write: WriteMany) -> AppendedMany | None:
        """Appends what `write` makes of usual messages to `queues`, in one step: all become visible together. None
        when nothing fits, or when this log is not written through a mapping: then they have to come singly."""
        with self._lock:
            mapped_file = self._usual_file
            if isinstance(mapped_file, _NoFile):
                return None
            self.begin_time_in_lock = begin = self.clock_ms()
            try:
                start, base = mapped_file.wrote_position, mapped_file.file_from_offset
                offsets = self.queue_offsets
                queue_offsets = [offsets.get(queue, 0) for queue in queues]
                written = write(mapped_file.array, start, base, queue_offsets, begin)
                if not written.records:
                    return None
                end = start + written.size
                mapped_file.publish(start, written.first_size.to_bytes(4, "big"), end, begin)
                if end > mapped_file.wake_position and self._prefault is not None:
                    self._prefault(mapped_file)
                for queue, offset, count in zip(queues, queue_offsets, written.queue_counts, strict=True):
                    offsets[queue] = offset + count
            finally:
                self.begin_time_in_lock = 0
        return AppendedMany(base + start, base + end, begin, written)

    # ------------------------------------------------------------------ classic batch

    def put_messages(self, batch: MessageExtBatch) -> PutMessageResult:
        """Appends each message of a classic batch as a record of its own, all or none, in consecutive
        queue offsets. Statuses as put_message(); MESSAGE_ILLEGAL also for a delay level, a transaction or
        a body that is not an encoded batch."""
        if batch.sys_flag & _TRANSACTION_MASK or PROPERTY_DELAY_TIME_LEVEL in batch.properties:
            return PutMessageResult(
                PutMessageStatus.MESSAGE_ILLEGAL, None, "a batch can be neither delayed nor transactional"
            )
        if len(batch.body) > self.config.max_message_size:
            return _too_large(
                f"the batch has {len(batch.body)} bytes, maxMessageSize allows {self.config.max_message_size}"
            )
        try:
            topic = self._topics.get(batch.topic) or self._check_topic(batch.topic)
            if self._prop_crc or self.config.write_without_mmap:
                return self._put_items(batch, topic, decode_messages(batch.body))
            return self._put_blob(batch, topic)
        except (MessageError, FormatError) as error:
            return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, None, str(error))

    def _put_blob(self, batch: MessageExtBatch, topic: bytes) -> PutMessageResult:
        """The batch in one compiled pass, from its encoded body straight into the file."""
        blob = np.frombuffer(batch.body, dtype=np.uint8)
        born_host, store_host = host_bytes(batch.born_host), host_bytes(batch.store_host)
        sys_flag = _with_host_flags(batch.sys_flag, born_host, store_host)
        shared = properties_to_bytes(batch.properties)
        version = 1 if len(topic) <= TOPIC_V1_LENGTH_MAX else 2
        key = (batch.topic, batch.queue_id)
        warm_append()
        with self._lock:
            self.begin_time_in_lock = begin = self.clock_ms()
            try:
                mapped_file = self.queue.get_last_mapped_file()
                queue_offset = self.queue_offsets.get(key, 0)
                while True:
                    target = mapped_file.target_array() if mapped_file is not None else None
                    if mapped_file is None or target is None:
                        return self._no_file(0)
                    start = mapped_file.wrote_position
                    room = mapped_file.file_size - start
                    appended = append_batch(
                        target,
                        start,
                        room,
                        blob,
                        base_offset=mapped_file.file_from_offset,
                        topic=topic,
                        queue_id=batch.queue_id,
                        queue_offset=queue_offset,
                        sys_flag=sys_flag,
                        born_timestamp=batch.born_timestamp,
                        born_host=born_host,
                        store_timestamp=begin,
                        store_host=store_host,
                        reconsume_times=batch.reconsume_times,
                        extra_props=shared,
                        version=version,
                        max_record_size=self._record_max,
                    )
                    if appended.n != NO_ROOM:
                        break
                    size = _size_of_records(batch, sys_flag, len(topic), shared, version)
                    if size > mapped_file.file_size - END_FILE_MIN_BLANK_LENGTH:
                        return self._no_file(size)
                    mapped_file = self._roll(mapped_file, room)
                self._write_on_in(mapped_file)
                if appended.n <= 0:
                    return _refused_batch(appended.n)
                end = start + appended.wrote
                mapped_file.publish(start, int(appended.sizes[0]).to_bytes(4, "big"), end, begin)
                if end > mapped_file.wake_position and self._prefault is not None:
                    self._prefault(mapped_file)
                self.queue_offsets[key] = queue_offset + appended.n
                elapsed = self.clock_ms() - begin
            finally:
                self.begin_time_in_lock = 0
        physical_offset = mapped_file.file_from_offset + start
        batch.store_timestamp, batch.queue_offset, batch.physical_offset = (
            begin,
            queue_offset,
            physical_offset,
        )
        return PutMessageResult(
            PutMessageStatus.PUT_OK,
            AppendMessageResult(
                AppendMessageStatus.PUT_OK,
                physical_offset,
                appended.wrote,
                batch.store_host,
                begin,
                queue_offset,
                elapsed,
                appended.physical_offsets,
                appended.n,
            ),
        )

    def _put_items(self, batch: MessageExtBatch, topic: bytes, items: list[BatchItem]) -> PutMessageResult:
        """The batch message by message: where compiled code may not write, or each record gets a CRC tail."""
        if not items:
            return _refused_batch(0)
        born_host, store_host = host_bytes(batch.born_host), host_bytes(batch.store_host)
        sys_flag = _with_host_flags(batch.sys_flag, born_host, store_host)
        version = 1 if len(topic) <= TOPIC_V1_LENGTH_MAX else 2
        shared = properties_to_bytes(batch.properties)
        crc_length = self._prop_crc_length
        prepared: list[tuple[BatchItem, bytes, int]] = []
        total = 0
        for item in items:
            properties = _joined(item.properties, shared, ended=self._prop_crc)
            if len(properties) + crc_length > PROPERTIES_LENGTH_MAX:
                return _properties_too_large(len(properties) + crc_length)
            size = calculate_message_length(
                sys_flag, len(item.body), len(topic), len(properties) + crc_length, version
            )
            if size > self._record_max or len(item.body) > self.config.max_message_size:
                return _too_large(f"a message of the batch makes a record of {size} bytes")
            prepared.append((item, properties, crc32(item.body)))
            total += size
        key = (batch.topic, batch.queue_id)
        with self._lock:
            self.begin_time_in_lock = begin = self.clock_ms()
            try:
                queue_offset = first_queue_offset = self.queue_offsets.get(key, 0)
                mapped_file = self._file_with_room(total)
                if mapped_file is None:
                    return self._no_file(total)
                start = mapped_file.file_from_offset + mapped_file.wrote_position
                records, offsets, at = [], [], start
                for item, properties, body_crc in prepared:
                    record = encode_record(
                        body=item.body,
                        body_crc=body_crc,
                        queue_id=batch.queue_id,
                        flag=item.flag,
                        queue_offset=queue_offset,
                        physical_offset=at,
                        sys_flag=sys_flag,
                        born_timestamp=batch.born_timestamp,
                        born_host=born_host,
                        store_timestamp=begin,
                        store_host=store_host,
                        reconsume_times=batch.reconsume_times,
                        prepared_transaction_offset=0,
                        topic=topic,
                        properties=properties,
                        version=version,
                        prop_crc=self._prop_crc,
                    )
                    records.append(record)
                    offsets.append(at)
                    at += len(record)
                    queue_offset += 1
                mapped_file.append_record(b"".join(records), begin)
                self.queue_offsets[key] = queue_offset
                elapsed = self.clock_ms() - begin
            finally:
                self.begin_time_in_lock = 0
        batch.store_timestamp, batch.queue_offset, batch.physical_offset = begin, first_queue_offset, start
        return PutMessageResult(
            PutMessageStatus.PUT_OK,
            AppendMessageResult(
                AppendMessageStatus.PUT_OK,
                start,
                at - start,
                batch.store_host,
                begin,
                first_queue_offset,
                elapsed,
                offsets,
                len(records),
            ),
        )

    def close(self) -> None:
        """Closes the files. A put that comes too late finds no file to write to."""
        with self._lock:
            self._usual_file = _NO_FILE
            self.queue.close()

    # ------------------------------------------------------------------ reading

    @property
    def min_offset(self) -> int:
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        return self.queue.max_offset

    def get_message(self, physical_offset: int, size: int) -> memoryview | None:
        """The `size` bytes at an offset, or None when they are not there (any more)."""
        return self.queue.select(physical_offset, size)

    def size_at(self, physical_offset: int) -> int:
        """TOTALSIZE of the record at an offset, 0 when there is none."""
        head = self.queue.select(physical_offset, 4)
        return int.from_bytes(head, "big", signed=True) if head is not None else 0

    def roll_next_file(self, physical_offset: int) -> int:
        size = self.config.mapped_file_size_commit_log
        return physical_offset + size - physical_offset % size

    def is_in_disk(self, physical_offset: int, memory_bytes: int) -> bool:
        """Whether a pull from here counts as one from disk: further behind than the memory's share."""
        return self.max_offset - physical_offset > memory_bytes


def _too_large(reason: str) -> PutMessageResult:
    return PutMessageResult(
        PutMessageStatus.MESSAGE_ILLEGAL,
        AppendMessageResult(AppendMessageStatus.MESSAGE_SIZE_EXCEEDED),
        reason,
    )


def _refused_batch(n: int) -> PutMessageResult:
    if n == PROPERTIES_TOO_LARGE:
        return PutMessageResult(
            PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
            AppendMessageResult(AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED),
            f"a message of the batch has properties of over {PROPERTIES_LENGTH_MAX} bytes",
        )
    if n == RECORD_TOO_LARGE:
        return _too_large("a message of the batch is larger than maxMessageSize allows")
    reason = "the batch is empty" if n == 0 else "the body is not an encoded batch"
    return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, None, reason)


def _properties_too_large(length: int) -> PutMessageResult:
    return PutMessageResult(
        PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
        AppendMessageResult(AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED),
        f"the properties have {length} bytes, {PROPERTIES_LENGTH_MAX} are allowed",
    )


def _with_host_flags(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    sys_flag &= ~_V6_FLAGS
    if len(born_host) == 20:
        sys_flag |= MessageSysFlag.BORNHOST_V6_FLAG
    if len(store_host) == 20:
        sys_flag |= MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
    return sys_flag


def _size_of_records(
    batch: MessageExtBatch, sys_flag: int, topic_length: int, shared: bytes, version: int
) -> int:
    """Bytes that the records of an encoded batch will take. FormatError."""
    return sum(
        calculate_message_length(
            sys_flag, len(item.body), topic_length, len(_joined(item.properties, shared)), version
        )
        for item in decode_messages(batch.body)
    )


def _joined(own: bytes, shared: bytes, *, ended: bool = False) -> bytes:
    """A batch message's own properties and those of the batch's header; `ended`: with a separator at the end."""
    if own and (shared or ended) and not own.endswith(b"\x02"):
        own += b"\x02"
    return own + shared
