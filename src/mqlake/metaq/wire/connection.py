"""Connection: one peer, from bytes to commands and back; the same class for servers and clients.

    read ─▶ all commands in it ─▶ a handler each ─▶ the answers so far ─▶ one write

Answers, which carry the request's opaque, may come in another order than the requests. Reading from a client pauses
while it does not read its answers, and after TURN_S or a read of LARGE_READ bytes until the loop has served its other
connections. Bytes that are not a command end the connection without an answer, as in the original.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable

from mqlake.base.net import format_address
from mqlake.errors import ProtocolError, RemotingConnectError
from mqlake.metaq.formats.command import (
    BooleanCommand,
    Command,
    DataCommand,
    Request,
    Response,
    decode_command,
)
from mqlake.remoting.peer import TURN_S, PeerConnection

logger = logging.getLogger(__name__)

BODY_MAX = 64 << 20
"""Bytes of one message or answer; the original is limited by memory only."""
WRITE_HIGH_WATER = 4 << 20
WRITE_BUFFER_MAX = 64 << 20
LARGE_READ = 128 * 1024
"""Bytes; after a full read the loop would continue with the same connection."""
SENDFILE_FROM = 16 * 1024
"""Smaller ranges of a file are copied, which costs less than another system call."""

Handler = Callable[["Connection", Request], None]


class Connection(PeerConnection[Response], asyncio.Protocol):
    """A server passes `on_request`, which gets the peer's requests; a client does not."""

    def __init__(
        self,
        on_request: Handler | None = None,
        *,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        body_max: int = BODY_MAX,
    ) -> None:
        super().__init__(asyncio.get_running_loop(), is_client=on_request is None)
        self._on_request = on_request
        self._on_open = on_open
        self._on_close = on_close
        self._body_max = body_max
        self.socket_fd = -1
        self._held: bytes | bytearray = b""
        self._needed = 0
        self._out: list[bytes] = []

    # --- sending

    def send(self, data: bytes) -> None:
        """Writes an encoded command at the end of the current batch, else of this iteration of the loop."""
        if self.closed:
            return
        self._out.append(data)
        self._schedule_flush()

    def respond(self, code: int, message: str, opaque: int) -> None:
        self.send(BooleanCommand(code, message, opaque).encode())

    def transfer(self, head: bytes, fd: int, offset: int, count: int) -> int:
        """Sends `head` and `count` bytes of the file `fd` from `offset` on, with sendfile if possible; returns how many
        bytes went without a copy."""
        if self.closed:
            return 0
        if count < SENDFILE_FROM:
            self.send(head + os.pread(fd, count, offset))
            return 0
        self._out.append(head)
        self._flush()
        transport = self._transport
        assert transport is not None
        sent = 0
        if transport.get_write_buffer_size() == 0 and not transport.is_closing():
            sent = self._send_file(fd, offset, count)
        if sent < count and not transport.is_closing():
            transport.write(os.pread(fd, count - sent, offset + sent))
        self._check_unsent(transport)
        return sent

    def _send_file(self, fd: int, offset: int, count: int) -> int:
        sent = 0
        try:
            while sent < count:
                step = os.sendfile(self.socket_fd, fd, offset + sent, count - sent)
                if step == 0:
                    break
                sent += step
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            logger.info("%s: %s", self.remote_address, error)
            self.abort()
        return sent

    async def invoke(self, request: Request, timeout_s: float) -> Response:
        """Sends a request and returns the answer, whatever its code.

        Raises RemotingTimeoutError, RemotingConnectError if the connection is or gets lost.
        """
        if self.closed:
            raise RemotingConnectError(self.remote_address, "the connection is closed")
        return await self._ask(request.opaque, lambda: self.send(request.encode()), timeout_s)

    # --- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._opened(transport, WRITE_HIGH_WATER)
        self.remote_address = format_address(transport.get_extra_info("peername"))
        self.socket_fd = transport.get_extra_info("socket").fileno()
        if self._on_open is not None:
            self._on_open(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._out.clear()
        if self._on_close is not None:
            self._on_close(self)

    def data_received(self, data: bytes) -> None:
        self._active_at = self._loop.time()
        held = self._held
        if held:
            if not isinstance(held, bytearray):
                held = bytearray(held)
            held += data
            self._held = held
            if len(held) >= self._needed and not self._waits:
                self._process(held)
        elif self._waits:
            self._held = data
        else:
            self._process(data)
        if len(data) >= LARGE_READ:
            self.rest()

    def _process_held(self) -> None:
        if self._held and len(self._held) >= self._needed:
            self._process(self._held)

    def _process(self, data: bytes | bytearray) -> None:
        """Handles every whole command in `data`; the rest is kept."""
        position, end = 0, len(data)
        self._needed = 0
        turn_ends = time.monotonic() + TURN_S
        self._in_batch = True
        try:
            while position < end and not self._waits and not self.closed:
                decoded = decode_command(data, position, body_max=self._body_max)
                if isinstance(decoded, int):
                    self._needed = decoded - position
                    break
                position = decoded[1]
                self._on_command(decoded[0])
                if time.monotonic() > turn_ends:
                    self.rest()
        except ProtocolError as error:
            logger.warning("%s: %s; closed", self.remote_address, error)
            position = end
            self.close()
            return
        finally:
            self._in_batch = False
            self._held = data[position:] if position else data
        if self._out:
            self._flush()

    def _on_command(self, command: Command) -> None:
        if isinstance(command, BooleanCommand | DataCommand):
            self._answered(command.opaque, command)
        elif self._on_request is None:
            logger.warning(
                "%s sent a request, %s, to a client; ignored", self.remote_address, type(command).__name__
            )
        else:
            self._on_request(self, command)

    def _flush(self) -> None:
        self._flush_scheduled = False
        out = self._out
        transport = self._transport
        if not out or transport is None:
            return
        self._out = []
        if not transport.is_closing():
            self._active_at = self._loop.time()
            transport.write(out[0] if len(out) == 1 else b"".join(out))
            self._check_unsent(transport)

    def _check_unsent(self, transport: asyncio.Transport) -> None:
        unsent = transport.get_write_buffer_size()
        # a client may send as much as its caller wants
        if unsent > WRITE_BUFFER_MAX and self._on_request is not None:
            logger.warning(
                "%s: does not read its answers, %d bytes are waiting; closed", self.remote_address, unsent
            )
            transport.abort()
