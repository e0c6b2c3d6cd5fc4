"""What `mqlake serve` costs when it is idle, and with 10,000 connections of which 2,000 wait for a message."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import PullMessageRequestHeader
from mqlake.remoting.headers.produce import SendMessageRequestHeader
from mqlake.remoting.loop import run
from tests.broker.live import SCENE_S
from tests.interop.brokers import MqlakeBroker

CONNECTIONS = 10_000
PULLS = 2_000
SPARE = 500
IDLE_MAX = 120 << 20
GROWTH_MAX = 20 * 1024
"""Bytes of resident memory for a connection."""
READY_MAX = 5
"""Times what Python and numpy take to start, both in processor time: the machine of a test is never quiet."""
NO_CODE = 9999
SUSPEND, SUBSCRIPTION = 0x2, 0x4


@contextlib.contextmanager
def open_files(soft: int | None) -> Iterator[None]:
    """As many as `soft` for this process and those it starts; None: as many as there may be."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before[1]
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + SPARE:
        pytest.fail(f"only {hard} open files are allowed here; raise it: ulimit -Hn {CONNECTIONS + SPARE}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if soft is None else soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def send_header(topic: str) -> SendMessageRequestHeader:
    return SendMessageRequestHeader(
        producer_group="P",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
    )


def pull_header(topic: str) -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group="G",
        topic=topic,
        queue_id=0,
        queue_offset=1,
        max_msg_nums=32,
        sys_flag=SUSPEND | SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=60_000,
        subscription="*",
        sub_version=0,
    )


def send(broker: MqlakeBroker, topic: str) -> None:
    async def main() -> None:
        async with RemotingClient() as client:
            request = RemotingCommand.create_request(RequestCode.SEND_MESSAGE, send_header(topic), b"x")
            await client.call(broker.address, request, SCENE_S)

    run(main())


def answers(connections: list[socket.socket]) -> list[RemotingCommand]:
    """The next frame that comes on each."""
    found = []
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ, bytearray())
        deadline = time.monotonic() + SCENE_S
        while selector.get_map():
            assert time.monotonic() < deadline, f"{len(selector.get_map())} are not answered"
            for key, _ in selector.select(1):
                came = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                assert came, "a connection was closed"
                key.data.extend(came)
                if end := frame_end(key.data, 0, len(key.data)):
                    assert end == len(key.data)
                    found.append(decode_frame(memoryview(bytes(key.data)), 0, end))
                    selector.unregister(key.fileobj)
    return found


def time_of_children() -> float:
    """Processor seconds of those that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_idle(tmp_path: Path):
    with MqlakeBroker(tmp_path, small=False) as broker:
        before = time_of_children()
        subprocess.run([sys.executable, "-c", "import asyncio, numpy"], check=True)
        assert broker.cpu_seconds() < READY_MAX * (time_of_children() - before)
        assert broker.resident() < IDLE_MAX


def test_ten_thousand_connections(tmp_path: Path):
    broker = MqlakeBroker(tmp_path)
    with open_files(1024):  # what most machines begin with: the broker asks for more
        broker.start()
    with contextlib.closing(broker), open_files(None), contextlib.ExitStack() as open_sockets:
        send(broker, "Many")  # what is compiled and loaded with the first message is there before
        host, _, port = broker.address.partition(":")

        def connect() -> socket.socket:
            return open_sockets.enter_context(socket.create_connection((host, int(port)), timeout=SCENE_S))

        connect()
        before = broker.resident()
        connections = [connect() for _ in range(CONNECTIONS)]
        pulling = connections[:PULLS]
        # what is sent behind a pull is answered: the pull was read, and is held
        pull = RemotingCommand.create_request(RequestCode.PULL_MESSAGE, pull_header("Many"))
        behind = RemotingCommand.create_request(NO_CODE)
        for connection in pulling:
            connection.sendall(encode_frame(pull) + encode_frame(behind))
        assert {(each.code, each.opaque) for each in answers(pulling)} == {
            (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, behind.opaque)
        }
        growth = broker.resident() - before
        assert growth < GROWTH_MAX * CONNECTIONS, f"{growth / CONNECTIONS:.0f} bytes a connection"

        send(broker, "Many")
        found = answers(pulling)
        assert {(each.code, each.opaque) for each in found} == {(ResponseCode.SUCCESS, pull.opaque)}
        assert all(len(each.body_bytes()) > 0 for each in found)
