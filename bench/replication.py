"""A master and its slave, mqlake's and RocketMQ's: SYNC_MASTER, replication and its lag.

    bench.socket_client ──▶ master ──▶ slave        mqlake with mqlake, Java with Java, in turn

Each broker is a process of its own. A slave's CPU time is its process's: it receives, stores, queues and indexes.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker
from tests.interop.java_peer import warm_up
from tests.interop.replicas import JavaSlave, MqlakeSlave, caught_up, ha_status

from bench.context import Context
from bench.idle import wait_until_idle
from bench.measure import Line, Round
from bench.pages import round_size
from bench.sockets import BATCH, Shape, sends

SYNC_SENDS = (
    Shape("SYNC_MASTER, 64 producers", 64, 1, java_min=1.5),
    Shape("SYNC_MASTER, 1 producer", 1, 1),
)
"""The larger one first: one producer is too slow to be seen getting faster when compiled code has been loaded."""
KEEPING_UP = Shape("replication of batches of 32", 1, 8, BATCH)
LAG = Shape("largest lag at 50 % load", 4, 64)
SLAVE_CPU_US_MAX = 0.5
LOOK_S = 0.02
LAG_MIN_MS = 0.001
"""Less is not told apart."""
BODY = 1024
MESSAGE = 1200
"""Bytes of the log for a message of 1 KB, about."""
SLICE_S = 0.2
SLICES = 15


class Pair:
    """A master and a slave that is in step with it, and loads on the master."""

    def __init__(self, name: str, master: Broker, slave: MqlakeSlave | JavaSlave, store: Path) -> None:
        self.name, self.master, self.slave, self.store = name, master, slave, store
        self.send(64, batch=BATCH)  # makes the topic
        caught_up(master.address)

    def send(self, count: int, *, batch: int = 1, connections: int = 1, in_flight: int = 1) -> Round:
        """`count` messages of 1 KB, at the processor time of the master."""
        load = sends(
            self.master.address, count, batch=batch, connections=connections, in_flight=in_flight, size=BODY
        )
        with contextlib.closing(load):
            before = self.master.cpu_seconds()
            seconds, _ = load.round()
            return Round(load.messages, seconds, self.master.cpu_seconds() - before, (load.messages,))

    def round(self, shape: Shape, count: int) -> tuple[Round, float]:
        """A round of the load, with the slave in step after it; processor seconds of the slave."""
        before = self.slave.cpu_seconds()
        done = self.send(count, batch=shape.batch, connections=shape.connections, in_flight=shape.in_flight)
        caught_up(self.master.address)
        return done, self.slave.cpu_seconds() - before

    def end(self) -> int:
        """Of the master's log."""
        return ha_status(self.master.address).master_commit_log_max_offset

    def lag(self) -> int:
        return max((each.diff for each in ha_status(self.master.address).ha_connection_info), default=0)


@contextlib.contextmanager
def started(context: Context, role: str = "SYNC_MASTER") -> Iterator[dict[str, Pair]]:
    """A pair of each side, with masters of this `role`."""
    scale = context.scale
    config = {
        "mappedFileSizeCommitLog": scale.broker_log_file,
        "brokerFastFailureEnable": "false",
        "brokerRole": role,
        "inSyncReplicas": 2,
        "slaveTimeout": 60_000,
    }
    of_slave = {key: config[key] for key in ("mappedFileSizeCommitLog", "brokerFastFailureEnable")}
    # the tests' slaves close a connection that is silent for 5 s, as long as a master is between two heartbeats
    of_slave |= {"haHousekeepingInterval": 20_000, "haSendHeartbeatInterval": 5000}
    with context.scratch("replication") as root, contextlib.ExitStack() as running:
        context.progress.say("two masters and two slaves start")
        ours = MqlakeBroker(root / "mqlake", {**config, "haListenPort": 0}, small=False)
        theirs = JavaBroker(root / "java", config, small=False, jvm=scale.jvm)
        for broker in (ours, theirs):
            running.enter_context(broker)
        our_slave = MqlakeSlave(root / "mqlake-slave", ours.namesrv, "broker-0", of_slave)
        their_slave = JavaSlave(root / "java-slave", theirs.namesrv, "java-broker", of_slave)
        for slave in (our_slave, their_slave):
            running.enter_context(slave)
        yield {
            "mqlake": Pair("mqlake", ours, our_slave, root / "mqlake/store/broker-0"),
            "java": Pair("java", theirs, their_slave, root / "java/store"),
        }


def _pairs(context: Context) -> AbstractContextManager[dict[str, Pair]]:
    return context.servers("replication", lambda: started(context))


def sync_master(context: Context) -> Iterator[Line]:
    with _pairs(context) as pairs:
        yield from _sync_master(context, pairs)


def keeping_up(context: Context) -> Iterator[Line]:
    with _pairs(context) as pairs:
        yield _keeping_up(context, pairs)
        yield _lag(context, pairs)


def _rounds(
    context: Context, pairs: dict[str, Pair], shape: Shape, count: int
) -> dict[str, list[tuple[Round, float]]]:
    done: dict[str, list[tuple[Round, float]]] = {side: [] for side in pairs}
    for pair in pairs.values():

        def rate(pair: Pair = pair) -> float:
            context.progress.say(f"{shape.name}: {pair.name} warms up")
            return pair.round(shape, count)[0].rate

        scale = context.scale
        warm_up(rate, rounds_max=max(1, scale.warm_up_rounds), seconds_max=scale.warm_up_s)
    wait_until_idle()
    for number in range(context.scale.rounds):
        context.progress.say(f"{shape.name}: round {number + 1} of {context.scale.rounds}")
        for side in list(pairs)[:: -1 if number % 2 else 1]:
            context.touch_pages(round_size(2 * count, BODY))  # two brokers write them
            done[side].append(pairs[side].round(shape, count))
    return done


def _sync_master(context: Context, pairs: dict[str, Pair]) -> Iterator[Line]:
    for shape in SYNC_SENDS:
        count = context.scale.sends if shape.connections > 1 else context.scale.sends // 8
        done = _rounds(context, pairs, shape, count)
        ours, theirs = ([each for each, _ in done[side]] for side in ("mqlake", "java"))
        ratio = statistics.median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
        rate, java = (statistics.median(each.rate for each in side) for side in (ours, theirs))
        yield Line(
            shape.name,
            rate,
            "msg/s",
            java,
            ratio=ratio,
            ratio_best=max(each.rate for each in ours) / max(each.rate for each in theirs),
            cpu_us=_median_us(ours),
            peer_cpu_us=_median_us(theirs),
            cpu_ratio=_median_us(theirs) / _median_us(ours),
            setting=f"mean latency {_mean_us(shape, rate):.0f} | {_mean_us(shape, java):.0f} µs",
            target=f">= {shape.java_min:g}" if shape.java_min else "",
            met=ratio >= shape.java_min if shape.java_min else None,
            rounds=tuple((a.rate, b.rate) for a, b in zip(ours, theirs, strict=True)),
        )


def _mean_us(shape: Shape, rate: float) -> float:
    """From the number of sends that are always under way."""
    return shape.connections * shape.in_flight / rate * 1e6


def _keeping_up(context: Context, pairs: dict[str, Pair]) -> Line:
    """Messages until the slave has them, and what they cost its process."""
    done = _rounds(context, pairs, KEEPING_UP, context.scale.batch_sends)
    cpu = {
        side: statistics.median(seconds / each.amount * 1e6 for each, seconds in rounds)
        for side, rounds in done.items()
    }
    rates = {side: statistics.median(each.rate for each, _ in rounds) for side, rounds in done.items()}
    return Line(
        KEEPING_UP.name,
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
        LAG.name,
        found["mqlake"],
        "ms",
        found["java"],
        ratio=found["java"] / found["mqlake"],
    )


def _lag_of(context: Context, pair: Pair) -> float:

    def send(count: int) -> Round:
        return pair.send(count, connections=LAG.connections, in_flight=LAG.in_flight)

    full = send(max(context.scale.sends // 4, 64)).rate
    half = max(int(full * SLICE_S / 2), 16)
    lags: list[float] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            lags.append(pair.lag() / MESSAGE / full * 2 * 1000)

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(SLICES):
        began = time.perf_counter()
        send(half)
        time.sleep(max(0.0, SLICE_S - (time.perf_counter() - began)))
    over.set()
    looking.join()
    return max([*lags, LAG_MIN_MS])


def _median_us(rounds: list[Round]) -> float:
    return statistics.median(each.cpu_seconds / each.amount for each in rounds) * 1e6
