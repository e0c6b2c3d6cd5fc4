"""GrpcCall: one RPC on one HTTP/2 stream, and the context that its method gets.

headers ─▶ refused │ deadline ─▶ a message, or several ─▶ a task runs the method ─▶ answers ─▶ trailers

    message   1 byte compressed (0), 4 bytes length, the message
    end       grpc-status, and grpc-message with what is not printable as %XX
"""

from __future__ import annotations

import asyncio
import binascii
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from google.protobuf.message import DecodeError

from mqlake.proxy.http2 import QUEUED_MAX, Headers, Http2Connection
from mqlake.proxy.rpc import MESSAGE_SIZE_MAX, GrpcStatus, Rpc, RpcAbortedError

logger = logging.getLogger(__name__)

PREFIX_SIZE = 5
DETAILS_MAX = 1024
TIMEOUT_DIGITS_MAX = 8
_UNITS = {72: 3600.0, 77: 60.0, 83: 1.0, 109: 1e-3, 117: 1e-6, 110: 1e-9}
"""Seconds of H, M, S, m, u and n."""
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_OK = ((b"grpc-status", b"0"),)
_UNCOMPRESSED = ((b"grpc-accept-encoding", b"identity"),)
_NOT_METADATA = frozenset((b"te", b"content-type"))


class GrpcCall:
    """A StreamHandler, and a GrpcContext."""

    __slots__ = (
        "_answered",
        "_buffer",
        "_calls",
        "_connection",
        "_deadline",
        "_fields",
        "_heard_at",
        "_held",
        "_late",
        "_messages",
        "_reader",
        "_request_ended",
        "_rpc",
        "_started",
        "_stream_id",
        "_timer",
        "over",
        "task",
    )

    def __init__(
        self,
        connection: Http2Connection,
        stream_id: int,
        headers: Headers,
        ended: bool,
        rpcs: Mapping[bytes, Rpc],
        calls: set[GrpcCall],
    ) -> None:
        """`calls` has this one while its method runs."""
        self._connection = connection
        self._stream_id = stream_id
        self._fields = fields = dict(headers)
        self._calls = calls
        self._buffer = bytearray()
        self._messages: deque[bytes] = deque()
        self._held = self._late = 0
        self._reader: asyncio.Future[None] | None = None
        self._request_ended = ended
        self._answered = self._started = self.over = False
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = connection.loop.time()
        self.task: asyncio.Task[None] | None = None
        rpc = rpcs.get(fields.get(b":path", b""))
        self._rpc = rpc
        if fields.get(b":method") != b"POST":
            self._refuse_http(b"405", (b"allow", b"POST"))
            return
        if not _is_grpc(fields.get(b"content-type", b"")):
            self._refuse_http(b"415")
            return
        if rpc is None:
            self.end(GrpcStatus.UNIMPLEMENTED, f"{fields[b':path'].decode('latin-1')} is not served here")
            return
        text = fields.get(b"grpc-timeout")
        if text is not None:
            timeout_s = _seconds(text)
            if timeout_s is None:
                self.end(GrpcStatus.INTERNAL, "grpc-timeout cannot be read")
                return
            self._deadline = self._heard_at + timeout_s
            self._timer = connection.loop.call_later(timeout_s, self._expire)
        if rpc.many_requests:
            self._begin()
        elif ended:
            self.end(GrpcStatus.INTERNAL, "the request has no message")

    # --- what comes

    def received(self, data: bytes, *, ended: bool) -> None:
        size = len(data)
        if ended:
            self._request_ended = True
        if self.over:
            if size:
                self._connection.acknowledge(self._stream_id, size)
            return
        if size:
            self._take(data)
        if self.done():
            return
        if self._reader is not None and (self._messages or ended) and not self._reader.done():
            self._reader.set_result(None)
        if ended:
            self._ended()

    def _take(self, data: bytes) -> None:
        size = len(data)
        self._heard_at = self._connection.loop.time()
        waits = bool(self._messages) and self._rpc is not None and self._rpc.many_requests
        if not self._buffer and size >= PREFIX_SIZE and _is_whole(data):
            self._messages.append(data[PREFIX_SIZE:])
        else:
            self._buffer += data
            self._split()
        if self.over:  # the connection has let go of what it held before
            self._connection.acknowledge(self._stream_id, size)
            return
        self._held += size
        if waits:
            self._late += size
            self._connection.held += size
        else:
            self._connection.hold(self._stream_id, size)

    def _split(self) -> None:
        buffer = self._buffer
        while len(buffer) >= PREFIX_SIZE and not self.over:
            length = int.from_bytes(buffer[1:PREFIX_SIZE], "big")
            if buffer[0] == 1:
                details = "compressed messages are not supported"
                self.end(GrpcStatus.UNIMPLEMENTED, details, _UNCOMPRESSED)
            elif buffer[0]:
                self.end(GrpcStatus.INTERNAL, "the prefix of a message is damaged")
            elif length > MESSAGE_SIZE_MAX:
                details = f"a message of {length} bytes; {MESSAGE_SIZE_MAX} are allowed"
                self.end(GrpcStatus.RESOURCE_EXHAUSTED, details)
            elif len(buffer) < PREFIX_SIZE + length:
                return
            else:
                with memoryview(buffer) as view:
                    self._messages.append(bytes(view[PREFIX_SIZE : PREFIX_SIZE + length]))
                del buffer[: PREFIX_SIZE + length]

    def _ended(self) -> None:
        """The client sends no more."""
        if self._buffer:
            self.end(GrpcStatus.INTERNAL, "the request ends within a message")
        elif self._rpc is not None and not self._rpc.many_requests:
            if len(self._messages) != 1:
                self.end(GrpcStatus.INTERNAL, f"one message was expected, not {len(self._messages)}")
            else:
                self._begin()

    def lost(self) -> None:
        """Ends the call, as the stream is closed: by its end, a reset, or the connection's."""
        if not self.over:
            self._finished()
        elif self.task is not None and self.task is not asyncio.current_task(self._connection.loop):
            self.task.cancel()

    def waits_since(self) -> float | None:
        if self.over or (self.task is not None and not self._buffer):
            return None
        return self._heard_at

    def stalled(self) -> None:
        self.cancel(GrpcStatus.DEADLINE_EXCEEDED, "the rest of the request does not come")

    # --- the method

    def _begin(self) -> None:
        self._calls.add(self)
        self.task = self._connection.loop.create_task(self._run())

    async def _run(self) -> None:
        self._started = True
        rpc = self._rpc
        assert rpc is not None
        try:
            if rpc.many_requests:
                await rpc.method(self, self)
            else:
                try:
                    request = rpc.decode(self._messages.popleft())
                except DecodeError as error:
                    raise RpcAbortedError(
                        GrpcStatus.INTERNAL, f"the request cannot be decoded: {error}"
                    ) from error
                answer = await rpc.method(request, self)
                if not rpc.many_answers:
                    self._send(rpc.encode(answer))
            self.end(GrpcStatus.OK)
        except asyncio.CancelledError:
            self.end(GrpcStatus.CANCELLED, "the call was cancelled")
        except RpcAbortedError as error:
            self.end(error.status, error.details)
        except Exception as error:
            if not self.over:
                logger.exception("%s failed", rpc.name)
            self.end(GrpcStatus.UNKNOWN, f"{type(error).__name__}: {error}")
        finally:
            self.task = None
            self._calls.discard(self)

    def __aiter__(self) -> GrpcCall:
        return self

    async def __anext__(self) -> Any:
        """The client's next message."""
        assert self._rpc is not None
        while not self._messages:
            if self._request_ended or self.over:
                raise StopAsyncIteration
            self._reader = self._connection.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message = self._messages.popleft()
        size = min(PREFIX_SIZE + len(message), self._held)
        self._held -= size
        self._connection.release(self._stream_id, size)
        if not self._messages and self._late:
            self._connection.acknowledge(self._stream_id, self._late)
            self._late = 0
        try:
            return self._rpc.decode(message)
        except DecodeError as error:
            raise RpcAbortedError(GrpcStatus.INTERNAL, f"a request cannot be decoded: {error}") from error

    # --- what goes

    def _send(self, message: bytes) -> None:
        if self.over:
            return
        if not self._answered:
            self._answered = True
            self._connection.respond(self._stream_id, _HEAD)
        self._connection.send(self._stream_id, b"\0" + len(message).to_bytes(4, "big") + message)

    def end(self, status: GrpcStatus, details: str = "", more: Headers = ()) -> None:
        """Ends the call, unless it is over."""
        if self.over:
            return
        trailers: Headers = _OK
        if status:
            trailers = [(b"grpc-status", b"%d" % status), *more]
            if details:
                trailers.append((b"grpc-message", quote(details[:DETAILS_MAX], safe=_PRINTABLE).encode()))
        if self._answered:
            self._connection.finish(self._stream_id, trailers)
        else:
            self._answered = True
            self._connection.respond(self._stream_id, [*_HEAD, *trailers], end=True)
        if not self._request_ended:
            self._connection.reset_when_sent(self._stream_id)
        self._finished()

    def cancel(self, status: GrpcStatus, details: str) -> None:
        """Ends the call before its method has."""
        if self._connection.queued(self._stream_id):
            self._connection.reset(self._stream_id)  # who does not read will not read the status
            self._finished()
        else:
            self.end(status, details)

    def _refuse_http(self, status: bytes, *more: tuple[bytes, bytes]) -> None:
        self._connection.respond(self._stream_id, [(b":status", status), *more], end=True)
        if not self._request_ended:
            self._connection.reset_when_sent(self._stream_id)
        self._finished()

    def _expire(self) -> None:
        self.cancel(GrpcStatus.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _finished(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._let_go()
        if self.task is not None and self.task is not asyncio.current_task(self._connection.loop):
            self.task.cancel()
            if not self._started:  # then nothing of it runs
                self._calls.discard(self)

    def _let_go(self) -> None:
        """Lets go of all that was received."""
        self._messages.clear()
        self._buffer = bytearray()
        if self._late:
            self._connection.acknowledge(self._stream_id, self._late)
            self._late = 0
        if self._held:
            self._connection.release(self._stream_id, self._held)
            self._held = 0

    # --- GrpcContext

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        return [
            (name.decode("latin-1"), _binary(value) if name.endswith(b"-bin") else _text(value))
            for name, value in self._fields.items()
            if name[0] != 58 and name not in _NOT_METADATA and not name.startswith(b"grpc-")  # 58: a colon
        ]

    def peer(self) -> str:
        return self._connection.peer

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._connection.loop.time())

    def done(self) -> bool:
        return self.over

    async def write(self, message: Any) -> None:
        """Waits while the client does not read what was written before. ConnectionResetError if the call is over."""
        assert self._rpc is not None
        if not self.over:
            self._send(self._rpc.encode(message))
            if self._connection.queued(self._stream_id) > QUEUED_MAX:
                await self._connection.drained(self._stream_id)
                if not self.over:
                    return
            else:
                return
        raise ConnectionResetError("the call is over")


def _is_grpc(content_type: bytes) -> bool:
    return content_type == b"application/grpc" or content_type.startswith(
        (b"application/grpc+proto", b"application/grpc;")
    )


def _is_whole(data: bytes) -> bool:
    """True if it is one message that is not compressed, with its prefix."""
    return not data[0] and int.from_bytes(data[1:PREFIX_SIZE], "big") == len(data) - PREFIX_SIZE


def _seconds(text: bytes) -> float | None:
    """Parses grpc-timeout: `3S`, `250m`. None if it is none."""
    digits, unit = text[:-1], _UNITS.get(text[-1]) if text else None
    if unit is None or not digits.isdigit() or len(digits) > TIMEOUT_DIGITS_MAX:
        return None
    return int(digits) * unit


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _binary(value: bytes) -> bytes:
    try:
        return binascii.a2b_base64(value + b"=" * (-len(value) % 4))
    except binascii.Error:
        return b""


Opener = Callable[[Http2Connection, int, Headers, bool], GrpcCall]


def opener(rpcs: Mapping[bytes, Rpc], calls: set[GrpcCall]) -> Opener:
    """Returns what makes the calls of new streams."""

    def accept(connection: Http2Connection, stream_id: int, headers: Headers, ended: bool) -> GrpcCall:
        return GrpcCall(connection, stream_id, headers, ended, rpcs, calls)

    return accept
