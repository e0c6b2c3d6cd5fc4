"""A broker under sends and pulls from plain sockets: what it takes when no client is in its way.

    bench.socket_client ──▶ mqlake serve │ an empty loop │ RocketMQ's broker (--java)      in turn, a round each

Frames are those of RocketMQ's producers and consumers, made before. CPU time is the whole process's of a server, the
kernel's part included. The servers have one half of the processors and the client the other. The empty loop
(bench.empty_loop) reads frames and answers each with as many bytes as a broker does: the rest is the broker's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import select
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker, OneProcess, Server
from tests.interop.java_peer import warm_up
from tests.waiting import until

from bench import socket_client
from bench.context import Context
from bench.idle import wait_until_idle
from bench.measure import Line, Round
from bench.pages import round_size
from mqlake.auth.signature import sign
from mqlake.formats.batch import encode_messages
from mqlake.message import Message
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codec import encode_frame
from mqlake.remoting.codes import LanguageCode, RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    PullMessageRequestHeader,
)
from mqlake.remoting.headers.produce import SendMessageRequestHeaderV2

TOPIC = "SocketSend"
PULLED_TOPIC = "SocketPull"
QUEUES = 8
BATCH = 32
MESSAGES_A_PULL = 32
SEND_SIZE = 128
SUBSCRIPTION_FLAG = 0x4
RING = 1024
"""Messages that are made before, and sent again and again."""
SEND_ANSWER_SIZE = 288
BATCH_ANSWER_SIZE = SEND_ANSWER_SIZE + 33 * (BATCH - 1)
PULL_ANSWER_SIZE = 37_700
"""Bytes of an answer of mqlake's, which the empty loop gives too. That to a batch has an id for each message."""


class SocketLoad:
    """`requests` answered on `connections`, each with `in_flight` of them under way; `messages` are in all of them
    together."""

    def __init__(
        self,
        address: str,
        frames: Sequence[bytes],
        requests: int,
        messages: int,
        *,
        connections: int = 1,
        in_flight: int = 1,
    ) -> None:
        self._frames = np.frombuffer(b"".join(frames), np.uint8)
        self._starts = np.cumsum([0, *map(len, frames)], dtype=np.int64)
        self._requests, self._in_flight, self.messages = requests, in_flight, messages
        host, _, port = address.rpartition(":")
        self._epoll = select.epoll()
        self._peers: list[socket.socket] = []
        try:
            for _ in range(connections):
                peer = socket.create_connection((host, int(port)))
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._peers.append(peer)
                self._epoll.register(peer.fileno(), select.EPOLLIN)
        except BaseException:
            self.close()
            raise
        self._fds = np.array([peer.fileno() for peer in self._peers], np.int64)
        self._places = np.zeros(self._fds.max() + 1, np.int64)
        self._places[self._fds] = range(connections)
        self._received = np.zeros(socket_client.RECEIVE_SIZE, np.uint8)
        self._events = np.zeros(socket_client.EVENT_SIZE * socket_client.EVENTS_MAX, np.uint8)

    def round(self) -> tuple[float, int]:
        """(seconds for all of them, bytes of the answers' bodies). RuntimeError when one is refused or none comes."""
        count = len(self._peers)
        state = np.zeros((count, socket_client.CONNECTION_SIZE), np.int64)
        # shares begin where the one before ends, so that together the connections ask for everything
        bounds = np.arange(count + 1) * self._requests // count
        state[:, socket_client.SENT] = bounds[:-1]
        state[:, socket_client.SHARE] = bounds[1:]
        began = time.perf_counter()
        bodies = socket_client.exchange(
            self._epoll.fileno(),
            self._fds,
            self._places,
            state,
            np.zeros((count, socket_client.BEGINNING), np.uint8),
            self._in_flight,
            self._frames,
            self._starts,
            self._received,
            self._events,
            np.frombuffer(socket_client.DONE, np.uint8),
        )
        seconds = time.perf_counter() - began
        if bodies < 0:
            refused = bytes(self._received[8:400])
            why = {
                socket_client.CLOSED: "the broker closed a connection",
                socket_client.REFUSED: f"a request was refused: {refused!r}",
                socket_client.SILENT: f"no answer for {socket_client.PATIENCE_MS // 1000} s",
            }
            raise RuntimeError(why[bodies])
        return seconds, int(bodies)

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        self._epoll.close()


# --- frames


def sends(
    address: str,
    count: int,
    *,
    batch: int = 1,
    connections: int = 1,
    in_flight: int = 1,
    size: int = SEND_SIZE,
    topic: str = TOPIC,
    user: tuple[str, str] | None = None,
) -> SocketLoad:
    """`count` messages of `size` bytes, `batch` of them a request; signed by a `user`, of a name and a password."""
    body = bytes(n % 251 for n in range(size))
    frames = [send_frame(topic, body, number, batch, user) for number in range(max(1, RING // batch))]
    requests = count // batch
    return SocketLoad(
        address, frames, requests, requests * batch, connections=connections, in_flight=in_flight
    )


def pulls(address: str, topic: str, messages: int, *, in_flight: int = 1) -> SocketLoad:
    """Every message of a topic's queues, MESSAGES_A_PULL a request, once all `messages` are in them."""

    def all_of_them() -> list[int]:
        ends = asyncio.run(_ends(address, topic))
        return ends if sum(ends) == messages else []

    ends = until(all_of_them, "all messages are in the queues")
    frames = [_pull_frame(topic, *place, opaque) for opaque, place in enumerate(_places(ends))]
    return SocketLoad(address, frames, len(frames), messages, in_flight=in_flight)


def fill(address: str, topic: str, messages: int) -> int:
    """Sends that many of 1 KB to be pulled; how many."""
    load = sends(address, messages, batch=BATCH, in_flight=8, size=1024, topic=topic)
    with contextlib.closing(load):
        load.round()
    return load.messages


def send_frame(
    topic: str, body: bytes, number: int, batch: int, user: tuple[str, str] | None = None
) -> bytes:
    header = SendMessageRequestHeaderV2(
        producer_group="bench",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=number % QUEUES,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=f"KEYS\x01order-{number}\x02TAGS\x01TagA\x02UNIQ_KEY\x017F0000010001{number:0>16}\x02WAIT\x01true\x02",
        reconsume_times=0,
        unit_mode=False,
        batch=batch > 1,
    )
    code = RequestCode.SEND_MESSAGE_V2
    if batch > 1:
        code = RequestCode.SEND_BATCH_MESSAGE
        keys = [f"{number}-{each}" for each in range(batch)]
        body = encode_messages(
            [Message(topic, body, properties={"KEYS": key, "UNIQ_KEY": f"{key:0>28}"}) for key in keys]
        )
    command = RemotingCommand(
        code, language=LanguageCode.JAVA, opaque=number, ext_fields=header.encode(), body=body
    )
    if user is not None:
        sign(command, *user)
    return encode_frame(command)


def _places(ends: list[int]) -> Iterator[tuple[int, int]]:
    """(queue, offset) of each pull, the queues in turn."""
    for offset in range(0, max(ends), MESSAGES_A_PULL):
        for queue_id, end in enumerate(ends):
            if offset < end:
                yield queue_id, offset


async def _ends(address: str, topic: str) -> list[int]:
    async with RemotingClient() as client:
        ends = []
        for queue_id in range(QUEUES):
            header = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
            request = RemotingCommand.create_request(RequestCode.GET_MAX_OFFSET, header)
            answer = await client.call(address, request)
            ends.append(answer.decode_header(GetMaxOffsetResponseHeader).offset)
        return ends


def _pull_frame(topic: str, queue_id: int, offset: int, opaque: int) -> bytes:
    header = PullMessageRequestHeader(
        consumer_group="GID_sockets",
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=MESSAGES_A_PULL,
        sys_flag=SUBSCRIPTION_FLAG,
        commit_offset=0,
        suspend_timeout_millis=20_000,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
        max_msg_bytes=2**31 - 1,
    )
    return encode_frame(
        RemotingCommand(
            RequestCode.PULL_MESSAGE, language=LanguageCode.JAVA, opaque=opaque, ext_fields=header.encode()
        )
    )


# --- servers


class EmptyLoop(OneProcess):
    """`answers`: how many different ones it has, which are not in the processor's cache then; 0: the same each time.
    `compiled_by_numba`: also where a C compiler is."""

    def __init__(
        self, directory: Path, answer_size: int, answers: int = 0, *, compiled_by_numba: bool = False
    ) -> None:
        self._log = directory / f"empty-{answer_size}.log"
        self._arguments = [str(answer_size), str(answers), *(["--numba"] if compiled_by_numba else [])]

    def start(self) -> None:
        command = [sys.executable, "-m", "bench.empty_loop", *self._arguments]
        self._server = Server(command, r"empty loop at (\d+)", self._log, {})
        self.address = f"127.0.0.1:{self._server.match[1]}"


@contextlib.contextmanager
def pinned(servers: Sequence[Broker]) -> Iterator[None]:
    """The servers on one half of the processors, this process on the other."""
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2
    if not half:
        yield
        return
    for server in servers:
        pin(server.pid, set(cpus[:half]))
    os.sched_setaffinity(0, cpus[half:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus)


def pin(pid: int, cpus: set[int]) -> None:
    """All threads of a process."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cpus)


# --- the lines


@dataclasses.dataclass(frozen=True)
class Shape:
    """A load, of `share` times as many messages as the scale says: a round of it takes about half a second. The target:
    `cpu_us_max` a message, or `limit_max` times the empty loop's CPU time; `java_min` times the rate of RocketMQ's
    broker."""

    name: str
    connections: int
    in_flight: int
    batch: int = 1
    share: float = 1.0
    cpu_us_max: float | None = None
    limit_max: float | None = None
    java_min: float | None = None


SENDS = (
    Shape("sends, 1 connection x 1", 1, 1, share=1 / 8, limit_max=2),
    Shape("sends, 16 connections x 1", 16, 1, share=2, limit_max=2),
    Shape("sends, 64 connections x 1", 64, 1, share=2, limit_max=2),
    Shape("sends, 4 connections x 64", 4, 64, share=8, cpu_us_max=1),
    Shape("batches of 32, 1 connection x 8", 1, 8, BATCH, share=4, cpu_us_max=0.4),
    Shape("sends, 1,000 connections x 1", 1000, 1, share=2),
)
SYNC_SENDS = (Shape("SYNC_FLUSH, 64 connections x 1", 64, 1, java_min=1.5),)
PULLS = (
    Shape("pulls of 32 x 1 KB, 1 under way", 1, 1, cpu_us_max=0.6),
    Shape("pulls of 32 x 1 KB, 8 under way", 1, 8, cpu_us_max=0.4),
)


class Side:
    """A server and the load on it."""

    def __init__(self, server: Broker, load: SocketLoad) -> None:
        self._server, self._load = server, load

    def round(self) -> Round:
        before = self._server.cpu_seconds()
        seconds, bodies = self._load.round()
        cpu_seconds = self._server.cpu_seconds() - before
        return Round(self._load.messages, seconds, cpu_seconds, (self._load.messages, bodies))


@contextlib.contextmanager
def _servers(
    context: Context, answer_sizes: Sequence[int], answers: int = 0, **settings: str
) -> Iterator[dict[str, Broker]]:
    """mqlake's, RocketMQ's perhaps, and an empty loop for each of the answer sizes, which is its name."""
    scale = context.scale
    config = {
        # where another process takes the processors for a moment, sends wait for it rather than being refused
        "brokerFastFailureEnable": "false",
        "osPageCacheBusyTimeOutMills": 60_000,
        "mappedFileSizeCommitLog": scale.broker_log_file,
        **settings,
    }
    with context.scratch("sockets") as root, contextlib.ExitStack() as running:
        servers: dict[str, Broker] = {
            "mqlake": MqlakeBroker(root / "mqlake", config, small=False),
            **{str(size): EmptyLoop(root, size, answers) for size in answer_sizes},
        }
        if scale.java:
            servers["java"] = JavaBroker(root / "java", config, small=False, jvm=scale.jvm)
        for name, server in servers.items():
            context.progress.say(f"{name} starts")
            running.enter_context(server)
        with pinned(list(servers.values())):
            yield servers


def _line(context: Context, shape: Shape, sides: dict[str, Side], writes: int = 0) -> Line:
    """A round `writes` so many bytes."""
    scale, progress = context.scale, context.progress

    for name in [each for each in sides if each != "limit"]:
        for _ in range(2):
            sides[name].round()
            wait_until_idle()

        def rate(name: str = name) -> float:
            done = sides[name].round().rate
            progress.say(f"{shape.name}: {name} warms up, {done:.0f} msg/s")
            return done

        warm_up(rate, rounds_max=max(1, scale.warm_up_rounds), seconds_max=scale.warm_up_s)
    sides["limit"].round()
    done: dict[str, list[Round]] = {name: [] for name in sides}
    for number in range(scale.rounds):
        progress.say(f"{shape.name}: round {number + 1} of {scale.rounds}")
        for name in list(sides)[:: -1 if number % 2 else 1]:
            context.touch_pages(writes)
            done[name].append(sides[name].round())
        if "java" in done and done["java"][-1].work != done["mqlake"][-1].work:
            raise RuntimeError(
                f"{shape.name}: mqlake did {done['mqlake'][-1].work}, Java {done['java'][-1].work}"
            )
    return _judged(shape, done)


def _judged(shape: Shape, done: dict[str, list[Round]]) -> Line:
    cpu_us = {
        name: statistics.median(each.cpu_seconds / each.amount for each in rounds) * 1e6
        for name, rounds in done.items()
    }
    rate = {name: statistics.median(each.rate for each in rounds) for name, rounds in done.items()}
    java = done.get("java", [])
    ratio = (
        statistics.median(a.rate / b.rate for a, b in zip(done["mqlake"], java, strict=True))
        if java
        else None
    )
    targets = []
    if shape.cpu_us_max is not None:
        targets.append((f"<= {shape.cpu_us_max:g} µs", cpu_us["mqlake"] <= shape.cpu_us_max))
    if shape.limit_max is not None:
        least = shape.limit_max * cpu_us["limit"]
        targets.append((f"<= {shape.limit_max:g} x the limit's CPU", cpu_us["mqlake"] <= least))
    if shape.java_min is not None and ratio is not None:
        targets.append((f">= {shape.java_min:g} x Java's rate", ratio >= shape.java_min))
    return Line(
        shape.name,
        rate["mqlake"],
        "msg/s",
        rate.get("java"),
        ratio=ratio,
        ratio_best=max(each.rate for each in done["mqlake"]) / max(each.rate for each in java)
        if java
        else None,
        cpu_us=cpu_us["mqlake"],
        peer_cpu_us=cpu_us.get("java"),
        cpu_ratio=cpu_us["java"] / cpu_us["mqlake"] if java else None,
        limit=rate["limit"],
        limit_ratio=rate["mqlake"] / rate["limit"],
        limit_cpu_us=cpu_us["limit"],
        target=", ".join(text for text, _ in targets),
        met=all(met for _, met in targets) if targets else None,
        work=" ".join(map(str, done["mqlake"][-1].work)),
        rounds=tuple(
            (each.cpu_seconds / each.amount * 1e6, least.cpu_seconds / least.amount * 1e6)
            for each, least in zip(done["mqlake"], done["limit"], strict=True)
        ),
    )


def _send_lines(context: Context, shapes: Sequence[Shape], **settings: str) -> Iterator[Line]:
    scale = context.scale
    with _servers(context, (SEND_ANSWER_SIZE, BATCH_ANSWER_SIZE), **settings) as servers:
        limits = {name: server for name, server in servers.items() if name.isdigit()}
        brokers = {name: server for name, server in servers.items() if name not in limits}
        for shape in shapes:
            limit = limits[str(BATCH_ANSWER_SIZE if shape.batch > 1 else SEND_ANSWER_SIZE)]
            count = int(shape.share * (scale.batch_sends if shape.batch > 1 else scale.sends))
            with contextlib.ExitStack() as open_loads:
                sides = {}
                for name, server in {**brokers, "limit": limit}.items():
                    load = sends(
                        server.address,
                        count,
                        batch=shape.batch,
                        connections=shape.connections,
                        in_flight=shape.in_flight,
                    )
                    sides[name] = Side(server, open_loads.enter_context(contextlib.closing(load)))
                yield _line(context, shape, sides, round_size(count, SEND_SIZE))


def socket_sends(context: Context) -> Iterator[Line]:
    yield from _send_lines(context, SENDS)


def socket_sync(context: Context) -> Iterator[Line]:
    yield from _send_lines(context, SYNC_SENDS, flushDiskType="SYNC_FLUSH")


def socket_pulls(context: Context) -> Iterator[Line]:
    # the log is longer than the processor's cache, so what the limit sends is, too
    limit = str(PULL_ANSWER_SIZE)
    with _servers(context, (PULL_ANSWER_SIZE,), context.scale.drained // MESSAGES_A_PULL) as servers:
        filled = {
            name: fill(server.address, PULLED_TOPIC, context.scale.drained)
            for name, server in servers.items()
            if name != limit
        }
        for shape in PULLS:
            with contextlib.ExitStack() as open_loads:
                sides = {}
                for name, messages in filled.items():
                    load = pulls(servers[name].address, PULLED_TOPIC, messages, in_flight=shape.in_flight)
                    sides[name] = Side(servers[name], open_loads.enter_context(contextlib.closing(load)))
                load = SocketLoad(
                    servers[limit].address,
                    [_pull_frame(PULLED_TOPIC, 0, 0, 0)],
                    filled["mqlake"] // MESSAGES_A_PULL,
                    filled["mqlake"],
                    in_flight=shape.in_flight,
                )
                sides["limit"] = Side(servers[limit], open_loads.enter_context(contextlib.closing(load)))
                yield _line(context, shape, sides)
