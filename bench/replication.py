"""A master and its slave, mqlake's and RocketMQ's: SYNC_MASTER, replication and its lag, catching up from far behind.

    one JVM of clients ──▶ master ──▶ slave        mqlake with mqlake, Java with Java, in turn

Each broker is a process of its own. A slave's CPU time is its process's: it receives, stores, queues and indexes. The
limit of catching up is a socket copy of the master's files to the disk by two plain processes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker
from tests.interop.java_client import JavaClients
from tests.interop.java_peer import Json
from tests.interop.replicas import JavaSlave, MqlakeSlave, caught_up, ha_status

from bench.broker import BATCH, IN_FLIGHT, QUEUES, TOPIC, Load, _send
from bench.context import Context
from bench.measure import Line, Round

SYNC_RATIO_MIN = 1.5
CATCH_UP_RATIO_MIN = 3.0
COPY_RATIO_MIN = 0.5
SLAVE_CPU_US_MAX = 0.5
LOOK_S = 0.005
LAG_MIN_MS = 0.001
"""Less is not told apart."""
MESSAGE = 1200
"""Bytes of the log for a message of 1 KB, about."""
COPIES = 3
SLICE_S = 0.2
SLICES = 15


class Pair:
    """A master and a slave that is in step with it, and a client of the JVM's."""

    def __init__(
        self, name: str, master: Broker, slave: MqlakeSlave | JavaSlave, clients: JavaClients, store: Path
    ) -> None:
        self.name, self.master, self.slave, self.store = name, master, slave, store
        clients.topic(master, TOPIC, QUEUES)
        self.load = Load(clients, master, name)
        caught_up(master.address)

    def round(self, request: Json) -> tuple[Round, float]:
        """A round of the load, with the slave in step after it; processor seconds of the slave."""
        before = self.slave.cpu_seconds()
        done = self.load.round(request)
        caught_up(self.master.address)
        return done, self.slave.cpu_seconds() - before

    def wait_for_nobody(self) -> None:
        """The master, started again as ASYNC_MASTER."""
        self.master.stop()
        if isinstance(self.master, JavaBroker):
            conf = self.master.directory / "broker.conf"
            conf.write_text(conf.read_text().replace("SYNC_MASTER", "ASYNC_MASTER"))
        else:
            assert isinstance(self.master, MqlakeBroker)
            self.master.config["brokerRole"] = "ASYNC_MASTER"
        self.master.start()

    def lag(self) -> int:
        return max((each.diff for each in ha_status(self.master.address).ha_connection_info), default=0)


@contextlib.contextmanager
def _started(context: Context) -> Iterator[dict[str, Pair]]:
    scale = context.scale
    config = {
        "mappedFileSizeCommitLog": scale.broker_log_file,
        "brokerFastFailureEnable": "false",
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": 2,
        "slaveTimeout": 60_000,
    }
    of_slave = {key: config[key] for key in ("mappedFileSizeCommitLog", "brokerFastFailureEnable")}
    with context.scratch("replication") as root, contextlib.ExitStack() as running:
        context.progress.say("two masters, two slaves and the JVM of clients start")
        ours = MqlakeBroker(root / "mqlake", {**config, "haListenPort": 0}, small=False)
        theirs = JavaBroker(root / "java", config, small=False, jvm=scale.jvm)
        for broker in (ours, theirs):
            running.enter_context(broker)
        our_slave = MqlakeSlave(root / "mqlake-slave", ours.namesrv, "broker-0", of_slave)
        their_slave = JavaSlave(root / "java-slave", theirs.namesrv, "java-broker", of_slave)
        for slave in (our_slave, their_slave):
            running.enter_context(slave)
        clients = running.enter_context(JavaClients(root / "clients", jvm=scale.jvm))
        yield {
            "mqlake": Pair("mqlake", ours, our_slave, clients, root / "mqlake/store/broker-0"),
            "java": Pair("java", theirs, their_slave, clients, root / "java/store"),
        }


def _pairs(context: Context) -> AbstractContextManager[dict[str, Pair]]:
    return context.servers("replication", lambda: _started(context))


def sync_master(context: Context) -> Iterator[Line]:
    with _pairs(context) as pairs:
        yield from _sync_master(context, pairs)


def keeping_up(context: Context) -> Iterator[Line]:
    with _pairs(context) as pairs:
        yield _keeping_up(context, pairs)
        yield _lag(context, pairs)


def catch_up(context: Context) -> Iterator[Line]:
    """After the others, where they share servers: it makes masters of them that wait for nobody."""
    with _pairs(context) as pairs:
        yield _catch_up(context, pairs)


def _rounds(
    context: Context, pairs: dict[str, Pair], name: str, request: Json
) -> dict[str, list[tuple[Round, float]]]:
    done: dict[str, list[tuple[Round, float]]] = {side: [] for side in pairs}
    for pair in pairs.values():
        for _ in range(min(2, context.scale.warm_up_rounds)):
            pair.round(request)
    for number in range(context.scale.rounds):
        context.progress.say(f"{name}: round {number + 1} of {context.scale.rounds}")
        for side in list(pairs)[:: -1 if number % 2 else 1]:
            done[side].append(pairs[side].round(request))
    return done


def _sync_master(context: Context, pairs: dict[str, Pair]) -> Iterator[Line]:
    for threads in (1, 64):
        name = f"SYNC_MASTER send 1 KB, {threads} thread{'s' if threads > 1 else ''}"
        count = context.scale.sends if threads > 1 else context.scale.sends // 8
        done = _rounds(context, pairs, name, _send("sync", 1024, count, threads=threads))
        ours, theirs = ([each for each, _ in done[side]] for side in ("mqlake", "java"))
        ratio = statistics.median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
        yield Line(
            name,
            statistics.median(each.rate for each in ours),
            "msg/s",
            statistics.median(each.rate for each in theirs),
            ratio=ratio,
            ratio_best=max(each.rate for each in ours) / max(each.rate for each in theirs),
            cpu_us=_median_us(ours),
            peer_cpu_us=_median_us(theirs),
            cpu_ratio=_median_us(theirs) / _median_us(ours),
            latency_us=_quantiles(ours),
            peer_latency_us=_quantiles(theirs),
            target=f">= {SYNC_RATIO_MIN:g}" if threads > 1 else "",
            met=ratio >= SYNC_RATIO_MIN if threads > 1 else None,
            rounds=tuple((a.rate, b.rate) for a, b in zip(ours, theirs, strict=True)),
        )


def _keeping_up(context: Context, pairs: dict[str, Pair]) -> Line:
    """Messages until the slave has them, and what they cost its process."""
    name = f"replication of async sends, {IN_FLIGHT} in flight"
    done = _rounds(context, pairs, name, _send("async", 1024, context.scale.sends, inFlight=IN_FLIGHT))
    cpu = {
        side: statistics.median(seconds / each.amount * 1e6 for each, seconds in rounds)
        for side, rounds in done.items()
    }
    rates = {side: statistics.median(each.rate for each, _ in rounds) for side, rounds in done.items()}
    return Line(
        name,
        rates["mqlake"],
        "msg/s",
        rates["java"],
        ratio=rates["mqlake"] / rates["java"],
        cpu_us=cpu["mqlake"],
        peer_cpu_us=cpu["java"],
        cpu_ratio=cpu["java"] / cpu["mqlake"],
        target=f"CPU of the slave <= {SLAVE_CPU_US_MAX:g} µs a message",
        met=cpu["mqlake"] <= SLAVE_CPU_US_MAX,
        setting="CPU of the slave, queues and index included",
    )


def _lag(context: Context, pairs: dict[str, Pair]) -> Line:
    """Milliseconds of log that the slave lacks at most, under half of the load that was reached before."""
    found = {side: _lag_of(context, pair) for side, pair in pairs.items()}
    return Line(
        "largest lag at 50 % load",
        found["mqlake"],
        "ms",
        found["java"],
        ratio=found["java"] / found["mqlake"],
    )


def _lag_of(context: Context, pair: Pair) -> float:
    request = _send("async", 1024, max(context.scale.sends // 4, 64), inFlight=IN_FLIGHT)
    full = pair.load.round(request).rate
    half = _send("async", 1024, max(int(full * SLICE_S / 2), 16), inFlight=IN_FLIGHT)
    lags: list[float] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            lags.append(pair.lag() / MESSAGE / full * 2 * 1000)

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(SLICES):
        began = time.perf_counter()
        pair.load.round(half)
        time.sleep(max(0.0, SLICE_S - (time.perf_counter() - began)))
    over.set()
    looking.join()
    return max([*lags, LAG_MIN_MS])


def _catch_up(context: Context, pairs: dict[str, Pair]) -> Line:
    """A slave that comes back after its master got `catch_up` bytes."""
    size = context.scale.catch_up
    rates, cpu_us = {}, {}
    for side, pair in pairs.items():
        pair.slave.stop()
        rates[side], cpu_us[side] = _fill_and_follow(context, pair, size)
    copies = [_socket_copy(context, pairs["mqlake"].store / "commitlog", size) for _ in range(COPIES)]
    limit, limit_cpu_us = (statistics.median(each) for each in zip(*copies, strict=True))
    ratio, of_limit = rates["mqlake"] / rates["java"], rates["mqlake"] / limit
    return Line(
        f"catch-up of {size >> 20} MiB",
        rates["mqlake"],
        "B/s",
        rates["java"],
        ratio=ratio,
        cpu_us=cpu_us["mqlake"],
        peer_cpu_us=cpu_us["java"],
        cpu_ratio=cpu_us["java"] / cpu_us["mqlake"],
        limit=limit,
        limit_ratio=of_limit,
        limit_cpu_us=limit_cpu_us,
        setting=f"CPU of the slave for {MESSAGE} bytes, queues and index included",
        target=f">= {CATCH_UP_RATIO_MIN:g} of Java, >= {COPY_RATIO_MIN:g} of a socket copy",
        met=ratio >= CATCH_UP_RATIO_MIN and of_limit >= COPY_RATIO_MIN,
    )


def _fill_and_follow(context: Context, pair: Pair, size: int) -> tuple[float, float]:
    """Bytes a second, and µs of the slave's processor time for a message, its start included."""
    context.progress.say(f"{pair.name}: {size >> 20} MiB while the slave is away")
    pair.wait_for_nobody()
    start = end = ha_status(pair.master.address).master_commit_log_max_offset
    while end - start < size:
        count = max(min((size - (end - start)) // MESSAGE, 100_000) // BATCH * BATCH, 4 * BATCH)
        pair.load.round(_send("batch", 1024, count, batch=BATCH, threads=4))
        end = ha_status(pair.master.address).master_commit_log_max_offset
    context.progress.say(f"{pair.name}: the slave comes back")
    pair.slave.start()
    samples: list[tuple[float, int]] = []

    def acknowledged() -> int:
        slaves = ha_status(pair.master.address).ha_connection_info
        return max((each.slave_ack_offset for each in slaves), default=0)

    _watch(acknowledged, start, end, samples)
    (first, had), (last, has) = samples[0], samples[-1]
    cpu_seconds = pair.slave.cpu_seconds()
    return (has - had) / max(last - first, 1e-6), cpu_seconds / (has - had) * MESSAGE * 1e6


def _watch(offset: Callable[[], int], start: int, end: int, samples: list[tuple[float, int]]) -> None:
    """(time, offset) from the slave's first report to its last."""
    while True:
        found = offset()
        if found >= start or samples:
            samples.append((time.perf_counter(), found))
        elif found:
            samples.append((time.perf_counter(), start))
        if found >= end:
            return
        time.sleep(LOOK_S)


def _socket_copy(context: Context, directory: Path, size: int) -> tuple[float, float]:
    """Bytes a second of the files through a socket onto the disk, as two plain programs do it, and the µs of processor
    time that the one takes that writes them, for a message."""
    context.progress.say("a plain socket copy")
    target = context.directory / "socket-copy"
    files = sorted(directory.iterdir())
    total = 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        pid = os.fork()
        if pid == 0:
            with socket.create_connection(server.getsockname()) as out:
                left = size
                for path in files:
                    with path.open("rb") as file:
                        while left and (
                            sent := os.sendfile(out.fileno(), file.fileno(), None, min(left, 1 << 20))
                        ):
                            left -= sent
            os._exit(0)
        connection, _ = server.accept()
        buffer = bytearray(1 << 20)
        began, cpu = time.perf_counter(), time.thread_time()
        with connection, target.open("wb") as file:
            while got := connection.recv_into(buffer):
                file.write(memoryview(buffer)[:got])
                total += got
        seconds, cpu = time.perf_counter() - began, time.thread_time() - cpu
    os.waitpid(pid, 0)
    target.unlink()
    return total / seconds, cpu / total * MESSAGE * 1e6


def _median_us(rounds: list[Round]) -> float:
    return statistics.median(each.cpu_seconds / each.amount for each in rounds) * 1e6


def _quantiles(rounds: list[Round]) -> tuple[float, ...]:
    return tuple(statistics.median(each) for each in zip(*(done.latency_us for done in rounds), strict=True))
