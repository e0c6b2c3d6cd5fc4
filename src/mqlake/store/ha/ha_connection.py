"""HAConnection: the master's side of one slave, without sockets.

    received(bytes, now) ──▶ reports ──▶ slave_ack_offset ──▶ on_report
    output(now) ──▶ [header, bytes, header, bytes, ...] or a heartbeat
    closed_because   not empty: the driver closes the connection

RocketMQ 5.3.3 counts every report it gets and answers an offset that it does not have with heartbeats for ever. Here a
report that is negative, beyond this log's end, or smaller than the one before is not counted, and ends the connection
with a log line; so does an offset below this log's beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mqlake.store.ha.flow_monitor import FlowMonitor
from mqlake.store.ha.membership import Member
from mqlake.store.ha.protocol import HEADER, HELLO, HELLO_FRAME, REPORT, WELCOME, Buffer, SourceLog

HELLO_BYTES = REPORT.pack(HELLO)
OUTPUT_MAX = 1 << 20
"""Bytes given at once; reports and other connections have their turn after them."""
BULK_FRAMES = 32
"""A slave that lacks so many frames gets them as one, which takes both sides less time."""


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """haTransferBatchSize (bytes of a frame to a slave that keeps up), haSendHeartbeatInterval and
    haHousekeepingInterval (here in seconds), maxHaTransferByteInSecond (0: no limit), syncFromLastFile."""

    transfer_batch_size: int = 32768
    heartbeat_s: float = 5.0
    housekeeping_s: float = 20.0
    bytes_per_second: int = 0
    from_last_file: bool = False


class HAConnection:
    """`peer` names the slave in log lines; `host` is its address without the port."""

    def __init__(
        self,
        log: SourceLog,
        settings: ConnectionSettings,
        now: float,
        *,
        peer: str = "",
        on_report: Callable[[], object] = lambda: None,
        on_hello: Callable[[int], str] = lambda epoch: "this broker takes no part in failover",
    ) -> None:
        """`on_hello(epoch)`: why a replica that follows the master of `epoch` may not have this log; empty: it may."""
        self.peer = peer
        self.host = peer.rpartition(":")[0]
        self.slave_request_offset = -1
        self.slave_ack_offset = -1
        self.confirmed_offset = -1
        """The acknowledged offset that counts for waiting puts: -1 until a report goes beyond the first. The first
        one says where to begin, and the slave may still find that its bytes before that are not this log's."""
        self.next_transfer_offset = self._began_at = -1
        self.closed_because = ""
        self.is_superseded = False
        """A newer connection came from the same host, and this one has hardly reported since: the same slave, most
        likely, so its acknowledgements do not count twice."""
        self._heard_since: float | None = None
        self.flow = FlowMonitor(settings.bytes_per_second)
        self._log = log
        self._settings = settings
        self._on_report = on_report
        self.member: Member | None = None
        """The slave's identity in a group with failover."""
        self._on_hello = on_hello
        self._welcome = b""
        self._partial = b""
        self._last_read = now
        self._last_write = now

    # --- reports

    def received(self, data: Buffer, now: float) -> None:
        self._last_read = now
        data = self._partial + bytes(data)
        if self.slave_request_offset < 0 and data[REPORT.size : REPORT.size + 1] == b"{":
            # the header of a command, after two lengths that would be an offset ahead of this log
            self.closed_because = (
                "it sends commands, which belong to listenPort: this is haListenPort, for slaves"
            )
            return
        if (
            self.slave_request_offset < 0
            and self.member is None
            and HELLO_BYTES.startswith(data[: REPORT.size])
        ):
            if len(data) < HELLO_FRAME.size:
                self._partial = data
                return
            _, epoch, replica, node = HELLO_FRAME.unpack_from(data)
            self._hello(epoch, replica, node)
            if self.closed_because:
                return
            data = data[HELLO_FRAME.size :]
        whole = len(data) - len(data) % REPORT.size
        self._partial = data[whole:]
        for (offset,) in REPORT.iter_unpack(data[:whole]):
            if not self._report(offset):
                return
        if whole:
            if self.is_superseded:
                self._hear_again(now)
            self._on_report()

    def _hello(self, epoch: int, replica: int, node: int) -> None:
        if why := self._on_hello(epoch):
            self.closed_because = f"replica {replica}, which follows the master of epoch {epoch}: {why}"
        else:
            self.member = (replica, node)
            self._welcome = HEADER.pack(epoch, WELCOME)

    def supersede(self) -> None:
        """A newer connection came from the same host."""
        self.is_superseded, self._heard_since = True, None

    def _hear_again(self, now: float) -> None:
        """Reports of before may come late, all at once; only a slave that lives goes on."""
        if self._heard_since is None:
            self._heard_since = now
        elif now - self._heard_since >= self._settings.heartbeat_s / 2:
            self.is_superseded = False

    def _report(self, offset: int) -> bool:
        # an empty slave of an empty log begins at 1: 0 would ask Java's master for its last file
        log_end = self._log.max_offset
        if offset < 0 or offset > max(log_end, 1):
            self.closed_because = (
                f"it reports offset {offset}, and this log ends at {log_end}: it is ahead of this master by "
                f"{offset - log_end} bytes"
                if offset > log_end
                else f"it reports offset {offset}: no slave speaks like this"
            )
        elif offset < self.slave_ack_offset:
            self.closed_because = f"it reports offset {offset} after {self.slave_ack_offset}"
        elif self.slave_request_offset < 0:
            self.slave_request_offset = offset
            self.next_transfer_offset = self._began_at = offset or self._first_offset()
        if self.closed_because:
            return False
        self.slave_ack_offset = min(offset, log_end)
        if offset > self.slave_request_offset:
            self.confirmed_offset = self.slave_ack_offset
        return True

    def _first_offset(self) -> int:
        """Returns the offset at which an empty slave begins. RocketMQ sends the last file only."""
        if not self._settings.from_last_file:
            return self._log.min_offset
        log_end = self._log.max_offset
        return max(log_end - log_end % self._log.file_size, self._log.min_offset)

    def is_in_sync(self, max_gap: int) -> bool:
        """True if the slave lacks less than `max_gap` bytes."""
        return self.slave_ack_offset >= 0 and self._log.max_offset - self.slave_ack_offset < max_gap

    @property
    def needed_from(self) -> int:
        """The first offset that the slave has not acknowledged; of one that begins, where it begins."""
        return max(self.slave_ack_offset, self._began_at)

    # --- what to send

    def output(self, now: float) -> list[Buffer]:
        """Frames to send now, or a heartbeat when it is due; empty when there is nothing. Call it again when all of it
        is sent."""
        if self.slave_request_offset < 0 or self.closed_because:
            return []
        frames = self._frames(now)
        if self._welcome:
            frames.insert(0, self._welcome)
            self._welcome = b""
        if not frames and now - self._last_write >= self._settings.heartbeat_s:
            frames = [HEADER.pack(self.next_transfer_offset, 0)]
        if frames:
            self._last_write = now
        return frames

    def _frames(self, now: float) -> list[Buffer]:
        log, total = self._log, 0
        frames: list[Buffer] = []
        room = OUTPUT_MAX
        if (allowance := self.flow.allowance(now)) is not None:
            room = min(room, allowance)
        log_end = log.max_offset
        offset = self.next_transfer_offset
        while offset < log_end and total < room:
            size = min(
                log_end - offset,
                log.file_size - offset % log.file_size,
                self._frame_size(log_end - offset),
                room - total,
            )
            data = log.select(offset, size)
            if data is None:
                self.closed_because = (
                    f"it needs the bytes from offset {offset} on, and this log begins at {log.min_offset}: "
                    "the slave has to start over"
                )
                break
            frames += [HEADER.pack(offset, size), data]
            offset += size
            total += size
        self.next_transfer_offset = offset
        self.flow.add(total, now)
        return frames

    def _frame_size(self, lacking: int) -> int:
        """Bytes of a frame at most, for a slave that lacks so many."""
        size = self._settings.transfer_batch_size
        return BULK_FRAMES * size if lacking >= BULK_FRAMES * size else size

    # --- time

    def tick(self, now: float) -> None:
        """Closes a connection whose slave is silent for haHousekeepingInterval."""
        if now - self._last_read > self._settings.housekeeping_s and not self.closed_because:
            silent = self._settings.housekeeping_s
            self.closed_because = f"no report for more than {silent:g} s (haHousekeepingInterval)"

    def next_time(self, now: float) -> float:
        """When to call tick() and output() again, if nothing happens before."""
        times = [self._last_read + self._settings.housekeeping_s]
        if self.slave_request_offset >= 0:
            times.append(self._last_write + self._settings.heartbeat_s)
            if self.next_transfer_offset < self._log.max_offset:
                times.append(self.flow.next_window(now) if self.flow.limit else now)
        return min(times)
