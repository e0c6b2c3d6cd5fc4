"""Decoding of pulled records: messages that know their broker, with bodies as the producer sent them.

    records ─▶ message                           its body unpacked, an inner batch as the messages it holds
            ├▶ message with `undecodable` set    its body as it is stored, since it cannot be had otherwise: no such
            │                                    compression, larger than allowed, a CRC that is not its own
            └▶ bytes that are no record          likewise, up to where the next record begins; they are the body

So one message that cannot be decoded never hides those around it. What becomes of it is for `undecodable` to say.
"""

from __future__ import annotations

from typing import Any, Self, cast

from mqlake.errors import BadCrcError, FormatError, UndecodableMessageError
from mqlake.formats.batch import unwrap_inner_batch
from mqlake.formats.compression import decompress_body
from mqlake.formats.record import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, RECORD_SIZE_MIN, decode_record
from mqlake.message import PROPERTY_INNER_NUM, MessageExt, MessageSysFlag
from mqlake.remoting.bodies.topic import MessageQueue

MAX_BODY_SIZE = 64 << 20
"""Bytes that a body may unpack to unless a consumer says otherwise: a few bytes must not claim all memory."""

_COMPRESSED = MessageSysFlag.COMPRESSED_FLAG
_NEED_UNWRAP = MessageSysFlag.NEED_UNWRAP_FLAG
_MAGICS = tuple(
    magic.to_bytes(4, "big", signed=True) for magic in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)
)
_INNER_NUM_MAX = 1 << 24


class MessageClientExt(MessageExt):
    """A message as consumers and their listeners get it.

    topic, body (bytes, decompressed), tags: as its producer sent it.
    keys: all keys in one string, separated by spaces; None without any.
    properties: a dict of str to str; those of the producer and RocketMQ's own.
    uniq_key: the id that its producer gave it. msg_id: the one made of its place at the broker.
    born_timestamp, store_timestamp: when it was made and stored, ms since 1970.
    born_host, store_host: (address, port) of its producer and of the broker.
    reconsume_times: how often it was given back before.
    message_queue, queue_offset: where it was read. next_offset: where the queue goes on after it.
    read_topic: the topic that it was read from; of a message that came back, the group's retry topic.
    broker_name: the broker that it was read from.
    undecodable: why the body is not its producer's but as it is stored; empty for nearly all.
    receipt_handle: of a popped message, what acknowledges it.
    """

    __slots__ = ("_read_topic", "broker_name", "receipt_handle", "undecodable")

    broker_name: str
    undecodable: str
    receipt_handle: str

    def __new__(cls, *_arguments: Any, **_fields: Any) -> Self:
        made = super().__new__(cls)
        made._read_topic = ""
        made.undecodable = ""
        made.receipt_handle = ""
        return made

    @property
    def message_queue(self) -> MessageQueue:
        """The queue it was pulled from; for a message that came back, of the retry topic only broker and number."""
        return MessageQueue(topic=self.topic, broker_name=self.broker_name, queue_id=self.queue_id)

    @property
    def read_topic(self) -> str:
        return self._read_topic or self.topic

    def show_topic(self, topic: str) -> None:
        """Has it show another topic than the one it was read from, which stays its `read_topic`."""
        self._read_topic, self.topic = self.read_topic, topic

    @property
    def next_offset(self) -> int:
        """The queue offset after it; an inner batch that cannot be unwrapped takes one per message it holds."""
        if self.undecodable and self.sys_flag & _NEED_UNWRAP:
            count = self.properties.get(PROPERTY_INNER_NUM, "")
            if count.isascii() and count.isdigit() and 0 < int(count) <= _INNER_NUM_MAX:
                return self.queue_offset + int(count)
        return self.queue_offset + 1

    def undecodable_error(self) -> UndecodableMessageError:
        """An error that names the message and says what `undecodable` says."""
        return UndecodableMessageError(self, self.undecodable)


def decode_messages(
    records: bytes | memoryview,
    broker_name: str,
    *,
    read_body: bool = True,
    max_body_size: int = MAX_BODY_SIZE,
    queue: MessageQueue | None = None,
    following: int | None = None,
) -> list[MessageClientExt]:
    """The messages of consecutive records; inner batches are unwrapped.

    Never raises for what the bytes are: see `MessageClientExt.undecodable`. `queue` is where they come from and
    `following` the offset after the last one, both for bytes that do not say it themselves.
    """
    messages: list[MessageClientExt] = []
    unreadable: list[int] = []
    position, end = 0, len(records)
    while position < end:
        try:
            message = _decoded(records, position, read_body)
        except FormatError as error:
            begin, position = position, _next_record(records, position)
            message = _unreadable(bytes(records[begin:position]), error.reason, queue)
            unreadable.append(len(messages))
            message.broker_name = broker_name
            messages.append(message)
            continue
        message.broker_name = broker_name
        position += message.store_size
        if read_body and message.sys_flag & (_COMPRESSED | _NEED_UNWRAP) and not message.undecodable:
            try:
                messages += _unpacked(message, broker_name, max_body_size)
                continue
            except FormatError as error:
                message.undecodable = error.reason
        messages.append(message)
    for number in unreadable:
        _place(messages, number, following)
    return messages


def whole_records(records: bytes) -> bytes:
    """The intact records among them, with correct body CRCs, one after another."""
    found, position = [], 0
    while position < len(records):
        begin = position
        try:
            position += decode_record(records, begin).store_size
            found.append(records[begin:position])
        except BadCrcError:
            position += decode_record(records, begin, read_body=False).store_size
        except FormatError:
            position = _next_record(records, begin)
    return b"".join(found)


def decode_message(record: bytes | memoryview, broker_name: str) -> MessageClientExt:
    """The message of a record. Raises UndecodableMessageError, or FormatError unless there is exactly one."""
    found = decode_messages(record, broker_name)
    if len(found) != 1:
        raise FormatError(0, f"{len(found)} messages where one was expected")
    if found[0].undecodable:
        raise found[0].undecodable_error()
    return found[0]


def _decoded(records: bytes | memoryview, position: int, read_body: bool) -> MessageClientExt:
    try:
        message = decode_record(records, position, read_body=read_body, message_class=MessageClientExt)
    except BadCrcError as error:
        message = decode_record(records, position, check_crc=False, message_class=MessageClientExt)
        cast(MessageClientExt, message).undecodable = error.reason
    return cast(MessageClientExt, message)


def _unpacked(message: MessageClientExt, broker_name: str, max_body_size: int) -> list[MessageClientExt]:
    """FormatError, and the message is as before."""
    stored = message.body
    if message.sys_flag & _COMPRESSED:
        message.body = decompress_body(stored, message.sys_flag, max_body_size)
    if not message.sys_flag & _NEED_UNWRAP:
        return [message]
    try:
        return [_of_broker(inner, broker_name) for inner in unwrap_inner_batch(message)]
    except FormatError:
        message.body = stored
        raise


def _of_broker(message: MessageExt, broker_name: str) -> MessageClientExt:
    given = MessageClientExt.__new__(MessageClientExt)
    for slot in (*MessageExt.__slots__, "topic", "body", "flag", "properties"):
        if slot != "_record":  # that it was read from
            setattr(given, slot, getattr(message, slot))
    given.broker_name = broker_name
    return given


# --- bytes that are no record


def _next_record(records: bytes | memoryview, position: int) -> int:
    """Position of the next record after `position`, or the end."""
    data = bytes(records[position:])
    at = RECORD_SIZE_MIN  # nothing shorter was a record
    while True:
        found = [place for place in (data.find(magic, at + 4) for magic in _MAGICS) if place >= 0]
        if not found:
            return len(records)
        at = min(found) - 4
        try:
            decode_record(data, at, check_crc=False, read_body=False)
        except FormatError:
            at += 1
        else:
            return position + at


def _unreadable(data: bytes, reason: str, queue: MessageQueue | None) -> MessageClientExt:
    topic = queue.topic if queue is not None else ""
    message = MessageClientExt(topic, data, queue_id=queue.queue_id if queue is not None else -1)
    message.queue_offset = int.from_bytes(data[20:28], "big", signed=True) if len(data) >= 28 else -1
    message.undecodable = f"{len(data)} bytes are no record: {reason}"
    return message


def _place(messages: list[MessageClientExt], number: int, following: int | None) -> None:
    """Sees to it that an unreadable message has an offset between those of its neighbours, its own if that is."""
    message = messages[number]
    low = messages[number - 1].next_offset if number else 0
    high = messages[number + 1].queue_offset if number + 1 < len(messages) else following
    if not low <= message.queue_offset or (high is not None and message.queue_offset >= high):
        message.queue_offset = low if number or high is None else max(high - 1, 0)
