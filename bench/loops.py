"""Two loops of compiled code against one: loads that are bound by reading and parsing, without a client in the way.

    frames of a round ─▶ sockets' buffers ─▶ [a broker's loops: until all are stored and answered] ─▶ answers are read
                                              wall time; processor time until all are in the queues

A client would need one of the processors itself. So the other ends of the broker's connections are in its own process:
they are filled before a round, while the broker does nothing, and their answers are read after it. One broker has one
loop and the other two, each in a process of its own; their rounds take turns.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import until_async

from bench.context import Context
from bench.measure import Line, Round, compare
from bench.pages import round_size
from bench.sockets import TOPIC, send_frame
from mqlake.auth.signature import sign
from mqlake.broker.config import read_settings
from mqlake.broker.controller import BrokerController
from mqlake.broker.fast.fast_send import FastSend
from mqlake.remoting.codec import decode_frame, encode_frame
from mqlake.remoting.loop import run

CONNECTIONS = 32
BUFFER_SIZE = 4 << 20
"""Of a socket, in each direction."""
FILLED_MAX = 4 << 20
"""Bytes that a connection brings in a round."""
SETTLED_S = 30.0
USER, SECRET = "bench", "bench-secret"
AUTH = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": USER, "password": SECRET}),
}
TWO_LOOPS_MIN = 1.6


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sends of messages of `size` bytes, `batch` of them in each."""

    name: str
    size: int
    batch: int = 1
    signed: bool = False
    ratio_min: float | None = None


SHAPES = {
    "signed": Shape("signed sends, 128 B, 2 loops", 128, signed=True, ratio_min=TWO_LOOPS_MIN),
    "single": Shape("sends, 128 B, 2 loops", 128),
    "large": Shape("sends, 16 KB, 2 loops", 16 * 1024),
    "batches": Shape("batches of 32, 128 B, 2 loops", 128, batch=32),
}


# --- the broker's process


class FilledBroker:
    """A broker with so many loops, and the other ends of connections that are in these. `messages` are in a round."""

    def __init__(self, directory: Path, loops: int, shape: Shape, messages: int) -> None:
        settings = {
            "listenPort": "0",
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": "",
            "storePathRootDir": str(directory),
            "brokerFastFailureEnable": "false",
            "osPageCacheBusyTimeOutMills": "60000",
            "mappedFileSizeCommitLog": str(256 << 20),
            "fastLoopThreads": str(loops),
            **(AUTH if shape.signed else {}),
        }
        config, store_config, _ = read_settings(settings)
        self._controller = BrokerController(config, store_config)
        assert self._controller.fast_loop is not None
        self._loop = self._controller.fast_loop
        frames = [_frame(shape, number) for number in range(256)]
        fitting = FILLED_MAX // max(map(len, frames))
        self._each = max(1, min(messages // shape.batch // CONNECTIONS, fitting))
        self._data = b"".join(frames[number % len(frames)] for number in range(self._each))
        self.messages = self._each * CONNECTIONS * shape.batch
        self._first = frames[0]
        self._peers: list[socket.socket] = []

    async def start(self) -> None:
        controller = self._controller
        await controller.start()
        fast_send = controller.server.fast_paths[0]
        assert isinstance(fast_send, FastSend)
        await asyncio.to_thread(fast_send.load)
        for _ in range(CONNECTIONS):
            peer = socket.socket()
            for which in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                peer.setsockopt(socket.SOL_SOCKET, which, BUFFER_SIZE)
            peer.setblocking(False)
            self._peers.append(peer)
            events = asyncio.get_running_loop()
            await events.sock_connect(peer, ("127.0.0.1", controller.port))
            await events.sock_sendall(peer, self._first)
            await events.sock_recv(peer, 4096)
            await until_async(
                lambda: not controller.broker.topic_config_manager.unsettled, "the topic is made"
            )
            for connection in list(controller.server.connections):
                self._loop.move(connection)
        assert len(self._loop.transports) == CONNECTIONS

    async def round(self) -> Round:
        """RuntimeError if not everything was answered."""
        for peer in self._peers:
            peer.settimeout(SETTLED_S)
            peer.sendall(self._data)
            peer.setblocking(False)
        wanted = self._stored() + self.messages
        began, cpu_began = time.perf_counter(), time.process_time()
        seconds = await asyncio.to_thread(self._wait_for, wanted, began) - began
        store = self._controller.broker.store
        await until_async(lambda: not store.dispatch_behind_bytes, "everything is in the queues")
        cpu_seconds = time.process_time() - cpu_began
        for peer in self._peers:
            await self._read_answers(peer)
        return Round(self.messages, seconds, cpu_seconds, (self.messages,))

    def _wait_for(self, wanted: int, began: float) -> float:
        """When so many were stored. In a thread of its own: a timer of the event loop would end the leases."""
        while (stored := self._stored()) < wanted:
            time.sleep(0.0005)
            if time.perf_counter() - began > SETTLED_S:
                raise RuntimeError(f"{wanted - stored} messages were not stored")
        return time.perf_counter()

    def _stored(self) -> int:
        return sum(self._controller.broker.store.commit_log.queue_offsets.values())

    async def _read_answers(self, peer: socket.socket) -> None:
        answers, data = 0, b""
        while answers < self._each:
            data = data[-7:] + await asyncio.get_running_loop().sock_recv(peer, 1 << 20)
            answers += data.count(b'"code":0')

    async def stop(self) -> None:
        for peer in self._peers:
            peer.close()
        await self._controller.stop()


def _frame(shape: Shape, number: int) -> bytes:
    frame = send_frame(TOPIC, bytes(n % 251 for n in range(shape.size)), number, shape.batch)
    if shape.signed:
        command = decode_frame(memoryview(frame), 0, len(frame))
        sign(command, USER, SECRET)
        frame = encode_frame(command)
    return frame


async def serve(directory: Path, loops: int, shape: Shape, messages: int) -> None:
    """A round for each line of stdin, a line of stdout for each."""
    broker = FilledBroker(directory, loops, shape, messages)
    await broker.start()
    print(broker.messages, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(dataclasses.astuple(await broker.round())), flush=True)
    await broker.stop()


# --- the lines


class Side:
    """A broker in a process of its own."""

    def __init__(self, directory: Path, loops: int, shape: str, messages: int) -> None:
        arguments = [sys.executable, "-m", "bench.loops", str(directory), str(loops), shape, str(messages)]
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.messages = int(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("the broker's process has ended")
        return line

    def round(self) -> Round:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        amount, seconds, cpu_seconds, work, _ = json.loads(self._read())
        return Round(amount, seconds, cpu_seconds, tuple(work))

    def close(self) -> None:
        self._process.communicate()


def loops(context: Context) -> Iterator[Line]:
    for name, shape in SHAPES.items():
        with context.scratch("loops") as root:
            sides: list[Side] = []
            try:
                for number in (1, 2):
                    sides.append(Side(root / str(number), number, name, 2 * context.scale.batch_sends))
                one, two = sides
                line = compare(
                    shape.name,
                    two,
                    one,
                    context.progress,
                    unit="msg/s",
                    rounds=context.scale.rounds,
                    warm_up_s=0,
                    warm_up_rounds=2,
                    ratio_min=shape.ratio_min,
                    touch=lambda: context.touch_pages(round_size(one.messages, shape.size)),  # noqa: B023
                )
            finally:
                for side in sides:
                    side.close()
        yield dataclasses.replace(line, peer_name="one loop")


if __name__ == "__main__":
    _directory, _loops, _shape, _messages = sys.argv[1:]
    run(serve(Path(_directory), int(_loops), SHAPES[_shape], int(_messages)))
