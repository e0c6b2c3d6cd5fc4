"""HAService: the master's port for slaves, and the thread that serves them.

    puts ──notify()──▶ thread ──▶ HAConnection.output() ──▶ socket of each slave
                          ▲ reports ──▶ GroupTransferService ──▶ puts that waited

Under SYNC_MASTER the event loop whose puts wait does both itself for slaves that are near the end: it sends when an
iteration has put something, and reads the reports, so that neither waits for a thread.

Every broker runs it, slaves too, as RocketMQ's do: whoever connects gets the log, so haAllowedAddresses and
haBindAddress say who may. A slave that does not read, or lies, costs the others nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable

from mqlake.base.net import reason_of
from mqlake.base.throttled_log import ThrottledLog
from mqlake.errors import ConfigError
from mqlake.store.config import MessageStoreConfig
from mqlake.store.ha.group_transfer import GroupTransferService
from mqlake.store.ha.ha_connection import OUTPUT_MAX, ConnectionSettings, HAConnection
from mqlake.store.ha.membership import Member, Membership
from mqlake.store.ha.protocol import Clock, SourceLog
from mqlake.store.results import PutMessageFuture, PutMessageStatus, wake_all

logger = logging.getLogger(__name__)

GATHER_S = 0.005
"""Without puts that wait for replicas: pause between two rounds, since each costs the writer's interpreter lock."""
READ_BYTES = 64 * 1024
IOV_MAX = 256
IDLE_S = 3600.0
RETRY_S = 1.0
BLOCKED_S = 1.0
"""After so long a slave that does not read is looked at again."""
LOOP_WAIT_S = 0.001
"""How long an event loop waits for the thread at most."""
NEAR_BYTES = 256 * 1024
"""A slave that lacks more is the thread's."""
FAR_BYTES = OUTPUT_MAX
"""A slave that lacks more is sent it without a pause."""


@dataclasses.dataclass(frozen=True, slots=True)
class SlaveStatus:
    """One connection as code 907 shows it; `diff` in bytes. `before_deletion`: bytes that this log keeps before those
    that the slave needs next."""

    addr: str
    slave_ack_offset: int
    transfer_from_where: int
    diff: int
    in_sync: bool
    transferred_byte_in_second: int
    before_deletion: int


class _Peer:
    __slots__ = ("connection", "loop", "pending", "sock", "wants_write")

    def __init__(self, sock: socket.socket, connection: HAConnection) -> None:
        self.sock = sock
        self.connection = connection
        self.pending: list[memoryview] = []
        self.wants_write = False
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that reads the slave's reports, if the thread does not."""


class HAService:
    """Serves `log` to slaves. bind() and start() once, shutdown() at the end."""

    def __init__(
        self,
        config: MessageStoreConfig,
        log: SourceLog,
        *,
        clock: Clock = time.monotonic,
        warn_of_ahead: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.port = 0
        self.membership: Membership | None = None
        """In a group with failover: whom puts wait for. Set it before start()."""
        self.on_change: Callable[[], None] = lambda: None
        """A replica has connected, or is gone."""
        self.on_confirmed: Callable[[], None] = lambda: None
        """More may be shown to consumers."""
        self._config = config
        self._log = log
        self._clock = clock
        self._warn_of_ahead = warn_of_ahead
        self._settings = ConnectionSettings(
            transfer_batch_size=config.ha_transfer_batch_size,
            heartbeat_s=config.ha_send_heartbeat_interval / 1000,
            housekeeping_s=config.ha_housekeeping_interval / 1000,
            bytes_per_second=config.max_ha_transfer_byte_in_second if config.ha_flow_control_enable else 0,
            from_last_file=config.sync_from_last_file,
        )
        self._allowed = config.ha_allowed_networks
        self._peers: list[_Peer] = []
        self._listener: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pumping = threading.Lock()
        """Held by whoever reads from slaves or writes to them."""
        self._sleeping = False
        self._sleep_until = 0.0
        self._is_scheduled = False
        self._stopped = False
        self._trouble = ThrottledLog(logger)
        self._thread = threading.Thread(target=self._run, name="HAService", daemon=True)
        self.group_transfer = GroupTransferService(
            self.ack_offsets,
            lambda: config.slave_timeout / 1000,
            clock=clock,
            wake=self._wake_for_deadline,
            reason=self._why_late,
        )

    # --- life

    def bind(self, address: str, port: int) -> None:
        """Takes the port. ConfigError if it is taken."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(64)
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"cannot listen for slaves on {address}:{port} (haListenPort): {reason_of(error)}"
            ) from None
        listener.setblocking(False)
        self._listener = listener
        self.port = listener.getsockname()[1]

    def start(self) -> None:
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()

    def shutdown(self) -> None:
        """Closes all connections; puts that wait are answered. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()
        self.group_transfer.shutdown()
        for peer in self._peers:
            _close_socket(peer)
        self._peers = []
        if self._listener is not None:
            self._listener.close()
        self._selector.close()
        os.close(self._wake_fd)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)

    def notify(self) -> None:
        """The log has grown. Costs nothing while a round is in flight, or without slaves.

        Under SYNC_MASTER the caller, whose put waits, sends to slaves that are near the end: that takes less time than
        to wake the thread, which has to be given the interpreter first. An event loop does it once for all the puts of
        an iteration.
        """
        if not (self._sleeping and self._peers) or self._is_scheduled:
            return
        if not self._config.waits_for_replicas:
            self._sleeping = False
            self.wake()
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._send_now()
        else:
            self._is_scheduled = True
            loop.call_soon(self._send_now)

    def _send_now(self) -> None:
        self._is_scheduled = False
        if self._stopped:
            return
        if self._pumping.acquire(blocking=False):
            try:
                if self._pump_near():
                    self._read_on_loop()
                    return
            finally:
                self._pumping.release()
        self._sleeping = False
        self.wake()

    def _pump_near(self) -> bool:
        """Sends what has come to slaves that have all before it; False if the thread has to."""
        log_end = self._log.max_offset
        for peer in self._peers:
            connection = peer.connection
            if peer.pending or log_end - connection.next_transfer_offset > NEAR_BYTES:
                return False
            if 0 <= connection.next_transfer_offset < log_end and (
                self._pump(peer) or connection.closed_because
            ):
                return False
        return True

    def _read_on_loop(self) -> None:
        """From now on this thread's loop reads the reports, if it runs one."""
        for peer in self._peers:
            # the thread times heartbeats from the first report on
            if peer.loop is None and not peer.wants_write and peer.connection.slave_request_offset >= 0:
                try:
                    loop = asyncio.get_running_loop()
                except RuntimeError:
                    return
                self._selector.unregister(peer.sock)
                peer.loop = loop
                loop.add_reader(peer.sock, self._on_report, peer)

    def _on_report(self, peer: _Peer) -> None:
        if not self._pumping.acquire(timeout=LOOP_WAIT_S):
            return  # the thread sends much to another slave; the loop calls again
        try:
            if peer.loop is not None:  # else it was closed in this iteration
                self._read(peer)
        finally:
            self._pumping.release()

    def _wake_for_deadline(self) -> None:
        if self.group_transfer.next_time < self._sleep_until:
            self.wake()

    # --- what it knows of its slaves

    def _counted(self) -> list[HAConnection]:
        return [
            peer.connection
            for peer in self._peers
            if peer.connection.slave_ack_offset >= 0 and not peer.connection.is_superseded
        ]

    def ack_offsets(self) -> list[int]:
        """Returns the offset that each slave has acknowledged. In a group with failover the one end before which all
        in the in-sync set have everything: as if there were one slave."""
        if self.membership is not None:
            return [self._confirm(self.membership)]
        return [connection.confirmed_offset for connection in self._counted()]

    def acks(self) -> dict[Member, int]:
        """Returns the offset that each connected replica of the group has acknowledged; of two connections of one
        the later counts."""
        found = {}
        for peer in self._peers:
            connection = peer.connection
            if connection.member is not None and connection.slave_ack_offset >= 0:
                # a first report proves nothing, but everything before 0 everybody has
                found[connection.member] = max(connection.confirmed_offset, 0)
        return found

    def _confirm(self, membership: Membership) -> int:
        before = membership.confirmed
        end = membership.confirm(self.acks(), self._log.max_offset, membership.clock())
        if membership.confirmed > before:
            self.on_confirmed()
        return end

    def confirmed_end(self) -> int | None:
        """As Replicas.confirmed_end()."""
        membership = self.membership
        if membership is None or not membership.leads:
            return None
        membership.confirm(self.acks(), self._log.max_offset, membership.clock())
        return membership.confirmed

    def membership_changed(self) -> None:
        """Other replicas are waited for, or the lease was renewed: puts that wait may be finished."""
        self.group_transfer.acknowledged()

    def _why_late(self, need: int, slaves: int) -> str:
        membership = self.membership
        if membership is None:
            return f"{need} replicas are asked for (inSyncReplicas), and {slaves} slaves are connected"
        if why := membership.why_not(membership.clock()):
            return why
        return f"the in-sync set is {sorted(each for each, _ in membership.members)}, and not all of it has the message"

    def why_not(self) -> str:
        """As Replicas.why_not()."""
        membership = self.membership
        return "" if membership is None else membership.why_not(membership.clock())

    def needed_from(self) -> int | None:
        """As Replicas.needed_from()."""
        reported = [peer.connection for peer in self._peers if peer.connection.slave_request_offset >= 0]
        return min((connection.needed_from for connection in reported), default=None)

    @property
    def in_sync_slaves(self) -> int:
        gap = self._config.ha_max_gap_not_in_sync
        return sum(connection.is_in_sync(gap) for connection in self._counted())

    def statuses(self) -> list[SlaveStatus]:
        """The connections that have reported."""
        now, log_end, gap = self._clock(), self._log.max_offset, self._config.ha_max_gap_not_in_sync
        return [
            SlaveStatus(
                connection.peer,
                connection.slave_ack_offset,
                connection.next_transfer_offset,
                log_end - connection.slave_ack_offset,
                connection.is_in_sync(gap),
                connection.flow.transferred_byte_in_second(now),
                connection.needed_from - self._log.min_offset,
            )
            for connection in [peer.connection for peer in self._peers]
            if connection.slave_ack_offset >= 0
        ]

    # --- puts

    def refusal(self) -> str:
        """Why a put must be refused before it is written (IN_SYNC_REPLICAS_NOT_ENOUGH); empty when it need not be."""
        config = self._config
        if config.min_in_sync_replicas <= 1:
            return ""
        alive = self.in_sync_slaves + 1 if self.membership is None else len(self.membership.members)
        if alive >= config.min_in_sync_replicas:
            return ""
        return (
            f"the in-sync replicas are not enough: {alive} of the {config.min_in_sync_replicas} that "
            "minInSyncReplicas asks for"
        )

    def wait_for_replicas(self, futures: list[PutMessageFuture]) -> None:
        """Finishes the futures when inSyncReplicas - 1 slaves have their bytes, or at slaveTimeout."""
        config = self._config
        if self.membership is not None:
            self.group_transfer.put_requests(futures, 2)
            return
        need = config.in_sync_replicas
        if config.enable_auto_in_sync_replicas or config.slave_not_available_at_once:
            alive = self.in_sync_slaves + 1
            if config.enable_auto_in_sync_replicas:
                need = max(min(need, alive), config.min_in_sync_replicas)
            elif need > alive:
                waiters = []
                for future in futures:
                    waiters += future.finish(
                        PutMessageStatus.SLAVE_NOT_AVAILABLE,
                        f"{alive - 1} slaves are in sync, inSyncReplicas is {need}",
                    )
                wake_all(waiters)
                return
        self.group_transfer.put_requests(futures, need)

    # --- the thread

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._serve()
            except Exception:
                # none is expected; a slave that connects again is better than none at all
                logger.exception("replication failed, all slaves are disconnected")
                for peer in list(self._peers):
                    self._close(peer, "")
                time.sleep(RETRY_S)

    def _serve(self) -> None:
        while not self._stopped:
            with self._pumping:
                busy = self._pump_all()
                timeout = 0.0 if busy else self._timeout()
                if not busy and self._grew_since():
                    continue
            ready = self._selector.select(timeout)
            with self._pumping:
                gathers = self._sleeping is False and not (busy and self._is_any_far())
                self._sleeping = self._is_scheduled = False  # a loop that was closed runs nothing any more
                for key, events in ready:
                    self._handle(key, events)
                now = self._clock()
                self.group_transfer.tick(now)
                for peer in list(self._peers):
                    peer.connection.tick(now)
                    self._close_if_ended(peer)
            if gathers and self._peers and not (self._config.waits_for_replicas or self._stopped):
                time.sleep(GATHER_S)

    def _is_any_far(self) -> bool:
        log_end = self._log.max_offset
        return any(log_end - peer.connection.next_transfer_offset > FAR_BYTES for peer in self._peers)

    def _timeout(self) -> float:
        now = self._clock()
        until = now + IDLE_S
        for peer in self._peers:
            until = min(until, now + BLOCKED_S if peer.pending else peer.connection.next_time(now))
        if self._config.waits_for_replicas:
            # a put that comes meanwhile has its deadline later, so it need not wake this thread for it
            until = min(until, self.group_transfer.next_time, now + self._config.slave_timeout / 2000)
        self._sleep_until = until
        return max(0.0, until - now)

    def _grew_since(self) -> bool:
        """Declares that the thread sleeps; returns True if the log has grown just before."""
        self._sleeping = True
        log_end = self._log.max_offset
        if any(
            not peer.pending
            and 0 <= peer.connection.next_transfer_offset < log_end
            and peer.connection.flow.allowance(self._clock()) != 0
            for peer in self._peers
        ):
            self._sleeping = False
            return True
        return False

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj == self._wake_fd:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        elif key.fileobj is self._listener:
            self._accept()
        else:
            peer: _Peer = key.data
            if events & selectors.EVENT_READ and peer.loop is None and peer in self._peers:
                self._read(peer)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, address = self._listener.accept()
        except OSError as error:
            self._trouble.failed(f"a slave could not be accepted: {reason_of(error)}")
            time.sleep(GATHER_S)  # out of descriptors: it stays readable
            return
        self._trouble.worked("slaves are accepted again")
        host = address[0]
        peer_name = f"{host}:{address[1]}"
        if not self._may_connect(host):
            logger.warning("%s may not read the log: it is not in haAllowedAddresses", peer_name)
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = HAConnection(
            self._log,
            self._settings,
            self._clock(),
            peer=peer_name,
            on_report=self.group_transfer.acknowledged,
            on_hello=self._on_hello,
        )
        for other in self._peers:
            if other.connection.host == host and self.membership is None:
                other.connection.supersede()
        peer = _Peer(sock, connection)
        self._peers = [*self._peers, peer]
        self._selector.register(sock, selectors.EVENT_READ, peer)

    def _on_hello(self, epoch: int) -> str:
        """As HAConnection asks."""
        membership = self.membership
        if membership is None:
            return "this broker takes no part in failover"
        if not membership.leads:
            return "this broker is not master"
        return "" if epoch == membership.epoch else f"this is the master of epoch {membership.epoch}"

    def _may_connect(self, host: str) -> bool:
        if not self._allowed:
            return True
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self._allowed)

    def _read(self, peer: _Peer) -> None:
        connection = peer.connection
        was_new = connection.slave_request_offset < 0
        try:
            data = peer.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._close(peer, error.strerror or str(error))
            return
        if not data:
            self._close(peer, "" if was_new else "the slave closed the connection")
            return
        connection.received(data, self._clock())
        if was_new and connection.slave_request_offset >= 0:
            logger.info(
                "slave %s: connected, begins at offset %d", connection.peer, connection.next_transfer_offset
            )
            if connection.member is not None:
                self.on_change()
        self._close_if_ended(peer)

    def _pump_all(self) -> bool:
        """Sends what is waiting. Returns True if more is ready."""
        more = False
        for peer in list(self._peers):
            more |= self._pump(peer)
            self._close_if_ended(peer)
        return more

    def _pump(self, peer: _Peer) -> bool:
        if not peer.pending:
            peer.pending = [memoryview(buffer) for buffer in peer.connection.output(self._clock())]
        blocked = False
        while peer.pending:
            try:
                sent = peer.sock.sendmsg(peer.pending[:IOV_MAX])
            except BlockingIOError:
                blocked = True
                break
            except OSError as error:
                peer.connection.closed_because = error.strerror or str(error)
                peer.pending = []
                return False
            peer.pending = _after(peer.pending, sent)
        if blocked != peer.wants_write:
            peer.wants_write = blocked
            self._watch(peer)
        return (
            not blocked
            and 0 <= peer.connection.next_transfer_offset < self._log.max_offset
            and (peer.connection.flow.allowance(self._clock()) != 0)
        )

    def _watch(self, peer: _Peer) -> None:
        """Has the thread woken by what it has to do for this slave."""
        events = 0 if peer.loop is not None else selectors.EVENT_READ
        if peer.wants_write:
            events |= selectors.EVENT_WRITE
        if peer.sock not in self._selector.get_map():
            self._selector.register(peer.sock, events, peer)
        elif events:
            self._selector.modify(peer.sock, events, peer)
        else:
            self._selector.unregister(peer.sock)

    def _close_if_ended(self, peer: _Peer) -> None:
        if peer.connection.closed_because and peer in self._peers:
            self._close(peer, peer.connection.closed_because)

    def _close(self, peer: _Peer, reason: str) -> None:
        if reason:  # a probe of the port says nothing, and is worth no line
            logger.warning("slave %s: closed: %s", peer.connection.peer, reason)
        if "ahead of this master" in reason:
            self._warn_of_ahead(f"{peer.connection.peer}: {reason}")
        if peer.sock in self._selector.get_map():
            self._selector.unregister(peer.sock)
        _close_socket(peer)
        self._peers = [other for other in self._peers if other is not peer]
        if peer.connection.member is not None:
            self.on_change()


def _close_socket(peer: _Peer) -> None:
    loop, peer.loop = peer.loop, None
    if loop is None:
        peer.sock.close()
        return

    def leave() -> None:
        loop.remove_reader(peer.sock)
        peer.sock.close()

    try:
        loop.call_soon_threadsafe(leave)
    except RuntimeError:  # the loop was closed, and has forgotten the socket
        peer.sock.close()


def _after(buffers: list[memoryview], sent: int) -> list[memoryview]:
    """Returns the buffers without their first `sent` bytes."""
    for number, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [buffer[sent:], *buffers[number + 1 :]]
        sent -= len(buffer)
    return []
