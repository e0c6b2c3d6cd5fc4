"""The two ends of classic HA as RocketMQ 5.3.3 behaves, for peers of mqlake's in the simulation.

JavaConnection   counts every report it gets, the first one too; answers what it does not have with heartbeats
JavaClient       compares an offset with its own end and nothing else, never truncates, and reports its page cache

Facts: DefaultHAService, DefaultHAConnection and DefaultHAClient of RocketMQ 5.3.3.
"""

from __future__ import annotations

from collections.abc import Callable

from mqlake.store.ha.ha_client import Trouble
from mqlake.store.ha.protocol import HEADER, REPORT, Buffer
from tests.simulation.roles import HEARTBEAT_S, HOUSEKEEPING_S, Master, ModelLog, Slave


class JavaConnection:
    """In the place of HAConnection. `on_beyond(report, end)` hears of reports that acknowledge what is not there."""

    is_superseded = False
    closed_because = ""

    def __init__(
        self,
        log: ModelLog,
        now: float,
        batch: int,
        peer: str,
        on_report: Callable[[], object],
        on_beyond: Callable[[int, int], None],
    ) -> None:
        self.host = peer.rpartition(":")[0]
        self.slave_ack_offset = self._next = -1
        self._log, self._batch = log, batch
        self._on_report, self._on_beyond = on_report, on_beyond
        self._last_read = self._last_write = now
        self._partial = b""

    @property
    def confirmed_offset(self) -> int:
        return self.slave_ack_offset

    def supersede(self) -> None:
        """The second connection of a slave counts again."""

    def received(self, data: bytes, now: float) -> None:
        self._last_read = now
        data = self._partial + data
        whole = len(data) - len(data) % REPORT.size
        self._partial = data[whole:]
        if not whole:
            return
        (report,) = REPORT.unpack_from(data, whole - REPORT.size)
        if report > max(self._log.max_offset, 1):  # no record ends at 1
            self._on_beyond(report, self._log.max_offset)
        if self._next < 0:
            end = self._log.max_offset
            self._next = report or end - end % self._log.file_size
        self.slave_ack_offset = report
        self._on_report()

    def output(self, now: float) -> list[Buffer]:
        if self._next < 0:
            return []
        size = min(
            self._log.max_offset - self._next,
            self._log.file_size - self._next % self._log.file_size,
            self._batch,
        )
        data = self._log.select(self._next, size) if size > 0 else None
        if data is None:
            if now - self._last_write < HEARTBEAT_S:
                return []
            self._last_write = now
            return [HEADER.pack(self._next, 0)]
        self._last_write = now
        self._next += size
        return [HEADER.pack(self._next - size, size), data]

    def tick(self, now: float) -> None:
        if now - self._last_read > HOUSEKEEPING_S:
            self.closed_because = "housekeeping"


class JavaMaster(Master):
    on_beyond: Callable[[int, int], None] = staticmethod(lambda report, end: None)

    def make_connection(self, peer: str) -> JavaConnection:  # type: ignore[override]
        return JavaConnection(
            self.log,
            self.world.now,
            self.world.dice.choice((64, 1000, 32768)),
            peer,
            self.group.acknowledged,
            lambda report, end: self.on_beyond(report, end),
        )


class JavaClient:
    """In the place of HAClient."""

    trouble = Trouble.NONE
    trouble_text = ""
    diverged_at: int | None = None

    def __init__(self, log: ModelLog) -> None:
        self.closed_because = ""
        self._log = log
        self._output = b""
        self._input = bytearray()
        self._reported = -1
        self._last_read = self._last_write = 0.0

    def connected(self, now: float) -> None:
        self.closed_because = ""
        self._input.clear()
        self._last_read = now
        self._report(now)

    def lost(self, reason: str = "") -> None:
        self._output = b""

    def _report(self, now: float) -> None:
        self._reported, self._last_write = self._log.max_offset, now
        self._output += REPORT.pack(self._reported)

    def take_output(self) -> bytes:
        output, self._output = self._output, b""
        return output

    def room(self) -> None:
        """It copies all that it receives."""

    def received(self, data: bytes, now: float, *, in_room: int = 0) -> None:
        self._last_read = now
        self._input += data
        while len(self._input) >= HEADER.size and not self.closed_because:
            offset, size = HEADER.unpack_from(self._input)
            own = self._log.max_offset
            if own not in (0, offset):
                self.closed_because = f"own end {own}, the master sends from {offset}"
                return
            if len(self._input) < HEADER.size + size:
                return
            body = bytes(self._input[HEADER.size : HEADER.size + size])
            del self._input[: HEADER.size + size]
            if not (self._log.disk_is_full and own % self._log.file_size == 0):
                self._log.append_as_it_comes(body)
            elif not own:  # it would put what comes next in the wrong place, which no master can know
                self.closed_because = "an empty slave with a full disk"
            # else refused, and nobody looks at that
            if self._log.max_offset > self._reported:
                self._report(now)

    def tick(self, now: float) -> None:
        if now - self._last_read > HOUSEKEEPING_S:
            self.closed_because = "housekeeping"
        elif now - self._last_write >= HEARTBEAT_S:
            self._report(now)

    def next_time(self) -> float:
        return min(self._last_write + HEARTBEAT_S, self._last_read + HOUSEKEEPING_S)


class JavaSlave(Slave):
    def make_client(self) -> JavaClient:  # type: ignore[override]
        self.log.cut(self.log.ends[-1])  # its recovery: up to the last whole record
        return JavaClient(self.log)
