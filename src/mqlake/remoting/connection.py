"""Connection: one peer, from bytes to processors and back.

    read ─▶ all complete frames ─▶ a fast path, or a processor each ─▶ all their answers ─▶ one write

A fast path may put a reader of its own before a connection (`read_by`), which hands what it leaves to `buffer_updated`.

One read is one batch: every complete frame is handled, and all immediate answers go out in one write. A processor
that has to wait returns an awaitable; its answer follows later, and no other request waits for it. Both sides may
send requests: `invoke` works on a server's connection as on a client's.

The server stops reading from a client that does not read its answers (`pause_writing`), and closes a peer that lets
more than `write_buffer_max` bytes pile up. A peer that sends faster than it can be served gets no more than its turn:
after TURN_S, or after a read that filled the buffer, the loop's other connections are served first.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from mqlake.base.net import format_address
from mqlake.errors import (
    MqlakeError,
    ProtocolError,
    RemotingConnectError,
    RemotingTooMuchError,
    ResponseError,
)
from mqlake.remoting.codec import (
    FRAME_SIZE_MAX,
    HEADER_SIZE_MAX,
    decode_frame,
    encode_into,
    frame_end,
    join_small,
)
from mqlake.remoting.codes import ResponseCode, Version
from mqlake.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Buffer, RemotingCommand
from mqlake.remoting.peer import TURN_S, IdleChecks, PeerConnection
from mqlake.remoting.receive_buffer import ReceiveBuffer, SpareBuffers, private_pages
from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS
from mqlake.remoting.tls import TLS_FIRST_BYTE, ServerTls, TlsMode, TlsPipe

logger = logging.getLogger(__name__)

SCRATCH_SIZE = 256 * 1024
"""Maximum bytes of one read; the connections of an endpoint share the scratch."""
FLUSH_FROM = 1 << 20
"""Answers of this many bytes are written before more frames are handled."""
WRITE_JOINED_MAX = 2 << 20
"""Up to so many bytes are joined into one buffer for a write, which is cheaper than a gathering write: the kernel is
slower than a copy on memory that is not in the processor's cache."""

Answer = RemotingCommand | None
Processor = Callable[["Connection", RemotingCommand], Answer | Awaitable[Answer]]
"""Returns the answer to a request, an awaitable of the answer, or None for no answer.

    plain function    `command.body` is good until it returns; `body_bytes()` is a copy to keep
    async function    `command.body` is its own; it runs to its end even if the peer has disconnected
    returns a Future  the Future is cancelled if the peer disconnects before it is done

A ResponseError becomes an answer with its code and remark, any other exception SYSTEM_ERROR with its text.
"""


FastPath = Callable[["Connection", memoryview, int], int]
"""Given a position in the received bytes at which a whole frame begins, handles none, one or many frames and answers
them by `send_encoded`. Returns where the next frame begins: the given position if it handled none."""


Guard = Callable[["Connection", RemotingCommand], None]
"""Called with each request before its processor; what it raises is the answer, as with a processor."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    idle_s: float = 120.0
    """Seconds without a byte in either direction after which it is closed; 0: never. They count from the next look of
    IdleChecks."""
    write_high_water: int = 1 << 20
    """Unsent bytes at which reading pauses; it resumes at a quarter."""
    write_buffer_max: int = 64 << 20
    """Unsent bytes at which the connection is closed."""
    in_flight_max: int = 16384
    """Maximum requests in flight; more are answered SYSTEM_BUSY."""
    pending_max: int = 65535
    """Maximum own requests without an answer; more raise RemotingTooMuchError."""


class ProcessorTable:
    """Request code → processor."""

    def __init__(self) -> None:
        self._processors: dict[int, tuple[Processor, bool]] = {}
        self._default: tuple[Processor, bool] | None = None

    def register(self, codes: int | Iterable[int], processor: Processor) -> None:
        entry = (processor, _is_async(processor))
        for code in (codes,) if isinstance(codes, int) else codes:
            self._processors[int(code)] = entry

    def register_default(self, processor: Processor) -> None:
        """For all other codes."""
        self._default = (processor, _is_async(processor))

    def find(self, code: int) -> tuple[Processor, bool] | None:
        """The processor and whether it is an async function."""
        return self._processors.get(code, self._default)


def _is_async(processor: Processor) -> bool:
    return inspect.iscoroutinefunction(processor) or inspect.iscoroutinefunction(
        getattr(processor, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


class Endpoint:
    """The shared state of the connections of one server, or of one client."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.processors = ProcessorTable()
        self.connections: set[Connection] = set()
        self.in_flight: set[asyncio.Future[Answer]] = set()
        """The awaitables of requests in flight, also of those whose peer has disconnected."""
        self.on_open: list[Callable[[Connection], None]] = []
        self.on_close: list[Callable[[Connection], None]] = []
        self.fast_paths: tuple[FastPath, ...] = ()
        """Called in turn at each frame, before a processor; the first that handles it ends the turn."""
        self.guard: Guard | None = None
        self.guarded_fast_paths: tuple[FastPath, ...] = ()
        """Fast paths that check requests themselves; under a guard only they are called."""
        self.going_away = False
        """New requests are answered GO_AWAY if the client knows that code."""
        self.tls_mode = TlsMode.DISABLED
        self.tls: ServerTls | None = None
        """A server's; None: no TLS."""
        self.scratch = memoryview(private_pages(SCRATCH_SIZE))  # takes no memory before it is filled
        self.spares = SpareBuffers()
        self.idle_checks = IdleChecks(self.connections, self.limits.idle_s)
        self.refuses_descriptor: Callable[[Connection, int], bool] | None = None
        """A server's: True if a connection that was just accepted has to be closed, as its descriptor is one of the
        last (`files_kept`)."""


class Connection(PeerConnection[RemotingCommand], asyncio.BufferedProtocol):
    """One connection, made by a server or a client."""

    __slots__ = (
        "_address_called",
        "_buffer",
        "_endpoint",
        "_in_flight",
        "_not_understood",
        "_out",
        "_out_size",
        "_reads_seen",
        "_room",
        "_tls",
        "_undecided",
        "local_address",
        "reads",
    )

    def __init__(
        self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, *, address_called: str = ""
    ) -> None:
        """`address_called`: host:port that a client has called; empty on a server."""
        super().__init__(loop, is_client=bool(address_called))
        self._endpoint = endpoint
        self._address_called = address_called
        self._buffer = ReceiveBuffer(endpoint.scratch, endpoint.spares)
        self._tls: TlsPipe | None = None
        self._undecided = not address_called
        self._not_understood = ""
        self._out: list[Buffer] = []
        self._out_size = 0
        self._room = 0  # of the buffer that is read into
        self._in_flight: set[asyncio.Future[Answer]] = set()
        self.remote_address = address_called
        self.local_address = ""
        self.reads = 0
        """The number of reads so far: the same number later means that nothing came."""
        self._reads_seen = 0  # when somebody asked last if it is idle

    # --- what others may do

    @property
    def is_writable(self) -> bool:
        """True if the peer reads its answers: no more than `write_high_water` bytes are unsent."""
        return not self.closed and not self._paused

    @property
    def may_have_more_in_flight(self) -> bool:
        return len(self._in_flight) < self._endpoint.limits.in_flight_max

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    def descriptor(self) -> int:
        """The socket's, while an answer may be written to it directly: plain, and nothing waits to be sent. Else -1."""
        transport = self._transport
        if self._out or self._tls is not None or transport is None or transport.is_closing():
            return -1
        if transport.get_write_buffer_size():
            return -1
        plain = transport.get_extra_info("socket")
        return -1 if plain is None else int(plain.fileno())

    async def invoke(self, command: RemotingCommand, timeout_s: float | None = None) -> RemotingCommand:
        """Sends a request; its answer, whatever its code. The answer's body is the caller's.

        Raises RemotingTimeoutError, RemotingConnectError if the connection is closed or lost, and
        RemotingTooMuchError.
        """
        if self.closed:
            raise RemotingConnectError(self.remote_address, "the connection is closed")
        if len(self._pending) >= self._endpoint.limits.pending_max:
            raise RemotingTooMuchError(
                f"{self.remote_address}: {len(self._pending)} requests wait for an answer already"
            )
        return await self._ask(command.opaque, lambda: self.send(command), DEFAULT_TIMEOUTS.of(timeout_s))

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """Sends a request that is not answered. RemotingConnectError when the connection is closed."""
        if self.closed:
            raise RemotingConnectError(self.remote_address, "the connection is closed")
        command.mark_oneway()
        self.send(command)

    def send(self, command: RemotingCommand) -> None:
        """Writes a command: at the end of the batch, else of this loop iteration.

        Does nothing on a closed connection. ProtocolError if the command is too large for a frame.
        """
        if self.closed:
            return
        self._out_size += encode_into(self._out, command)
        self._schedule_flush()

    def send_encoded(self, frames: bytes) -> None:
        """Like `send`, for complete frames."""
        if not self.closed and frames:
            self._out.append(frames)
            self._out_size += len(frames)
            self._schedule_flush()

    def write_now(self, frames: bytes) -> None:
        """Like `send_encoded`, without waiting for the end of this loop iteration, for which other frames may wait."""
        if self._out or self._in_batch or self._tls is not None or self._transport is None:
            self.send_encoded(frames)
        elif not self._transport.is_closing():
            self._transport.write(frames)

    def send_buffers(self, frame: Iterable[Buffer], size: int) -> None:
        """Like `send`, for one frame of `size` bytes in several buffers, which must not change until they are sent."""
        if not self.closed:
            self._out += frame
            self._out_size += size
            self._schedule_flush()

    @property
    def is_plain(self) -> bool:
        """True if its bytes are those of the socket: it does not speak TLS, and is known not to."""
        return self._tls is None and not self._undecided

    @property
    def is_at_rest(self) -> bool:
        """True if the next read begins with a frame, at the beginning of the scratch, and its answer may be written at
        once."""
        return self._buffer.is_empty and not (self._out or self._endpoint.going_away)

    def read_by(self, reader: asyncio.BufferedProtocol) -> None:
        """Has the loop call `reader` from now on, which calls this connection with whatever is not for itself."""
        if self._transport is not None:
            self._transport.set_protocol(reader)

    def active_at(self, now: float) -> float:
        if self.reads != self._reads_seen:
            self._reads_seen, self._active_at = self.reads, now
        return super().active_at(now)

    def stop_waits_for(self, later: asyncio.Future[Answer]) -> None:
        """Keeps a stopping server from closing the connection until `later` is done."""
        self._endpoint.in_flight.add(later)
        later.add_done_callback(self._endpoint.in_flight.discard)

    def answer_later(self, command: RemotingCommand, later: asyncio.Future[Answer]) -> None:
        """Answers a request when `later` is done, as a processor that has returned it; None: it is answered already."""
        self._in_flight.add(later)
        self._endpoint.in_flight.add(later)

        def done(later: asyncio.Future[Answer]) -> None:
            self._in_flight.discard(later)
            self._endpoint.in_flight.discard(later)
            if later.cancelled():
                return
            error = later.exception()
            if error is not None:
                self._respond(command, _failure(command, error))
            elif (answer := later.result()) is not None:
                self._respond(command, answer)

        later.add_done_callback(done)

    # --- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._opened(transport, self._endpoint.limits.write_high_water)
        peer = transport.get_extra_info("peername")
        self.remote_address = self._address_called or format_address(peer)
        self.local_address = format_address(transport.get_extra_info("sockname"))
        self._endpoint.connections.add(self)
        for callback in self._endpoint.on_open:
            callback(self)
        plain = None if self._is_client else transport.get_extra_info("socket")
        refuses = self._endpoint.refuses_descriptor
        if plain is not None and (peer is None or (refuses is not None and refuses(self, plain.fileno()))):
            transport.abort()  # without an address: reset before it was accepted; nobody can say who asks

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._out.clear()
        self._endpoint.connections.discard(self)
        for waiting in list(self._in_flight):
            if not isinstance(waiting, asyncio.Task):
                waiting.cancel()
        for callback in self._endpoint.on_close:
            callback(self)

    def _lost_hint(self) -> str:
        if self._not_understood:
            return f"; what came is none of RocketMQ's commands ({self._not_understood}): is the port right?"
        if self.reads == 0:
            return (
                "; nothing has ever come from there: is it the port of a broker or a name server, not the one for "
                "slaves, and does it ask for TLS?"
            )
        return ""

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._tls is not None or self._buffer.is_empty:
            self._room = SCRATCH_SIZE
            return self._endpoint.scratch
        buffer = self._buffer.get_buffer()
        self._room = len(buffer)
        return buffer

    def buffer_updated(self, nbytes: int, handled: int = 0) -> None:
        """`handled`: where the first frame begins that a reader (`read_by`) has not answered already."""
        self.reads += 1
        if self._undecided:
            self._undecided = False
            if not self._decide(self._endpoint.scratch[0]):
                return
        if self._tls is None:
            self._process(self._buffer.commit(nbytes), handled)
        else:
            self._tls.feed(self._endpoint.scratch[:nbytes])
            self._decrypt()
        if nbytes == self._room:  # more data waits, and uvloop would keep reading it
            self.rest()

    # --- from bytes to commands

    def _process_held(self) -> None:
        self._process(self._buffer.take_back())
        if self._tls is not None and not self._waits:
            self._decrypt()

    def _decide(self, first_byte: int) -> bool:
        """Decides by the first byte whether the peer speaks TLS; False if the connection was closed."""
        endpoint = self._endpoint
        if first_byte != TLS_FIRST_BYTE:
            if endpoint.tls_mode is TlsMode.ENFORCING:
                logger.warning("%s: not TLS, which is required; closed", self.remote_address)
                self.abort()
                return False
            return True
        context = None if endpoint.tls is None else endpoint.tls.current()
        if endpoint.tls_mode is TlsMode.DISABLED or context is None:
            logger.warning(
                "%s: TLS is not configured here (tls.server.certPath); closed", self.remote_address
            )
            self.abort()
            return False
        self._tls = TlsPipe(context)
        return True

    def _decrypt(self) -> None:
        pipe = self._tls
        assert pipe is not None and self._transport is not None
        try:
            while not self._waits and not self.closed:
                count = pipe.read_into(self._buffer.get_buffer())
                if count == 0:
                    break
                if count < 0:
                    self._transport.close()
                    return
                self._process(self._buffer.commit(count))
        except ssl.SSLError as error:
            logger.warning("%s: TLS failed: %s", self.remote_address, error)
            self._transport.write(pipe.outgoing())
            self._transport.close()
            return
        if (data := pipe.outgoing()) and not self._transport.is_closing():
            self._transport.write(data)

    def _process(self, data: memoryview, start: int = 0) -> None:
        """Handles every complete frame in `data` from `start` on, and keeps the rest."""
        end = len(data)
        endpoint = self._endpoint
        fast_paths = endpoint.fast_paths if endpoint.guard is None else endpoint.guarded_fast_paths
        if endpoint.going_away:
            fast_paths = ()
        header_size_max = FRAME_SIZE_MAX if self._address_called else HEADER_SIZE_MAX
        turn_ends = time.monotonic() + TURN_S
        self._in_batch = True
        try:
            while stop := frame_end(data, start, end):
                following = start
                for fast_path in fast_paths:
                    following = fast_path(self, data, start)
                    if following > start:
                        break
                if following == start:
                    self._on_command(decode_frame(data, start, stop, header_size_max))
                    following = stop
                start = following
                if self._out_size >= FLUSH_FROM:
                    self._flush()
                if time.monotonic() > turn_ends:
                    self.rest()
                if self._waits or self.closed:
                    break
        except ProtocolError as error:
            logger.warning("%s: %s; closed", self.remote_address, error)
            self._not_understood = str(error)
            self._buffer.keep(end)
            self.close()
            return
        except BaseException:  # the loop closes the connection, and may ask for a buffer before
            self._buffer.keep(end)
            raise
        finally:
            self._in_batch = False
        self._buffer.keep(start)
        if self._out:
            self._flush()

    def _on_command(self, command: RemotingCommand) -> None:
        if command.flag & RESPONSE_FLAG:
            if command.opaque in self._pending and command.body is not None:
                command.body = command.body_bytes()
            self._answered(command.opaque, command)
            return
        found = self._endpoint.processors.find(command.code)
        if found is None:
            self._respond(
                command,
                RemotingCommand.create_response(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
                ),
            )
            return
        if (guard := self._endpoint.guard) is not None:
            try:
                guard(self, command)
            except Exception as error:
                self._respond(command, _failure(command, error))
                return
        if self._endpoint.going_away and command.version > Version.V5_3_1:
            self._respond(
                command,
                RemotingCommand.create_response(
                    ResponseCode.GO_AWAY, "the server is stopping; connect again"
                ),
            )
            return
        if not self.may_have_more_in_flight:
            remark = (
                f"[OVERLOAD]system busy, start flow control for a while: "
                f"{self._endpoint.limits.in_flight_max} requests of this connection wait for their answer"
            )
            self._respond(command, RemotingCommand.create_response(ResponseCode.SYSTEM_BUSY, remark))
            return
        processor, is_async = found
        if is_async and command.body is not None:
            command.body = command.body_bytes()
        try:
            answer_or_later = processor(self, command)
        except Exception as error:
            self._respond(command, _failure(command, error))
            return
        if answer_or_later is None:
            return
        if isinstance(answer_or_later, RemotingCommand):
            self._respond(command, answer_or_later)
            return
        if not is_async:
            command.body = None  # the scratch will be overwritten
        self.answer_later(command, asyncio.ensure_future(answer_or_later, loop=self._loop))

    # --- from commands to bytes

    def _respond(self, request: RemotingCommand, response: RemotingCommand) -> None:
        if request.flag & ONEWAY_FLAG:
            return
        response.opaque = request.opaque
        response.flag |= RESPONSE_FLAG
        try:
            self.send(response)
        except ProtocolError as error:
            logger.warning(
                "%s: the answer to %d cannot be sent: %s", self.remote_address, request.code, error
            )
            self.send(
                RemotingCommand(
                    ResponseCode.SYSTEM_ERROR, opaque=request.opaque, flag=RESPONSE_FLAG, remark=str(error)
                )
            )

    def _flush(self) -> None:
        self._flush_scheduled = False
        out = self._out
        if not out:
            return
        size = self._out_size
        self._out = []
        self._out_size = 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._tls is not None:
            self._tls.write(b"".join(out))
            transport.write(self._tls.outgoing())
        else:
            if size <= WRITE_JOINED_MAX:
                transport.write(out[0] if len(out) == 1 else b"".join(out))
            else:
                transport.writelines(join_small(out))
        unsent = transport.get_write_buffer_size()
        if unsent > self._endpoint.limits.write_buffer_max:
            logger.warning("%s: does not read, %d bytes wait for it; closed", self.remote_address, unsent)
            transport.abort()


def _failure(command: RemotingCommand, error: BaseException) -> RemotingCommand:
    """The answer for an exception."""
    if isinstance(error, ResponseError):
        return RemotingCommand.create_response(error.code, error.remark)
    if isinstance(error, MqlakeError):
        return RemotingCommand.create_response(ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, OSError):  # a fault of the disk or the network, not of the program
        logger.error("request %d failed: %s", command.code, error)
        return RemotingCommand.create_response(ResponseCode.SYSTEM_ERROR, str(error))
    logger.error("request %d failed", command.code, exc_info=error)
    return RemotingCommand.create_response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
