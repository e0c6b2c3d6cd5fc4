"""HAClientService: the thread that keeps a slave connected to its master.

    address ─▶ connect ─▶ HAClient ◀─▶ socket ─▶ lost ─▶ 5 s ─▶ connect ...

The address is resolved at each attempt, so a master may move. A failure is logged once, then once a minute.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable

from mqlake.base.net import parse_address, reason_of
from mqlake.base.service_thread import ServiceThread
from mqlake.base.throttled_log import ThrottledLog
from mqlake.errors import MqlakeError
from mqlake.store.ha.ha_client import RETRY_S, HAClient
from mqlake.store.ha.protocol import Clock

logger = logging.getLogger(__name__)

CONNECT_S = 5.0
READ_BYTES = 1 << 20
GATHER_S = 0.005
"""Pause after a small read while no put waits for this slave's reports: the next one brings more, at the cost of one.
As long as a master of mqlake's gathers."""
GATHERED_BYTES = 64 * 1024
FAR_BYTES = 1 << 20
"""A slave that lacks more receives without a pause."""
AFTER_BYTES = 64 * 1024
"""Read at most with the rest of a frame: what follows it is copied."""
IDLE_S = 1.0
"""An old master that has sent nothing for so long is left when the name servers name another one."""


class HAClientService(ServiceThread):
    """Runs `client`. `bandwidth`: bytes a second, 0 without limit; `on_lost()` is called after each connection."""

    def __init__(
        self,
        client: HAClient,
        *,
        bandwidth: int = 0,
        retry_s: float = RETRY_S,
        clock: Clock = time.monotonic,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("HAClient")
        self.client = client
        self.bandwidth = bandwidth
        self.master_address = ""
        self.is_awaited: Callable[[], bool] = lambda: True
        """False if no put of the master waits for reports."""
        self.lacking: Callable[[], int] = lambda: 0
        """Bytes between this log's end and the master's, as far as they are known."""
        self.may_connect: Callable[[], bool] = lambda: True
        """False while the master is being asked where its log ends; retry_now() follows the answer."""
        self.retry_s = retry_s
        self._clock = clock
        self._on_lost = on_lost
        self._sock: socket.socket | None = None
        self._connected_to = ""
        self._trouble = ThrottledLog(logger, logging.WARNING)

    def set_master_address(self, address: str) -> None:
        """host:port of the master's haListenPort, from now on; a connection that is in use is finished first."""
        if address != self.master_address:
            self.master_address = address
            self._wake.set()

    def retry_now(self) -> None:
        """Something has changed: connects at once if it is not connected."""
        self._wake.set()

    def shutdown(self) -> None:
        """Nothing is received after it returns. Idempotent."""
        self._stopped = True
        self._wake.set()
        if (sock := self._sock) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        super().shutdown()
        self.client.shutdown()

    def _run(self) -> None:
        while not self._stopped:
            address = self.master_address
            if not (address and self.client.may_connect and self.may_connect()):
                self._wake.wait(self.retry_s)
                self._wake.clear()
                continue
            try:
                sock = self._connect(address)
            except (OSError, MqlakeError) as error:
                self._lost(f"cannot connect to the master at {address}: {reason_of(error)}")
                continue
            self._connected_to = address
            with sock:
                self._sock = sock
                try:
                    reason = self._serve(sock)
                except Exception as error:
                    # none is expected; another try is better than a slave that stands still
                    logger.exception("replication failed")
                    reason = f"it failed: {error}"
                self._sock = None
            self._lost(reason)

    def _connect(self, address: str) -> socket.socket:
        sock = socket.create_connection(parse_address(address), CONNECT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _lost(self, reason: str) -> None:
        client = self.client
        client.lost(reason)
        if self._stopped:
            return
        self._trouble.failed(f"replication: {client.trouble_text or reason}")
        self._on_lost()
        self._wake.wait(self.retry_s)
        self._wake.clear()

    def _serve(self, sock: socket.socket) -> str:
        """Until the connection ends; why it did."""
        client, clock = self.client, self._clock
        buffer = bytearray(READ_BYTES)
        view = memoryview(buffer)
        client.connected(clock())
        last_data = clock()
        said = False
        size = READ_BYTES
        try:
            while not self._stopped:
                # where the master's log ends may become known after the connection has begun
                is_far = self.lacking() >= FAR_BYTES
                if output := client.take_output():
                    _send(sock, output)
                if client.closed_because:
                    return client.closed_because
                if not is_far and size < GATHERED_BYTES and not self.is_awaited():
                    time.sleep(GATHER_S)
                if self.master_address != self._connected_to and clock() - last_data > IDLE_S:
                    return f"the master is at {self.master_address} now"
                wait_s = min(max(client.next_time() - clock(), 0.001), 1.0)
                if wait_s != sock.gettimeout():  # a system call, mostly the same second
                    sock.settimeout(wait_s)
                room = None if self.bandwidth else client.room()
                try:
                    if room is None:
                        size, in_room = sock.recv_into(buffer, self._read_at_once), 0
                    else:
                        size = sock.recvmsg_into([room, view[:AFTER_BYTES]])[0]
                        in_room = min(size, len(room))
                except TimeoutError:
                    client.tick(clock())
                    continue
                if not size:
                    return f"the master at {self._connected_to} closed the connection"
                now = clock()
                client.received(view[: size - in_room], now, in_room=in_room)
                client.tick(now)
                if size > 12:
                    last_data = now
                if not said and client.is_following:
                    said = True
                    self._trouble.worked(f"replication: follows the master at {self._connected_to} again")
                self._hold_bandwidth(size, now)
        except OSError as error:
            return f"the connection to the master at {self._connected_to} broke: {reason_of(error)}"
        return "stopped"

    @property
    def _read_at_once(self) -> int:
        return min(READ_BYTES, max(self.bandwidth // 10, 4096)) if self.bandwidth else READ_BYTES

    def _hold_bandwidth(self, size: int, now: float) -> None:
        """Reads no more than `bandwidth`; the master's socket fills, and it waits."""
        if self.bandwidth and not self._stopped:
            pause = size / self.bandwidth - (self._clock() - now)
            if pause > 0:
                time.sleep(min(pause, 1.0))


def _send(sock: socket.socket, output: bytes) -> None:
    """Sends a report, which has room in the socket's buffer unless the master reads nothing."""
    try:
        sent = sock.send(output, socket.MSG_DONTWAIT)
    except BlockingIOError:
        sent = 0
    if sent < len(output):
        sock.settimeout(CONNECT_S)
        sock.sendall(output[sent:])
