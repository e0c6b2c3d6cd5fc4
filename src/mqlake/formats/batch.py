"""Many messages in one body: what a batch send carries, and what an inner batch keeps stored.

    ┌─────────────┬───────────┬─────────────┬──────────┬─────────────┬──────┬────────────────┬────────────┐
    │totalSize i32│magic i32=0│bodyCRC i32=0│ flag i32 │ bodyLen i32 │ body │ propsLen i16   │ properties │
    └─────────────┴───────────┴─────────────┴──────────┴─────────────┴──────┴────────────────┴────────────┘

one after the other, with nothing between them. Topic, hosts and times are those of the message that
carries them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from mqlake.errors import BadLengthError, MessageError, PropertiesTooLargeError, TruncatedRecordError
from mqlake.formats.record import PROPERTIES_LENGTH_MAX
from mqlake.message import Message, MessageExt, MessageSysFlag, bytes_to_properties, properties_to_bytes

_HEAD = Struct(">iiiii")  # totalSize, magic, bodyCRC, flag, bodyLen
_I16 = Struct(">h")
ITEM_SIZE_MIN = _HEAD.size + _I16.size


class BatchItem(NamedTuple):
    flag: int
    body: bytes
    properties: bytes
    """As stored: UTF-8 text of `message.properties_to_bytes`."""


def encode_messages(messages: Iterable[Message]) -> bytes:
    """The blob for these messages: their flags, bodies and properties.

    Raises PropertiesTooLargeError, or MessageError when a flag is no i32 or a body too long.
    """
    parts: list[bytes] = []
    for message in messages:
        body = message.body
        properties = properties_to_bytes(message.properties)
        if len(properties) > PROPERTIES_LENGTH_MAX:
            raise PropertiesTooLargeError(
                f"the properties have {len(properties)} bytes; a message holds {PROPERTIES_LENGTH_MAX}"
            )
        size = ITEM_SIZE_MIN + len(body) + len(properties)
        try:
            parts += (
                _HEAD.pack(size, 0, 0, message.flag, len(body)),
                body,
                _I16.pack(len(properties)),
                properties,
            )
        except struct.error as e:
            raise MessageError(f"a number does not fit its field of the batch: {e}") from e
    return b"".join(parts)


def decode_messages(blob: bytes | bytearray | memoryview) -> list[BatchItem]:
    """The messages in a blob. Raises TruncatedRecordError or BadLengthError, nothing else."""
    items = []
    pos, limit = 0, len(blob)
    while pos < limit:
        if limit - pos < ITEM_SIZE_MIN:
            raise TruncatedRecordError(pos, f"{limit - pos} bytes are no message")
        size, _, _, flag, body_length = _HEAD.unpack_from(blob, pos)
        if size < ITEM_SIZE_MIN:
            raise BadLengthError(pos, f"a message cannot have {size} bytes")
        end = pos + size
        if end > limit:
            raise TruncatedRecordError(pos, f"the message has {size} bytes, {limit - pos} are there")
        body_start = pos + _HEAD.size
        properties_start = body_start + body_length + 2
        if body_length < 0 or properties_start > end:
            raise BadLengthError(pos, f"a body of {body_length} bytes in a message of {size}")
        properties_length = _I16.unpack_from(blob, properties_start - 2)[0]
        if properties_start + properties_length != end:
            raise BadLengthError(
                pos, f"the fields add up to {properties_start + properties_length - pos}, not {size}"
            )
        items.append(
            BatchItem(flag, bytes(blob[body_start : properties_start - 2]), bytes(blob[properties_start:end]))
        )
        pos = end
    return items


def unwrap_inner_batch(message: MessageExt) -> list[MessageExt]:
    """The messages inside a stored inner batch; message i has queue offset base + i.

    A message that is no inner batch comes back alone. All carry the physical offset of the record that holds them.
    Raises FormatError subclasses when the body is not a batch.
    """
    if not message.sys_flag & MessageSysFlag.NEED_UNWRAP_FLAG:
        return [message]
    return [
        MessageExt(
            message.topic,
            item.body,
            flag=item.flag,
            properties=bytes_to_properties(item.properties),
            queue_id=message.queue_id,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=message.store_timestamp,
            store_host=message.store_host,
            queue_offset=message.queue_offset + i,
            physical_offset=message.physical_offset,
            magic=message.magic,
        )
        for i, item in enumerate(decode_messages(message.body))
    ]
