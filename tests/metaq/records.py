"""Records to put into stores."""

from __future__ import annotations

from mqlake.metaq.formats.record import MessageIterator, encode_record


def record(body: bytes, message_id: int = 1) -> bytes:
    return encode_record(body, message_id, 0)


def bodies(data: bytes) -> list[bytes]:
    return [message.data for message in MessageIterator("t", data)]
