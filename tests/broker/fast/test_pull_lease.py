"""Pulls that compiled code answers by itself: the bytes of PullMessageProcessor, and what the broker counts then."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake.broker.controller import BrokerController
from mqlake.broker.fast.lease import Lease
from mqlake.broker.fast.pull_lease import IDLE_ROUNDS_MAX
from mqlake.broker.metrics.rpc_latency import Rpc
from mqlake.errors import ProtocolError
from mqlake.native import pull_layout
from mqlake.native.pull_layout import TAKEN_PULLS
from mqlake.remoting.bodies.topic import PERM_WRITE
from mqlake.remoting.codec import decode_frame, frame_end
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.admin import DeleteTopicRequestHeader
from mqlake.store.files.mapped_file import MappedFile
from tests.broker.fast.test_fast_pull import code_of, decoded, fast_pull_of, frame
from tests.broker.fast.test_fast_send import Wire, fast_loop, fast_path, send
from tests.broker.live import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, Peer, on_a_broker
from tests.waiting import until_async

QUEUES = 3


class Pulls:
    """A broker that serves connections by compiled code. What was answered without Python is counted."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.controller: BrokerController = peer.controller
        self.path = fast_pull_of(peer.controller)
        self.alone = 0
        noted = self.path.taken_in_round

        def noting(connection: object, plan: object, row: list[int]) -> None:
            self.alone += row[TAKEN_PULLS]
            noted(connection, plan, row)  # type: ignore[arg-type]

        self.path.taken_in_round = noting  # type: ignore[method-assign]

    async def load(self) -> None:
        await asyncio.to_thread(fast_path(self.controller).load)
        await asyncio.to_thread(self.path.load)

    async def fill(self, topic: str = "T", count: int = 60, size: int = 100) -> None:
        for n in range(count):
            await self.peer.send(topic, b"%d-" % n + bytes(size), queue_id=n % QUEUES)
        await self.peer.dispatched()

    async def plainly(self, data: bytes) -> list[bytes]:
        """What a broker without fast paths answers."""
        server = self.controller.server
        paths, server.fast_paths = server.fast_paths, ()
        async with Wire(self.controller) as wire:
            expected = await wire.say(data)
        server.fast_paths = paths
        return expected

    async def same(self, wire: Wire, data: bytes) -> int:
        """Asks on `wire`; how many of the answers, which are those of the slow path, compiled code gave alone."""
        before = self.alone
        said = await wire.say(data)
        assert said == await self.plainly(data)
        return self.alone - before


def play(directory: Path, scene: Callable[[Pulls], Awaitable[None]], **settings: str) -> None:
    async def begin(peer: Peer) -> None:
        pulls = Pulls(peer)
        await pulls.load()
        await scene(pulls)

    on_a_broker(directory, begin, longPollingEnable="false", shortPollingTimeMills="1", **settings)


def pull(queue_id: int, offset: int, count: int = 4, **fields: object) -> bytes:
    fields = {"opaque": 100 * offset + queue_id, **fields}
    return frame(offset, queue_id=queue_id, max_msg_nums=count, **fields)  # type: ignore[arg-type]


def test_consumers_that_read_on_are_answered_without_python(tmp_path: Path) -> None:
    async def scene(pulls: Pulls) -> None:
        await pulls.fill()
        async with Wire(pulls.controller) as wire:
            for _ in range(2):  # one to be recognised by, one by Python's half of the compiled code
                for queue_id in range(QUEUES):
                    assert await pulls.same(wire, pull(queue_id, 0)) == 0
            await pulls.same(wire, b"".join(pull(queue_id, 4) for queue_id in range(QUEUES)))
            assert await pulls.same(wire, b"".join(pull(queue_id, 8) for queue_id in range(QUEUES))) == 3
            assert await pulls.same(wire, pull(1, 12) + pull(1, 5) + pull(2, 19)) >= 2
            # the last ones, and one that finds nothing
            assert await pulls.same(wire, pull(0, 16)) == 1
            assert await pulls.same(wire, pull(0, 20)) == 0

    play(tmp_path, scene)


def test_consumers_of_some_tags(tmp_path: Path) -> None:
    async def scene(pulls: Pulls) -> None:
        for n in range(40):
            await pulls.peer.send("T", b"%d" % n, properties=f"TAGS\x01Tag{'ABCD'[n % 4]}\x02")
        await pulls.peer.dispatched()

        def ask(offset: int) -> bytes:
            return pull(0, offset, subscription="TagA || TagC")

        async with Wire(pulls.controller) as wire:
            for _ in range(3):
                await pulls.same(wire, ask(0))
            for offset in range(1, 30):
                assert await pulls.same(wire, ask(offset)) == 1, offset
            assert await pulls.same(wire, b"".join(ask(offset) for offset in (3, 30, 31, 33))) == 4
            # nothing that it asked for is left
            assert await pulls.same(wire, ask(39)) == 0

    play(tmp_path, scene)


def test_pulls_alone_do_not_take_the_lock_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(pulls: Pulls) -> None:
        await pulls.fill()
        leases = 0
        run = Lease.run

        def counting(self: Lease, *arguments: Any) -> Any:
            nonlocal leases
            leases += 1
            return run(self, *arguments)

        monkeypatch.setattr(Lease, "run", counting)
        async with Wire(pulls.controller) as wire:
            for _ in range(4):
                await pulls.same(wire, pull(0, 0))
            before = leases
            for _ in range(4):
                assert await pulls.same(wire, pull(0, 0) + pull(0, 4)) == 2
            assert leases == before
            stored = fast_loop(pulls.controller).messages
            sent = send(topic="T", queue_id=0, opaque=1)
            for _ in range(6):
                assert len(await wire.say(pull(0, 0) + sent)) == 2
            assert fast_loop(pulls.controller).messages > stored and leases > before

    play(tmp_path, scene)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_pulled(tmp_path: Path, seed: int) -> None:
    """In pieces of any size, with other requests between: the slow path's answers, in its order."""
    chance = random.Random(seed)

    places = [0] * QUEUES

    def request(opaque: int, odd: bool) -> bytes:
        if not odd:
            queue_id = chance.randrange(QUEUES)
            places[queue_id] = (offset := places[queue_id] % 20) + 4
            return pull(queue_id, offset, opaque=opaque, commit_offset=chance.randrange(5))
        lot = chance.random()
        offset = chance.choice([0, 3, 7, 19, 20, 21, 2**40, chance.randrange(20)])
        queue_id = chance.randrange(QUEUES + (lot < 0.1))
        if lot < 0.15:
            return pull(queue_id, offset, opaque=opaque, subscription=chance.choice(["a", "b || c"]))
        if lot < 0.2:
            return pull(queue_id, offset, opaque=opaque, topic="Nobody")
        if lot < 0.3:
            damaged = bytearray(pull(queue_id, offset, opaque=opaque))
            damaged[chance.randrange(12, len(damaged))] = chance.choice(b'0123456789"{}:, a\xff')
            with contextlib.suppress(ProtocolError):  # which would close the connection
                decode_frame(memoryview(damaged), 0, len(damaged))
                return bytes(damaged)
        count = chance.choice([1, 4, 4, 4, 32, 100])
        return pull(queue_id, offset, count, opaque=opaque, commit_offset=chance.randrange(5))

    async def scene(pulls: Pulls) -> None:
        await pulls.fill()
        async with Wire(pulls.controller) as wire:
            for _ in range(30):
                odd = chance.random() < 0.4
                data = b"".join(request(opaque, odd) for opaque in range(chance.choice([1, 1, 3, 40])))
                cut = chance.choice([0, chance.randrange(len(data))])
                wire._writer.write(data[:cut])
                await asyncio.sleep(0)
                said = await wire.say(data[cut:])
                expected = await pulls.plainly(data)
                # the slow path answers in turn; what compiled code answers may overtake what Python answers
                assert sorted(said) == sorted(expected)
        assert pulls.alone

    play(tmp_path, scene)


def test_half_frames_of_every_length(tmp_path: Path) -> None:
    async def scene(pulls: Pulls) -> None:
        await pulls.fill()
        one, other = pull(0, 0), pull(0, 4, opaque=8)
        expected = await pulls.plainly(one + other)
        async with Wire(pulls.controller) as wire:
            for _ in range(3):
                assert await wire.say(one + other) == expected
            for size in range(1, len(other)):
                before = pulls.alone
                wire._writer.write(one + other[:size])
                await until_async(lambda n=before: pulls.alone > n, "the first")  # type: ignore[misc]
                assert await wire.say(other[size:]) == expected
                assert pulls.alone == before + 2

    play(tmp_path, scene)


def test_a_peer_that_does_not_read(tmp_path: Path) -> None:
    """It is not read from, others are served; then it gets every byte."""

    async def scene(pulls: Pulls) -> None:
        for n in range(20):
            await pulls.peer.send("T", bytes([n]) * 50_000)
        await pulls.peer.dispatched()
        loop, events = fast_loop(pulls.controller), asyncio.get_running_loop()
        async with Wire(pulls.controller) as wire:
            await wire.say(pull(0, 0) + pull(0, 4))
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(("127.0.0.1", pulls.controller.port))
            peer.setblocking(False)
            connections = pulls.controller.server.connections
            address = f":{peer.getsockname()[1]}"
            await until_async(
                lambda: any(each.remote_address.endswith(address) for each in connections), "it is there"
            )
            [connection] = (each for each in connections if each.remote_address.endswith(address))
            connection._undecided = False
            loop.move(connection)
            transport = loop.transports[max(loop.transports)]
            assert transport.connection is connection
            asked = 0
            while transport.is_reading():
                await events.sock_sendall(peer, pull(0, asked % 16, opaque=asked))
                asked += 1
                await asyncio.sleep(0)
            assert transport.get_write_buffer_size() < 4 << 20
            assert len(await wire.say(pull(0, 4))) == 1
            expected = {}
            for offset in range(16):
                [answer] = await pulls.plainly(pull(0, offset, opaque=0))
                expected[offset] = bytes(decode_frame(memoryview(answer), 0, len(answer)).body_bytes())
            rest, answers = b"", 0
            while answers < asked:
                rest += await events.sock_recv(peer, 1 << 20)
                while end := frame_end(rest, 0, len(rest)):
                    found = decode_frame(memoryview(rest), 0, end)
                    assert found.code == ResponseCode.SUCCESS
                    assert bytes(found.body_bytes()) == expected[found.opaque % 16]
                    rest = rest[end:]
                    answers += 1
            await until_async(lambda: transport.is_at_rest, "it has read everything")
            peer.close()
        assert pulls.alone > 0

    play(tmp_path, scene)


def test_sends_and_pulls_of_one_connection(tmp_path: Path) -> None:
    async def scene(pulls: Pulls) -> None:
        await pulls.fill()
        async with Wire(pulls.controller) as wire:
            await wire.say(send(topic="T", queue_id=0, opaque=1))
            for offset in (0, 1, 2, 4, 8):
                data = pull(0, offset) + send(topic="T", queue_id=0, opaque=2) + pull(0, offset + 1, opaque=3)
                answers = {
                    decode_frame(memoryview(each), 0, len(each)).opaque for each in await wire.say(data)
                }
                assert answers == {100 * offset, 2, 3}
            assert pulls.alone

    play(tmp_path, scene)


def test_what_the_broker_decides_counts_at_once(tmp_path: Path) -> None:
    async def scene(pulls: Pulls) -> None:
        await pulls.fill()
        broker = pulls.controller.broker
        topics, offsets = broker.topic_config_manager, broker.consumer_offset_manager
        topic = topics.select_topic_config("T")
        assert topic is not None

        async with Wire(pulls.controller) as wire:

            async def read_on() -> None:
                for _ in range(3):
                    await pulls.same(wire, pull(0, 0))
                assert await pulls.same(wire, pull(0, 4)) == 1

            await read_on()
            topics.update_topic_config(type(topic)(topic_name="T", perm=PERM_WRITE))
            assert await pulls.same(wire, pull(0, 4)) == 0
            topics.update_topic_config(topic)
            await read_on()
            before, broker.config = (
                broker.config,
                broker.config.replaced({"rejectPullConsumerEnable": "true"}),
            )
            assert await pulls.same(wire, pull(0, 4)) == 0
            broker.config = before
            await read_on()
            offsets.assign_reset_offset("T", "CG", 0, 1)
            [answer] = await wire.say(pull(0, 8))
            assert b"OFFSET_RESET" in answer
            await read_on()
            header = DeleteTopicRequestHeader(topic="T")
            done = await pulls.peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)
            assert done.code == ResponseCode.SUCCESS
            assert await pulls.same(wire, pull(0, 4)) == 0
            await pulls.fill(count=30, size=3)
            await read_on()

    play(tmp_path, scene)


def test_files_that_are_deleted_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that has begun reads them to its end, the next one does not."""

    async def scene(pulls: Pulls) -> None:
        await pulls.fill(count=120, size=2000)
        files = pulls.controller.broker.store.commit_log_files
        async with Wire(pulls.controller) as wire:
            for _ in range(3):
                await wire.say(pull(0, 0))
            expected = await pulls.plainly(pull(0, 4))
            loop = fast_loop(pulls.controller)
            begin = loop.shares[0].pulls.begin  # type: ignore[union-attr]
            deleted: list[MappedFile] = []

            def then_delete() -> None:
                begin()
                if fast_pull_of(pulls.controller).reading_on and not deleted:
                    deleted.append(files.mapped_files[0])
                    files.delete_file(deleted[0])

            monkeypatch.setattr(loop.shares[0].pulls, "begin", then_delete)
            before = pulls.alone
            assert await wire.say(pull(0, 4)) == expected
            assert deleted and pulls.alone == before + 1
            [answer] = await wire.say(pull(0, 8))
            assert code_of(answer) != ResponseCode.SUCCESS
            assert pulls.alone == before + 1

    play(tmp_path, scene, mappedFileSizeCommitLog="200000")


def test_counted_as_by_the_slow_path(tmp_path: Path) -> None:
    async def scene(pulls: Pulls) -> None:
        await pulls.fill()
        broker = pulls.controller.broker
        assert pulls.controller.metrics is not None
        histograms = pulls.controller.metrics.rpc_latencies.histograms
        rpc, stats = Rpc(RequestCode.PULL_MESSAGE, 0, False, False), broker.store.store_stats_service
        offsets = broker.consumer_offset_manager
        flags = SUBSCRIPTION | COMMIT_OFFSET | SUSPEND
        async with Wire(pulls.controller) as wire:
            for _ in range(3):
                await wire.say(pull(0, 0, sys_flag=flags))
            found, messages = stats.get_message_times_total_found, stats.get_message_transferred_msg_count
            answered, commits = sum(histograms[rpc].counts), offsets._commits
            data = b"".join(
                pull(0, offset, sys_flag=flags, commit_offset=offset - 1) for offset in (4, 8, 12)
            )
            await wire.say(data)
            assert pulls.alone == 3
            assert stats.get_message_times_total_found == found + 3
            assert stats.get_message_transferred_msg_count == messages + 12
            assert sum(histograms[rpc].counts) == answered + 3
            assert offsets._commits == commits + 3
            assert (offsets.query_offset("CG", "T", 0), offsets.query_pull_offset("CG", "T", 0)) == (11, 16)
            item = None

            def counted() -> bool:
                nonlocal item
                item = broker.broker_stats_manager.item("GROUP_GET_NUMS", "T@CG")
                return item is not None and item.times == 6

            await until_async(counted, "statistics are counted")
            assert item is not None and item.value == 24

    play(tmp_path, scene, metricsExporterType="PROM", metricsPromExporterPort="0")


def test_who_reads_fast_gets_more_units_for_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(pulls: Pulls) -> None:
        await pulls.fill()
        async with Wire(pulls.controller) as wire:
            for _ in range(3):
                await pulls.same(wire, pull(0, 0))
            assert await pulls.same(wire, pull(0, 4) + pull(0, 8) + pull(0, 12)) == 3
            [plan] = pulls.path.reading_on
            assert plan.units_left_min == pull_layout.UNITS_LEFT_MIN
            monkeypatch.setattr(pull_layout, "UNITS_LEFT_MIN", 3)
            assert plan.units_left_min == 24, "twice what the last round gave"
            monkeypatch.setattr(pull_layout, "UNITS_AHEAD", 16)
            assert plan.units_left_min == 8
            monkeypatch.undo()
            assert await pulls.same(wire, pull(0, 4)) == 1
            monkeypatch.setattr(pull_layout, "UNITS_LEFT_MIN", 3)
            assert plan.units_left_min == 3, "it went back"

    play(tmp_path, scene)


def test_plans_that_nobody_reads_on_are_forgotten(tmp_path: Path) -> None:
    async def scene(pulls: Pulls) -> None:
        await pulls.fill()
        async with Wire(pulls.controller) as wire:
            for _ in range(3):
                await pulls.same(wire, pull(0, 0))
            assert len(pulls.path.reading_on) == 1
            for _ in range(IDLE_ROUNDS_MAX + 2):
                await wire.say(b"")
            assert not pulls.path.reading_on
            [answer] = await wire.say(pull(0, 4))
            assert [message.queue_offset for message in decoded(answer)] == [4, 5, 6, 7]

    play(tmp_path, scene)
