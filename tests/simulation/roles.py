"""A master and its slaves: mqlake's own HAConnection, HAClient and GroupTransferService, on logs that are plain bytes.

ModelLog    0 ──────── synced ──────── max      a host's crash takes whole records from the end, never below synced
            record = i32 size │ i64 number │ filler      a file ends with a blank record
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from mqlake.store.ha.group_transfer import GroupTransferService
from mqlake.store.ha.ha_client import RETRY_S, ClientSettings, HAClient, Trouble
from mqlake.store.ha.ha_connection import ConnectionSettings, HAConnection
from mqlake.store.ha.protocol import ReplicationError
from mqlake.store.results import (
    AppendMessageResult,
    AppendMessageStatus,
    PutMessageFuture,
    PutMessageResult,
    PutMessageStatus,
)
from tests.simulation.world import End, Host, Link, World
from tests.store.ha.logs import give

FILE_SIZE = 2048
HEAD = struct.Struct(">iq")
BLANK = -1
HEARTBEAT_S, HOUSEKEEPING_S, SLAVE_TIMEOUT_S = 0.5, 2.0, 1.5


class ModelLog:
    """SourceLog and ReplicaLog."""

    file_size = FILE_SIZE

    def __init__(self, *, sync_flush: bool = True) -> None:
        self.data = bytearray()
        self.ends = [0]
        self.min_offset = 0
        self.synced = 0
        self.sync_flush = sync_flush
        self.disk_is_full = False
        self.on_append: Callable[[int], None] = lambda offset: None

    @property
    def max_offset(self) -> int:
        return len(self.data)

    @property
    def acknowledged_offset(self) -> int:
        return self.synced if self.sync_flush else self.max_offset

    @property
    def is_empty(self) -> bool:
        return not self.data

    def select(self, offset: int, size: int) -> memoryview | None:
        if offset < self.min_offset or offset + size > len(self.data):
            return None
        return memoryview(bytes(self.data[offset : offset + size]))

    def end_of_next(self, size: int) -> int:
        """Where a record of this size will end."""
        room = FILE_SIZE - len(self.data) % FILE_SIZE
        return len(self.data) + size + (room if size > room - 12 else 0)

    def put(self, number: int, size: int) -> int:
        """Writes a record; its end."""
        room = FILE_SIZE - len(self.data) % FILE_SIZE
        if size > room - 12:
            self._add(HEAD.pack(room, BLANK).ljust(room, b"\0")[:room])
        filler = number.to_bytes(4, "big") * (size // 4 + 1)
        self._add((HEAD.pack(size, number) + filler)[:size])
        return len(self.data)

    def _add(self, record: bytes) -> None:
        self.data += record
        self.ends.append(len(self.data))

    def append(self, offset: int, data: memoryview) -> tuple[int, int]:
        if self.disk_is_full and offset % FILE_SIZE == 0:
            raise OSError(28, "No space left on device")
        taken = 0
        assert offset == self.max_offset
        self.on_append(offset)
        while len(data) - taken >= 4:
            size = int.from_bytes(data[taken : taken + 4], "big", signed=True)
            if size < HEAD.size or size > FILE_SIZE - (offset + taken) % FILE_SIZE:
                raise ReplicationError(f"no record at {offset + taken}")
            if size > len(data) - taken:
                return taken, size
            self._add(bytes(data[taken : taken + size]))
            taken += size
        return taken, 0

    def append_as_it_comes(self, body: bytes) -> None:
        """As RocketMQ's slave: whatever it is, also parts of records."""
        self.data += body
        while len(self.data) - self.ends[-1] >= HEAD.size:
            size = int.from_bytes(self.data[self.ends[-1] : self.ends[-1] + 4], "big", signed=True)
            if size < HEAD.size or self.ends[-1] + size > len(self.data):
                break
            self.ends.append(self.ends[-1] + size)

    def sync(self) -> None:
        if self.sync_flush:
            self.synced = self.max_offset

    def crash(self, keep: int) -> None:
        """The machine went down: the log ends with its first `keep` records, or at what was synced."""
        while len(self.ends) > keep + 1 and self.ends[-1] > self.synced:
            self.ends.pop()
        del self.data[self.ends[-1] :]
        self.synced = self.max_offset

    def cut(self, offset: int) -> None:
        while self.ends[-1] > offset:
            self.ends.pop()
        del self.data[self.ends[-1] :]
        self.synced = min(self.synced, self.max_offset)


class Master(Host):
    """`on_answer(end of the record, status)`"""

    def __init__(
        self, world: World, need_ack: int, on_answer: Callable[[int, PutMessageStatus], None]
    ) -> None:
        super().__init__(world, "master")
        self.log = ModelLog()
        self.need_ack = need_ack
        self.numbers = 0
        self.flush_s = world.dice.choice((0.01, 0.01, 0.4))
        self._on_answer = on_answer
        self._connections: list[tuple[End, HAConnection]] = []
        self.begin()

    def begin(self) -> None:
        """The process starts."""
        self.runs = True
        self._connections = []
        self._unflushed: list[PutMessageFuture] = []
        self.group = GroupTransferService(self._acks, lambda: SLAVE_TIMEOUT_S, clock=lambda: self.world.now)
        self._tick()

    def _acks(self) -> list[int]:
        return [
            connection.confirmed_offset
            for _, connection in self._connections
            if connection.slave_ack_offset >= 0 and not connection.is_superseded
        ]

    # --- puts

    def put(self, size: int) -> None:
        self.numbers += 1
        end = self.log.put(self.numbers, size)
        self.world.note(f"put {self.numbers} up to {end}")
        appended = AppendMessageResult(AppendMessageStatus.PUT_OK, end)
        future = PutMessageFuture(
            PutMessageResult(PutMessageStatus.PUT_OK, appended), end, self.world.now + 60
        )
        future.add_done_callback(lambda: self._on_answer(end, future.result().status))
        if not self._unflushed:
            self.world.after(self.world.dice.uniform(0, self.flush_s), self._flush, self)
        self._unflushed.append(future)
        self._pump_all()

    def _flush(self) -> None:
        self.log.synced = self.log.max_offset
        futures, self._unflushed = self._unflushed, []
        self.group.put_requests(futures, self.need_ack)

    # --- slaves

    def make_connection(self, peer: str) -> HAConnection:
        return HAConnection(
            self.log,
            ConnectionSettings(
                transfer_batch_size=self.world.dice.choice((64, 1000, 32768)),
                heartbeat_s=HEARTBEAT_S,
                housekeeping_s=HOUSEKEEPING_S,
            ),
            self.world.now,
            peer=peer,
            on_report=self.group.acknowledged,
        )

    def accept(self, end: End) -> None:
        connection = self.make_connection(f"{end.other.host.name}:1")
        for _, other in self._connections:
            if other.host == connection.host:
                other.supersede()
        self._connections.append((end, connection))
        end.on_data = lambda data: self._received(end, connection, data)
        end.on_end = lambda: self._lost(end)
        end.on_room = lambda: self._pump(end, connection)
        end.ready()

    def _received(self, end: End, connection: HAConnection, data: bytes) -> None:
        connection.received(data, self.world.now)
        self._pump(end, connection)

    def _pump_all(self) -> None:
        for end, connection in list(self._connections):
            self._pump(end, connection)

    def _pump(self, end: End, connection: HAConnection) -> None:
        while end.has_room and not connection.closed_because:
            frames = connection.output(self.world.now)
            if not frames:
                break
            end.send(b"".join(bytes(frame) for frame in frames))
        if connection.closed_because:
            self.world.note(f"master closes {end.other.host.name}: {connection.closed_because}")
            self._lost(end)
            end.close()

    def _lost(self, end: End) -> None:
        self._connections = [each for each in self._connections if each[0] is not end]

    def _tick(self) -> None:
        self.group.tick(self.world.now)
        for end, connection in list(self._connections):
            connection.tick(self.world.now)
            self._pump(end, connection)
        self.world.after(0.1, self._tick, self)


class Slave(Host):
    """Connects to `master` over `link`, again and again."""

    verify_bytes = 300  # small, so that most logs are longer
    asks_its_master = False
    """Whether it knows where its master's log ends before it connects, as a broker does that has reached it."""

    def __init__(self, world: World, name: str, master: Master, link: Link) -> None:
        super().__init__(world, name)
        self.log = ModelLog()
        self.master = master
        self.link = link
        self.retry_s = world.dice.choice((0.3, RETRY_S))
        self._end: End | None = None
        self.begin()

    def begin(self) -> None:
        self.runs = True
        self._end = None
        self.client = self.make_client()
        self._connect()

    def make_client(self) -> HAClient:
        return HAClient(
            self.log,
            ClientSettings(
                in_place_min=self.world.dice.choice((1, 64 * 1024)),
                heartbeat_s=HEARTBEAT_S,
                housekeeping_s=HOUSEKEEPING_S,
                verify_bytes=self.verify_bytes,
            ),
            master_begin=lambda: self.master.log.min_offset if self.asks_its_master else None,
            master_end=lambda: self.master.log.max_offset if self.asks_its_master else None,
        )

    def _connect(self) -> None:
        self.link.connect(self, self.master, self._connected)

    def _again(self) -> None:
        self.world.after(self.retry_s, self._connect, self)

    def _connected(self, end: End | None) -> None:
        if end is None:
            self.client.lost("cannot connect")
            self._again()
            return
        self.streams.append(end)
        self._end = end
        end.on_data = lambda data: self._received(end, data)
        end.on_end = lambda: self._lost(end)
        self.client.connected(self.world.now)
        self.world.note(f"{self.name} connected, has {self.log.max_offset}")
        self._send(end)
        end.ready()
        self._tick(end)

    def _received(self, end: End, data: bytes) -> None:
        if end is self._end:
            give(self.client, data, self.world.now)
            self._send(end)

    def _send(self, end: End) -> None:
        if output := self.client.take_output():
            end.send(output)
        if self.client.closed_because:
            self.world.note(f"{self.name} closes: {self.client.closed_because}")
            end.close()
            self._lost(end)

    def _lost(self, end: End) -> None:
        if end is self._end:
            self._end = None
            self.client.lost("" if self.client.closed_because else "the connection broke")
            self._again()

    def _tick(self, end: End) -> None:
        if end is self._end:
            self.client.tick(self.world.now)
            self._send(end)
            self.world.after(
                max(0.01, min(self.client.next_time() - self.world.now, 1.0)), lambda: self._tick(end), self
            )

    @property
    def is_elsewhere(self) -> bool:
        """Shown to its operator: its log is not its master's."""
        return self.client.trouble in (Trouble.AHEAD, Trouble.DIVERGED)
