"""Threads that help the event loop's: two serve at once, what they leave to Python is done, and none is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mqlake import native
from mqlake.broker.fast.helper import Helper
from mqlake.broker.fast.lease import Stake
from mqlake.formats.record import decode_record
from mqlake.native.loop_layout import (
    FAILED,
    POSITION,
    PUBLISHED,
    STOPS,
    STORED,
    common_size,
)
from mqlake.native.send_layout import COLUMNS, PARTS, ROWS, SENDS_MAX, SIZE
from mqlake.remoting.loop import run
from mqlake.store.message_store import open_store
from tests.broker.fast.test_fast_loop import bodies, bodies_in_order, each_says
from tests.broker.fast.test_fast_send import fast_loop, half, send, two_brokers
from tests.broker.live import SCENE_S
from tests.interop.brokers import MqlakeBroker
from tests.waiting import PATIENCE_S, until, until_async

kernels = native.module("loop")
assert kernels is not None


def test_two_threads_serve_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight connections to queues of all, with transactions and unknown queues in between; each keeps its order."""

    def body_of(turn: int, client: int, number: int) -> bytes:
        return b"%d %d %d" % (turn, client, number)

    def said(turn: int, client: int) -> list[bytes]:
        frames = [send(body_of(turn, client, n), opaque=n, queue_id=(client + n) % 4) for n in range(60)]
        if client == 3:
            frames[30] = half(body_of(turn, client, 30), opaque=30)
        return [b"".join(frames[:20]), b"".join(frames[20:])]

    async def play() -> None:
        async with two_brokers(tmp_path, fastLoopThreads="2") as (fast, plain), asyncio.timeout(SCENE_S):
            loop, together, turn = fast_loop(fast), [], 0
            serve = loop._serve

            def watched(shares: Sequence[Any]) -> int | None:
                rows = serve(shares)
                together.append(sum(share.stake.was_busy for share in shares))
                return rows

            monkeypatch.setattr(loop, "_serve", watched)
            while 2 not in together:
                data = [said(turn, client) for client in range(8)]
                assert await each_says(fast, data) == await each_says(plain, data)
                turn += 1
            stored = bodies_in_order(fast)
            assert sorted(stored) == bodies(plain)
            for client in range(8):
                sent = [body_of(each, client, n) for each in range(turn) for n in range(60)]
                assert [body for body in stored if body.split()[1] == b"%d" % client] == sent

    run(play())


def test_nothing_is_left_of_them(tmp_path: Path) -> None:
    def left() -> tuple[int, list[str]]:
        threads = [each.name for each in threading.enumerate() if each.name.startswith("FastLoop-")]
        return len(os.listdir("/proc/self/fd")), threads

    async def play(directory: Path) -> None:
        async with two_brokers(directory, fastLoopThreads="3") as (fast, _), asyncio.timeout(SCENE_S):
            await each_says(fast, [[send()]] * 4)
            await until_async(lambda: not fast_loop(fast).transports, "all are gone")
            assert left()[1] == ["FastLoop-2", "FastLoop-3"]

    run(play(tmp_path / "first"))
    before = left()
    assert before[1] == []
    run(play(tmp_path / "second"))
    until(lambda: left() == before, "all of it is closed")


def test_a_thread_that_fails_ends_the_lease() -> None:
    failing = SimpleNamespace(help=lambda *_: 1 // 0)
    nothing = np.zeros(4, np.uint8)
    numbers = np.zeros(4, np.int64)
    stake = SimpleNamespace(epoll=-1, numbers=numbers, octets=nothing, pull_tables=(numbers, nothing))
    hooked: list[object] = []
    before, threading.excepthook = threading.excepthook, hooked.append
    try:
        common = np.zeros(common_size(1), np.int64)
        helper = Helper(cast(Any, failing), "FastLoop-9", cast(Stake, stake), common)
        helper._thread.join()
        for _ in range(2):  # the event loop does not wait for it the next time either
            with pytest.raises(RuntimeError, match="FastLoop-9 has ended"):
                helper.begin(nothing, cast(Any, SimpleNamespace(numbers=numbers, octets=nothing)), 0)
        with pytest.raises(RuntimeError, match="FastLoop-9 has ended"):
            helper.end()
        assert common[FAILED] == common[STOPS] == 1
        helper.close()
    finally:
        threading.excepthook = before
    assert "ZeroDivisionError" in repr(hooked)


def test_a_record_before_that_never_comes() -> None:
    """Who waits for it to be visible gives up when the thread that was to write it has failed."""
    common = np.zeros(common_size(2), np.int64)
    columns = np.zeros(2 * PARTS + ROWS * SENDS_MAX, np.int64)
    columns[2 * COLUMNS : 2 * COLUMNS + 2] = 2 * PARTS, len(columns)
    columns[2 * PARTS + SIZE * SENDS_MAX] = 100
    log = np.zeros(400, np.uint8)
    common[PUBLISHED], common[POSITION] = 0, 200  # the first 100 bytes are another's
    published: list[int] = []
    waiting = threading.Thread(
        target=lambda: published.append(kernels.publish(log, 100, 100, 1, columns, common))
    )
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    common[FAILED] = 1
    waiting.join()
    assert published == [0] and common[STORED] == 0 and not log.any()


class Producer:
    """Sends 32 messages, waits for their answers, and so on until its broker is gone."""

    def __init__(self, port: int, name: int) -> None:
        self.name, self.answered = name, 0
        self._peer = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rest = b""
        with self._peer, contextlib.suppress(ConnectionError):
            for turn in range(1 << 30):
                numbers = range(32 * turn, 32 * turn + 32)
                self._peer.sendall(
                    b"".join(send(b"%d %d" % (self.name, n), opaque=n, queue_id=n % 3) for n in numbers)
                )
                while self.answered < 32 * turn + 32:
                    received = self._peer.recv(1 << 16)
                    if not received:
                        return
                    rest = rest[-8:] + received
                    self.answered += rest.count(b'"code":0,')

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def stored_in(directory: Path) -> dict[int, list[int]]:
    """Of each producer the numbers of its messages, as a restart finds them; in each queue they have no gap."""
    found, offsets = defaultdict[int, list[int]](list), defaultdict[int, int](int)
    with open_store(directory) as store:
        offset = store.min_phy_offset
        while (raw := store.select_one_message_by_offset(offset)) is not None:
            message = decode_record(raw)
            name, number = map(int, message.body.split())
            found[name].append(number)
            assert message.queue_offset == offsets[message.queue_id]
            offsets[message.queue_id] += 1
            offset += message.store_size
        assert offset == store.max_phy_offset
    return found


@pytest.mark.parametrize("seed", range(2))
def test_killed_while_two_threads_store(tmp_path: Path, seed: int) -> None:
    """What was answered is there, in its order."""
    settings = {"fastLoopThreads": 2, "mappedFileSizeCommitLog": 1 << 28}
    with MqlakeBroker(tmp_path, settings) as broker:
        port = int(broker.address.rpartition(":")[2])
        producers = [Producer(port, name) for name in range(6)]
        until(lambda: min(each.answered for each in producers) > 4000, "they are served")
        time.sleep(random.Random(seed).uniform(0, 0.05))
        broker.kill()
        for each in producers:
            each.join()
    stored = stored_in(tmp_path / "store" / "broker-0")
    for each in producers:
        assert stored[each.name] == list(range(len(stored[each.name])))
        assert len(stored[each.name]) >= each.answered
