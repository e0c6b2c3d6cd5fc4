"""CommitLog: every message of every topic in one sequence, in the order of arrival.

    check ──▶ Appender.append: reserve ─▶ write ─▶ publish
                                          │
                                          └ queue offset, physical offset, store time

Every message takes this way, single or in a batch, encoded by Python (`put_message`, a batch with CRC tails) or by
compiled code (`put_many`, a batch's blob); native.single and native.produce do the same steps for a usual message of a
program and for the sends of a read, while they hold the interpreter's lock and nobody the log's. What needs no order
(properties, CRC, lengths) is done before the log's lock is taken. Whether the store takes messages at all, and when one
counts as stored, DefaultMessageStore decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
    Bytes,
    Int64s,
    append_batch,
)
from mqlake.formats.record import (
    CRC32_TAIL_LENGTH,
    END_FILE_MIN_BLANK_LENGTH,
    HOST_FLAGS,
    PROPERTIES_LENGTH_MAX,
    RECORD_SIZE_MIN,
    TOPIC_LENGTH_MAX_V1,
    calculate_message_length,
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
from mqlake.message.policy import Policy, names_with
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import ZERO_SIZE, MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.appender import (
    Appended,
    Appender,
    NoFileError,
    QueueId,
    QueueOffsets,
    Write,
    Written,
    no_room,
)
from mqlake.store.log.fast_put import FastPut
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
_TRANSACTION_MASK = 0xC
# prepared and rolled-back messages both have this bit; a committed one has an offset in its queue as any other
_UNCOUNTED = MessageSysFlag.TRANSACTION_PREPARED_TYPE
_SPECIAL_FLAGS = _UNCOUNTED | MessageSysFlag.INNER_BATCH_FLAG
_TIMER_PROPERTIES = frozenset(names_with(Policy.TIMER))
_SPECIAL_PROPERTIES = frozenset(names_with(Policy.PUT))


class CommitLog:
    """Makes records of messages and has them appended to `files`. `queue_offsets` is (topic, queue id) → next queue
    offset, updated by the appender."""

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
        self.appender = Appender(config, files, queue_offsets, clock_ms=clock_ms, prefault=prefault)
        self._put_timer = put_timer
        self._topics: dict[str, tuple[bytes, int]] = {}
        """Topics that may be written: the field of a record, and the record version that has it."""
        # no field of a record of this size can be too long
        self._unchecked_max = min(config.max_message_size, PROPERTIES_LENGTH_MAX)
        self._prop_crc = config.enabled_append_prop_crc
        self._crc_tail_length = CRC32_TAIL_LENGTH if self._prop_crc else 0
        self.fast_put = FastPut(
            queue_offsets,
            self.appender.lock,
            _SPECIAL_PROPERTIES,
            self._unchecked_max,
            config.max_message_size,
        )
        self.appender.on_file = self.fast_put.use

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

        def write(mapped_file: MappedFile, queue_offsets: Sequence[int], store_timestamp: int) -> Written:
            nonlocal properties, size
            queue_offset = queue_offsets[0] if advance else 0
            if inner_batch:
                # its properties name the queue offset of its first message, so their length is not known before
                msg.properties[PROPERTY_INNER_BASE] = str(queue_offset)
                properties = properties_to_bytes(msg.properties)
                size = self._check_size(fixed, len(body), len(properties))
                if not mapped_file.has_room(size):
                    return no_room(size)
            start = mapped_file.wrote_position
            _, rest = encode_unpublished(
                body,
                body_crc,
                msg.queue_id,
                msg.flag,
                queue_offset,
                mapped_file.file_from_offset + start,
                msg.sys_flag,
                msg.born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                msg.reconsume_times,
                msg.prepared_transaction_offset,
                topic,
                properties,
                version,
                self._prop_crc,
            )
            mapped_file.write_at(start + 4, rest)
            return Written(1, size, size, (advance,), (size,), (1,))

        try:
            appended = self.appender.append(((msg.topic, msg.queue_id),), write, 0 if inner_batch else size)
        except MessageError as error:
            return _refusal(error)
        except NoFileError as error:
            return self._no_file(error.size)
        assert appended is not None
        queue_offset = appended.queue_offsets[0] if advance else 0
        msg.store_timestamp = appended.store_timestamp
        msg.queue_offset = queue_offset
        msg.physical_offset = appended.wrote_offset
        self.fast_put.learn(msg, topic)
        fields = (appended.wrote_offset, size, msg.store_host, appended.store_timestamp, queue_offset, None)
        return put_ok((APPEND_OK, *fields, advance or 1, appended.pagecache_rt))

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

    def learn_topic(self, topic: str) -> None:
        """Lets native code store messages of a topic of which this log has stored some."""
        if (known := self._topics.get(topic)) is not None:
            self.fast_put.learn_topic(topic, known[0])

    def is_known_topic(self, topic: str) -> bool:
        """True if messages of this topic have been stored, as v1 records."""
        known = self._topics.get(topic)
        return known is not None and known[1] == 1

    def put_many(self, queues: Sequence[QueueId], write: Write) -> Appended | None:
        """Appends what `write` makes of simple messages to `queues` (see Appender.append). None when nothing fits, or
        when this log is not written through a mapping: then they have to come singly."""
        if self._prop_crc:
            return None
        return self.appender.append(queues, write, mapped_only=True)

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
            result = self._put_batch(batch, field[version:], version)
            self.fast_put.learn(batch, field)
            return result
        except (MessageError, FormatError) as error:
            return _refusal(error)
        except NoFileError as error:
            return self._no_file(error.size)

    def _shared_properties(self, batch: MessageExtBatch) -> bytes:
        """Returns the properties of a classic batch that each of its messages gets."""
        return properties_to_bytes(batch.properties) if self.config.batch_inherits_properties else b""

    def _put_batch(self, batch: MessageExtBatch, topic: bytes, version: int) -> PutMessageResult:
        """A record of each message: in one compiled pass from the encoded body straight into the file, but one by one
        where compiled code may not write, or with CRC tails. MessageError, FormatError, NoFileError."""
        shared = self._shared_properties(batch)
        records: AppendedBatch | _Items | None = None

        def write(mapped_file: MappedFile, queue_offsets: Sequence[int], store_timestamp: int) -> Written:
            nonlocal records
            out = None if self._prop_crc else mapped_file.target_array()
            start, base, queue_offset = (
                mapped_file.wrote_position,
                mapped_file.file_from_offset,
                queue_offsets[0],
            )
            if out is None:
                records = self._encode_items(
                    batch, topic, version, shared, queue_offset, base + start, store_timestamp
                )
                if not mapped_file.has_room(records.wrote):
                    return no_room(records.wrote)
                mapped_file.write_at(start + 4, records.data[4:] + ZERO_SIZE)
            else:
                records = self._write_blob(
                    batch, topic, version, shared, mapped_file, out, queue_offset, store_timestamp
                )
            if records.n == NO_ROOM:
                sys_flag = with_host_flags(
                    batch.sys_flag, host_bytes(batch.born_host), host_bytes(batch.store_host)
                )
                return no_room(_size_of_records(batch, sys_flag, len(topic), shared, version))
            first_size = int(records.sizes[0]) if records.n > 0 else 0
            return Written(records.n, records.wrote, first_size, (records.n,), (records.wrote,), (1,))

        appended = self.appender.append(((batch.topic, batch.queue_id),), write)
        assert records is not None
        if appended is None:
            raise _batch_error(records.n)
        return _stored(batch, appended, records.physical_offsets)

    def _write_blob(
        self,
        batch: MessageExtBatch,
        topic: bytes,
        version: int,
        shared: bytes,
        mapped_file: MappedFile,
        out: Bytes,
        queue_offset: int,
        store_timestamp: int,
    ) -> AppendedBatch:
        """The records of a batch straight into the file, by compiled code where there is any. MessageError."""
        start = mapped_file.wrote_position
        return append_batch(
            out,
            start,
            len(out) - start,
            np.frombuffer(batch.body, dtype=np.uint8),
            base_offset=mapped_file.file_from_offset,
            topic=topic,
            queue_id=batch.queue_id,
            queue_offset=queue_offset,
            sys_flag=batch.sys_flag,
            born_timestamp=batch.born_timestamp,
            born_host=host_bytes(batch.born_host),
            store_timestamp=store_timestamp,
            store_host=host_bytes(batch.store_host),
            reconsume_times=batch.reconsume_times,
            extra_props=shared,
            version=version,
            max_record_size=self.config.max_message_size + RECORD_OVER_BODY_MAX,
        )

    def _encode_items(
        self,
        batch: MessageExtBatch,
        topic: bytes,
        version: int,
        shared: bytes,
        queue_offset: int,
        physical_offset: int,
        store_timestamp: int,
    ) -> _Items:
        """The records of a batch, by Python. MessageError, FormatError."""
        born_host, store_host = host_bytes(batch.born_host), host_bytes(batch.store_host)
        fixed = _WITHOUT_HOSTS_AND_TOPIC + len(born_host) + len(store_host) + version + len(topic)
        records: list[bytes] = []
        offsets = [physical_offset]
        for n, item in enumerate(decode_messages(batch.body)):
            properties = _joined(item.properties, shared, ended=self._prop_crc)
            self._check_size(fixed, len(item.body), len(properties))
            record = encode_record(
                item.body,
                crc32(item.body),
                batch.queue_id,
                item.flag,
                queue_offset + n,
                offsets[-1],
                batch.sys_flag,
                batch.born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                batch.reconsume_times,
                0,
                topic,
                properties,
                version,
                self._prop_crc,
            )
            records.append(record)
            offsets.append(offsets[-1] + len(record))
        sizes = [len(record) for record in records]
        return _Items(len(records), sum(sizes), offsets[:-1], sizes, b"".join(records))

    def close(self) -> None:
        """Closes the files. A put that comes too late finds no file to write to."""
        with self.appender.lock:
            self.fast_put.close()
            self.appender.write_to(None)
            self.files.close()


class _Items(NamedTuple):
    """As AppendedBatch, of records that are not in the file yet."""

    n: int
    wrote: int
    physical_offsets: Sequence[int]
    sizes: Sequence[int]
    data: bytes


def _stored(
    batch: MessageExtBatch, many: Appended, physical_offsets: Sequence[int] | Int64s
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
            many.pagecache_rt,
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
