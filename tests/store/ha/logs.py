"""Logs of a master and a slave in memory, and two ends that speak to each other without a network."""

from __future__ import annotations

import itertools
import random

import numpy as np

from mqlake.formats.columns import ScanStop, scan_records
from mqlake.store.ha.ha_client import ClientSettings, HAClient
from mqlake.store.ha.ha_connection import ConnectionSettings, HAConnection
from mqlake.store.ha.protocol import ReplicationError
from tests.store.log_of import LogOf, Record


def records(count: int, *, base: int = 0, mark: str = "", size: int = 40) -> bytes:
    """`count` records that lie at `base`; `mark` makes them other ones of the same size."""
    body = mark.encode().ljust(size, b".")
    log = LogOf([Record(queue_offset=number, body=body) for number in range(count)], base)
    return log.array.tobytes()


class MemoryLog:
    """Both a SourceLog and a ReplicaLog, over bytes from `min_offset` on."""

    def __init__(self, data: bytes = b"", *, min_offset: int = 0, file_size: int = 1 << 20) -> None:
        self.file_size = file_size
        self.min_offset = min_offset
        self.data = bytearray(data)
        self.synced = 0
        self.full = False
        self.appends: list[tuple[int, int]] = []

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.data)

    @property
    def acknowledged_offset(self) -> int:
        return self.max_offset

    @property
    def is_empty(self) -> bool:
        return not self.data

    def select(self, offset: int, size: int) -> memoryview | None:
        at = offset - self.min_offset
        if at < 0 or at + size > len(self.data):
            return None
        return memoryview(bytes(self.data[at : at + size]))

    def append(self, offset: int, data: memoryview) -> tuple[int, int]:
        if self.full:
            raise OSError(28, "No space left on device")
        if self.is_empty:
            self.min_offset = offset
        assert offset == self.max_offset
        array = np.frombuffer(bytes(data), np.uint8)
        end, stop = 0, ScanStop.MAX_RECORDS
        while stop == ScanStop.MAX_RECORDS:
            scan = scan_records(array, end, len(array), offset)
            end, stop = scan.end, scan.stop
        if stop == ScanStop.INVALID and not end:
            raise ReplicationError(scan.stop_reason)
        self.data += data[:end]
        self.appends.append((offset, end))
        size = bytes(data[end : end + 4])
        return end, int.from_bytes(size, "big") if len(size) == 4 else 0

    def sync(self) -> None:
        self.synced += 1


def give(client: HAClient, data: bytes, now: float) -> None:
    """As HAClientService: into the client's room first, if it has any."""
    room = client.room()
    size = 0 if room is None else min(len(room), len(data))
    if room is not None:
        room[:size] = data[:size]
    client.received(data[size:], now, in_room=size)


class Pair:
    """A master and a slave; each exchange carries what there is, in pieces of random sizes."""

    def __init__(
        self,
        master: MemoryLog,
        slave: MemoryLog,
        *,
        seed: int = 0,
        settings: ConnectionSettings | None = None,
        first_offset: int | None = 0,
        verify_bytes: int = 64 * 1024,
    ) -> None:
        self.master, self.slave = master, slave
        self.now = 100.0
        self._settings = settings or ConnectionSettings()
        self._random = random.Random(seed)
        self.client = HAClient(
            slave,
            ClientSettings(verify_bytes=verify_bytes, in_place_min=self._random.choice((1, 500, 64 * 1024))),
            first_offset=lambda: first_offset,
        )
        self.connection: HAConnection
        self.connect()

    def connect(self) -> None:
        self.connection = HAConnection(self.master, self._settings, self.now, peer="10.0.0.1:5000")
        self.client.connected(self.now)

    @property
    def closed_because(self) -> str:
        return self.connection.closed_because or self.client.closed_because

    def exchange(self) -> int:
        """Both directions once; bytes that travelled."""
        up = self.client.take_output()
        for piece in self._pieces(up):
            self.connection.received(piece, self.now)
        down = b"".join(bytes(part) for part in self.connection.output(self.now))
        for piece in self._pieces(down):
            if not self.client.closed_because:
                give(self.client, piece, self.now)
        self.connection.tick(self.now)
        self.client.tick(self.now)
        return len(up) + len(down)

    def run(self, rounds: int = 1000) -> None:
        """Until both are silent, or one has closed."""
        for _ in range(rounds):
            if not self.exchange() or self.closed_because:
                return

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.run()

    def _pieces(self, data: bytes) -> list[bytes]:
        cuts = sorted(self._random.randrange(len(data) + 1) for _ in range(3))
        return [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)]) if b > a]
