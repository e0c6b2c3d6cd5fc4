"""The excerpt of a body on a page: unpacked no further than that, because 261 KB may stand for 256 MiB.

    a row of a list      the first characters
    one message          up to SHOWN_MAX
    text in the body     piece after piece, up to SEARCHED_MAX

Messages come as they are stored (`Admin(…, unpack=False)`).
"""

from __future__ import annotations

from dataclasses import dataclass

from mqlake.errors import FormatError
from mqlake.formats.compression import decompress_pieces
from mqlake.message import MessageExt, MessageSysFlag
from mqlake.message.rendering import BODY_SHOWN, message_row, record_object

SHOWN_MAX = 4 << 20
"""Bytes; RocketMQ's clients send no longer bodies unless they are set to."""
SEARCHED_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Excerpt:
    """`note`: why `body` is as it is stored, although it is compressed."""

    body: bytes
    is_whole: bool
    note: str = ""


def excerpt(body: bytes, sys_flag: int, size: int = SHOWN_MAX) -> Excerpt:
    """The first `size` bytes of a body as its producer had it."""
    pieces, found = [], 0
    try:
        for piece in decompress_pieces(body, sys_flag, size + 1):
            pieces.append(piece)
            found += len(piece)
            if found > size:
                break
    except FormatError as error:
        return Excerpt(body[:size], len(body) <= size, error.reason)
    return Excerpt(b"".join(pieces)[:size], found <= size)


def has_text(body: bytes, sys_flag: int, text: bytes) -> bool:
    """True if the text is in the first SEARCHED_MAX bytes of the body, or in one that cannot be unpacked."""
    before, looked = b"", 0
    try:
        for piece in decompress_pieces(body, sys_flag):
            before += piece
            if text in before:
                return True
            looked += len(piece)
            if looked >= SEARCHED_MAX:
                return False
            before = before[max(0, len(before) - len(text) + 1) :]
    except FormatError:
        return text in body
    return False


def row(message: MessageExt) -> dict[str, object]:
    """A stored message as a row of a list."""
    return message_row(message, excerpt(message.body, message.sys_flag, 4 * BODY_SHOWN + 1).body)


def whole_object(message: MessageExt) -> dict[str, object]:
    """All fields, the body in base64; one that unpacks to more than SHOWN_MAX as it is stored, as its flags say."""
    found = excerpt(message.body, message.sys_flag)
    if found.is_whole and not found.note:
        message.body = found.body
        message.sys_flag &= ~MessageSysFlag.COMPRESSED_FLAG
    return record_object(message)
