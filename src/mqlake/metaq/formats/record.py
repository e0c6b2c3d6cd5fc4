"""The record: a message in a segment file and in the answer to a `get`.

    0      4        8          16     20        24
    ├──────┼────────┼──────────┼──────┼┄┄┄┄┄┄┄┄┄┼┄┄┄┄┄┄┄┄┄┄┼──────────┤
    │length│checksum│    id    │ flag │attrLen? │attribute?│   data   │   all big-endian
    └──────┴────────┴──────────┴──────┴┄┄┄┄┄┄┄┄┄┴┄┄┄┄┄┄┄┄┄┄┴──────────┘
                                      └────────── payload, `length` bytes ─────────┘

`checksum` is the CRC-32 of the payload with its top bit cleared; the header is not covered. Bit 0 of `flag`
says that the payload begins with an attribute. 20 zero bytes are a valid empty record, so the original reads
zeros at the end of a file as empty messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from mqlake.errors import BadCrcError, BadLengthError, FormatError, TruncatedRecordError
from mqlake.metaq.message import HAS_ATTRIBUTE, Message, Partition

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32

Buffer = bytes | bytearray | memoryview

HEADER = Struct(">iiqi")
HEADER_SIZE = 20
_ATTRIBUTE_LENGTH = Struct(">i")
_CRC_MASK = 0x7FFFFFFF


class Header(NamedTuple):
    length: int
    """Length of the payload, bytes."""
    checksum: int
    id: int
    flag: int


def checksum(data: Buffer) -> int:
    """CRC-32 without its top bit, as on the disk and on the wire."""
    return int(_crc32(data)) & _CRC_MASK


def encode_payload(data: bytes, attribute: str | None) -> bytes:
    """The payload of a `put`."""
    if attribute is None:
        return data
    raw = attribute.encode()
    return _ATTRIBUTE_LENGTH.pack(len(raw)) + raw + data


def decode_payload(payload: bytes, flag: int) -> tuple[str | None, bytes]:
    """(attribute, data). What is not UTF-8 becomes U+FFFD. FormatError if the attribute does not fit."""
    if not flag & HAS_ATTRIBUTE:
        return None, payload
    if len(payload) < 4:
        raise TruncatedRecordError(
            0, f"a payload of {len(payload)} bytes has no room for an attribute's length"
        )
    (length,) = _ATTRIBUTE_LENGTH.unpack_from(payload)
    end = 4 + length
    if length < 0 or end > len(payload):
        raise BadLengthError(0, f"an attribute of {length} bytes in a payload of {len(payload)}")
    return payload[4:end].decode("utf-8", "replace"), payload[end:]


def message_flag(message: Message) -> int:
    """The message's flag with bit 0 as its attribute says."""
    return message.flag | HAS_ATTRIBUTE if message.has_attribute else message.flag & ~HAS_ATTRIBUTE


def encode_header(payload: Buffer, message_id: int, flag: int, crc: int | None = None) -> bytes:
    """The 20 bytes before `payload`; `crc` if it is already known."""
    return HEADER.pack(len(payload), checksum(payload) if crc is None else crc, message_id, flag)


def encode_record(payload: bytes, message_id: int, flag: int) -> bytes:
    return encode_header(payload, message_id, flag) + payload


def decode_header(buf: Buffer, position: int = 0) -> Header:
    """Raises TruncatedRecordError, BadLengthError for a negative length."""
    if len(buf) - position < HEADER_SIZE:
        raise TruncatedRecordError(position, f"a record needs {HEADER_SIZE} bytes of header")
    header = Header._make(HEADER.unpack_from(buf, position))
    if header.length < 0:
        raise BadLengthError(position, f"a payload of {header.length} bytes")
    return header


def check_record(buf: Buffer, position: int, limit: int) -> Header:
    """The header of the record at `position`, which must be whole, end at `limit` or before, and match its checksum.

    Raises TruncatedRecordError, BadLengthError, BadCrcError.
    """
    if limit - position < HEADER_SIZE:
        raise TruncatedRecordError(position, f"{limit - position} bytes are not a whole header")
    header = decode_header(buf, position)
    end = position + HEADER_SIZE + header.length
    if end > limit:
        raise TruncatedRecordError(position, f"the record ends {end - limit} bytes after the data")
    if checksum(memoryview(buf)[position + HEADER_SIZE : end]) != header.checksum:
        raise BadCrcError(position, "the payload does not match its checksum")
    return header


class MessageIterator:
    """The messages in the answer to a `get`: bytes of a segment, whose last record may be incomplete.

    When the attribute that the flag promises does not fit, the whole payload is data: its checksum is right, and
    consumers must get past it.

    `offset` is the number of bytes that the messages so far take: where to continue, from the start of the data.
    """

    def __init__(self, topic: str, data: bytes, partition: Partition | None = None) -> None:
        self.topic = topic
        self.data = data
        self.partition = partition
        self.offset = 0

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """Stops at an incomplete record, too. Raises BadCrcError, BadLengthError."""
        data, start = self.data, self.offset + HEADER_SIZE
        if start > len(data):
            raise StopIteration
        length, crc, message_id, flag = HEADER.unpack_from(data, self.offset)
        if length < 0:
            raise BadLengthError(self.offset, f"a payload of {length} bytes")
        end = start + length
        if end > len(data):
            raise StopIteration
        payload = data[start:end]
        if checksum(payload) != crc:
            raise BadCrcError(self.offset, f"message {message_id} does not match its checksum")
        try:
            attribute, body = decode_payload(payload, flag)
        except FormatError:
            attribute, body = None, payload
        self.offset = end
        return Message(self.topic, body, attribute, flag, message_id, self.partition)
