"""Calls: gRPC on the streams of an HTTP/2 connection.

    HEADERS  :path = /package.Service/Method, grpc-timeout, metadata
    DATA     compressed : 8 | length : 32 | message ...
    ◀─────── HEADERS :status = 200; DATA as above; HEADERS grpc-status, grpc-message

A Method says how its messages are made, and which coroutine answers them. An exception of it is answered
with a status of gRPC; what it knows about its caller and how it answers is its Call.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from google.protobuf.message import DecodeError, Message

from mqlake.proxy.http2.connection import END_HEADERS, FRAME_SIZE, Http2Connection, Kind, frame
from mqlake.proxy.http2.hpack import Header, encode

logger = logging.getLogger(__name__)

MESSAGE_MAX = 130 << 20


class GrpcCode(enum.IntEnum):
    """gRPC's own statuses, as far as a server uses them."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallError(Exception):
    """A call ends with a status of gRPC."""

    def __init__(self, code: GrpcCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Kinds(enum.Enum):
    UNARY = enum.auto()
    """One request, one answer: what the coroutine returns."""
    SERVER_STREAM = enum.auto()
    """One request; the coroutine writes the answers."""
    BIDIRECTIONAL = enum.auto()
    """The coroutine iterates over the requests and writes the answers."""


@dataclass(frozen=True, slots=True)
class Method:
    kind: Kinds
    decode: Callable[[bytes], Message]
    answer: Callable[[Any, Call], Awaitable[Message | None]]


_HEADERS = encode(
    [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-accept-encoding", "identity,deflate,gzip"),
    ]
)
_FINE = encode([("grpc-status", "0")])
_FRAMING = 5
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Call:
    """One RPC: what it was asked with, and the way back."""

    __slots__ = (
        "_answered",
        "_begun",
        "_buffer",
        "_connection",
        "_ended",
        "_finished",
        "_headers",
        "_id",
        "_messages",
        "_method",
        "_more",
        "_received_at",
        "_task",
        "_untaken",
        "trailers",
        "unsent",
        "window",
    )

    def __init__(
        self, connection: Http2Connection, stream_id: int, headers: list[Header], method: Method | None
    ) -> None:
        self.window = 0
        self.unsent = bytearray()
        self.trailers = b""
        self._connection, self._id, self._headers, self._method = connection, stream_id, headers, method
        self._buffer: bytes | bytearray = b""
        self._messages: list[bytes] = []
        self._more: asyncio.Future[None] | None = None
        self._untaken = 0
        self._ended = self._begun = self._answered = self._finished = False
        self._task: asyncio.Task[None] | None = None
        self._received_at = time.monotonic()

    # --- what comes

    def data(self, payload: bytes, ended: bool) -> None:
        self._ended = ended
        method = self._method
        if self._finished:
            return
        if method is None:
            if not self._begun:
                self._begun = True
                self._finish(GrpcCode.UNIMPLEMENTED, f"there is no method {self._value(':path')}")
            return
        try:
            self._messages_of(payload)
        except CallError as error:
            self._finish(error.code, str(error))
            return
        if method.kind is Kinds.BIDIRECTIONAL:
            self._untaken += len(payload)
            if self._more is not None and not self._more.done():
                self._more.set_result(None)
            return
        if payload and not ended:
            self._connection.taken(self._id, len(payload))
        if ended and not self._begun:
            self._begin_with_one(method)

    def _begin_with_one(self, method: Method) -> None:
        if self._buffer or len(self._messages) != 1:
            self._finish(GrpcCode.INTERNAL, f"{len(self._messages)} whole messages, where one is expected")
            return
        try:
            request = method.decode(self._messages.pop())
        except DecodeError as error:
            self._finish(GrpcCode.INTERNAL, f"the request cannot be decoded: {error}")
            return
        self.start(request)

    def start(self, request: Any) -> None:
        """Runs the method."""
        self._begun = True
        self._task = asyncio.get_running_loop().create_task(self._run(request))

    def _messages_of(self, payload: bytes) -> None:
        """Appends the messages that the payload completes. CallError."""
        buffer = self._buffer
        if buffer:
            buffer += payload  # in place: it is a bytearray
        else:
            buffer = payload
        position = 0
        while len(buffer) - position >= _FRAMING:
            size = int.from_bytes(buffer[position + 1 : position + _FRAMING], "big")
            if size > MESSAGE_MAX:
                raise CallError(
                    GrpcCode.RESOURCE_EXHAUSTED, f"a message of {size} bytes; {MESSAGE_MAX} are allowed"
                )
            end = position + _FRAMING + size
            if end > len(buffer):
                break
            message = bytes(buffer[position + _FRAMING : end])
            self._messages.append(self._unpacked(message) if buffer[position] else message)
            position = end
        self._buffer = bytearray(buffer[position:]) if position or buffer is payload else buffer

    def _unpacked(self, message: bytes) -> bytes:
        encoding = self._value("grpc-encoding")
        if encoding == "identity" or encoding not in ("gzip", "deflate"):
            raise CallError(GrpcCode.UNIMPLEMENTED, f"messages with encoding {encoding!r} are not understood")
        unpacker = zlib.decompressobj(31 if encoding == "gzip" else 15)
        try:
            found = unpacker.decompress(message, MESSAGE_MAX + 1)
        except zlib.error as error:
            raise CallError(GrpcCode.INTERNAL, f"a message that is no {encoding}: {error}") from None
        if len(found) > MESSAGE_MAX:
            raise CallError(GrpcCode.RESOURCE_EXHAUSTED, f"a message of more than {MESSAGE_MAX} bytes")
        return found

    def lost(self) -> None:
        self._finished = True
        if self._task is not None:
            self._task.cancel()

    async def requests(self) -> AsyncIterator[Message]:
        assert self._method is not None
        while True:
            while self._messages:
                try:
                    yield self._method.decode(self._messages.pop(0))
                except DecodeError as error:
                    raise CallError(GrpcCode.INTERNAL, f"a request cannot be decoded: {error}") from None
            self._ask()
            if self._ended:
                return
            self._more = asyncio.get_running_loop().create_future()
            await self._more

    def _ask(self) -> None:
        size, self._untaken = self._untaken, 0
        self._connection.taken(self._id, size)

    # --- the answer

    async def _run(self, request: Any) -> None:
        method = self._method
        assert method is not None
        try:
            answer = await method.answer(request, self)
        except CallError as error:
            self._finish(error.code, str(error))
        except Exception as error:
            logger.exception("%s failed", self._value(":path"))
            self._finish(
                GrpcCode.UNKNOWN, f"{type(error).__name__}: {error}; the server's log has the details"
            )
        else:
            if answer is None or self._finished:
                self._finish(GrpcCode.OK)
            else:
                self._answer(answer.SerializeToString())

    def _answer(self, message: bytes) -> None:
        """The whole answer of a unary call."""
        connection, stream_id = self._connection, self._id
        self._finished = self._answered = True
        connection.push(frame(Kind.HEADERS, END_HEADERS, stream_id, _HEADERS))
        connection.send(stream_id, self, b"\0" + len(message).to_bytes(4, "big") + message)
        connection.end(stream_id, self, _FINE, ended=True)

    async def write(self, message: Message) -> None:
        """Sends one answer of a stream; returns when it may have the next."""
        connection = self._connection
        if self._finished or connection.closed:
            raise ConnectionResetError("the client has gone")
        if not self._answered:
            self._answered = True
            connection.push(frame(Kind.HEADERS, END_HEADERS, self._id, _HEADERS))
        data = message.SerializeToString()
        connection.send(self._id, self, b"\0" + len(data).to_bytes(4, "big") + data)
        if len(self.unsent) > FRAME_SIZE:
            await connection.room(self)

    def _finish(self, code: GrpcCode, text: str = "") -> None:
        if self._finished:
            return
        self._finished = True
        headers = [("grpc-status", str(int(code)))]
        if text:
            headers.append(("grpc-message", quote(text[:1000], safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~")))
        block = _FINE if code is GrpcCode.OK else encode(headers)
        self._connection.end(self._id, self, block if self._answered else _HEADERS + block, ended=self._ended)

    # --- what the method may know

    def invocation_metadata(self) -> list[Header]:
        return self._headers

    def peer(self) -> str:
        return self._connection.peer

    def time_remaining(self) -> float | None:
        """Seconds until the client gives up; None if it waits for ever."""
        text = self._value("grpc-timeout")
        digits, unit = text[:-1], _UNITS_S.get(text[-1:])
        if unit is None or not digits.isascii() or not digits.isdigit() or len(digits) > 8:
            return None
        return max(int(digits) * unit - (time.monotonic() - self._received_at), 0.0)

    def done(self) -> bool:
        return self._finished

    async def abort(self, code: GrpcCode, details: str) -> None:
        """Ends the call with a status of gRPC."""
        raise CallError(code, details)

    def _value(self, name: str) -> str:
        for key, value in self._headers:
            if key == name:
                return value
        return ""


def opener(methods: Mapping[str, Method]) -> Callable[[Http2Connection, int, list[Header]], Call]:
    """Makes calls of new streams; `methods` by path."""

    def opened(connection: Http2Connection, stream_id: int, headers: list[Header]) -> Call:
        path = ""
        for name, value in headers:
            if name == ":path":
                path = value
                break
        method = methods.get(path)
        call = Call(connection, stream_id, headers, method)
        if method is not None and method.kind is Kinds.BIDIRECTIONAL:
            call.start(call.requests())
        return call

    return opened
