"""CommitLog: every message of every topic in one sequence, in the order of arrival.

    check ──▶ lock: reserve ──▶ encode ──▶ publish ──▶ unlock
                      │ a file with room    │ its size last: from here on readers see it
                      │                     │
                      │                     └ queue offset, physical offset, store time
                      └ does not fit (8 bytes must stay): blank record, next file

Every message takes this way, single or in a batch, encoded by Python (`put_message`, items of a batch) or by compiled
code (`put_many`, a batch's blob). One writer at a time; what needs no order (properties, CRC, lengths) is done before
the lock is taken. Whether the store takes messages at all, and when one counts as stored, DefaultMessageStore decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from mqlake.base.clock import now_ms
from mqlake.errors import (
    FormatError,
    IllegalTopicError,
    MessageError,
    MessageTooLargeError,
    PropertiesTooLargeError,
    TimerMessageError,
)
from mqlake.formats.batch import decode_messages
from mqlake.formats.columns import (
    NO_ROOM,
    PROPERTIES_TOO_LARGE,
    RECORD_TOO_LARGE,
    AppendedBatch,
    Int64s,
    append_batch,
    warm_append,
)
from mqlake.formats.record import (
    CRC32_TAIL_LENGTH,
    END_FILE_MIN_BLANK_LENGTH,
    HOST_FLAGS,
    PROPERTIES_LENGTH_MAX,
    RECORD_SIZE_MIN,
    TOPIC_LENGTH_MAX_V1,
    calculate_message_length,
    encode_blank,
    encode_record,
    encode_unpublished,
    topic_field,
    with_host_flags,
)
from mqlake.message import (
    HOST_BYTES,
    PROPERTY_CRC32,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_NUM,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
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
from mqlake.store.files.mapped_file import MappedFile, U8Array
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.log_lock import LogLock
from mqlake.store.log.single_put import SinglePut
from mqlake.store.results import (
    APPEND_OK,
    AppendMessageResult,
    AppendMessageStatus,
    PutMessageResult,
    PutMessageStatus,
    put_ok,
)

RETRY_TOPIC_LENGTH_MAX = 255
"""Bytes; a retry topic is `%RETRY%` and a group, whose name may be as long as a topic's."""
RECORD_OVER_BODY_MAX = 64 * 1024
"""Bytes that a record may exceed maxMessageSize by: header, topic and properties (RocketMQ 5.3.3)."""

_WITHOUT_HOSTS_AND_TOPIC = RECORD_SIZE_MIN - 17
_SPARE = END_FILE_MIN_BLANK_LENGTH
_TRANSACTION_MASK = 0xC
# prepared and rolled-back messages both have this bit; a committed one has an offset in its queue as any other
_UNCOUNTED = MessageSysFlag.TRANSACTION_PREPARED_TYPE
_SPECIAL_FLAGS = _UNCOUNTED | MessageSysFlag.INNER_BATCH_FLAG
_TIMER_PROPERTIES = frozenset((PROPERTY_TIMER_DELAY_SEC, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS))
_SPECIAL_PROPERTIES = _TIMER_PROPERTIES | {PROPERTY_DELAY_TIME_LEVEL, PROPERTY_INNER_NUM, PROPERTY_CRC32}

QueueId = tuple[str, int]
"""Topic and number of a queue."""
QueueOffsets = dict[QueueId, int]


class WrittenMany(NamedTuple):
    """The result of a WriteMany: so many `records` of `size` bytes together, the first of `first_size` bytes; and the
    records, bytes and sends (a batch is one) of each queue; where these are several puts, how many ns the longest of
    them took."""

    records: int
    size: int
    first_size: int
    queue_counts: Sequence[int]
    queue_bytes: Sequence[int]
    queue_puts: Sequence[int]
    longest_ns: int | None = None


class WriteMany(Protocol):
    """Writes whole records (v1, between IPv4 hosts, of simple messages) back to back to out[position:], as many as
    leave 8 bytes free, with 4 zero bytes after them; but not the first one's TOTALSIZE.

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
    queue_offsets: Sequence[int]
    """Of the first message of each queue."""


class CommitLog:
    """Appends to `files`. `queue_offsets` is (topic, queue id) → next queue offset, updated here."""

    def __init__(
        self,
        config: MessageStoreConfig,
        files: MappedFileQueue,
        queue_offsets: QueueOffsets,
        *,
        clock_ms: Callable[[], int] = now_ms,
        is_batch_topic: Callable[[str], bool] = lambda topic: False,
        prefault: Callable[[MappedFile], None] | None = None,
        put_timer: Callable[[MessageExtBrokerInner], None] | None = None,
    ) -> None:
        """`put_timer` rewrites a message with one of the properties that make it a timer message; MessageError."""
        self.config = config
        self.files = files
        self.queue_offsets = queue_offsets
        self.clock_ms = clock_ms
        self.is_batch_topic = is_batch_topic
        self.delay_levels = parse_delay_levels(config.message_delay_level)
        self.max_delay_level = max(self.delay_levels)
        self.begin_time_in_lock = 0
        self._prefault = prefault
        self._put_timer = put_timer
        self._lock = LogLock()
        self._topics: dict[str, tuple[bytes, int]] = {}
        """Topics that may be written: the field of a record, and the record version that has it."""
        self._last_file: MappedFile | None = None
        self.why_no_puts = ""
        """Once it is not known where the log ends."""
        # no field of a record of this size can be too long
        self._unchecked_max = min(config.max_message_size, PROPERTIES_LENGTH_MAX)
        self._prop_crc = config.enabled_append_prop_crc
        self._crc_tail_length = CRC32_TAIL_LENGTH if self._prop_crc else 0
        self.single = SinglePut(
            queue_offsets, self._lock, _SPECIAL_PROPERTIES, self._unchecked_max, config.max_message_size
        )

    # ------------------------------------------------------------------ one message

    def put_message(self, msg: MessageExtBrokerInner) -> PutMessageResult:
        """Appends one message. Statuses: PUT_OK, MESSAGE_ILLEGAL, PROPERTIES_SIZE_EXCEEDED,
        CREATE_MAPPED_FILE_FAILED. OSError from a device that fails under `writeWithoutMmap`."""
        advance, inner_batch = 1, False
        body = msg.body
        try:
            if msg.sys_flag & _SPECIAL_FLAGS or not _SPECIAL_PROPERTIES.isdisjoint(msg.properties):
                advance = self._settle_special(msg)
                inner_batch = PROPERTY_INNER_NUM in msg.properties
            topic, version = self._topics.get(msg.topic) or self._check_topic(msg.topic)
            properties = properties_to_bytes(msg.properties)
            born_host, store_host = HOST_BYTES[msg.born_host], HOST_BYTES[msg.store_host]
            hosts_length = len(born_host) + len(store_host)
            if hosts_length != 16 or msg.sys_flag & HOST_FLAGS:
                msg.sys_flag = with_host_flags(msg.sys_flag, born_host, store_host)
            fixed = _WITHOUT_HOSTS_AND_TOPIC + hosts_length + len(topic)
            size = fixed + len(body) + len(properties) + self._crc_tail_length
            if size > self._unchecked_max:
                self._check_size(fixed, len(body), len(properties))
        except MessageError as error:
            return _refusal(error)
        body_crc = crc32(body)
        key = (msg.topic, msg.queue_id)
        with self._lock:
            self.begin_time_in_lock = begin = self.clock_ms()
            try:
                queue_offset = self.queue_offsets.get(key, 0) if advance else 0
                if inner_batch:
                    # its properties name the queue offset of its first message, so their length is not known before
                    msg.properties[PROPERTY_INNER_BASE] = str(queue_offset)
                    properties = properties_to_bytes(msg.properties)
                    size = self._check_size(fixed, len(body), len(properties))
                mapped_file = self._last_file
                if mapped_file is None or mapped_file.wrote_position + size > mapped_file.file_size - _SPARE:
                    mapped_file = self._reserve(size)
                    if mapped_file is None:
                        return self._no_file(size)
                physical_offset = mapped_file.file_from_offset + mapped_file.wrote_position
                size_bytes, rest = encode_unpublished(
                    body,
                    body_crc,
                    msg.queue_id,
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
                    topic,
                    properties,
                    version,
                    self._prop_crc,
                )
                mapped_file.append_unpublished(size_bytes, rest, begin)
                if mapped_file.wrote_position > mapped_file.wake_position and self._prefault is not None:
                    self._prefault(mapped_file)
                if advance:
                    self.queue_offsets[key] = queue_offset + advance
            except MessageError as error:
                return _refusal(error)
            finally:
                self.begin_time_in_lock = 0
        msg.store_timestamp = begin
        msg.queue_offset = queue_offset
        msg.physical_offset = physical_offset
        self.single.learn(msg, topic)
        return put_ok(
            (APPEND_OK, physical_offset, size, msg.store_host, begin, queue_offset, None, advance or 1)
        )

    def _check_size(self, fixed: int, body_length: int, properties_length: int) -> int:
        """TOTALSIZE of a record of `fixed` bytes and the others. MessageTooLargeError, PropertiesTooLargeError."""
        if body_length > self.config.max_message_size:
            raise MessageTooLargeError(
                f"the body has {body_length} bytes, maxMessageSize allows {self.config.max_message_size}"
            )
        properties_length += self._crc_tail_length
        if properties_length > PROPERTIES_LENGTH_MAX:
            raise PropertiesTooLargeError(
                f"the properties have {properties_length} bytes, {PROPERTIES_LENGTH_MAX} are allowed"
            )
        size = fixed + body_length + properties_length
        limit = self.config.max_message_size + RECORD_OVER_BODY_MAX
        if size > limit:
            raise MessageTooLargeError(f"the record has {size} bytes, maxMessageSize allows {limit}")
        return size

    def _settle_special(self, msg: MessageExtBrokerInner) -> int:
        """Rewrites what a delay, an inner batch or a stale CRC property asks for; by how much the message advances its
        queue. MessageError."""
        # a prepared or rolled-back message is in the log for its transaction's sake: no consumer counts it
        counted = not msg.sys_flag & _UNCOUNTED
        if counted and not isinstance(msg, MessageTimeUp):
            if self._put_timer is not None and not _TIMER_PROPERTIES.isdisjoint(msg.properties):
                self._put_timer(msg)
            if PROPERTY_DELAY_TIME_LEVEL in msg.properties:
                self._rewrite_delayed(msg)
        if self._prop_crc:
            # the checksum of another record: a message that was read and is put again still has it
            msg.properties.pop(PROPERTY_CRC32, None)
        advance = 1
        if msg.sys_flag & MessageSysFlag.INNER_BATCH_FLAG or PROPERTY_INNER_NUM in msg.properties:
            advance = self._check_inner_batch(msg)
        return advance if counted else 0

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

    def _check_topic(self, topic: str) -> tuple[bytes, int]:
        """The topic's field of a record and the record version that has it, remembered. Raises IllegalTopicError."""
        encoded = topic.encode("utf-8")
        retry = topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        allowed = RETRY_TOPIC_LENGTH_MAX if retry else TOPIC_LENGTH_MAX_V1
        if len(encoded) > allowed:
            raise IllegalTopicError(f"the topic has {len(encoded)} bytes, {allowed} are allowed")
        # of a retry topic only pop's, %RETRY%G+T, has a +
        validate_topic(topic.replace("+", "_", 1)[:TOPIC_LENGTH_MAX_V1] if retry else topic)
        if len(encoded) > TOPIC_LENGTH_MAX_V1 and not self.config.auto_message_version_on_topic_len:
            raise IllegalTopicError("a topic this long needs autoMessageVersionOnTopicLen=true")
        version = 1 if len(encoded) <= TOPIC_LENGTH_MAX_V1 else 2
        self._topics[topic] = known = topic_field(encoded, version), version
        return known

    def _check_inner_batch(self, msg: MessageExtBrokerInner) -> int:
        """How many messages the body holds. MessageError."""
        flagged = bool(msg.sys_flag & MessageSysFlag.INNER_BATCH_FLAG)
        number = msg.properties.get(PROPERTY_INNER_NUM, "")
        if not flagged or not self.is_batch_topic(msg.topic):
            raise MessageError(f"an inner batch needs the topic attribute queue.type=BatchCQ on {msg.topic}")
        if not (number.isascii() and number.isdigit() and 0 < int(number) <= 32767):
            raise MessageError(f"an inner batch needs INNER_NUM of 1 to 32767, not {number!r}")
        return int(number)

    # ------------------------------------------------------------------ files

    def _reserve(self, size: int) -> MappedFile | None:
        """The file that takes `size` more bytes and keeps 8 spare, rolling to the next one if necessary; None when no
        file can."""
        mapped_file = self._last_file or self._find_last_file()
        if mapped_file is None:
            return None
        if mapped_file.wrote_position + size + END_FILE_MIN_BLANK_LENGTH <= mapped_file.file_size:
            return mapped_file
        if size + END_FILE_MIN_BLANK_LENGTH > self.config.mapped_file_size_commit_log:
            return None
        return self._roll(mapped_file)

    def _find_last_file(self) -> MappedFile | None:
        if self.why_no_puts:
            raise OSError(self.why_no_puts)
        self._last_file = self.files.get_last_mapped_file()
        self.single.use(self._last_file)
        return self._last_file

    def _roll(self, full: MappedFile) -> MappedFile | None:
        """Ends a file with a blank record over the bytes left and gives the next file.

        The next file is made first: when the disk is full the old one stays as it is, able to take
        smaller messages, and a later put tries again. OSError when what waits in a write buffer cannot be written.
        """
        following = self.files.create_next()
        if following is None:
            return None
        full.append_blank(encode_blank(full.file_size - full.wrote_position))
        if full.write_buffer is not None and following.write_buffer is None:
            # the pool has no buffer left: what is written next is in the file at once, so what waits goes first
            self.files.commit_all()
        if self.config.warm_maped_file_enable:
            full.unlock_in_memory()
        self._last_file = following
        self.single.use(following)
        return following

    def _no_file(self, size: int) -> PutMessageResult:
        limit = self.config.mapped_file_size_commit_log - END_FILE_MIN_BLANK_LENGTH
        if size > limit:
            return _refusal(
                MessageTooLargeError(f"the record has {size} bytes, a commit log file takes {limit}")
            )
        error = self.files.create_error
        reason = f"cannot create the next commit log file: {error or 'the file pool is short or slow'}"
        return PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED, None, reason)

    # ------------------------------------------------------------------ many messages at once

    def is_known_topic(self, topic: str) -> bool:
        """True if messages of this topic have been stored, as v1 records."""
        known = self._topics.get(topic)
        return known is not None and known[1] == 1

    def put_many(
        self, queues: Sequence[QueueId], write: WriteMany, on_wanted: Callable[[], None] | None = None
    ) -> AppendedMany | None:
        """Appends what `write` makes of simple messages to `queues`, in one step: all become visible together. None
        when nothing fits, or when this log is not written through a mapping: then they have to come singly. A `write`
        that takes long has an `on_wanted`, which another thread calls that waits to put; and it may make its records
        visible by itself. If it raises after that, this log takes nothing any more: the next start finds its end."""
        with self._lock if on_wanted is None else self._lock.lent(on_wanted):
            mapped_file = self._last_file
            if mapped_file is None or self._prop_crc or not mapped_file.is_mapped:
                return None
            return self._write_many(mapped_file, mapped_file.array, queues, write)

    def _write_many(
        self, mapped_file: MappedFile, out: U8Array, queues: Sequence[QueueId], write: WriteMany
    ) -> AppendedMany | None:
        """Under the lock: has compiled code encode records at the end of a file, and publishes them."""
        self.begin_time_in_lock = begin = self.clock_ms()
        start, base = mapped_file.wrote_position, mapped_file.file_from_offset
        try:
            offsets = self.queue_offsets
            queue_offsets = [offsets.get(queue, 0) for queue in queues]
            written = write(out, start, base, queue_offsets, begin)
            if written.records <= 0:
                return None
            end = start + written.size
            mapped_file.publish(start, written.first_size.to_bytes(4, "big"), end, begin)
            if end > mapped_file.wake_position and self._prefault is not None:
                self._prefault(mapped_file)
            for queue, offset, count in zip(queues, queue_offsets, written.queue_counts, strict=True):
                offsets[queue] = offset + count
        except BaseException as error:
            # a record that has its size may have been answered: nothing may go there
            if out[start : start + 4].any():
                self.why_no_puts = f"where the log ends is not known any more: {error!r}"
                self._last_file = None
                self.single.close()
            raise
        finally:
            self.begin_time_in_lock = 0
        return AppendedMany(base + start, base + end, begin, written, queue_offsets)

    # ------------------------------------------------------------------ classic batch

    def put_messages(self, batch: MessageExtBatch) -> PutMessageResult:
        """Appends each message of a classic batch as a record of its own, all or none, in consecutive
        queue offsets. Statuses as put_message(); MESSAGE_ILLEGAL also for a delay level, a transaction or
        a body that is not an encoded batch."""
        try:
            if batch.sys_flag & _TRANSACTION_MASK or batch.delay_time_level > 0:
                raise MessageError("a batch can be neither delayed nor transactional")
            if len(batch.body) > self.config.max_message_size:
                raise MessageTooLargeError(
                    f"the batch has {len(batch.body)} bytes, maxMessageSize allows {self.config.max_message_size}"
                )
            field, version = self._topics.get(batch.topic) or self._check_topic(batch.topic)
            topic = field[version:]
            if self._prop_crc or self.config.write_without_mmap:
                return self._put_items(batch, topic, version)
            result = self._put_blob(batch, topic, version)
            if result.is_ok:
                self.single.learn(batch, field)
            return result
        except (MessageError, FormatError) as error:
            return _refusal(error)

    def _shared_properties(self, batch: MessageExtBatch) -> bytes:
        """What each message of a classic batch gets of the batch's properties."""
        return properties_to_bytes(batch.properties) if self.config.batch_inherits_properties else b""

    def _put_blob(self, batch: MessageExtBatch, topic: bytes, version: int) -> PutMessageResult:
        """The batch in one compiled pass, from its encoded body straight into the file. MessageError, FormatError."""
        blob = np.frombuffer(batch.body, dtype=np.uint8)
        born_host, store_host = host_bytes(batch.born_host), host_bytes(batch.store_host)
        shared = self._shared_properties(batch)
        appended: AppendedBatch | None = None
        warm_append()  # loading it under the lock would hold up everybody

        def write(
            out: U8Array, position: int, base_offset: int, queue_offsets: Sequence[int], store_timestamp: int
        ) -> WrittenMany:
            nonlocal appended
            appended = append_batch(
                out,
                position,
                len(out) - position,
                blob,
                base_offset=base_offset,
                topic=topic,
                queue_id=batch.queue_id,
                queue_offset=queue_offsets[0],
                sys_flag=batch.sys_flag,
                born_timestamp=batch.born_timestamp,
                born_host=born_host,
                store_timestamp=store_timestamp,
                store_host=store_host,
                reconsume_times=batch.reconsume_times,
                extra_props=shared,
                version=version,
                max_record_size=self.config.max_message_size + RECORD_OVER_BODY_MAX,
            )
            first_size = int(appended.sizes[0]) if appended.n > 0 else 0
            return WrittenMany(appended.n, appended.wrote, first_size, (appended.n,), (appended.wrote,), (1,))

        size = 0
        with self._lock:
            while True:
                mapped_file = self._reserve(size)
                out = mapped_file.target_array() if mapped_file is not None else None
                if mapped_file is None or out is None:
                    return self._no_file(size)
                many = self._write_many(mapped_file, out, ((batch.topic, batch.queue_id),), write)
                assert appended is not None
                if appended.n != NO_ROOM:
                    break
                sys_flag = with_host_flags(batch.sys_flag, born_host, store_host)
                size = _size_of_records(batch, sys_flag, len(topic), shared, version)
        if many is None:
            raise _batch_error(appended.n)
        return _stored(batch, many, appended.physical_offsets)

    def _put_items(self, batch: MessageExtBatch, topic: bytes, version: int) -> PutMessageResult:
        """The batch message by message: where compiled code may not write, or each record gets a CRC tail.
        MessageError, FormatError."""
        born_host, store_host = host_bytes(batch.born_host), host_bytes(batch.store_host)
        shared = self._shared_properties(batch)
        fixed = _WITHOUT_HOSTS_AND_TOPIC + len(born_host) + len(store_host) + version + len(topic)
        items = [
            (item.flag, item.body, _joined(item.properties, shared, ended=self._prop_crc))
            for item in decode_messages(batch.body)
        ]
        if not items:
            raise _batch_error(0)
        total = sum(self._check_size(fixed, len(body), len(properties)) for _, body, properties in items)
        key = (batch.topic, batch.queue_id)
        with self._lock:
            self.begin_time_in_lock = begin = self.clock_ms()
            try:
                mapped_file = self._reserve(total)
                if mapped_file is None:
                    return self._no_file(total)
                queue_offset = self.queue_offsets.get(key, 0)
                at = start = mapped_file.file_from_offset + mapped_file.wrote_position
                records, offsets = [], []
                for n, (flag, body, properties) in enumerate(items):
                    record = encode_record(
                        body,
                        crc32(body),
                        batch.queue_id,
                        flag,
                        queue_offset + n,
                        at,
                        batch.sys_flag,
                        batch.born_timestamp,
                        born_host,
                        begin,
                        store_host,
                        batch.reconsume_times,
                        0,
                        topic,
                        properties,
                        version,
                        self._prop_crc,
                    )
                    records.append(record)
                    offsets.append(at)
                    at += len(record)
                mapped_file.append_record(b"".join(records), begin)
                self.queue_offsets[key] = queue_offset + len(records)
            finally:
                self.begin_time_in_lock = 0
        written = WrittenMany(len(records), total, len(records[0]), (len(records),), (total,), (1,))
        return _stored(batch, AppendedMany(start, at, begin, written, (queue_offset,)), offsets)

    def close(self) -> None:
        """Closes the files. A put that comes too late finds no file to write to."""
        with self._lock:
            self._last_file = None
            self.single.close()
            self.files.close()


def _stored(
    batch: MessageExtBatch, many: AppendedMany, physical_offsets: Sequence[int] | Int64s
) -> PutMessageResult:
    batch.store_timestamp = many.store_timestamp
    batch.queue_offset = many.queue_offsets[0]
    batch.physical_offset = many.wrote_offset
    return PutMessageResult(
        PutMessageStatus.PUT_OK,
        AppendMessageResult(
            AppendMessageStatus.PUT_OK,
            many.wrote_offset,
            many.written.size,
            batch.store_host,
            many.store_timestamp,
            many.queue_offsets[0],
            physical_offsets,
            many.written.records,
        ),
    )


def _refusal(error: MessageError | FormatError) -> PutMessageResult:
    """The answer to a message that cannot be stored."""
    status, appended = PutMessageStatus.MESSAGE_ILLEGAL, None
    if isinstance(error, PropertiesTooLargeError):
        status = PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        appended = AppendMessageResult(AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED)
    elif isinstance(error, MessageTooLargeError):
        appended = AppendMessageResult(AppendMessageStatus.MESSAGE_SIZE_EXCEEDED)
    elif isinstance(error, TimerMessageError):
        status = PutMessageStatus[error.status]
    return PutMessageResult(status, appended, str(error))


def _batch_error(n: int) -> MessageError:
    """Why no record was written: what append_batch() answered instead of a count, or 0."""
    if n == PROPERTIES_TOO_LARGE:
        return PropertiesTooLargeError(
            f"a message of the batch has properties of over {PROPERTIES_LENGTH_MAX} bytes"
        )
    if n == RECORD_TOO_LARGE:
        return MessageTooLargeError("a message of the batch is larger than maxMessageSize allows")
    return MessageError("the batch is empty" if n == 0 else "the body is not an encoded batch")


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
