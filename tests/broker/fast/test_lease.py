"""Leases: what compiled code does by itself for a while is what a put at a time would have done."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mqlake.broker.controller import BrokerController
from mqlake.broker.fast import lease as leases
from mqlake.broker.fast.lease import QUEUES_KNOWN_MAX, Lease, Stake
from mqlake.broker.metrics.rpc_latency import Rpc
from mqlake.formats.record import decode_record
from mqlake.message import MessageExtBrokerInner
from mqlake.native.loop_layout import LEASE_AT, ROUNDS, STORED
from mqlake.remoting.codec import encode_frame
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import ONEWAY_FLAG, RemotingCommand
from mqlake.remoting.loop import run
from mqlake.store.message_store import open_store
from mqlake.store.results import PutMessageStatus
from tests.broker.fast.test_fast_send import (
    TOPIC,
    Wire,
    batch,
    fast_loop,
    half,
    item,
    on_two_brokers,
    send,
    two_brokers,
)
from tests.broker.live import SCENE_S
from tests.waiting import PATIENCE_S, until, until_async

FRAMES = b"".join(send(opaque=number, queue_id=number % 3) for number in range(64))
ROUNDS_MAX = 5000


def message() -> MessageExtBrokerInner:
    host = ("127.0.0.1", 1)
    return MessageExtBrokerInner(topic=TOPIC, body=b"put", born_host=host, store_host=host)


def lease_of(controller: BrokerController) -> Lease:
    found = fast_loop(controller)._lease
    assert found is not None
    return found


def only_others_end(monkeypatch: pytest.MonkeyPatch, *limits: str) -> None:
    """Neither these limits nor timers of the event loop end a lease: a busy machine serves few in the time of a usual
    one. Callbacks that wait do so as ever."""
    for name in limits:
        monkeypatch.setattr(leases, name, int(PATIENCE_S * 1e9))
    time_left_of = leases._time_left_of

    def without_timers(loop: Any) -> Callable[[], int]:
        left = time_left_of(loop)
        return lambda: leases.FOREVER if left() else 0

    monkeypatch.setattr(leases, "_time_left_of", without_timers)


def test_lone_sends_share_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, with what others put in between; a lease goes on as long as they come."""
    for name in ("LEASE_NS", "LINGER_NS"):
        monkeypatch.setattr(leases, name, 900_000_000)

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        stored: list[int] = []
        loop = fast_loop(fast)
        monkeypatch.setattr(loop, "_leased", stored.append)
        async with Wire(fast) as one, Wire(plain) as other, Wire(fast, moves=False) as apart:
            for number in range(40):
                frame = send(b"%d" % number, opaque=number, queue_id=number % 3)
                if number % 8 == 7:
                    assert await apart.say(frame) == await other.say(frame)
                assert await one.say(frame) == await other.say(frame)
        assert sum(stored) >= 30

    on_two_brokers(tmp_path, scene)


@pytest.mark.parametrize("is_silent", [True, False])
def test_connections_that_are_silent_shorten_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """Those that ask for something do, for a while."""
    only_others_end(monkeypatch, "LEASE_NS", "LINGER_NS", "SILENT_LEASE_NS")
    monkeypatch.setattr(leases, "SHARED_LEASE_NS", 1)
    question = encode_frame(RemotingCommand(RequestCode.GET_BROKER_CONFIG))

    def client(port: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as peer,
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as other,
        ):
            for number in range(100):
                if not is_silent:
                    other.sendall(question)
                    assert other.recv(1 << 20)
                peer.sendall(send(opaque=number))
                said(peer, 1)

    async def play() -> None:
        async with two_brokers(tmp_path) as (fast, _), asyncio.timeout(SCENE_S):
            stored: list[int] = []
            monkeypatch.setattr(fast_loop(fast), "_leased", stored.append)
            await asyncio.to_thread(client, fast.port)
            assert (max(stored) > 8) == is_silent, stored

    run(play())


def test_a_thread_with_nothing_to_read_waits_in_each_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after one has ended the lease before."""
    only_others_end(monkeypatch, "LEASE_NS", "LINGER_NS")

    async def play() -> None:
        async with two_brokers(tmp_path, fastLoopThreads="2") as (fast, _), asyncio.timeout(SCENE_S):
            stored: list[int] = []
            monkeypatch.setattr(fast_loop(fast), "_leased", stored.append)
            ports = [fast.port] * 2

            def client() -> None:
                with contextlib.ExitStack() as stack:
                    peers = [
                        stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
                        for port in ports
                    ]
                    for number in range(300):
                        for peer in peers:
                            peer.sendall(send(opaque=number))
                        for peer in peers:
                            said(peer, 1)

            await asyncio.to_thread(client)
            assert max(stored) > 100, stored

    run(play())


def test_more_rounds_than_one_in_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a client waits for each answer and nobody wants anything else, the event loop does not see its sends."""
    only_others_end(monkeypatch, "LEASE_NS", "LINGER_NS")
    frames = [send(b"%d" % number, opaque=number, queue_id=number % 3) for number in range(200)]

    def client(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as peer:
            for frame in frames:
                peer.sendall(frame)
                assert b'"code":0' in peer.recv(4096)

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        stored: list[int] = []
        monkeypatch.setattr(fast_loop(fast), "_leased", stored.append)
        for controller in (fast, plain):
            await asyncio.to_thread(client, controller.port)
        assert max(stored) > 50
        await until_async(lambda: not fast_loop(fast).transports, "it is gone")

    on_two_brokers(tmp_path, scene)


def test_a_lease_ends_where_the_event_loop_has_other_things_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while its connections always have more to say."""
    for name in ("LEASE_NS", "LINGER_NS", "COMMON_LEASE_NS"):
        monkeypatch.setattr(leases, name, 900_000_000_000)
    is_over = threading.Event()

    def client(port: int) -> int:
        """How many times it had said all of them when it was stopped."""
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.settimeout(PATIENCE_S)
            peer.sendall(FRAMES * 2)
            for done in range(3000):
                answers, rest = 0, b""
                while answers < 64:
                    rest = rest[-8:] + peer.recv(1 << 20)
                    answers += rest.count(b'"code":0,')
                if is_over.is_set():
                    return done
                peer.sendall(FRAMES)
        return 3000

    async def play() -> None:
        async with (
            two_brokers(tmp_path) as (fast, plain),
            asyncio.timeout(SCENE_S),
            Wire(fast, moves=False) as one,
            Wire(plain) as other,
        ):
            sending = asyncio.create_task(asyncio.to_thread(client, fast.port))
            await until_async(lambda: fast_loop(fast).messages > 1000, "there are leases")
            lease_of(fast)._is_alone = lambda: True
            for number in range(3):
                assert len(await one.say(send(opaque=number))) == len(await other.say(send(opaque=number)))
            is_over.set()
            assert await sending < 3000

    run(play())


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_lease_ends_where_somebody_else_wants_to_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    """While its connections always have more to say, and while it waits for them."""
    for name in ("LEASE_NS", "LINGER_NS", "BUSY_NS"):
        monkeypatch.setattr(leases, name, 900_000_000_000)

    async def play() -> None:
        async with two_brokers(tmp_path) as (fast, _), asyncio.timeout(SCENE_S):
            is_over, pause_s = threading.Event(), 0 if is_busy else 0.02

            def puts() -> list[bool]:
                """In another thread, and nothing wakes the event loop meanwhile."""
                until(lambda: fast.broker.store.commit_log.appender.lock.locked(), "there is a lease")
                return [fast.broker.store.put_message(message()).is_ok for _ in range(3)]

            sending = asyncio.create_task(asyncio.to_thread(keep_sending, fast.port, is_over, pause_s))
            await until_async(lambda: fast_loop(fast).transports, "it is served")
            lease_of(fast)._is_alone = lambda: True
            assert await asyncio.to_thread(puts) == [True] * 3
            is_over.set()
            assert await sending < ROUNDS_MAX

    run(play())


@pytest.mark.parametrize("is_asyncio", [True, False])
def test_a_lease_ends_when_a_timer_of_the_event_loop_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asyncio: bool
) -> None:
    """While its connections always have more to say; and it does not begin to last where a callback waits."""
    for name in ("LEASE_NS", "LINGER_NS", "BUSY_NS"):
        monkeypatch.setattr(leases, name, 900_000_000_000)

    async def play() -> None:
        async with two_brokers(tmp_path) as (fast, _):
            is_over = threading.Event()
            sending = asyncio.create_task(asyncio.to_thread(keep_sending, fast.port, is_over))
            loop = asyncio.get_running_loop()
            await until_async(lambda: fast_loop(fast).transports, "the connection is moved")
            lease_of(fast)._is_alone = lambda: True
            for _ in range(3):
                future = loop.create_future()
                loop.call_later(0.02, loop.call_soon, future.set_result, None)
                await future
            is_over.set()
            assert await sending < ROUNDS_MAX

    if is_asyncio:
        asyncio.run(play())
    else:
        run(play())


def keep_sending(port: int, is_over: threading.Event, pause_s: float = 0) -> int:
    """Sends FRAMES again and again until it is over, at most ROUNDS_MAX times; how many times it did."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as peer:
        for rounds in range(ROUNDS_MAX):
            if is_over.wait(pause_s):
                return rounds
            peer.sendall(FRAMES)
            said(peer, 64)
    return ROUNDS_MAX


def said(peer: socket.socket, answers: int) -> None:
    rest = b""
    while answers > 0:
        rest = rest[-8:] + peer.recv(1 << 20)
        answers -= rest.count(b'"code":0,')


def test_a_lease_that_fails_after_its_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has answered is not overwritten: the store takes nothing more, and the next start finds all."""
    sent = [b"%d" % number for number in range(40)]
    directory = tmp_path / "fast"

    async def play() -> None:
        async with two_brokers(tmp_path) as (fast, _), asyncio.timeout(SCENE_S), Wire(fast) as wire:
            for _ in range(3):  # its queue is known then
                await wire.say(send(b"first"))
            failures: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
            serve = Stake.serve

            def fails(self: Stake, *arguments: Any) -> None:
                serve(self, *arguments)
                if self.cells[LEASE_AT + ROUNDS] and arguments[2][STORED]:
                    raise ZeroDivisionError

            monkeypatch.setattr(Stake, "serve", fails)
            answers = await wire.say(b"".join(send(body, opaque=n) for n, body in enumerate(sent)))
            assert all(b'"code":0,' in answer for answer in answers[:40]) and set(answers[40:]) == {
                b"hung up"
            }
            assert "ZeroDivisionError" in repr(failures)
            put = await asyncio.to_thread(fast.broker.store.put_message, message())
            assert put.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            assert "where the log ends is not known any more: ZeroDivisionError" in put.reason
            async with Wire(fast, moves=False) as another:
                assert b'"code":0' not in b"".join(await another.say(send(b"refused")))

    run(play())
    [path] = [each.parent for each in directory.rglob("commitlog")]
    with open_store(path) as store:
        found = []
        offset = store.min_phy_offset
        while (raw := store.select_one_message_by_offset(offset)) is not None:
            record = decode_record(raw)
            found.append(record.body)
            offset += record.store_size
        assert found[-41:] == [b"first", *sent]


def test_statistics_and_latencies_are_counted(tmp_path: Path) -> None:
    async def play() -> None:
        exporter = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
        began = time.monotonic_ns()
        async with two_brokers(tmp_path, **exporter) as (fast, plain), asyncio.timeout(SCENE_S):
            data = b"".join(
                (
                    *(send(opaque=number, queue_id=number % 3) for number in range(5)),
                    send(opaque=5, command_flag=ONEWAY_FLAG),
                    send(opaque=6, code=RequestCode.SEND_MESSAGE, long_names=True),
                    batch(item(), item(), opaque=7),
                )
            )
            counted = []
            for controller in (fast, plain):
                async with Wire(controller) as wire:
                    for _ in range(3):
                        assert len(await wire.say(data)) == 7
                assert controller.metrics is not None
                latencies = controller.metrics.rpc_latencies
                sends = {
                    rpc: sum(histogram.counts)
                    for rpc, histogram in latencies.histograms.items()
                    if rpc.request_code in (10, 310, 320)
                }
                passed = time.monotonic_ns() - began
                for histogram in latencies.histograms.values():
                    assert histogram.sum_ns <= passed * sum(histogram.counts)
                stats = controller.broker.store.store_stats_service
                counted.append((sends, stats.topic_totals()[TOPIC]))
            assert counted[0] == counted[1]
            assert counted[0][0][Rpc(310, 0, False, True)] == 3
            assert fast_loop(fast).messages >= 18

    run(play())


def test_more_queues_than_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "QUEUES_KNOWN_MAX", 2)

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        async with Wire(fast) as one, Wire(plain) as other:
            for number in range(24):
                data = send(opaque=number, queue_id=number % 4) + send(opaque=99, queue_id=(number // 4) % 4)
                assert await one.say(data) == await other.say(data)
        assert len(lease_of(fast)._queues) <= 2 < QUEUES_KNOWN_MAX

    on_two_brokers(tmp_path, scene)


def test_half_messages_end_a_lease(tmp_path: Path) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        async with Wire(fast) as one, Wire(plain) as other:
            for number in range(4):
                data = send(opaque=1) + half(b"%d" % number, opaque=2) + send(opaque=3)
                assert await one.say(data) == await other.say(data)
                assert await one.say(send(opaque=4)) == await other.say(send(opaque=4))

    on_two_brokers(tmp_path, scene)


def test_no_lease_waits_where_a_consumer_does(tmp_path: Path) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        async with Wire(fast) as one, Wire(plain) as other:
            lease = lease_of(fast)
            asked = []

            def is_waited_for(queues: object) -> bool:
                asked.append(queues)
                return True

            lease._is_waited_for, lease._is_alone = is_waited_for, lambda: False
            lease._ended_ns = 1 << 62  # as if the last one had just ended
            assert await one.say(send()) == await other.say(send())
            assert asked

    on_two_brokers(tmp_path, scene)


def test_under_sync_flush_there_are_none(tmp_path: Path) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        async with Wire(fast) as one, Wire(plain) as other:
            assert not lease_of(fast).may_begin
            for _ in range(2):  # the first makes its queue known
                assert await one.say(send()) == await other.say(send())
            assert fast_loop(fast).messages == 1

    on_two_brokers(tmp_path, scene, flushDiskType="SYNC_FLUSH")


@pytest.mark.parametrize("runs", [asyncio.run, run])
def test_how_long_an_event_loop_has_nothing_to_do(runs: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        left_ns, found = leases._time_left_of(loop), loop.create_future()
        one, other = socket.socketpair()

        def look() -> None:
            if left := left_ns():  # else it still does what it began with
                found.set_result([left, loop.call_soon(bool) and left_ns()])
                loop.remove_reader(one)

        with one, other:
            loop.call_later(3600, bool)
            loop.add_reader(one, look)
            other.send(b"x")
            left, left_with_callback = await found
        assert 3_000_000_000_000 < left <= 3_600_000_000_000
        assert left_with_callback == 0

    runs(play())


def test_an_event_loop_that_tells_nothing() -> None:
    assert leases._time_left_of(object())() == leases.FOREVER


def test_an_event_loop_that_names_no_descriptor_gets_its_thread_back_at_once() -> None:
    assert leases._descriptor_of(object()) == -1
