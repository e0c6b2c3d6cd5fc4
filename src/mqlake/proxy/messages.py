"""Stored records as the messages that gRPC clients receive.

    stored                            sent
    not compressed                as it is
    zlib, gzip, LZ4, Zstandard    unpacked: not all clients know them
    damaged                       as it is, with the digest of what was stored, so that the client notices

The digest is over the bytes that are sent.
"""

from __future__ import annotations

import hashlib

from mqlake.base.net import format_address
from mqlake.client.records import MessageClientExt
from mqlake.message import (
    KEY_SEPARATOR,
    PROPERTY_DLQ_ORIGIN_MESSAGE_ID,
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_PRIORITY,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRACE_CONTEXT,
    STRING_PROPERTY,
    MessageSysFlag,
    crc32,
)
from mqlake.proxy.v2.definition_pb2 import (
    DeadLetterQueue,
    Digest,
    DigestType,
    Encoding,
    Message,
    Resource,
    SystemProperties,
)
from mqlake.proxy.values import message_type, timestamp

_INT_MAX = 2**31 - 1

_NOT_OF_USERS = STRING_PROPERTY | {
    PROPERTY_SHARDING_KEY,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_PRIORITY,
    PROPERTY_LITE_TOPIC,
}


def sent_message(
    record: MessageClientExt,
    topic: Resource,
    *,
    attempt: int | None = None,
    receipt_handle: str | None = None,
) -> Message:
    """`topic` is the one that the client asked for, also for a message from a retry topic."""
    properties = record.properties
    as_sent = bool(record.undecodable) and _is_as_sent(record)
    system = SystemProperties(
        message_id=record.uniq_key or record.msg_id,
        keys=(properties.get(PROPERTY_KEYS) or "").split(KEY_SEPARATOR)
        if properties.get(PROPERTY_KEYS)
        else (),
        body_digest=_digest(record, as_sent),
        body_encoding=Encoding.GZIP if as_sent else Encoding.IDENTITY,
        message_type=message_type(properties),
        born_timestamp=timestamp(record.born_timestamp),
        born_host=format_address(record.born_host),
        store_timestamp=timestamp(record.store_timestamp),
        store_host=format_address(record.store_host),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        tag=properties.get(PROPERTY_TAGS),
        message_group=properties.get(PROPERTY_SHARDING_KEY),
        trace_context=properties.get(PROPERTY_TRACE_CONTEXT),
        lite_topic=properties.get(PROPERTY_LITE_TOPIC),
        priority=_number(properties.get(PROPERTY_PRIORITY), _INT_MAX),
        delivery_attempt=attempt,
        receipt_handle=receipt_handle,
    )
    due = _number(properties.get(PROPERTY_TIMER_DELIVER_MS) or properties.get(PROPERTY_TIMER_OUT_MS), 1 << 50)
    if due is not None:
        system.delivery_timestamp.CopyFrom(timestamp(due))
    if (origin := properties.get(PROPERTY_DLQ_ORIGIN_TOPIC)) is not None:
        message_id = properties.get(PROPERTY_DLQ_ORIGIN_MESSAGE_ID, "")
        system.dead_letter_queue.CopyFrom(DeadLetterQueue(topic=origin, message_id=message_id))
    return Message(
        topic=topic,
        user_properties={name: value for name, value in properties.items() if name not in _NOT_OF_USERS},
        system_properties=system,
        body=bytes(record.body),
    )


def _is_as_sent(record: MessageClientExt) -> bool:
    """True for an intact body that says it is compressed and cannot be unpacked: the client gets the label that the
    producer gave it, as from RocketMQ's proxy."""
    return bool(record.sys_flag & MessageSysFlag.COMPRESSED_FLAG) and record.body_crc == crc32(record.body)


def _digest(record: MessageClientExt, as_sent: bool) -> Digest:
    if record.undecodable and not as_sent:
        return Digest(type=DigestType.CRC32, checksum=f"{record.body_crc:08X}-DAMAGED")
    text = hashlib.md5(record.body, usedforsecurity=False).hexdigest().upper()
    return Digest(type=DigestType.MD5, checksum=text)


def _number(text: str | None, high: int) -> int | None:
    """A number that is there and makes sense."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) > high:
        return None
    return int(text)
