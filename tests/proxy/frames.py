"""HTTP/2 by hand: frames as bytes, and a socket that sends them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from typing import NamedTuple

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PATH = b"/apache.rocketmq.v2.MessagingService/"


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    data: bytes


def frame(kind: int, flags: int = 0, stream: int = 0, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def literals(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """HPACK without its tables; names and values of fewer than 127 bytes."""
    return b"".join(b"\0" + bytes([len(n)]) + n + bytes([len(v)]) + v for n, v in fields)


def head(
    path: bytes,
    *more: tuple[bytes, bytes],
    method: bytes = b"POST",
    content_type: bytes = b"application/grpc",
) -> bytes:
    """The fields of a call."""
    fields = [(b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"x")]
    return literals([*fields, (b"te", b"trailers"), (b"content-type", content_type), *more])


def message(body: bytes, compressed: int = 0) -> bytes:
    return bytes([compressed]) + struct.pack(">I", len(body)) + body


def begin(stream: int, path: bytes, *more: tuple[bytes, bytes], flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, head(path, *more))


def call(stream: int, path: bytes, body: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """A whole call of a unary method."""
    return begin(stream, path, *more) + frame(DATA, END_STREAM, stream, message(body))


def reset(stream: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def window(size: int, stream: int = 0) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS)


class Raw:
    """A connection that sends bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, preface: bytes = PREFACE) -> Raw:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        raw = cls(reader, writer)
        raw.send(preface)
        return raw

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)

    async def frame(self) -> Frame | None:
        """The next frame, None at the end of the connection."""
        try:
            start = await self.reader.readexactly(9)
            data = await self.reader.readexactly(int.from_bytes(start[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return Frame(start[3], start[4], int.from_bytes(start[5:9], "big"), data)

    async def until(self, kind: int, stream: int = 0, flags: int = 0) -> list[Frame]:
        """All frames to the first of this kind and stream, with these flags."""
        found = []
        while (one := await self.frame()) is not None:
            found.append(one)
            if (one.kind, one.stream) == (kind, stream) and one.flags & flags == flags:
                return found
        raise AssertionError(f"the connection ended before the frame; it had {found}")

    async def answer(self, stream: int) -> list[Frame]:
        """The frames of a stream to its end."""
        found = await self.until(HEADERS, stream, END_STREAM)
        return [one for one in found if one.stream == stream]

    async def rest(self) -> list[Frame]:
        """All frames to the end of the connection."""
        found = []
        while (one := await self.frame()) is not None:
            found.append(one)
        return found

    async def close(self) -> None:
        self.writer.close()
