r"""The text protocol: a line of words, and after some lines a payload of the length that the line gives.

    put <topic> <partition> <length> <flag> <checksum> [<transaction>] <opaque>\r\n<payload>
    get <topic> <group> <partition> <offset> <maxSize> <opaque>\r\n
    offset <topic> <group> <partition> <offset> <opaque>\r\n
    stats [<item>] <opaque>\r\n                                   without an item: two spaces
    version <opaque>\r\n                                          also a client's heartbeat
    quit\r\n
    transaction <transaction> <session> <TYPE> [<timeout s>] [<unique qualifier>] <opaque>\r\n
    sync <topic> <partition> <length> <flag> <id> <checksum> <opaque>\r\n<payload>

    result <code> <length> <opaque>\r\n<text>                     HTTP codes; the text is UTF-8
    value <length> <opaque>\r\n<records>

Old forms are understood: `put` and `sync` without a checksum, `version` and `stats` without an opaque. Words
are split as Java's Pattern(" ").split does: empty words at the end do not count, others do. The first letter
decides which command it is, for v and s the whole word. Numbers are those that Java's parseInt and parseLong
accept. An opaque is an i32, which the answer repeats.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from mqlake.errors import FormatError, ProtocolError
from mqlake.metaq.formats.transaction_id import TransactionId, parse_transaction_id

NO_CHECKSUM = -1
NO_OPAQUE = 0x7FFFFFFF
"""The opaque of a command that was sent without one."""
ANY_PARTITION = -1
"""In a `put`: the broker chooses."""

CRLF = b"\r\n"
LINE_MAX = 64 * 1024
"""Bytes of a line; a longer one is refused."""
DIGITS_MAX = 64
"""Digits of one number, leading zeros included."""
_SURE_DIGITS = 10
"""A number with fewer digits always fits an i32: the fast path."""


class HttpStatus(enum.IntEnum):
    SUCCESS = 200
    MOVED = 301
    """The text is the offset to continue at."""
    BAD_REQUEST = 400
    UNAUTHORIZED = 401
    FORBIDDEN = 403
    NOT_FOUND = 404
    INTERNAL_SERVER_ERROR = 500
    SERVICE_UNAVAILABLE = 503
    GATEWAY_TIMEOUT = 504


class TransactionType(enum.Enum):
    BEGIN = "BEGIN"
    PREPARE = "PREPARE"
    COMMIT_ONE_PHASE = "COMMIT_ONE_PHASE"
    COMMIT_TWO_PHASE = "COMMIT_TWO_PHASE"
    ROLLBACK = "ROLLBACK"
    RECOVER = "RECOVER"
    FORGET = "FORGET"
    END = "END"


# --- requests


class PutCommand(NamedTuple):
    topic: str
    partition: int
    data: bytes
    """The payload, which is stored after the record's header."""
    flag: int
    checksum: int
    transaction_id: TransactionId | None
    opaque: int

    def encode(self) -> bytes:
        transaction = f" {self.transaction_id}" if self.transaction_id is not None else ""
        return (
            f"put {self.topic} {self.partition} {len(self.data)} {self.flag} {self.checksum}"
            f"{transaction} {self.opaque}\r\n"
        ).encode() + self.data


class GetCommand(NamedTuple):
    topic: str
    group: str
    partition: int
    offset: int
    max_size: int
    opaque: int

    def encode(self) -> bytes:
        return (
            f"get {self.topic} {self.group} {self.partition} {self.offset} {self.max_size} {self.opaque}\r\n"
        ).encode()


class OffsetCommand(NamedTuple):
    topic: str
    group: str
    partition: int
    offset: int
    opaque: int

    def encode(self) -> bytes:
        return f"offset {self.topic} {self.group} {self.partition} {self.offset} {self.opaque}\r\n".encode()


class StatsCommand(NamedTuple):
    item: str
    """Empty: the broker as a whole."""
    opaque: int

    def encode(self) -> bytes:
        return f"stats {self.item} {self.opaque}\r\n".encode()


class VersionCommand(NamedTuple):
    opaque: int

    def encode(self) -> bytes:
        return f"version {self.opaque}\r\n".encode()


class QuitCommand(NamedTuple):
    opaque: int = NO_OPAQUE

    def encode(self) -> bytes:
        return b"quit\r\n"


class TransactionCommand(NamedTuple):
    transaction_id: TransactionId | None
    """None only for RECOVER."""
    session_id: str
    type: TransactionType
    timeout_s: int
    """0: none."""
    unique_qualifier: str | None
    opaque: int

    def encode(self) -> bytes:
        key = "null" if self.transaction_id is None else str(self.transaction_id)
        words = ["transaction", key, self.session_id, self.type.value]
        if self.timeout_s > 0:
            words.append(str(self.timeout_s))
        if self.unique_qualifier and not self.unique_qualifier.isspace():
            words.append(self.unique_qualifier)
        return (" ".join([*words, str(self.opaque)]) + "\r\n").encode()


class SyncCommand(NamedTuple):
    """A `put` that the master has given an id, on its way to the slave."""

    topic: str
    partition: int
    data: bytes
    flag: int
    message_id: int
    checksum: int
    opaque: int

    def encode(self) -> bytes:
        return (
            f"sync {self.topic} {self.partition} {len(self.data)} {self.flag} {self.message_id} "
            f"{self.checksum} {self.opaque}\r\n"
        ).encode() + self.data


# --- answers


class BooleanCommand(NamedTuple):
    code: int
    message: str
    opaque: int

    def encode(self) -> bytes:
        raw = self.message.encode()
        return b"result %d %d %d\r\n%b" % (self.code, len(raw), self.opaque, raw)


class DataCommand(NamedTuple):
    data: bytes
    opaque: int

    def encode(self) -> bytes:
        return encode_value_head(len(self.data), self.opaque) + self.data


def encode_value_head(size: int, opaque: int) -> bytes:
    """The line before `size` bytes of records."""
    return b"value %d %d\r\n" % (size, opaque)


Request = (
    PutCommand
    | GetCommand
    | OffsetCommand
    | StatsCommand
    | VersionCommand
    | QuitCommand
    | TransactionCommand
    | SyncCommand
)
Response = BooleanCommand | DataCommand
Command = Request | Response


# --- decoding


def decode_command(buf: bytes | bytearray, position: int, *, body_max: int) -> tuple[Command, int] | int:
    """The command at `position` and where the next one begins; or the size that `buf` must at least have for it.

    Raises ProtocolError for bytes that cannot become a command: then the connection is of no more use.
    """
    line_end = buf.find(CRLF, position)
    if line_end < 0:
        if len(buf) - position > LINE_MAX:
            raise ProtocolError(f"a command line of more than {LINE_MAX} bytes")
        return len(buf) + 1
    if line_end - position > LINE_MAX:
        raise ProtocolError(f"a command line of more than {LINE_MAX} bytes")
    try:
        words = buf[position:line_end].decode().split(" ")
    except UnicodeDecodeError:
        raise ProtocolError("a command line that is not UTF-8") from None
    while words and not words[-1]:
        words.pop()
    body_start = line_end + 2
    try:
        place = _LENGTH_PLACE.get(words[0]) if words else None
        if place is None:
            return _decode_line(words), body_start
        length = int32(words[place])
        if not 0 <= length <= body_max:
            raise ProtocolError(f"{words[0]}: a body of {length} bytes; 0 to {body_max} are allowed")
        body_end = body_start + length
        if body_end > len(buf):
            return body_end
        return _decode_body(words, bytes(buf[body_start:body_end])), body_end
    except IndexError:
        raise ProtocolError(f"too few words: {' '.join(words)[:200]!r}") from None
    except FormatError as error:
        raise ProtocolError(error.reason) from None


_LENGTH_PLACE = {"put": 3, "sync": 3, "result": 2, "value": 1}
"""Commands with a body, and the index of the word with its length."""


def _decode_body(words: list[str], data: bytes) -> Command:
    verb, count = words[0], len(words)
    if verb == "put":
        return _decode_put(words, data)
    if verb == "value":
        return DataCommand(data, int32(words[2]))
    if verb == "result":
        return BooleanCommand(int32(words[1]), _text(data), int32(words[3]))
    if count not in (7, 8):
        raise _not_understood(words)
    crc = int32(words[6]) if count == 8 else NO_CHECKSUM
    return SyncCommand(
        words[1], int32(words[2]), data, int32(words[4]), int64(words[5]), crc, int32(words[-1])
    )


def _decode_put(words: list[str], data: bytes) -> PutCommand:
    count = len(words)
    crc, transaction = NO_CHECKSUM, None
    if count == 7:
        # clients before 1.4.4 send the transaction here, later ones the checksum
        if words[5][:1].isdigit() or words[5].startswith("-"):
            crc = int32(words[5])
        else:
            transaction = parse_transaction_id(words[5])
    elif count == 8:
        crc, transaction = int32(words[5]), parse_transaction_id(words[6])
    elif count != 6:
        raise _not_understood(words)
    return PutCommand(words[1], int32(words[2]), data, int32(words[4]), crc, transaction, int32(words[-1]))


def _decode_line(words: list[str]) -> Command:
    verb = words[0] if words else ""
    if verb == "get":
        return GetCommand(
            words[1], words[2], int32(words[3]), int64(words[4]), int32(words[5]), int32(words[6])
        )
    if verb == "offset":
        return OffsetCommand(words[1], words[2], int32(words[3]), int64(words[4]), int32(words[5]))
    if verb == "transaction":
        return _decode_transaction(words)
    if verb == "stats":
        item = words[1] if len(words) > 1 else ""
        return StatsCommand(item, int32(words[2]) if len(words) > 2 else NO_OPAQUE)
    if verb.startswith("v"):
        return VersionCommand(int32(words[1]) if len(words) > 1 else NO_OPAQUE)
    if verb.startswith("q"):
        return QuitCommand()
    raise _not_understood(words)


def _decode_transaction(words: list[str]) -> TransactionCommand:
    count = len(words)
    if not 5 <= count <= 7:
        raise _not_understood(words)
    timeout, qualifier = 0, None
    if count == 7:
        timeout, qualifier = int32(words[4]), words[5]
    elif count == 6 and words[4].isdigit():
        timeout = int32(words[4])
    elif count == 6:
        qualifier = words[4]
    try:
        kind = TransactionType(words[3])
    except ValueError:
        raise ProtocolError(f"unknown transaction type {words[3][:40]!r}") from None
    transaction = None if words[1] == "null" else parse_transaction_id(words[1])
    if transaction is None and kind is not TransactionType.RECOVER:
        raise ProtocolError(f"transaction {kind.value} without a transaction")
    return TransactionCommand(transaction, words[2], kind, timeout, qualifier, int32(words[-1]))


def _not_understood(words: list[str]) -> ProtocolError:
    return ProtocolError(f"not a command: {' '.join(words)[:200]!r}" if words else "an empty command line")


def int32(text: str) -> int:
    """Parses what Java's parseInt accepts. ProtocolError."""
    if len(text) < _SURE_DIGITS and text.isdigit() and text.isascii():
        return int(text)
    return _int(text, 1 << 31)


def int64(text: str) -> int:
    """Parses what Java's parseLong accepts. ProtocolError."""
    return _int(text, 1 << 63)


def _int(text: str, limit: int) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX:
        value = int(text)
        if -limit <= value < limit:
            return value
    raise ProtocolError(f"not a number in range: {text[:40]!r}")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
