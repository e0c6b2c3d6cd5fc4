from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc

import pytest

from mqlake.broker.services.pull_request_hold import PullRequestHoldService
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.store.dispatch import Arrival
from tests.broker.live import SUBSCRIPTION, SUSPEND, Peer, on_a_broker, pull_header
from tests.broker.requests.test_pull_message import bodies, place
from tests.waiting import until_async

HELD = SUSPEND | SUBSCRIPTION


@pytest.fixture(autouse=True)
def _no_sweep(monkeypatch):
    """What a test does not sweep itself is found without."""
    monkeypatch.setattr("mqlake.broker.services.pull_request_hold.SWEEP_S", 3600.0)


def held(peer: Peer, offset: int = 0, **fields: object) -> asyncio.Task[RemotingCommand]:
    return asyncio.ensure_future(peer.pull("T", offset, sys_flag=HELD, **fields))


async def holding(peer: Peer, count: int) -> None:
    await until_async(lambda: peer.controller.pull_request_hold_service.held_count == count)


def test_a_message_wakes_those_that_wait_for_its_queue(tmp_path):
    async def scene(peer: Peer) -> None:
        await peer.send("T")
        await peer.dispatched()
        waiting = [held(peer, 1) for _ in range(3)]
        other = held(peer, 0, queue_id=2)
        await holding(peer, 4)
        await peer.send("T", b"new")
        for each in waiting:
            assert bodies(await each) == [b"new"]
        assert not other.done()
        await peer.send("T", b"other", queue_id=2)
        assert bodies(await other) == [b"other"]

    on_a_broker(tmp_path, scene)
    on_a_broker(tmp_path / "sync", scene, flushDiskType="SYNC_FLUSH")


def test_a_consumer_that_follows_is_never_left_waiting(tmp_path):
    async def scene(peer: Peer) -> None:
        async def produce() -> None:
            for n in range(300):
                await peer.send("T", b"%d" % n)

        async def consume() -> list[bytes]:
            found: list[bytes] = []
            while len(found) < 300:
                answer = await peer.pull("T", len(found), sys_flag=HELD)
                found += bodies(answer)
            return found

        await peer.send("T", b"", queue_id=1)
        found, _ = await asyncio.gather(consume(), produce())
        assert found == [b"%d" % n for n in range(300)]

    on_a_broker(tmp_path, scene)


def test_what_the_filter_does_not_want_wakes_nobody(tmp_path):
    async def scene(peer: Peer) -> None:
        await peer.send("T", queue_id=1)
        service = peer.controller.pull_request_hold_service
        wants_b = held(peer, subscription="B")
        await holding(peer, 1)
        for _ in range(5):
            await peer.send("T", properties="TAGS\x01A\x02")
        await peer.dispatched()
        [[request]] = service._table.values()
        await until_async(lambda: request.pull_from == 5)
        assert not wants_b.done()
        await peer.send("T", b"wanted", properties="TAGS\x01B\x02")
        answer = await wants_b
        assert (bodies(answer), place(answer)[0]) == ([b"wanted"], 6)

    on_a_broker(tmp_path, scene)


def test_an_end_of_patience(tmp_path):
    async def scene(peer: Peer) -> None:
        await peer.send("T", queue_id=1)
        answer = await held(peer, suspend_timeout_millis=600_000)
        assert (answer.code, place(answer)[0]) == (ResponseCode.PULL_NOT_FOUND, 0)

    on_a_broker(tmp_path, scene, longPollingEnable="false", shortPollingTimeMills="50")


def test_the_sweep_ends_what_was_held_long_enough(tmp_path):
    async def scene(peer: Peer) -> None:
        await peer.send("T", queue_id=1)
        waiting = held(peer, suspend_timeout_millis=1)
        await holding(peer, 1)
        await asyncio.sleep(0.002)
        peer.controller.pull_request_hold_service._sweep()
        assert (await waiting).code == ResponseCode.PULL_NOT_FOUND

    on_a_broker(tmp_path, scene)


def test_a_topic_that_is_deleted_meanwhile(tmp_path):
    async def scene(peer: Peer) -> None:
        await peer.send("T", queue_id=1)
        waiting = held(peer, suspend_timeout_millis=1)
        await holding(peer, 1)
        peer.controller.broker.topic_config_manager.delete_topic_config("T")
        await asyncio.sleep(0.002)
        peer.controller.pull_request_hold_service._sweep()
        assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST

    on_a_broker(tmp_path, scene)


def test_the_pulls_of_a_client_that_has_gone_are_forgotten(tmp_path):
    async def scene(peer: Peer) -> None:
        await peer.send("T", queue_id=1)
        service = peer.controller.pull_request_hold_service
        async with RemotingClient() as client:
            gone = Peer(peer.controller, client)
            waiting = held(gone)
            await holding(peer, 1)
            waiting.cancel()
        await until_async(lambda: len(peer.controller.server.connections) == 1)
        service._sweep()
        assert service.held_count == 0

    on_a_broker(tmp_path, scene)


def test_a_stop_answers_all(tmp_path):
    async def scene(peer: Peer) -> None:
        await peer.send("T", queue_id=1)
        waiting = [held(peer) for _ in range(5)]
        await holding(peer, 5)
        await peer.controller.stop()
        for each in waiting:
            assert (await each).code == ResponseCode.PULL_NOT_FOUND

    on_a_broker(tmp_path, scene)


def test_two_thousand_pulls_wait_at_little_cost(tmp_path):
    async def scene(peer: Peer) -> None:
        await peer.send("T", queue_id=1)
        request = RemotingCommand.create_request(RequestCode.PULL_MESSAGE, pull_header("T", 0, sys_flag=HELD))
        connection = await peer.client.connection(peer.address)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(2000):
            connection.invoke_oneway(request)
        await holding(peer, 2000)
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / 2000
        tracemalloc.stop()
        assert each < 5_000
        began = time.process_time()
        await peer.send("T")
        await holding(peer, 0)
        assert time.process_time() - began < 3

    on_a_broker(tmp_path, scene)


def test_what_arrives_while_a_queue_is_looked_at_is_not_missed(tmp_path):
    class Slow:
        """A filter during whose work a message of another tag is dispatched."""

        def is_matched_by_consume_queue(self, code: int) -> bool:
            service.on_arrival(Arrival("T", 0, 99, 1, 100))  # as the dispatch thread does
            seen.append(service._crossing)
            return False

        def is_matched_by_commit_log(self, record: memoryview) -> bool:
            return True

    seen: list[bool] = []

    async def scene(peer: Peer) -> None:
        nonlocal service
        service = peer.controller.pull_request_hold_service
        await peer.send("T", queue_id=1)
        waiting = held(peer, subscription="A")
        await holding(peer, 1)
        [[request]] = service._table.values()
        request.message_filter = Slow()
        await peer.send("T")
        await until_async(lambda: bool(seen))
        assert seen == [True]
        waiting.cancel()

    service: PullRequestHoldService
    on_a_broker(tmp_path, scene)
