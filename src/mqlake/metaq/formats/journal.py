"""The transaction journal: the puts of each transaction, and its outcome.

    ├──────┼───────────┼┄┄┄┄┄┄┄┄┄┄┄┄┤      length: i32 big-endian, of the TxCommand only
    │length│ TxCommand │ locations? │      locations: only after a commit, `data_length` bytes
    └──────┴───────────┴┄┄┄┄┄┄┄┄┄┄┄┄┘

    TxCommand             required cmdType=1 (1 APPEND_MSG, 2 TX_OP); required bytes cmd_content=2;
                          optional bool force=3
    AppendMessageCommand  required int64 message_id=1; required bytes put_command=2 (the `put` as received)
    TransactionOperation  required type=1; required bool was_prepared=2; required string transaction_id=3;
                          optional int32 data_length=4
    location              i64 offset, i32 length, i32 checksum of these bytes, i32 n, n bytes `<topic>-<partition>`

The first three are protobuf 2.5 messages; this module codes the few kinds of fields they have.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, TypeVar

from mqlake.errors import BadLengthError, FormatError, ProtocolError, TruncatedRecordError
from mqlake.metaq.formats.command import NO_CHECKSUM, PutCommand, decode_command
from mqlake.metaq.formats.record import checksum

LENGTH = Struct(">i")
_LOCATION = Struct(">qiii")
_INT64 = 1 << 64
_PUT_MAX = 1 << 31

T = TypeVar("T", int, bytes)


class OperationType(enum.IntEnum):
    XA_PREPARE = 1
    XA_COMMIT = 2
    XA_ROLLBACK = 3
    LOCAL_COMMIT = 4
    LOCAL_ROLLBACK = 5

    @property
    def is_commit(self) -> bool:
        return self in (OperationType.XA_COMMIT, OperationType.LOCAL_COMMIT)


@dataclass(frozen=True, slots=True)
class AppendMessage:
    """A message of a transaction: its id, and the whole `put` command as it was received."""

    message_id: int
    put_command: bytes


class MessageLocation(NamedTuple):
    """The place of a transaction's messages for one partition."""

    store: str
    """`<topic>-<partition>`"""
    offset: int
    length: int
    checksum: int
    """Checksum of the bytes of all their records, headers included."""


@dataclass(frozen=True, slots=True)
class TransactionOperation:
    type: OperationType
    transaction_id: str
    was_prepared: bool = False
    locations: tuple[MessageLocation, ...] = ()
    """Only with a commit."""


JournalRecord = AppendMessage | TransactionOperation


def encode_journal_record(record: JournalRecord) -> bytes:
    """The bytes of one record, from its length to the end of its locations."""
    attachment = b""
    if isinstance(record, AppendMessage):
        kind, force = 1, b""
        content = b"\x08" + _varint(record.message_id) + _bytes_field(2, record.put_command)
    else:
        kind, force = 2, b"\x18\x01" if record.type is OperationType.XA_PREPARE else b""
        content = bytes((0x08, record.type, 0x10, record.was_prepared))
        content += _bytes_field(3, record.transaction_id.encode())
        if record.type.is_commit:
            attachment = encode_locations(record.locations)
            content += b"\x20" + _varint(len(attachment))
    command = bytes((0x08, kind)) + _bytes_field(2, content) + force
    return LENGTH.pack(len(command)) + command + attachment


def encode_locations(locations: Iterable[MessageLocation]) -> bytes:
    parts: list[bytes] = []
    for store, offset, length, crc in locations:
        name = store.encode()
        parts += (_LOCATION.pack(offset, length, crc, len(name)), name)
    return b"".join(parts)


def decode_locations(data: bytes) -> tuple[MessageLocation, ...]:
    """Raises FormatError."""
    found = []
    position = 0
    while position < len(data):
        if len(data) - position < _LOCATION.size:
            raise TruncatedRecordError(position, "a location is cut off")
        offset, length, crc, size = _LOCATION.unpack_from(data, position)
        start = position + _LOCATION.size
        if size < 0 or start + size > len(data):
            raise BadLengthError(position, f"a store's name of {size} bytes")
        found.append(MessageLocation(_text(data[start : start + size], start), offset, length, crc))
        position = start + size
    return tuple(found)


class DecodedRecord(NamedTuple):
    record: JournalRecord
    locations_start: int
    """Position of the locations, if there are any."""
    end: int
    """Position of the next record."""


def decode_journal_record(data: bytes, position: int = 0) -> DecodedRecord:
    """The record at `position`.

    Raises TruncatedRecordError when the data ends inside it, FormatError when it is not a record.
    """
    if len(data) - position < LENGTH.size:
        raise TruncatedRecordError(position, "a record's length is cut off")
    (length,) = LENGTH.unpack_from(data, position)
    if length <= 0:
        raise BadLengthError(position, f"a command of {length} bytes")
    start = position + LENGTH.size
    end = start + length
    if end > len(data):
        raise TruncatedRecordError(position, f"the command ends {end - len(data)} bytes after the data")
    outer = _fields(data[start:end], start)
    content = _required(outer, 2, bytes, start)
    kind = _required(outer, 1, int, start)
    fields = _fields(content, start)
    if kind == 1:
        message_id = _required(fields, 1, int, start)
        signed = message_id - _INT64 if message_id >> 63 else message_id
        return DecodedRecord(AppendMessage(signed, _required(fields, 2, bytes, start)), end, end)
    if kind != 2:
        raise FormatError(start, f"unknown command type {kind}")
    number = _required(fields, 1, int, start)
    try:
        operation = OperationType(number)
    except ValueError:
        raise FormatError(start, f"unknown transaction operation {number}") from None
    size = _required(fields, 4, int, start) if 4 in fields else 0
    if size > len(data) - end:
        raise TruncatedRecordError(position, "the locations are cut off")
    operation_record = TransactionOperation(
        operation,
        _text(_required(fields, 3, bytes, start), start),
        bool(_required(fields, 2, int, start)),
        decode_locations(data[end : end + size]) if operation.is_commit else (),
    )
    return DecodedRecord(operation_record, end, end + size)


def put_of(record: AppendMessage) -> PutCommand:
    """The put. FormatError unless it belongs to a transaction and matches its checksum."""
    try:
        decoded = decode_command(record.put_command, 0, body_max=_PUT_MAX)
    except ProtocolError as error:
        raise FormatError(0, str(error)) from None
    put = decoded[0] if isinstance(decoded, tuple) and decoded[1] == len(record.put_command) else None
    if not isinstance(put, PutCommand) or put.transaction_id is None or put.partition < 0:
        raise FormatError(0, "not a put of a transaction")
    if put.checksum not in (NO_CHECKSUM, checksum(put.data)):
        raise FormatError(0, "the message does not match its checksum")
    return put


# --- protobuf: varints (wire type 0) and length-delimited fields (wire type 2)


def _varint(value: int) -> bytes:
    value %= _INT64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes_field(number: int, value: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(value)) + value


def _read_varint(data: bytes, position: int, base: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value % _INT64, position
        shift += 7
    raise FormatError(base + position, "a number that does not end")


def _fields(data: bytes, base: int) -> dict[int, int | bytes]:
    """Field number → value; the last one counts. FormatError for fields of kinds that these messages do not have."""
    fields: dict[int, int | bytes] = {}
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position, base)
        value, position = _read_varint(data, position, base)
        if tag & 7 == 0:
            fields[tag >> 3] = value
        elif tag & 7 == 2:
            if value > len(data) - position:
                raise BadLengthError(base + position, f"a field of {value} bytes")
            fields[tag >> 3] = data[position : position + value]
            position += value
        else:
            raise FormatError(base + position, f"unexpected wire type {tag & 7}")
    return fields


def _required(fields: dict[int, int | bytes], number: int, kind: type[T], base: int) -> T:
    value = fields.get(number)
    if not isinstance(value, kind):
        raise FormatError(base, f"field {number} is missing or of the wrong kind")
    return value


def _text(raw: bytes, base: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise FormatError(base + error.start, "not UTF-8") from None
