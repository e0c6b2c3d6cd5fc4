"""Http2Connection: one client's HTTP/2 connection; what its streams mean is its handlers' affair.

socket ─▶ session ─▶ handler.received(data)      each read may bring many frames: one flush answers them all
socket ◀─ session ◀─ respond, send, finish

The session is nghttp2's, through the package ngh2, which no other module imports. Received bytes are acknowledged as
long as the connection holds few; beyond that one stream at a time may go on, and the others wait at their windows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import ngh2
from ngh2 import Configuration, DataReceived, RequestReceived, Role, Setting, StreamClosed, TrailersReceived

from mqlake.proxy.rpc import IDLE_MS, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS

Headers = Sequence[tuple[bytes, bytes]]

STREAMS_MAX = 1024
"""Calls of one connection at once; a client is told, and keeps more back."""
HEADER_SIZE_MAX, HEADER_FIELDS_MAX = 16_384, 68
"""Limits of one request's header, with HTTP/2's own four fields. The connection that sends more is ended."""
STREAM_WINDOW = 128 * 1024
CONNECTION_WINDOW = STREAMS_MAX * STREAM_WINDOW + (1 << 20)
"""All streams may wait at their windows, and the one whose turn it is goes on all the same."""
HELD_MAX = 8 << 20
"""Bytes of requests that a connection holds before its streams wait."""
READ_SIZE = WRITE_SIZE = 64 * 1024
"""Bytes between two turns of other connections."""
QUEUED_MAX = 64 * 1024
"""Bytes that wait for the client to read them, in one stream, before its writer waits."""
STALLED_S = 60.0
"""A request of which nothing comes for so long is given up."""

NO_ERROR, CANCEL = 0, 8

_CONFIGURATION = Configuration(
    auto_window_update=False,
    max_inbound_header_list_size=HEADER_SIZE_MAX,
    max_inbound_header_count=HEADER_FIELDS_MAX,
)
"""Floods of resets, pings, settings, empty frames and CONTINUATION end the connection by ngh2's own limits."""
_SETTINGS = {
    Setting.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
    Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    Setting.MAX_HEADER_LIST_SIZE: HEADER_SIZE_MAX,
}


class StreamHandler(Protocol):
    """Receives the bytes of a stream."""

    def received(self, data: bytes, *, ended: bool) -> None:
        """`ended`: these are the last. Whoever takes them calls `hold` or `acknowledge`."""

    def lost(self) -> None:
        """The stream is closed, by whichever side."""

    def waits_since(self) -> float | None:
        """Returns when the last byte of a request came that is not whole yet, None if there is no such request."""

    def stalled(self) -> None:
        """The rest of the request has not come for too long."""


Accept = Callable[["Http2Connection", int, Headers, bool], StreamHandler]


class Http2Connection(asyncio.BufferedProtocol):
    def __init__(self, accept: Accept, buffer: memoryview, connections: set[Http2Connection]) -> None:
        """`accept` makes the handler of a new stream; `buffer` may be shared by the connections of a loop, for no read
        outlives its callback; `connections` has this one while it is open."""
        self._accept = accept
        self._buffer = buffer
        self._connections = connections
        self.loop = asyncio.get_running_loop()
        self.peer = ""
        """gRPC's name of the client."""
        self.streams: dict[int, StreamHandler] = {}
        self.held = 0
        self._turn: int | None = None
        """The stream that goes on although much is held."""
        self._withheld: dict[int, int] = {}
        """Bytes by stream that are not acknowledged."""
        self._to_reset: set[int] = set()
        """Streams that are answered before their requests have ended."""
        self._writers: dict[int, list[asyncio.Future[None]]] = {}
        self._reading = False
        self._flush_due = False
        self._paused = False
        self._closed_at: float | None = None
        self._heard_at = self._busy_at = self.loop.time()
        self._pinged_at: float | None = None
        self._transport: asyncio.Transport | None = None

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            cast(asyncio.Transport, transport).abort()  # uvloop's is no subclass
            return
        self._transport = cast(asyncio.Transport, transport)
        self.peer = _peer(transport.get_extra_info("peername"))
        self._connections.add(self)
        self._session = ngh2.Connection(Role.SERVER, _CONFIGURATION)
        self._session.initiate_connection(_SETTINGS)
        self._session.set_local_window_size(CONNECTION_WINDOW)
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._closed_at is not None or self._transport is None:
            return
        self._heard_at = self.loop.time()
        self._pinged_at = None
        self._reading = True
        try:
            self._session.receive_data(self._buffer[:nbytes])
            self._take()
        except ngh2.NGH2Error:
            self._close()
            return
        finally:
            self._reading = False
        self._flush()

    def pause_writing(self) -> None:
        """Stops reading from a client that does not read: answers to its frames have nowhere to go."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._transport is not None and self._closed_at is None:
            self._transport.resume_reading()
        self._flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._closed_at = self._closed_at or self.loop.time()
        self._drop_streams()

    # --- the session's side

    def _take(self) -> None:
        streams = self.streams
        for event in self._session.events():
            if isinstance(event, DataReceived):
                handler = streams.get(event.stream_id)
                if handler is not None:
                    handler.received(event.data, ended=event.end_stream)
                elif event.data:
                    self.acknowledge(event.stream_id, len(event.data))
            elif isinstance(event, RequestReceived):
                handler = self._accept(self, event.stream_id, event.headers, event.end_stream)
                streams[event.stream_id] = handler
            elif isinstance(event, StreamClosed):
                self._forget(event.stream_id)
            elif isinstance(event, TrailersReceived):
                handler = streams.get(event.stream_id)
                if handler is not None:
                    handler.received(b"", ended=True)

    def _forget(self, stream_id: int) -> None:
        handler = self.streams.pop(stream_id, None)
        if handler is not None:
            handler.lost()
        if not self.streams:
            self._busy_at = self.loop.time()
        if stream_id in self._withheld:
            self.acknowledge(stream_id, self._withheld.pop(stream_id))
        self._to_reset.discard(stream_id)
        if stream_id == self._turn:
            self._turn = None
            self._grant()
        self._wake(stream_id)

    def _flush(self) -> None:
        self._flush_due = False
        if self._closed_at is not None or self._transport is None:
            return
        session = self._session
        try:
            while not self._paused:
                out = session.data_to_send(WRITE_SIZE)
                if out:
                    self._transport.write(out)
                if len(out) < WRITE_SIZE:
                    break
            self._take()  # streams that have ended with what was sent
            if self._to_reset and not self._paused:
                self._reset_sent()
            if self._writers:
                for stream_id in [one for one in self._writers if self.queued(one) <= QUEUED_MAX // 2]:
                    self._wake(stream_id)
            if not session.want_read and not session.want_write:
                self._close()
        except ngh2.NGH2Error:
            self._close()

    def _reset_sent(self) -> None:
        """A client that still sends learns that nobody listens, once its answer is out."""
        for stream_id in [one for one in self._to_reset if not self._session.queued_body_size(one)]:
            self._to_reset.discard(stream_id)
            self._session.reset_stream(stream_id, NO_ERROR)
            self._soon()

    def _soon(self) -> None:
        if not self._reading and not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self._flush)

    def _wake(self, stream_id: int) -> None:
        for waiting in self._writers.pop(stream_id, ()):
            if not waiting.done():
                waiting.set_result(None)

    def _close(self) -> None:
        """Ends it; what the transport has is still sent."""
        if self._closed_at is None:
            self._closed_at = self.loop.time()
            if self._transport is not None:
                self._transport.close()
            self._drop_streams()

    def _drop_streams(self) -> None:
        for stream_id in list(self.streams):
            self.streams.pop(stream_id).lost()
        for stream_id in list(self._writers):
            self._wake(stream_id)
        self._withheld.clear()
        self._to_reset.clear()

    # --- for handlers; of a stream that is closed they do nothing

    def respond(self, stream_id: int, headers: Headers, *, end: bool = False) -> None:
        if self._closed_at is None:
            try:
                self._session.send_response(stream_id, headers, end_stream=end)
            except ngh2.NGH2Error:
                return
            self._soon()

    def send(self, stream_id: int, data: bytes) -> None:
        if self._closed_at is None:
            try:
                self._session.send_data(stream_id, data)
            except ngh2.NGH2Error:
                return
            self._soon()

    def finish(self, stream_id: int, trailers: Headers) -> None:
        if self._closed_at is None:
            try:
                self._session.send_trailers(stream_id, trailers)
            except ngh2.NGH2Error:
                return
            self._soon()

    def reset(self, stream_id: int, code: int = CANCEL) -> None:
        if self._closed_at is None:
            try:
                self._session.reset_stream(stream_id, code)
            except ngh2.NGH2Error:
                return
            self._soon()

    def reset_when_sent(self, stream_id: int) -> None:
        """For an answer before the end of its request."""
        if self._closed_at is None:
            self._to_reset.add(stream_id)
            self._soon()

    def queued(self, stream_id: int) -> int:
        """Returns the bytes of a stream that wait for the client."""
        return self._session.queued_body_size(stream_id) if self._closed_at is None else 0

    async def drained(self, stream_id: int) -> None:
        """Returns when the client has read most of what waits, or the stream is closed."""
        if stream_id in self.streams and self.queued(stream_id) > QUEUED_MAX:
            waiting: asyncio.Future[None] = self.loop.create_future()
            self._writers.setdefault(stream_id, []).append(waiting)
            await waiting

    def hold(self, stream_id: int, size: int) -> None:
        """Received bytes that stay in memory until `release`."""
        self.held += size
        if self.held <= HELD_MAX or self._turn == stream_id:
            self.acknowledge(stream_id, size)
        elif self._turn is None:
            self._turn = stream_id
            self.acknowledge(stream_id, size)
        else:
            self._withheld[stream_id] = self._withheld.get(stream_id, 0) + size

    def release(self, stream_id: int, size: int) -> None:
        self.held -= size
        if stream_id == self._turn:
            self._turn = None
        self._grant()

    def _grant(self) -> None:
        while self._withheld and (self.held <= HELD_MAX or self._turn is None):
            stream_id = next(iter(self._withheld))
            if self.held > HELD_MAX:
                self._turn = stream_id
            self.acknowledge(stream_id, self._withheld.pop(stream_id))

    def acknowledge(self, stream_id: int, size: int) -> None:
        """The client may send so many bytes more."""
        if self._closed_at is None:
            try:
                self._session.acknowledge_received_data(size, stream_id)
            except (ngh2.NGH2Error, ValueError):
                return  # the session has ended, and knows no such bytes any more
            self._soon()

    # --- for the server

    def look(self, now: float) -> None:
        """Ends idle, dead and stalled connections."""
        if self._closed_at is not None:
            if self._transport is not None and now - self._closed_at >= KEEPALIVE_TIMEOUT_MS / 1000:
                self._transport.abort()
        elif self._pinged_at is not None and now - self._pinged_at >= KEEPALIVE_TIMEOUT_MS / 1000:
            self.abort()
        elif not self.streams and now - self._busy_at >= IDLE_MS / 1000:
            self.end()
        else:
            for handler in list(self.streams.values()):
                since = handler.waits_since()
                if since is not None and now - since >= STALLED_S:
                    handler.stalled()
            if self._pinged_at is None and now - self._heard_at >= KEEPALIVE_MS / 1000:
                self._pinged_at = now
                self._session.ping()
                self._flush()

    def go_away(self) -> None:
        """Accepts no more streams; those that are open go on."""
        if self._closed_at is None:
            self._session.send_goaway(NO_ERROR)
            self._flush()

    def end(self) -> None:
        """Says goodbye and closes."""
        if self._closed_at is None:
            try:
                self._session.terminate_connection(NO_ERROR)
            except ngh2.NGH2Error:
                pass
            self._flush()
            self._close()

    def abort(self) -> None:
        """Closes at once; nothing more is sent."""
        self._closed_at = self._closed_at or self.loop.time()
        if self._transport is not None:
            self._transport.abort()
        self._drop_streams()


def _peer(address: object) -> str:
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
