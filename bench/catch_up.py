"""A slave that comes back to a master that has got much: mqlake's, RocketMQ's, and a plain socket copy, in turn.

    slave in step ─▶ its store is kept ─▶ the master gets `catch_up` bytes while it is away
    each round:      the slave comes back with what was kept │ a socket copy of the master's files    ─▶ deleted

What a round writes is new page cache. A virtual machine may have given free pages back to its host: the first use of
such a page takes ten times as long, so whoever runs after another one has deleted its files would be faster. So for
each side this process holds as much memory as the round needs, touched just before, and gives it back piece by piece,
a little ahead of the bytes that arrive.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.waiting import PATIENCE_S

from bench.context import Context
from bench.measure import Line
from bench.pages import touched_pages
from bench.replication import MESSAGE, Pair, started
from bench.sockets import BATCH
from mqlake.remoting.bodies.admin import HARuntimeInfo
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.loop import run

CATCH_UP_RATIO_MIN = 3.0
COPY_RATIO_MIN = 0.5
WATCH_S = 0.02
"""Looking takes both the master's and this process's time, of which a slave that catches up can use all."""
COPY_BYTES = 1 << 20
PIECE = 32 << 20
AHEAD = 256 << 20
"""Memory that is free before the bytes for it come; what is free for 2 s may be the host's again."""
BESIDE = 1.25
"""Memory for a byte of log, with queues, index and buffers."""
IDLE_S = 0.25
IDLE_SHARE = 0.1
"""A slave that takes less of a processor has nothing left to dispatch."""
IDLE_AFTER_S = 10.0


class Held:
    """Touched pages of files in `directory`, as bench.pages touches them, given back as `came` bytes need them."""

    def __init__(self, directory: Path, size: int) -> None:
        count = int(size * BESIDE + min(size, AHEAD)) // PIECE
        self._pieces = [touched_pages(directory, PIECE) for _ in range(count)]
        self._given = 0

    def give_back(self, came: int) -> None:
        while self._pieces and self._given < came * BESIDE + AHEAD:
            self._pieces.pop().close()
            self._given += PIECE

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        for piece in self._pieces:
            piece.close()


def catch_up(context: Context) -> Iterator[Line]:
    """Masters that wait for nobody, of their own: what other loads left in the log would be sent too."""
    size, rounds = context.scale.catch_up, context.scale.catch_up_rounds
    with started(context, "ASYNC_MASTER") as pairs:
        away = {side: Away(context, pair, size) for side, pair in pairs.items()}
        done: dict[str, list[tuple[float, float]]] = {side: [] for side in (*away, "copy")}
        for number in range(rounds):
            for side in list(done)[:: -1 if number % 2 else 1]:
                context.progress.say(f"catch-up: {side}, round {number + 1} of {rounds}")
                done[side].append(
                    away[side].come_back()
                    if side in away
                    else _socket_copy(context, pairs["mqlake"].store / "commitlog", *away["mqlake"].range)
                )
    yield _line(size, done)


def _line(size: int, done: dict[str, list[tuple[float, float]]]) -> Line:
    """`done`: bytes a second and µs of processor time for MESSAGE bytes, by side and round."""
    (ours, our_us), (java, java_us), (copy, copy_us) = (
        [statistics.median(each) for each in zip(*done[side], strict=True)]
        for side in ("mqlake", "java", "copy")
    )
    rates = {side: [rate for rate, _ in rounds] for side, rounds in done.items()}
    ratio = statistics.median(a / b for a, b in zip(rates["mqlake"], rates["java"], strict=True))
    of_copy = statistics.median(a / b for a, b in zip(rates["mqlake"], rates["copy"], strict=True))
    return Line(
        f"catch-up of {size >> 20} MiB",
        ours,
        "B/s",
        java,
        ratio=ratio,
        ratio_best=max(rates["mqlake"]) / max(rates["java"]),
        cpu_us=our_us,
        peer_cpu_us=java_us,
        cpu_ratio=java_us / our_us,
        limit=copy,
        limit_ratio=of_copy,
        limit_cpu_us=copy_us,
        setting=f"CPU of the slave for {MESSAGE} bytes, queues and index included",
        target=f">= {CATCH_UP_RATIO_MIN:g} of Java, >= {COPY_RATIO_MIN:g} of a socket copy",
        met=ratio >= CATCH_UP_RATIO_MIN and of_copy >= COPY_RATIO_MIN,
        rounds=tuple(zip(rates["mqlake"], rates["java"], strict=True)),
    )


class Away:
    """A slave that is away while its master gets `size` bytes, and comes back again and again as it was before."""

    def __init__(self, context: Context, pair: Pair, size: int) -> None:
        self._context, self._pair, self._size = context, pair, size
        pair.slave.stop()
        self._kept = pair.slave.store.with_name("kept")
        _copy(pair.slave.store, self._kept)
        self._start = self._end = pair.end()
        while (left := self._start + size - self._end) > 0:
            context.progress.say(f"{pair.name}: {left >> 20} MiB more while the slave is away")
            pair.send(
                max(min(left // MESSAGE, 100_000) // BATCH * BATCH, 4 * BATCH), batch=BATCH, in_flight=8
            )
            self._end = pair.end()

    @property
    def range(self) -> tuple[int, int]:
        return self._start, self._end

    def come_back(self) -> tuple[float, float]:
        """Bytes a second between the slave's first report and its last, and µs of its processor time for MESSAGE
        bytes, until it has dispatched them."""
        slave, address = self._pair.slave, self._pair.master.address
        shutil.rmtree(slave.store)
        _copy(self._kept, slave.store)
        os.sync()  # a round's disk writes are its own
        with Held(self._context.directory, self._end - self._start) as held:
            slave.start()
            first, last = run(_watch_slave(address, slave.cpu_seconds, self._start, self._end, held))
        size = last.offset - first.offset
        cpu_seconds = _when_idle(slave.cpu_seconds) - first.cpu_seconds
        slave.stop()
        shutil.rmtree(slave.store)
        slave.store.mkdir()
        return size / (last.time - first.time), cpu_seconds / size * MESSAGE * 1e6


def _copy(store: Path, target: Path) -> None:
    """A copy of what the files have, not of what they could have."""
    subprocess.run(["cp", "-a", "--sparse=always", str(store), str(target)], check=True)


class Sample(NamedTuple):
    time: float
    offset: int
    cpu_seconds: float


async def _watch_slave(
    master: str, cpu_seconds: Callable[[], float], start: int, end: int, held: Held
) -> tuple[Sample, Sample]:
    """When the master has the slave's first report, and when the slave has all."""
    request = RemotingCommand.create_request(RequestCode.GET_BROKER_HA_STATUS)
    first: Sample | None = None
    async with RemotingClient() as client:
        while True:
            answer = await client.call(master, request, PATIENCE_S)
            slaves = HARuntimeInfo.from_json(answer.body_bytes()).ha_connection_info
            offset = max((each.slave_ack_offset for each in slaves), default=0)
            if offset > 0:
                now = Sample(time.perf_counter(), max(offset, start), cpu_seconds())
                first = first or now
                held.give_back(now.offset - start)
                if offset >= end:
                    return first, now
            await asyncio.sleep(WATCH_S)


def _when_idle(cpu_seconds: Callable[[], float]) -> float:
    """The processor seconds of a process that has nothing left to do."""
    until = time.monotonic() + IDLE_AFTER_S
    before = cpu_seconds()
    while True:
        time.sleep(IDLE_S)
        now = cpu_seconds()
        if now - before < IDLE_S * IDLE_SHARE or time.monotonic() > until:
            return before
        before = now


def _socket_copy(context: Context, directory: Path, start: int, end: int) -> tuple[float, float]:
    """Bytes a second of the files through a socket onto the disk, as two plain programs do it, and the µs of processor
    time for MESSAGE bytes that the one takes that writes them."""
    target = context.directory / "socket-copy"
    came, cpu_seconds = [0], [0.0]
    os.sync()
    with Held(context.directory, end - start) as held, socket.create_server(("127.0.0.1", 0)) as server:
        pid = os.fork()
        if pid == 0:
            _send_files(directory, start, end, server.getsockname())
            os._exit(0)
        connection, _ = server.accept()

        def receive() -> None:
            buffer = bytearray(COPY_BYTES)
            with connection, target.open("wb", buffering=0) as file:
                while got := connection.recv_into(buffer):
                    file.write(memoryview(buffer)[:got])
                    came[0] += got
            cpu_seconds[0] = time.thread_time()

        receiving = threading.Thread(target=receive)
        began = time.perf_counter()
        receiving.start()
        while receiving.is_alive():
            held.give_back(came[0])
            receiving.join(WATCH_S)
        seconds = time.perf_counter() - began
    os.waitpid(pid, 0)
    target.unlink()
    return came[0] / seconds, cpu_seconds[0] / came[0] * MESSAGE * 1e6


def _send_files(directory: Path, start: int, end: int, address: tuple[str, int]) -> None:
    """The bytes of a commit log from `start` to `end`."""
    with socket.create_connection(address) as out:
        for path in sorted(path for path in directory.iterdir() if path.name.isdigit()):
            with path.open("rb") as file:
                at, last = max(start - int(path.name), 0), min(end - int(path.name), path.stat().st_size)
                while at < last:
                    at += os.sendfile(out.fileno(), file.fileno(), at, min(last - at, COPY_BYTES))
