"""The broker under the load of RocketMQ's own client, beside RocketMQ's broker and a server that only answers OK.

    one JVM of clients ──▶ mqlake serve │ RocketMQ's broker │ bench.bare_server       in turn, a round each

Each is a process of its own with its name server (RocketMQ's in another). CPU time is the broker's process's, all of
its threads and the kernel's part included. On two processors a wake-up of the other one can cost more than the whole
request, so RocketMQ's broker is first measured both ways, free and with clients and brokers each on a processor of
their own; what is better for it holds for all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker, OneProcess, Server
from tests.interop.java_client import JavaClients
from tests.interop.java_peer import Json, warm_up

from bench.context import Context
from bench.idle import wait_until_idle
from bench.measure import Line, Round
from bench.pages import round_size
from bench.sockets import pin

TOPIC = "BenchTopic"
DRAIN_TOPIC = "DrainTopic"
QUEUES = 8
BATCH = 32
IN_FLIGHT = 256
RATIO_MIN = 3.0
BARE_RATIO_MIN = 0.5
TRANSACTION_RATIO_MIN = 1.0


class BareServer(OneProcess):
    def __init__(self, directory: Path, drained: int) -> None:
        """`drained`: messages that its DRAIN_TOPIC seems to hold."""
        self._log = directory / "bare.log"
        self._messages = drained // QUEUES

    def start(self) -> None:
        program = str(Path(__file__).with_name("bare_server.py"))
        command = [sys.executable, program, TOPIC, DRAIN_TOPIC, str(QUEUES), str(self._messages)]
        self._server = Server(command, r"namesrv (\d+), broker (\d+)", self._log, {})
        self.namesrv, self.address = (f"127.0.0.1:{port}" for port in self._server.match.groups())


class Load:
    """One side: a client of the JVM's and the broker it talks to."""

    def __init__(self, clients: JavaClients, broker: Broker, name: str) -> None:
        self.broker, self._clients, self._name = broker, clients, name
        clients.request("bench.open", name=name, namesrv=broker.namesrv)

    def round(self, request: Json) -> Round:
        before = self.broker.cpu_seconds()
        done = self._clients.request(name=self._name, **request)
        cpu_seconds = self.broker.cpu_seconds() - before
        if done["failed"]:
            raise RuntimeError(f"{self._name}: {done['failed']} of {done['count']} sends failed")
        latency_us = tuple(done[quantile] for quantile in ("p50", "p99", "p999"))
        return Round(done["count"], done["seconds"], cpu_seconds, (done["count"], done["bytes"]), latency_us)

    def close(self) -> None:
        self._clients.request("bench.close", name=self._name)


class Bench:
    """All three sides, the JVM of clients, and where they run."""

    def __init__(self, context: Context, clients: JavaClients, brokers: dict[str, Broker]) -> None:
        self._context, self._clients, self._brokers = context, clients, brokers
        self._processors = sorted(os.sched_getaffinity(0))
        self.loads: dict[str, Load] = {name: Load(clients, broker, name) for name, broker in brokers.items()}

    def pin(self, apart: bool) -> None:
        """Clients on one half of the processors and brokers on the other, or all on all."""
        cpus = self._processors
        half = (len(cpus) + 1) // 2
        ours, theirs = (set(cpus[:half]), set(cpus[half:])) if apart else (set(cpus), set(cpus))
        for broker in self._brokers.values():
            pin(broker.pid, ours)
        pin(self._clients.pid, theirs)
        os.sched_setaffinity(0, theirs)

    def line(
        self,
        name: str,
        request: Json,
        *,
        unit: str = "msg/s",
        by_cpu: bool = True,
        ratio_min: float = RATIO_MIN,
    ) -> Line:
        """Rounds of the sides in turn, as `measure.compare` has them. `by_cpu`: the target is work a second of
        processor time."""
        try:
            return _judged(self._line(name, request, unit), by_cpu, ratio_min)
        finally:
            self.pin(False)

    def _line(self, name: str, request: Json, unit: str) -> Line:
        context, scale = self._context, self._context.scale
        sides = [_, java, _] = [self.loads[each] for each in ("mqlake", "java", "bare")]

        def touched(side: Load) -> Round:
            context.touch_pages(round_size(request["count"], request["size"]) if "size" in request else 0)
            return side.round(request)

        def rate() -> float:
            done = java.round(request).rate
            context.progress.say(f"{name}: Java warms up, {done:.0f} {unit}")
            return done

        self.pin(False)
        warm_up(rate, rounds_max=max(1, scale.warm_up_rounds), seconds_max=scale.warm_up_s)
        apart = False
        if len(self._processors) > 1:
            free = max(java.round(request).rate for _ in range(2))
            self.pin(True)
            apart = max(java.round(request).rate for _ in range(2)) > free
            self.pin(apart)
        for side in sides:
            side.round(request)
        wait_until_idle()
        done: list[list[Round]] = []
        for number in range(scale.rounds):
            context.progress.say(f"{name}: round {number + 1} of {scale.rounds}")
            turn = [(each, touched(each)) for each in sides[:: -1 if number % 2 else 1]]
            done.append([next(round_ for side, round_ in turn if side is each) for each in sides])
            if len({each.work for each in done[-1]}) != 1:
                raise RuntimeError(f"{name}: not the same work: {[each.work for each in done[-1]]}")
        ours, theirs, limits = ([each[side] for each in done] for side in range(3))
        return Line(
            name,
            statistics.median(each.rate for each in ours),
            unit,
            statistics.median(each.rate for each in theirs),
            ratio=statistics.median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True)),
            ratio_best=max(each.rate for each in ours) / max(each.rate for each in theirs),
            cpu_us=_cpu_us(ours),
            peer_cpu_us=_cpu_us(theirs),
            cpu_ratio=_cpu_us(theirs) / _cpu_us(ours),
            latency_us=_latency_us(ours),
            peer_latency_us=_latency_us(theirs),
            limit=statistics.median(each.rate for each in limits),
            limit_ratio=statistics.median(a.rate / b.rate for a, b in zip(ours, limits, strict=True)),
            limit_cpu_us=_cpu_us(limits),
            work=" ".join(map(str, ours[-1].work)),
            setting="clients and broker on a processor each" if apart else "free on all processors",
            rounds=tuple((a.rate, b.rate) for a, b in zip(ours, theirs, strict=True)),
        )

    def fill(self, count: int) -> None:
        """The messages to drain, on both sides."""
        for name in ("mqlake", "java"):
            with self._context.progress.step(f"{name}: {count} messages to drain"):
                self.loads[name].round(_send("batch", 1024, count, topic=DRAIN_TOPIC, batch=BATCH, threads=4))


def _cpu_us(rounds: list[Round]) -> float:
    return statistics.median(each.cpu_seconds / each.amount for each in rounds) * 1e6


def _latency_us(rounds: list[Round]) -> tuple[float, ...]:
    return tuple(statistics.median(each) for each in zip(*(done.latency_us for done in rounds), strict=True))


def _judged(line: Line, by_cpu: bool, ratio_min: float) -> Line:
    assert line.ratio is not None and line.cpu_ratio is not None
    if not by_cpu:
        return dataclasses.replace(line, target=f">= {ratio_min:g}", met=line.ratio >= ratio_min)
    assert line.limit_ratio is not None
    if ratio_min < RATIO_MIN or not line.latency_us or not line.peer_latency_us:
        return dataclasses.replace(line, target=f">= {ratio_min:g} by CPU", met=line.cpu_ratio >= ratio_min)
    return dataclasses.replace(
        line,
        target=f">= {ratio_min:g} by CPU, >= {BARE_RATIO_MIN:g} of the limit, p99 <= Java's",
        met=line.cpu_ratio >= ratio_min
        and line.limit_ratio >= BARE_RATIO_MIN
        and line.latency_us[1] <= line.peer_latency_us[1],
    )


def _send(how: str, size: int, count: int, *, topic: str = TOPIC, **fields: int) -> Json:
    return {"do": "bench.send", "how": how, "topic": topic, "size": size, "count": count, **fields}


def _bench(context: Context) -> AbstractContextManager[Bench]:
    return context.servers("broker", lambda: _started(context))


@contextlib.contextmanager
def _started(context: Context) -> Iterator[Bench]:
    scale = context.scale
    # where another process takes the processors for a moment, sends wait for it rather than being refused
    config = {"mappedFileSizeCommitLog": scale.broker_log_file, "brokerFastFailureEnable": "false"}
    with context.scratch("broker") as root, contextlib.ExitStack() as running:
        context.progress.say("two brokers and the JVM of clients start")
        # the clients first: their JVM ends when the brokers are still there
        brokers: dict[str, Broker] = {
            "mqlake": MqlakeBroker(root / "mqlake", config, small=False),
            "java": JavaBroker(root / "java", config, small=False, jvm=scale.jvm),
            "bare": BareServer(root, scale.drained),
        }
        for broker in brokers.values():
            running.enter_context(broker)
        clients = running.enter_context(JavaClients(root / "clients", jvm=scale.jvm))
        for name in ("mqlake", "java"):
            for topic in (TOPIC, DRAIN_TOPIC):
                clients.topic(brokers[name], topic, QUEUES)
        yield Bench(context, clients, brokers)


SIZES = ((128, "128 B"), (1024, "1 KB"))


def sync(context: Context) -> Iterator[Line]:
    with _bench(context) as bench:
        for size, shown in SIZES[: context.scale.shapes]:
            for threads in (1, 16, 64):
                count = context.scale.sends if threads > 1 else context.scale.sends // 8
                yield bench.line(
                    f"sync send {shown}, {threads} threads"
                    if threads > 1
                    else f"sync send {shown}, 1 thread",
                    _send("sync", size, count, threads=threads),
                )


def asynchronous(context: Context) -> Iterator[Line]:
    with _bench(context) as bench:
        for size, shown in SIZES[: context.scale.shapes]:
            request = _send("async", size, context.scale.sends, inFlight=IN_FLIGHT)
            yield bench.line(f"async send {shown}, {IN_FLIGHT} in flight", request)


def batch(context: Context) -> Iterator[Line]:
    with _bench(context) as bench:
        for size, shown in SIZES[: context.scale.shapes]:
            request = _send("batch", size, context.scale.batch_sends, batch=BATCH, threads=4)
            yield bench.line(f"send {shown}, batch of {BATCH}, 4 threads", request, by_cpu=False)


def transactions(context: Context) -> Iterator[Line]:
    """Each is a half message and its commit."""
    with _bench(context) as bench:
        for size, shown in SIZES[: context.scale.shapes]:
            request = _send("transaction", size, context.scale.sends, threads=16)
            yield bench.line(f"transactions {shown}, 16 threads", request, ratio_min=TRANSACTION_RATIO_MIN)


def drain(context: Context) -> Iterator[Line]:
    with _bench(context) as bench:
        bench.fill(context.scale.drained)
        request: Json = {"do": "bench.drain", "topic": DRAIN_TOPIC}
        yield bench.line("pull drain, 1 KB", request, by_cpu=False)
