"""One record of the commit log: a message as it lies on disk.

    offset  size      field (big-endian)
         0  4         TOTALSIZE        of the whole record
         4  4         MAGIC            v1: topic length is one byte, v2: two
         8  4         BODYCRC          of the body as stored; not looked at when there is none
        12  4         QUEUEID
        16  4         FLAG             the producer's, not looked at
        20  8         QUEUEOFFSET      number of the message in its queue
        28  8         PHYSICALOFFSET   of this record in the commit log
        36  4         SYSFLAG          `MessageSysFlag`
        40  8         BORNTIMESTAMP    ms
        48  8 | 20    BORNHOST         IPv4 | IPv6 address, port i32
            8         STORETIMESTAMP   ms
            8 | 20    STOREHOST
            4         RECONSUMETIMES
            8         PREPARED TRANSACTION OFFSET
            4 + n     body length, body
        1 | 2 + n     topic length, topic
            2 + n     properties length, properties

A file ends with a blank: 8 bytes, TOTALSIZE = what is left of the file, MAGIC = BLANK_MAGIC_CODE. After the
last record of a file in use there are zeros.

With the property CRC switched on, the properties end with 20 bytes: `__CRC32#` \\x01, ten decimal digits with
the lowest first, \\x02. The number is the CRC of the record without these 20 bytes.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from mqlake.errors import (
    BadCrcError,
    BadLengthError,
    BadMagicError,
    FormatError,
    IllegalTopicError,
    MessageError,
    PropertiesTooLargeError,
    TruncatedRecordError,
)
from mqlake.message import (
    HOSTS,
    PROPERTY_CRC32,
    MessageExt,
    MessageSysFlag,
    bytes_to_properties,
    crc32,
    host_bytes,
    properties_to_bytes,
    unread_messages,
)

MESSAGE_MAGIC_CODE = -626843481
MESSAGE_MAGIC_CODE_V2 = -626843477
BLANK_MAGIC_CODE = -875286124
END_FILE_MIN_BLANK_LENGTH = 8
CRC32_TAIL_LENGTH = 20
ZERO_SIZE = b"\0\0\0\0"
"""After the last record of a file in use: a size of zero, nothing was written here."""

PROPERTIES_LENGTH_MAX = 0x7FFF
TOPIC_LENGTH_MAX_V1 = 0x7F
TOPIC_LENGTH_MAX_V2 = 0x7FFF
RECORD_SIZE_MIN = 91
"""An empty v1 record between IPv4 hosts."""

# Positions that are the same in every record.
BODY_CRC_POSITION = 8
QUEUE_ID_POSITION = 12
FLAG_POSITION = 16
QUEUE_OFFSET_POSITION = 20
PHYSICAL_OFFSET_POSITION = 28
SYS_FLAG_POSITION = 36
BORN_TIMESTAMP_POSITION = 40
BORN_HOST_POSITION = 48
# The same in every record between IPv4 hosts.
STORE_TIMESTAMP_POSITION_V4 = 56
RECONSUME_TIMES_POSITION_V4 = 72
PREPARED_OFFSET_POSITION_V4 = 76

_BORN_V6 = MessageSysFlag.BORNHOST_V6_FLAG
_STORE_V6 = MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
HOST_FLAGS = _BORN_V6 | _STORE_V6
_FLAGS_OF_LENGTHS = {(8, 8): 0, (20, 8): _BORN_V6, (8, 20): _STORE_V6, (20, 20): HOST_FLAGS}


def _head(born_host_length: int, store_host_length: int) -> Struct:
    return Struct(
        ">"
        "i"  # TOTALSIZE
        "i"  # MAGIC
        "i"  # BODYCRC
        "i"  # QUEUEID
        "i"  # FLAG
        "q"  # QUEUEOFFSET
        "q"  # PHYSICALOFFSET
        "i"  # SYSFLAG
        "q"  # BORNTIMESTAMP
        f"{born_host_length}s"
        "q"  # STORETIMESTAMP
        f"{store_host_length}s"
        "i"  # RECONSUMETIMES
        "q"  # PREPARED TRANSACTION OFFSET
        "i"  # body length
    )


HEADS = {
    0: _head(8, 8),
    _BORN_V6: _head(20, 8),
    _STORE_V6: _head(8, 20),
    HOST_FLAGS: _head(20, 20),
}
"""Everything up to the body, by the two host bits of SYSFLAG."""

_SIZE_AND_MAGIC = Struct(">ii")
_I8 = Struct(">b")
_I16 = Struct(">h")
_pack_i16 = _I16.pack
_CRC_NAME = PROPERTY_CRC32.encode() + b"\x01"

Buffer = bytes | bytearray | memoryview


def store_timestamp_position(sys_flag: int) -> int:
    """Returns the position of the store time in a record: after the born host, whose length the flag says."""
    return 68 if sys_flag & _BORN_V6 else STORE_TIMESTAMP_POSITION_V4


def store_timestamp(buf: Buffer, pos: int = 0) -> int:
    """Store time (ms) of the record at `pos`, of which 76 bytes must be there."""
    at = pos + store_timestamp_position(buf[pos + SYS_FLAG_POSITION + 3])
    return int.from_bytes(buf[at : at + 8], "big", signed=True)


def calculate_message_length(
    sys_flag: int, body_length: int, topic_length: int, properties_length: int, version: int = 1
) -> int:
    """TOTALSIZE in bytes; lengths are in bytes, `properties_length` includes a CRC tail."""
    return HEADS[sys_flag & HOST_FLAGS].size + body_length + version + topic_length + 2 + properties_length


@lru_cache(maxsize=16384)
def topic_field(topic: bytes, version: int) -> bytes:
    """The topic with its length before it, as a record of that version holds it. IllegalTopicError."""
    limit = TOPIC_LENGTH_MAX_V1 if version == 1 else TOPIC_LENGTH_MAX_V2
    if len(topic) > limit:
        raise IllegalTopicError(f"the topic has {len(topic)} bytes; a v{version} record holds {limit}")
    return len(topic).to_bytes(version, "big") + topic


def encode_record(
    body: bytes,
    body_crc: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    topic: bytes,
    properties: bytes,
    version: int = 1,
    prop_crc: bool = False,
) -> bytes:
    """The record's bytes.

    `version` is 1 or 2; hosts are as `message.host_bytes` gives them, and SYSFLAG's two host bits follow from
    their lengths. `prop_crc` puts the CRC tail after the properties, which must not hold one already.

    Raises IllegalTopicError and PropertiesTooLargeError when a length does not fit its field, MessageError
    when a number does not.
    """
    if prop_crc and properties and properties[-1] != 2:
        properties += b"\x02"
    size, rest = encode_unpublished(
        body,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        with_host_flags(sys_flag, born_host, store_host),
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        topic_field(topic, version),
        properties,
        version,
        prop_crc,
    )
    return size + rest[:-4]


def encode_message(message: MessageExt) -> bytes:
    """The record of a message with all its fields, the body's CRC computed again. Raises as encode_record()."""
    topic = message.topic.encode()
    return encode_record(
        message.body,
        crc32(message.body),
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.physical_offset,
        message.sys_flag,
        message.born_timestamp,
        host_bytes(message.born_host),
        message.store_timestamp,
        host_bytes(message.store_host),
        message.reconsume_times,
        message.prepared_transaction_offset,
        topic,
        properties_to_bytes(message.properties),
        1 if len(topic) <= TOPIC_LENGTH_MAX_V1 else 2,
    )


def encode_unpublished(
    body: bytes,
    body_crc: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    topic_field: bytes,
    properties: bytes,
    version: int = 1,
    prop_crc: bool = False,
) -> tuple[bytes, bytes]:
    """A record in the two parts in which a log is written: TOTALSIZE, which comes last and publishes it, and all the
    other bytes with the four zeros after them.

    As encode_record(), but `sys_flag` has the right host bits, `topic_field` is the topic with its length, and
    `properties` end with their separator where a CRC tail follows. Every single put calls it: the fields in a tuple,
    which both could share, cost a tenth of what a put takes.
    """
    body_length, properties_length = len(body), len(properties)
    if prop_crc:
        properties_length += CRC32_TAIL_LENGTH
    layout = HEADS[sys_flag & HOST_FLAGS]
    try:
        head = layout.pack(
            layout.size + body_length + len(topic_field) + 2 + properties_length,
            MESSAGE_MAGIC_CODE if version == 1 else MESSAGE_MAGIC_CODE_V2,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body_length,
        )
        length = _pack_i16(properties_length)
    except struct.error as e:
        if properties_length > PROPERTIES_LENGTH_MAX:
            raise PropertiesTooLargeError(
                f"the properties have {properties_length} bytes, {PROPERTIES_LENGTH_MAX} are allowed"
            ) from e
        raise MessageError(f"a number does not fit its field of the record: {e}") from e
    if prop_crc:
        properties += _crc_tail(b"".join((head, body, topic_field, length, properties)))
    return head[:4], b"".join((head[4:], body, topic_field, length, properties, ZERO_SIZE))


def with_host_flags(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    """SYSFLAG with the bits that hosts of these lengths need. MessageError."""
    flags = _FLAGS_OF_LENGTHS.get((len(born_host), len(store_host)))
    if flags is None:
        raise MessageError(f"hosts have 8 or 20 bytes, not {len(born_host)} and {len(store_host)}")
    return sys_flag & ~HOST_FLAGS | flags


def _crc_tail(record: Buffer) -> bytes:
    """The 20 bytes that follow a record which was encoded up to them."""
    return _CRC_NAME + f"{crc32(record):010d}"[::-1].encode() + b"\x02"


def encode_blank(max_blank: int) -> bytes:
    """The 8 bytes that end a file which has `max_blank` bytes left."""
    return _SIZE_AND_MAGIC.pack(max_blank, BLANK_MAGIC_CODE)


def record_layout(buf: Buffer, pos: int, available: int) -> tuple[tuple[Any, ...], int, int, int, int, int]:
    """The parts of the record at `pos`, which has at least 8 and at most `available` bytes.

    Returns the head's fields and, as positions in `buf`: start of the body, start and end of the topic, start
    of the properties, end of the record. All lie in the record.
    Raises TruncatedRecordError, BadMagicError or BadLengthError.
    """
    size, magic = _SIZE_AND_MAGIC.unpack_from(buf, pos)
    if magic == MESSAGE_MAGIC_CODE:
        version = 1
    elif magic == MESSAGE_MAGIC_CODE_V2:
        version = 2
    else:
        what = "a blank, not a record" if magic == BLANK_MAGIC_CODE else f"magic {magic & 0xFFFFFFFF:#010x}"
        raise BadMagicError(pos, what)
    if size < RECORD_SIZE_MIN:
        raise BadLengthError(pos, f"a record cannot have {size} bytes")
    if size > available:
        raise TruncatedRecordError(pos, f"the record has {size} bytes, {available} are there")
    end = pos + size
    head_struct = HEADS[buf[pos + SYS_FLAG_POSITION + 3] & HOST_FLAGS]
    body_start = pos + head_struct.size
    if body_start + version + 2 > end:  # the smallest record between IPv4 hosts is too small for IPv6 ones
        raise BadLengthError(pos, f"{size} bytes do not hold a record with these hosts")
    head = head_struct.unpack_from(buf, pos)
    body_length = head[-1]
    topic_start = body_start + body_length + version
    if body_length < 0 or topic_start + 2 > end:
        raise BadLengthError(pos, f"a body of {body_length} bytes in a record of {size}")
    topic_length = (_I8 if version == 1 else _I16).unpack_from(buf, topic_start - version)[0]
    topic_end = topic_start + topic_length
    properties_start = topic_end + 2
    if topic_length < 0 or properties_start > end:
        raise BadLengthError(pos, f"a topic of {topic_length} bytes in a record of {size}")
    fields_end = properties_start + _I16.unpack_from(buf, topic_end)[0]
    if fields_end != end:
        raise BadLengthError(pos, f"the fields add up to {fields_end - pos} bytes, not {size}")
    return head, body_start, topic_start, topic_end, properties_start, end


def decode_record(
    buf: Buffer,
    pos: int = 0,
    *,
    check_crc: bool = True,
    read_body: bool = True,
    message_class: type[MessageExt] = MessageExt,
) -> MessageExt:
    """The message whose record begins at `pos`, as `message_class` (slots of its own are left unset).

    What is not UTF-8 becomes U+FFFD. Without `read_body` the body is empty and its CRC not checked.
    Raises TruncatedRecordError, BadMagicError (for a blank too), BadLengthError or BadCrcError, nothing else.
    """
    available = len(buf) - pos
    if pos < 0 or available < END_FILE_MIN_BLANK_LENGTH:
        raise TruncatedRecordError(pos, f"{max(0, available)} bytes are no record")
    head, body_start, topic_start, topic_end, properties_start, end = record_layout(buf, pos, available)
    message = message_class.__new__(message_class)
    body = bytes(buf[body_start : body_start + head[-1]]) if read_body else b""
    if check_crc and body and crc32(body) != head[2]:
        raise BadCrcError(pos, f"body CRC {crc32(body)}, the record says {head[2]}")
    _set_fields(message, head, body, buf[topic_start:topic_end], buf[properties_start:end])
    return message


def decode_records(records: bytes, places: Iterable[Sequence[int]]) -> Iterator[MessageExt]:
    """The messages of whole records that lie back to back and have been checked; `places` are the start and end of the
    body, and the end, of each. A message reads its other fields when they are asked for, as decode_record() would have
    set them: until then it holds all of `records`, as a copy of its own would cost as much as all else that is done
    here."""
    start = 0
    for body_start, body_end, end in places:
        message: MessageExt = _new(_Unread)
        message._record = records, start
        message.body = records[body_start:body_end]
        start = end
        yield message


def _read_fields(message: MessageExt, records: bytes, start: int) -> None:
    layout = HEADS[records[start + SYS_FLAG_POSITION + 3] & HOST_FLAGS]
    head = layout.unpack_from(records, start)
    body_end = start + layout.size + head[-1]
    topic_start = body_end + (1 if head[1] == MESSAGE_MAGIC_CODE else 2)
    topic_end = topic_start + int.from_bytes(records[body_end:topic_start], "big")
    properties = records[topic_end + 2 : start + head[0]]
    _set_fields(message, head, message.body, records[topic_start:topic_end], properties)


_new = object.__new__
_Unread = unread_messages(_read_fields)


def _set_fields(
    message: MessageExt, head: tuple[Any, ...], body: bytes, topic: Buffer, properties: Buffer
) -> None:
    (
        message.store_size,
        message.magic,
        message.body_crc,
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.physical_offset,
        message.sys_flag,
        message.born_timestamp,
        born_host,
        message.store_timestamp,
        store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        _,
    ) = head
    message.born_host = HOSTS[born_host]
    message.store_host = HOSTS[store_host]
    message.body = body
    message.topic = str(topic, "utf-8", "replace")
    message.properties = bytes_to_properties(properties)


class RecordPlace(NamedTuple):
    """The claims of a consume queue unit about its record. None: not known, as for a light message queue, whose units
    point to records of other queues."""

    size: int
    physical_offset: int
    queue_id: int | None
    queue_offset: int
    topic: bytes


def why_not_at(buf: Buffer, pos: int, available: int, place: RecordPlace, *, check_crc: bool = False) -> str:
    """Why the record of `place` is not at `pos`, of no more than `available` bytes; empty when it is, and whole.

    Never raises. With `check_crc` its body has to have its CRC.
    """
    if not END_FILE_MIN_BLANK_LENGTH <= available <= len(buf) - pos or pos < 0:
        return "the log has no such bytes"
    try:
        head, body_start, topic_start, topic_end, _, _ = record_layout(buf, pos, available)
    except FormatError as error:
        return error.reason
    if (head[0], head[6]) != place[:2]:
        return (
            f"a record of {head[0]} bytes that says physical offset {head[6]}, "
            f"where one of {place.size} bytes at {place.physical_offset} was expected"
        )
    if place.queue_id is not None:
        if (head[3], head[5]) != place[2:4]:
            return (
                f"the record says queue {head[3]}, queue offset {head[5]}, "
                f"where {place.queue_id} and {place.queue_offset} were expected"
            )
        if buf[topic_start:topic_end] != place.topic:
            return f"the record says topic {str(buf[topic_start:topic_end], 'utf-8', 'replace')!r}"
    if check_crc and head[-1] and crc32(buf[body_start : body_start + head[-1]]) != head[2]:
        return "body CRC"
    return ""


class RecordKind(enum.IntEnum):
    """The kinds of data that can begin at a position of the commit log."""

    MESSAGE = 0
    BLANK = 1
    """The rest of the file is unused on purpose."""
    END = 2
    """A size of zero: nothing was written here, or nothing that was finished, as the size is written last."""
    TRUNCATED = 3
    """A record or blank that says more bytes than there are."""
    INVALID = 4
    """Bytes that no writer leaves, or not at this position."""


def _is_prop_crc(view: memoryview, end: int) -> bool:
    """True if the 20 bytes before `end` are a property CRC, right or not; one byte of its name may be damaged."""
    tail = view[end - CRC32_TAIL_LENGTH : end]
    return sum(found != right for found, right in zip(tail, _CRC_NAME, strict=False)) <= 1


def _prop_crc_matches(view: memoryview, pos: int, end: int) -> bool:
    tail = end - CRC32_TAIL_LENGTH
    return view[tail:end] == _crc_tail(view[pos:tail])


def _has_prop_crc(view: memoryview, pos: int, limit: int) -> bool:
    """True if a record with the right property CRC lies at `pos`: then they are written here."""
    if limit - pos < RECORD_SIZE_MIN:
        return False
    size, magic = _SIZE_AND_MAGIC.unpack_from(view, pos)
    return (
        magic in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)
        and RECORD_SIZE_MIN + CRC32_TAIL_LENGTH <= size <= limit - pos
        and _prop_crc_matches(view, pos, pos + size)
    )


class RecordCheck(NamedTuple):
    kind: RecordKind
    size: int
    """TOTALSIZE for MESSAGE, BLANK and TRUNCATED (0 when not even that is there), else 0."""
    reason: str
    """Why it is TRUNCATED or INVALID, else empty."""


_CLEAN_END = RecordCheck(RecordKind.END, 0, "")


def _invalid(reason: str) -> RecordCheck:
    return RecordCheck(RecordKind.INVALID, 0, reason)


def check_record(
    buf: Buffer,
    pos: int,
    limit: int,
    physical_offset: int,
    *,
    check_crc: bool = True,
    force_prop_crc: bool = False,
) -> RecordCheck:
    """Classifies the bytes at `pos`, looking no further than `limit` (both positions in `buf`). Never raises.

    A MESSAGE has a known magic, lengths that add up to its size, PHYSICALOFFSET == `physical_offset`, and
    with `check_crc` the right CRC: the one that ends its properties where there is one, else the body's.

    A client may have sent a property of that name to a store that writes none. So a property CRC that is wrong
    counts only where the next record has a right one, or with `force_prop_crc`.
    """
    available = min(limit, len(buf)) - pos
    if pos < 0 or available < END_FILE_MIN_BLANK_LENGTH:
        if any(buf[pos : pos + max(0, available)]):
            return RecordCheck(RecordKind.TRUNCATED, 0, f"{available} bytes are no record")
        return _CLEAN_END
    size, magic = _SIZE_AND_MAGIC.unpack_from(buf, pos)
    if size == 0:
        return _CLEAN_END
    if magic == BLANK_MAGIC_CODE:
        if size < END_FILE_MIN_BLANK_LENGTH:
            return _invalid(f"a blank of {size} bytes")
        if size > available:
            return RecordCheck(RecordKind.TRUNCATED, size, f"a blank of {size} bytes, {available} are there")
        return RecordCheck(RecordKind.BLANK, size, "")
    try:
        head, body_start, _, _, properties_start, end = record_layout(buf, pos, available)
    except TruncatedRecordError as e:
        return RecordCheck(RecordKind.TRUNCATED, size, e.reason)
    except FormatError as e:
        return _invalid(e.reason)
    if head[6] != physical_offset:
        return _invalid(f"physical offset {head[6]} where {physical_offset} was expected")
    if check_crc:
        view = memoryview(buf)
        has_tail = end - CRC32_TAIL_LENGTH >= properties_start and _is_prop_crc(view, end)
        if not (has_tail and _prop_crc_matches(view, pos, end)):
            if head[-1] and crc32(view[body_start : body_start + head[-1]]) != head[2]:
                return _invalid("body CRC")
            if has_tail and (force_prop_crc or _has_prop_crc(view, end, pos + available)):
                return _invalid("property CRC")
    return RecordCheck(RecordKind.MESSAGE, size, "")
