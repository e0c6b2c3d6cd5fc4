"""A producer beside others that send messages of 4 MB: what it waits for its answers.

    LONG_SENDERS connections, in a process of their own ── 4 MB, the next PAUSE_S after an answer ──▶ broker
    the neighbour ── 128 B, the next 1 ms after an answer ──▶                                         its p50/p99/p999

What is to be seen is how long the broker makes it wait, and not how long it waits for a processor, which all these
take from each other. So the broker and the neighbour have theirs before everybody else (SCHED_FIFO) where the system
allows that to this user; the line says so where it does not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker

from bench.context import Context, Scale
from bench.measure import Line
from bench.sockets import send_frame

TOPIC, LONG_TOPIC = "Neighbour", "LongMessages"
LONG_SENDERS = 4
PAUSE_S = 0.05
SHORT_PAUSE_S = 0.001
SHORT_SIZE = 128
WARM_UP = 300
P99_MAX_US = 10_000
PRIORITY = 10


def neighbours(context: Context) -> Iterator[Line]:
    scale = context.scale
    config = {
        "brokerFastFailureEnable": "false",
        "osPageCacheBusyTimeOutMills": 60_000,
        "mappedFileSizeCommitLog": scale.broker_log_file,
    }
    with context.scratch("neighbours") as root, contextlib.ExitStack() as running:
        brokers: dict[str, Broker] = {"mqlake": MqlakeBroker(root / "mqlake", config, small=False)}
        if scale.java:
            brokers["java"] = JavaBroker(root / "java", config, small=False, jvm=scale.jvm)
        sides = {}
        for name, broker in brokers.items():
            context.progress.say(f"{name} starts")
            sides[name] = running.enter_context(
                contextlib.closing(Side(running.enter_context(broker), scale))
            )
        for number in range(scale.rounds):
            context.progress.say(f"beside long messages: round {number + 1} of {scale.rounds}")
            for name in list(sides)[:: -1 if number % 2 else 1]:
                context.touch_pages(int(LONG_SENDERS / PAUSE_S * scale.neighbour_s * scale.long_message))
                sides[name].round()
    ours, java = sides["mqlake"], sides.get("java")
    latency_us = ours.latency_us()
    yield Line(
        f"beside messages of {scale.long_message / 1e6:.1f} MB",
        ours.long_rate,
        "msg/s",
        java.long_rate if java else None,
        latency_us=latency_us,
        peer_latency_us=java.latency_us() if java else (),
        setting="" if ours.is_first and (java is None or java.is_first) else "without priority",
        target=f"p99 <= {P99_MAX_US // 1000} ms",
        met=latency_us[1] <= P99_MAX_US,
    )


class Side:
    """The two kinds of producers of one broker."""

    def __init__(self, broker: Broker, scale: Scale) -> None:
        self._pid = broker.pid
        self._seconds = scale.neighbour_s
        self._frame = send_frame(TOPIC, bytes(SHORT_SIZE), 0, 1)
        self._peer = connect(broker.address)
        for _ in range(WARM_UP):
            ask(self._peer, self._frame)
        self._others = subprocess.Popen(
            [sys.executable, "-m", "bench.neighbours", broker.address, str(scale.long_message)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parent.parent,
        )
        self._tell()  # until they are ready
        self._waited_s: list[float] = []
        self._long_messages, self._lasted_s = 0, 0.0
        self.is_first = True

    def round(self) -> None:
        self._tell("begin")
        with before_others(self._pid) as is_first:
            self.is_first &= is_first
            began = now = time.perf_counter()
            while now - began < self._seconds:
                ask(self._peer, self._frame)
                asked, now = now, time.perf_counter()
                self._waited_s.append(now - asked)
                time.sleep(SHORT_PAUSE_S)
                now = time.perf_counter()
        self._lasted_s += now - began
        self._long_messages += int(self._tell("end"))

    def _tell(self, what: str = "") -> str:
        """What the process of the long messages answers. RuntimeError when it has ended."""
        assert self._others.stdin is not None and self._others.stdout is not None
        if what:
            self._others.stdin.write(what + "\n")
            self._others.stdin.flush()
        if not (line := self._others.stdout.readline()):
            raise RuntimeError("the process that sends long messages has ended")
        return line

    @property
    def long_rate(self) -> float:
        """Long messages a second."""
        return self._long_messages / self._lasted_s

    def latency_us(self) -> tuple[float, float, float]:
        """p50, p99, p999 of all rounds."""
        waited = sorted(self._waited_s)
        p50, p99, p999 = (waited[int(len(waited) * part)] * 1e6 for part in (0.5, 0.99, 0.999))
        return p50, p99, p999

    def close(self) -> None:
        self._peer.close()
        self._others.communicate()


@contextlib.contextmanager
def before_others(pid: int) -> Iterator[bool]:
    """All threads of a process, and this one, have a processor as soon as they want it; False where that is not
    allowed."""
    threads = [0, *map(int, os.listdir(f"/proc/{pid}/task"))]
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        for thread in map(int, [0, *os.listdir(f"/proc/{pid}/task")]):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    peer = socket.create_connection((host, int(port)))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def ask(peer: socket.socket, frame: bytes) -> None:
    """Sends a message, and waits for its answer. RuntimeError unless it is stored."""
    peer.sendall(frame)
    answer = b""
    while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
        if not (received := peer.recv(65536)):
            raise RuntimeError("the broker closed the connection")
        answer += received
    if b'"code":0,' not in answer:
        raise RuntimeError(f"a message was refused: {answer[8:400]!r}")


# --- the process of the long messages


class LongSender(threading.Thread):
    """Sends long messages while `sends` is set."""

    def __init__(self, address: str, frame: bytes, sends: threading.Event) -> None:
        super().__init__(daemon=True)
        self._peer, self._frame, self._sends = connect(address), frame, sends
        self.sent = 0

    def run(self) -> None:
        while self._sends.wait():
            ask(self._peer, self._frame)
            self.sent += 1
            time.sleep(PAUSE_S)


def send_long_messages(address: str, size: int) -> None:
    """Begins and ends as the lines of stdin say; how many were answered, then."""
    with contextlib.closing(connect(address)) as peer:
        ask(peer, send_frame(LONG_TOPIC, b"the topic is made", 0, 1))
    frame, sends = send_frame(LONG_TOPIC, bytes(size), 0, 1), threading.Event()
    senders = [LongSender(address, frame, sends) for _ in range(LONG_SENDERS)]
    for sender in senders:
        sender.start()
    print("ready", flush=True)
    sent = 0
    for line in sys.stdin:
        if not all(sender.is_alive() for sender in senders):
            raise RuntimeError("a connection of long messages has failed")
        before, sent = sent, sum(sender.sent for sender in senders)
        if line == "begin\n":
            sends.set()
            print("begun", flush=True)
        else:
            sends.clear()
            print(sent - before, flush=True)


if __name__ == "__main__":
    send_long_messages(sys.argv[1], int(sys.argv[2]))
