"""mqlake's MetaQ broker and the original one (1.4.6.2) under one load, and both opening one data directory.

    asyncio clients ──▶ mqlake metaq serve │ the Java broker        in turn, a round each; group commit on
    in this process     each a process of its own, one ZooKeeper for both

    put      1 KB messages, one in flight a producer, spread over the partitions
    get      a topic from its first byte to its last, 1 MiB a request
    open     sparse segments that are only looked at, after them one of real records that is recovered: 10 GiB in all

CPU time is that of the broker's process, all its threads and the kernel's part included; targets are by CPU time,
because the clients need most of a small machine. Of a recovery it is that of a MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

from tests.interop.brokers import Server
from tests.interop.metaq_peer import MetaqPeer, chroot, write_ini

from bench.context import GIB, MIB, Context
from bench.measure import Line, Round, Side, Stopwatch, compare
from bench.pages import round_size
from mqlake.metaq.config import MetaConfig
from mqlake.metaq.formats.names import segment_name
from mqlake.metaq.formats.record import HEADER_SIZE, encode_record
from mqlake.metaq.store.manager import MessageStoreManager
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper, free_port
from mqlake.remoting.loop import run

PUT, DRAIN, OPEN = "put", "drain", "open"
PARTITIONS = 4
BODY = bytes(range(256)) * 4
GET_BYTES = MIB
PUT_RATIO_MIN = 1.0
GET_RATIO_MIN = 1.5
OPEN_RATIO_MIN = 1.5


def cpu_seconds(pid: int) -> float:
    """Of a process, all its threads."""
    # clock_getcpuclockid(3), which Python does not have: ~pid and, in the last bits, the scheduler's clock
    return time.clock_gettime(~pid << 3 | 2)


@dataclasses.dataclass(frozen=True)
class MetaqBroker:
    """One of the two, as a client and the kernel see it."""

    port: int
    pid: int

    def measured(self, work: Callable[[], tuple[int, int]]) -> Round:
        """`work` does it and says how many messages and bytes that was."""
        began, cpu = time.perf_counter(), cpu_seconds(self.pid)
        messages, nbytes = work()
        return Round(messages, time.perf_counter() - began, cpu_seconds(self.pid) - cpu, (messages, nbytes))


# ---------------------------------------------------------------------- load


class _Producer(asyncio.Protocol):
    """Puts `count` messages into a partition, each when the one before is answered."""

    def __init__(self, partition: int, count: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = b"put %b %d %d 0 -1 7\r\n" % (PUT.encode(), partition, len(BODY)) + BODY
        self._left = count
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not data.startswith(b"result 200 "):
            self.done.set_exception(RuntimeError(f"a put was answered {data!r}"))
            return
        self._left -= 1
        if self._left:
            self._transport.write(self._request)
        else:
            self._transport.close()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or RuntimeError("the broker has closed the connection"))


@dataclasses.dataclass(frozen=True)
class Put:
    broker: MetaqBroker
    producers: int
    count: int

    def round(self) -> Round:
        return self.broker.measured(lambda: run(self._put()))

    async def _put(self) -> tuple[int, int]:
        each = max(1, self.count // self.producers)
        loop = asyncio.get_running_loop()

        async def produce(number: int) -> None:
            _, producer = await loop.create_connection(
                lambda: _Producer(number % PARTITIONS, each), "127.0.0.1", self.broker.port
            )
            await producer.done

        await asyncio.gather(*map(produce, range(self.producers)))
        return each * self.producers, each * self.producers * len(BODY)


@dataclasses.dataclass(frozen=True)
class Drain:
    broker: MetaqBroker

    def round(self) -> Round:
        return self.broker.measured(lambda: run(self._drain()))

    async def _drain(self) -> tuple[int, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.broker.port, limit=4 * MIB)
        record = HEADER_SIZE + len(BODY)
        nbytes = 0
        for partition in range(PARTITIONS):
            offset = 0
            while True:
                request = f"get {DRAIN} bench {partition} {offset} {GET_BYTES} 1\r\n"
                writer.write(request.encode())
                head = (await reader.readline()).split()
                if head[0] != b"value":
                    await reader.readexactly(int(head[2]))
                    break
                data = await reader.readexactly(int(head[1]))
                offset += len(data) // record * record
            nbytes += offset
        writer.close()
        return nbytes // record, nbytes


# ---------------------------------------------------------------------- brokers


@dataclasses.dataclass(frozen=True)
class Bench:
    mqlake: MetaqBroker
    java: MetaqBroker
    peer: MetaqPeer
    zk: str


def _bench(context: Context) -> AbstractContextManager[Bench]:
    return context.servers("metaq", lambda: _started(context))


@contextlib.contextmanager
def _started(context: Context) -> Iterator[Bench]:
    topics = {name: {"numPartitions": str(PARTITIONS)} for name in (PUT, DRAIN)}
    with context.scratch("metaq") as root, contextlib.ExitStack() as running:
        context.progress.say("ZooKeeper and two MetaQ brokers start")
        zookeeper = EmbeddedZookeeper(str(root / "zookeeper"))
        zookeeper.start()
        running.callback(zookeeper.stop)
        peer = running.enter_context(MetaqPeer(root / "java", context.scale.jvm))
        brokers = []
        for number, side in enumerate(("mqlake", "java")):
            data, port = root / side / "data", free_port()
            for partition in range(PARTITIONS):
                _write_segment(data / f"{DRAIN}-{partition}", 0, context.scale.metaq_drained // PARTITIONS)
            zk = chroot(zookeeper, side)
            ini = _ini(root / side, number, port, zk, topics)
            if side == "java":
                running.enter_context(peer.broker(ini))
                brokers.append(MetaqBroker(port, peer.pid))
            else:
                command = [sys.executable, "-c", "from mqlake.cli.main import main; main()", "metaq", "serve"]
                command += ["--config", str(ini), "--admin-port", "0"]
                server = Server(command, "listens", root / "mqlake.log", {})
                running.callback(server.end, 15)
                brokers.append(MetaqBroker(port, server.process.pid))
        yield Bench(brokers[0], brokers[1], peer, zookeeper.connect_string)


def _ini(root: Path, broker_id: int, port: int, zk: str, topics: dict[str, dict[str, str]]) -> Path:
    """The journal lies apart: the Java broker does not load all partitions where it is beside them."""
    data, path = root / "data", root / "server.ini"
    write_ini(path, broker_id=broker_id, port=port, data=data, zk=zk, topics=topics)
    (root / "log").mkdir()
    path.write_text(path.read_text().replace(f"dataLogPath={data}", f"dataLogPath={root / 'log'}"))
    return path


def _write_segment(directory: Path, start: int, size: int) -> int:
    """Whole records of about `size` bytes; where they end."""
    directory.mkdir(parents=True, exist_ok=True)
    numbers = itertools.count(1)
    with (directory / segment_name(start)).open("wb") as file:
        while file.tell() < size:
            file.write(b"".join(encode_record(BODY, next(numbers), 0) for _ in range(256)))
        return start + file.tell()


def _line(
    context: Context,
    name: str,
    ours: Side,
    theirs: Side,
    unit: str,
    ratio_min: float,
    *,
    per: Callable[[Round], float] = lambda done: done.amount,
    writes: int = 0,
) -> Line:
    """A line whose target is by CPU time; `per`: what that is divided by. A round `writes` so many bytes."""
    scale = context.scale
    line = compare(
        name,
        ours,
        theirs,
        context.progress,
        unit=unit,
        rounds=scale.rounds,
        warm_up_s=scale.warm_up_s,
        warm_up_rounds=scale.warm_up_rounds,
        per=per,
        touch=lambda: context.touch_pages(writes),
    )
    assert line.cpu_us is not None and line.peer_cpu_us is not None
    cpu_ratio = line.peer_cpu_us / line.cpu_us if line.cpu_us else 0.0
    return dataclasses.replace(
        line, cpu_ratio=cpu_ratio, target=f">= {ratio_min:g} by CPU", met=cpu_ratio >= ratio_min
    )


def put(context: Context) -> Iterator[Line]:
    with _bench(context) as bench:
        for producers in (1, 32):
            count = context.scale.metaq_puts // (1 if producers > 1 else 8)
            ours, theirs = (Put(broker, producers, count) for broker in (bench.mqlake, bench.java))
            name = f"metaq put 1 KB, {producers} producer{'s' if producers > 1 else ''}"
            yield _line(
                context, name, ours, theirs, "msg/s", PUT_RATIO_MIN, writes=round_size(count, len(BODY))
            )


def get(context: Context) -> Iterator[Line]:
    with _bench(context) as bench:
        yield _line(
            context, "metaq get drain, 1 KB", Drain(bench.mqlake), Drain(bench.java), "msg/s", GET_RATIO_MIN
        )


# ---------------------------------------------------------------------- opening


@dataclasses.dataclass(frozen=True)
class MqlakeOpen:
    """Wall time is that of opening, CPU time also that of closing: the Java side's is asked of the kernel."""

    ini: Path
    fast_boot: bool
    amount: int

    def round(self) -> Round:
        config = MetaConfig.load(str(self.ini))
        watch = Stopwatch()
        manager = MessageStoreManager(config, fast_boot=self.fast_boot)
        manager.load()
        manager.start()
        seconds, messages = watch.seconds(), manager.total_messages_count
        manager.close()
        return Round(self.amount, seconds, watch.cpu_seconds(), (messages,))


@dataclasses.dataclass(frozen=True)
class JavaOpen:
    peer: MetaqPeer
    ini: Path
    fast_boot: bool
    amount: int

    def round(self) -> Round:
        cpu = cpu_seconds(self.peer.pid)
        done = self.peer.open(self.ini, fast_boot=self.fast_boot)
        return Round(self.amount, done["seconds"], cpu_seconds(self.peer.pid) - cpu, (done["messages"],))


def opening(context: Context) -> Iterator[Line]:
    scale = context.scale
    with _bench(context) as bench, context.scratch("metaq-open") as root:
        directory = root / "data" / f"{OPEN}-0"
        directory.mkdir(parents=True)
        segment = min(GIB, scale.metaq_size // 2)
        start = 0
        while start + scale.metaq_recovered < scale.metaq_size:
            with (directory / segment_name(start)).open("wb") as file:
                file.truncate(segment)
            start += segment
        end = _write_segment(directory, start, scale.metaq_recovered)
        ini = _ini(root, 2, free_port(), bench.zk, {OPEN: {"numPartitions": "1"}})
        for fast_boot in (False, True):
            name = f"metaq open {end / GIB:.3g} GiB, {'fast boot' if fast_boot else 'recovered'}"
            unit, amount = ("opens/s", 1) if fast_boot else ("B/s", end - start)
            ours = MqlakeOpen(ini, fast_boot, amount)
            theirs = JavaOpen(bench.peer, ini, fast_boot, amount)
            yield _line(
                context,
                name,
                ours,
                theirs,
                unit,
                OPEN_RATIO_MIN,
                per=lambda done: max(1.0, done.amount / MIB),
            )
