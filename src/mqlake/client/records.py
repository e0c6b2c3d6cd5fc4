"""What a pull brings, decoded: messages that know their broker, bodies as their producer had them."""

from __future__ import annotations

from typing import cast

from mqlake.formats.batch import unwrap_inner_batch
from mqlake.formats.compression import decompress_body
from mqlake.formats.record import decode_record
from mqlake.message import MessageExt, MessageSysFlag
from mqlake.remoting.bodies.topic import MessageQueue

_COMPRESSED = MessageSysFlag.COMPRESSED_FLAG
_NEED_UNWRAP = MessageSysFlag.NEED_UNWRAP_FLAG


class MessageClientExt(MessageExt):
    """A message as a consumer gets it."""

    __slots__ = ("broker_name",)

    broker_name: str

    @property
    def message_queue(self) -> MessageQueue:
        """Where it was pulled from; for a message that came back, of the retry topic only broker and number."""
        return MessageQueue(topic=self.topic, broker_name=self.broker_name, queue_id=self.queue_id)


def decode_messages(
    records: bytes | memoryview, broker_name: str, *, read_body: bool = True
) -> list[MessageClientExt]:
    """The messages of records that lie one behind the other; inner batches are unwrapped. FormatError."""
    messages: list[MessageClientExt] = []
    position, end = 0, len(records)
    while position < end:
        message = cast(
            MessageClientExt,
            decode_record(records, position, read_body=read_body, message_class=MessageClientExt),
        )
        message.broker_name = broker_name
        position += message.store_size
        if read_body and message.sys_flag & _COMPRESSED:
            message.body = decompress_body(message.body, message.sys_flag)
        if message.sys_flag & _NEED_UNWRAP and read_body:
            messages += (_of_broker(inner, broker_name) for inner in unwrap_inner_batch(message))
        else:
            messages.append(message)
    return messages


def _of_broker(message: MessageExt, broker_name: str) -> MessageClientExt:
    given = MessageClientExt.__new__(MessageClientExt)
    for slot in (*MessageExt.__slots__, "topic", "body", "flag", "properties"):
        setattr(given, slot, getattr(message, slot))
    given.broker_name = broker_name
    return given
