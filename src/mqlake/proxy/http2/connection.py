"""Http2Connection: the server's side of one HTTP/2 connection (RFC 9113).

    client                                  server
    preface, SETTINGS ────────────────────▶
    ◀────────────────────────────────────── SETTINGS, WINDOW_UPDATE
    HEADERS, DATA ... END_STREAM ─────────▶ open(connection, stream id, headers).data(...)
    ◀────────────────────────────────────── HEADERS, DATA ..., HEADERS END_STREAM

    length : 24 | type : 8 | flags : 8 | stream id : 32 | length bytes      a frame

Frames of all streams go out together, once a turn of the loop. What a stream may not send yet, because the
client's window for it is used up, waits in the stream.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, MutableSet
from struct import Struct
from typing import Protocol, cast

from mqlake.base.net import format_address
from mqlake.proxy.http2.hpack import HEADERS_MAX, Decoder, Header, HpackError

logger = logging.getLogger(__name__)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME = Struct(">HBBBL")
"""Length without its lowest byte, that byte, type, flags, stream id."""
FRAME_SIZE = 16_384
"""Of payloads, both ways, unless the client allows more."""
STREAMS_MAX = 1000
"""Open at a time on one connection; more are refused, and clients wait."""
WINDOW = 4 << 20
"""What a client may send on one stream before the server has taken it."""
CONNECTION_WINDOW = 16 << 20
UNSENT_MAX = 64 << 20
"""Bytes for a client that does not read. More, and it is disconnected."""
RESETS_MAX = 10_000
"""Streams that a client may open and reset within one round of `tick`."""
SILENT_S = 60.0
PING_TIMEOUT_S = 20.0
IDLE_S = 120.0
_DEFAULT_WINDOW = 65_535
_WINDOW_MAX = 2**31 - 1


class Kind(enum.IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class ErrorCode(enum.IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


_DATA, _HEADERS = 0, 1  # comparing with members of enums takes longer
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 0x1, 0x1, 0x4, 0x8, 0x20
_HEADER_TABLE_SIZE, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME, _MAX_HEADERS = 1, 3, 4, 5, 6
_SETTING = Struct(">HL")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return FRAME.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


_HELLO = frame(
    Kind.SETTINGS,
    0,
    0,
    _SETTING.pack(_MAX_STREAMS, STREAMS_MAX)
    + _SETTING.pack(_INITIAL_WINDOW, WINDOW)
    + _SETTING.pack(_MAX_HEADERS, HEADERS_MAX),
) + frame(Kind.WINDOW_UPDATE, 0, 0, (CONNECTION_WINDOW - _DEFAULT_WINDOW).to_bytes(4, "big"))


class ProtocolError(Exception):
    """The client broke the protocol, and the connection ends."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Stream(Protocol):
    """What a connection needs of a stream."""

    window: int
    """Bytes that it may send."""
    unsent: bytearray
    """Data that waits for the window."""
    trailers: bytes
    """The frame that ends the stream, which follows the data; empty until it is known."""

    def data(self, payload: bytes, ended: bool) -> None: ...

    def lost(self) -> None:
        """The client has reset the stream, or is gone."""


Opened = Callable[["Http2Connection", int, list[Header]], Stream]


class Http2Connection(asyncio.Protocol):
    def __init__(self, opened: Opened, connections: MutableSet[Http2Connection]) -> None:
        """`opened` makes the stream for new headers; `connections` has this one while it is open."""
        self._opened = opened
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder()
        self.streams: dict[int, Stream] = {}
        self.peer = "unix:"
        """gRPC's name of the client: `ipv4:127.0.0.1:1234`."""
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._rest = PREFACE[:0]
        self._greeted = False
        self._block: tuple[int, int, bytes] | None = None
        """Stream, flags and bytes of headers that go on in the next frame."""
        self._last_id = 0
        self._leaving = False
        self._out: list[bytes] = []
        self._received = 0
        self._window = self._initial_window = _DEFAULT_WINDOW
        self._frame_max = FRAME_SIZE
        self._paused = False
        self._waiting: list[asyncio.Future[None]] = []
        self._resets = 0
        self._heard, self._silent_s, self._idle_s = True, 0.0, 0.0

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            family = "ipv6" if ":" in address[0] else "ipv4"
            self.peer = f"{family}:{format_address(address[:2])}"
        self._connections.add(self)
        self.push(_HELLO)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._connections.discard(self)
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            stream.lost()
        self._wake()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._rest:
            data = self._rest + data
        try:
            position = self._take(data)
        except (ProtocolError, HpackError) as error:
            code = error.code if isinstance(error, ProtocolError) else ErrorCode.COMPRESSION_ERROR
            logger.info("gRPC client %s is disconnected: %s", self.peer, error)
            self._rest = b""
            self.leave(code, str(error))
            return
        self._rest = data[position:]

    # --- what comes

    def _take(self, data: bytes) -> int:
        """Takes all whole frames; the position after them."""
        position, size = 0, len(data)
        if not self._greeted:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "it does not speak HTTP/2")
            if size < len(PREFACE):
                return 0
            self._greeted, position = True, len(PREFACE)
        unpack = FRAME.unpack_from
        while size - position >= 9 and not self.closed:
            high, low, kind, flags, stream_id = unpack(data, position)
            length = high << 8 | low
            if length > FRAME_SIZE:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            end = position + 9 + length
            if end > size:
                break
            payload = data[position + 9 : end]
            position = end
            if self._block is not None and kind != Kind.CONTINUATION:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a frame between the parts of headers")
            if kind == _DATA:
                self._data(stream_id, flags, payload)
            elif kind == _HEADERS:
                self._headers(stream_id, flags, payload)
            else:
                self._control(kind, flags, stream_id, payload)
        return position

    def _data(self, stream_id: int, flags: int, payload: bytes) -> None:
        self._received += len(payload)
        if self._received >= CONNECTION_WINDOW // 2:
            self.push(frame(Kind.WINDOW_UPDATE, 0, 0, self._received.to_bytes(4, "big")))
            self._received = 0
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id > self._last_id or not stream_id:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"data of stream {stream_id}, which is idle")
            return
        if flags & PADDED:
            padded = len(payload)
            payload = _without_padding(payload)
            self.taken(stream_id, padded - len(payload))
        stream.data(payload, bool(flags & END_STREAM))

    def _headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & PRIORITISED:
            payload = payload[5:]
        if flags & END_HEADERS:
            self._open(stream_id, flags, payload)
        else:
            self._block = stream_id, flags, payload

    def _open(self, stream_id: int, flags: int, block: bytes) -> None:
        headers = self._decoder.decode(block)
        ended = bool(flags & END_STREAM)
        stream = self.streams.get(stream_id)
        if stream is not None:
            if not ended:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"second headers of stream {stream_id}")
            stream.data(b"", True)
            return
        if not stream_id & 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"headers of stream {stream_id}")
        if stream_id <= self._last_id:
            return  # a stream that has ended here already
        self._last_id = stream_id
        if self._leaving or len(self.streams) >= STREAMS_MAX:
            self.reset(stream_id, ErrorCode.REFUSED_STREAM)
            return
        stream = self._opened(self, stream_id, headers)
        stream.window = self._initial_window
        self.streams[stream_id] = stream
        if ended:
            stream.data(b"", True)

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == Kind.WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == Kind.RST_STREAM:
            self._reset(stream_id)
        elif kind == Kind.PING:
            if len(payload) != 8:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"a ping of {len(payload)} bytes")
            if not flags & ACK:
                self.push(frame(Kind.PING, ACK, 0, payload))
        elif kind == Kind.SETTINGS:
            self._settings(flags, payload)
        elif kind == Kind.CONTINUATION:
            if self._block is None or self._block[0] != stream_id:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a continuation of nothing")
            _, begun, block = self._block
            block += payload
            if len(block) > HEADERS_MAX:
                raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, f"headers of more than {HEADERS_MAX} bytes")
            self._block = stream_id, begun, block
            if flags & END_HEADERS:
                self._block = None
                self._open(stream_id, begun, block)
        elif kind == Kind.PUSH_PROMISE:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a push promise of a client")

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "a window update of another size")
        more = int.from_bytes(payload, "big") & _WINDOW_MAX
        if not stream_id:
            self._window += more
            if not more or self._window > _WINDOW_MAX:
                raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"a window update of {more}")
            for stream_id, stream in list(self.streams.items()):
                if stream.unsent:
                    self._advance(stream_id, stream)
            self._wake()
            return
        found = self.streams.get(stream_id)
        if found is None:
            return
        found.window += more
        if not more or found.window > _WINDOW_MAX:
            self.reset(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            self._drop(stream_id)
        elif found.unsent:
            self._advance(stream_id, found)
            self._wake()

    def _reset(self, stream_id: int) -> None:
        if stream_id > self._last_id or not stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"a reset of stream {stream_id}, which is idle")
        self._resets += 1
        if self._resets > RESETS_MAX:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, f"more than {RESETS_MAX} streams were reset")
        self._drop(stream_id)

    def _drop(self, stream_id: int) -> None:
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            stream.lost()
            self._wake()

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            return
        if len(payload) % 6:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "settings of another size")
        for key, value in _SETTING.iter_unpack(payload):
            if key == _INITIAL_WINDOW:
                if value > _WINDOW_MAX:
                    raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value}")
                more, self._initial_window = value - self._initial_window, value
                for stream_id, stream in list(self.streams.items()):
                    stream.window += more
                    if stream.unsent:
                        self._advance(stream_id, stream)
            elif key == _MAX_FRAME:
                if not FRAME_SIZE <= value < 1 << 24:
                    raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
                self._frame_max = value
        self.push(frame(Kind.SETTINGS, ACK, 0))
        self._wake()

    # --- what goes

    def push(self, frames: bytes) -> None:
        """Sends frames that need no window, in this turn of the loop."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frames)

    def _flush(self) -> None:
        frames = b"".join(self._out)
        self._out.clear()
        transport = self._transport
        if transport is None or self.closed:
            return
        transport.write(frames)
        if self._paused and transport.get_write_buffer_size() > UNSENT_MAX:
            logger.warning("gRPC client %s does not read, and is disconnected", self.peer)
            transport.abort()

    def send(self, stream_id: int, stream: Stream, data: bytes) -> None:
        """Sends data of a stream, as soon as its window allows."""
        size = len(data)
        if size <= self._window and size <= stream.window and size <= self._frame_max and not stream.unsent:
            self._window -= size
            stream.window -= size
            self.push(FRAME.pack(size >> 8, size & 0xFF, _DATA, 0, stream_id) + data)
        else:
            stream.unsent += data
            self._advance(stream_id, stream)

    def end(self, stream_id: int, stream: Stream, trailers: bytes, *, ended: bool) -> None:
        """Ends a stream with the block `trailers` of headers. `ended`: the client has ended its side."""
        stream.trailers = frame(Kind.HEADERS, END_HEADERS | END_STREAM, stream_id, trailers)
        if not ended:  # it need not send the rest
            stream.trailers += frame(Kind.RST_STREAM, 0, stream_id, ErrorCode.NO_ERROR.to_bytes(4, "big"))
        if not stream.unsent:
            self._finish(stream_id, stream)

    def _advance(self, stream_id: int, stream: Stream) -> None:
        unsent = stream.unsent
        while (size := min(len(unsent), self._window, stream.window, self._frame_max)) > 0:
            self._window -= size
            stream.window -= size
            self.push(frame(Kind.DATA, 0, stream_id, bytes(unsent[:size])))
            del unsent[:size]
        if not unsent and stream.trailers:
            self._finish(stream_id, stream)

    def _finish(self, stream_id: int, stream: Stream) -> None:
        if self.streams.pop(stream_id, None) is not None:
            self.push(stream.trailers)

    async def room(self, stream: Stream) -> None:
        """Returns when what the stream has sent is out of the process's hands, or the connection is closed."""
        while (stream.unsent or self._paused) and not self.closed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def taken(self, stream_id: int, size: int) -> None:
        """The client may send `size` more bytes on the stream."""
        if size and stream_id in self.streams:
            self.push(frame(Kind.WINDOW_UPDATE, 0, stream_id, size.to_bytes(4, "big")))

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        self.push(frame(Kind.RST_STREAM, 0, stream_id, code.to_bytes(4, "big")))

    # --- its end

    def refuse_more(self) -> None:
        """Asks the client to send new requests to another connection; those in flight go on."""
        if not self._leaving:
            self._leaving = True
            self.push(frame(Kind.GOAWAY, 0, 0, self._last_id.to_bytes(4, "big") + bytes(4)))

    def leave(self, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Says goodbye and closes."""
        if self.closed or self._transport is None:
            return
        self._leaving = True
        reason = self._last_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()[:200]
        self._out.append(frame(Kind.GOAWAY, 0, 0, reason))
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def tick(self, passed_s: float) -> None:
        """Called now and then: finds clients that are gone, and closes connections without requests."""
        self._resets = 0
        self._idle_s = 0.0 if self.streams else self._idle_s + passed_s
        if self._heard:
            self._heard, self._silent_s = False, 0.0
        else:
            before, self._silent_s = self._silent_s, self._silent_s + passed_s
            if self._silent_s >= SILENT_S + PING_TIMEOUT_S:
                logger.info("gRPC client %s does not answer and is disconnected", self.peer)
                self.abort()
            elif before < SILENT_S <= self._silent_s:
                self.push(frame(Kind.PING, 0, 0, b"mqlake??"))
        if self._idle_s >= IDLE_S:
            self.leave()


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "padding of more than the frame")
    return payload[1 : len(payload) - payload[0]]
