"""Many connections at once to two brokers, one that serves them by compiled code and one that does not: the same
answers, and the same records of each."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import random
import select
import socket
import struct
import termios
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mqlake import native
from mqlake.broker.controller import BrokerController
from mqlake.broker.fast import fast_loop as fast_loop_module
from mqlake.broker.fast.fast_loop import TAKEN_BEFORE_MOVING
from mqlake.native.loop_layout import LEASE_AT, NUMBERS_SIZE, OTHERS, SLOT_SIZE, SLOTS_MAX
from mqlake.remoting.codec import encode_frame, frame_end
from mqlake.remoting.codes import SerializeType
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.epoll_transport import EpollTransport
from mqlake.remoting.loop import run
from mqlake.store.log.log_reader import LogReader
from tests.broker.fast.test_fast_send import (
    Wire,
    batch,
    fast_loop,
    item,
    on_two_brokers,
    own,
    send,
    two_brokers,
)
from tests.broker.live import SCENE_S
from tests.waiting import until_async

kernels = native.module("loop")
assert kernels is not None


def bodies(controller: BrokerController) -> list[bytes]:
    """Of all records but the first, sorted: connections may be served in any order."""
    return sorted(bodies_in_order(controller))


def bodies_in_order(controller: BrokerController) -> list[bytes]:
    found = []
    for chunk in LogReader(controller.broker.store.commit_log_files).scan(0):
        for start, size in zip(chunk.scan.position.tolist(), chunk.scan.size.tolist(), strict=True):
            record = bytes(chunk.mapped_file.view[start : start + size])
            found.append(record[88 : 88 + int.from_bytes(record[84:88], "big")])
    return found[1:]


def unacknowledged(peer: socket.socket) -> int:
    """Bytes sent that the other side's kernel may not have."""
    return struct.unpack("i", fcntl.ioctl(peer, termios.TIOCOUTQ, bytes(4)))[0]


async def each_says(controller: BrokerController, data: Sequence[Sequence[bytes]]) -> list[list[bytes]]:
    """The answers of connections of which each says its pieces, one after the other; opaque is all that is looked at in
    a send's."""

    async def say(pieces: Sequence[bytes]) -> list[bytes]:
        async with Wire(controller) as wire:
            answers = []
            for piece in pieces[:-1]:
                wire._writer.write(piece)
                await asyncio.sleep(0.001)
            answers += await wire.say(pieces[-1])
            return sorted(_without_places(answer) for answer in answers)

    return await asyncio.gather(*map(say, data))


def _without_places(answer: bytes) -> bytes:
    """Where a message went differs between two brokers that serve many at once."""
    head, found, rest = answer.partition(b'"msgId":"')
    return head[8:].split(b'"queueOffset"')[0] if not found else b"stored " + rest.partition(b'"opaque":')[2]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_many_say(tmp_path: Path, seed: int, flush: str) -> None:
    source = random.Random(seed)

    def frame(opaque: int, client: int) -> bytes:
        kind, body = SerializeType(client % 2), b"%d of %d" % (opaque, client)
        lot = source.random()
        if lot < 0.1:
            return encode_frame(RemotingCommand(source.choice([31998, 38]), opaque=opaque))
        if lot < 0.2:
            items = [item(body + b"-%d" % n, own(n)) for n in range(source.choice([1, 3, 100]))]
            return batch(*items, opaque=opaque, kind=kind, queue_id=source.randrange(4))
        if lot < 0.25:
            body += bytes(source.choice([10_000, SLOT_SIZE - 400, 300_000]))
        return send(body, opaque=opaque, kind=kind, queue_id=source.randrange(4))

    def pieces(client: int) -> list[bytes]:
        data = b"".join(frame(opaque, client) for opaque in range(source.randint(1, 40)))
        cuts = sorted(source.randrange(len(data)) for _ in range(source.choice([0, 0, 1, 10])))
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    async def play() -> None:
        settings = {"flushDiskType": flush, "fastLoopThreads": str(1 + seed)}
        async with two_brokers(tmp_path, **settings) as (fast, plain), asyncio.timeout(SCENE_S):
            for _ in range(3):
                said = [pieces(client) for client in range(30)]
                assert await each_says(fast, said) == await each_says(plain, said)
                assert bodies(fast) == bodies(plain)
            assert fast_loop(fast).messages > 200
            await until_async(lambda: not fast_loop(fast).transports, "all are gone")

    run(play())


def test_half_frames_of_every_length(tmp_path: Path) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        frame = send(opaque=2)
        async with Wire(fast) as one, Wire(plain) as other:
            assert await one.say(frame) == await other.say(frame)
            before = fast_loop(fast).messages
            for size in range(1, len(frame)):
                one._writer.write(send(opaque=1) + frame[:size])
                await until_async(lambda n=size: fast_loop(fast).messages == before + 2 * n - 1, "the first")  # type: ignore[misc]
                said = await one.say(frame[size:])
                assert said == await other.say(send(opaque=1) + frame)
            assert fast_loop(fast).messages == before + 2 * (len(frame) - 1)

    on_two_brokers(tmp_path, scene)


def test_a_frame_of_a_wrong_length_after_others(tmp_path: Path) -> None:
    """Its connection is closed when the others are answered, and no other one is."""

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        async with Wire(fast) as neighbour, Wire(plain) as another:
            assert await neighbour.say(send()) == await another.say(send())
            for data in (send(opaque=1), encode_frame(RemotingCommand(31998, opaque=1))):
                async with Wire(fast) as one, Wire(plain) as other:
                    wrong = data + b"\xff" * 8
                    assert await one.say(wrong) == await other.say(wrong)
            assert await neighbour.say(send()) == await another.say(send())

    on_two_brokers(tmp_path, scene)


def test_more_half_frames_than_places(tmp_path: Path) -> None:
    async def play() -> None:
        async with two_brokers(tmp_path) as (fast, _), asyncio.timeout(SCENE_S):
            async with contextlib.AsyncExitStack() as stack:
                wires = [await stack.enter_async_context(Wire(fast)) for _ in range(SLOTS_MAX + 20)]
                await wires[0].say(send())
                for _ in range(2):
                    for number, wire in enumerate(wires):
                        wire._writer.write(send(b"x" * number, opaque=number)[:-1])
                    loop = fast_loop(fast)
                    await until_async(lambda: loop.shares[0]._free[0] == 0, "all places are taken")  # noqa: B023
                    for number, wire in enumerate(wires):
                        last = send(b"x" * number, opaque=number)[-1:]
                        assert len(await wire.say(last)) == 1
                    assert loop.shares[0]._free[0] == SLOTS_MAX
                # those that are gone leave their places
                for wire in wires[:9]:
                    wire._writer.write(send()[:-1])
                await until_async(lambda: loop.shares[0]._free[0] == SLOTS_MAX - 9, "nine are taken")
            await until_async(lambda: not loop.transports, "all are gone")
            assert loop.shares[0]._free[0] == SLOTS_MAX and sorted(loop.shares[0]._free[1:]) == list(
                range(SLOTS_MAX)
            )

    run(play())


@pytest.mark.parametrize("threads", ["1", "2"])
def test_full_files_under_many(tmp_path: Path, threads: str) -> None:
    settings = {"mappedFileSizeCommitLog": "100000", "fastLoopThreads": threads}

    async def play() -> None:
        async with (
            two_brokers(tmp_path, **settings) as (fast, plain),
            asyncio.timeout(SCENE_S),
        ):
            said = [
                [b"".join(send(b"%d" % n * 500, opaque=n, queue_id=n % 4) for n in range(9))] * 6
                for _ in range(8)
            ]
            assert await each_says(fast, said) == await each_says(plain, said)
            assert bodies(fast) == bodies(plain)
            assert len(fast.broker.store.commit_log_files.mapped_files) > 3
            assert fast_loop(fast).messages > 100

    run(play())


def test_more_in_a_read_than_is_stored_in_a_round(tmp_path: Path) -> None:
    """The rest is stored in the next rounds; another frame and a half one come after it."""

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        many = [batch(*(item(b"%d" % n) for n in range(100)), opaque=opaque) for opaque in range(60)]
        last = send(b"last", opaque=62)
        data = b"".join(many) + encode_frame(RemotingCommand(31998, opaque=61)) + last
        async with Wire(fast) as one, Wire(plain) as other:
            for wire in (one, other):
                await wire.say(send())
                wire._writer.write(data[:-9])
            before = fast_loop(fast).messages
            assert await one.say(data[-9:]) == await other.say(data[-9:])
            await one.say(last)
            assert fast_loop(fast).messages > before
            await other.say(last)

    on_two_brokers(tmp_path, scene)


def test_a_turn_comes_between_those_of_the_event_loops_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are ready in one iteration, the connection that compiled code serves after the others."""
    monkeypatch.setattr(fast_loop_module, "WAIT_MAX_S", 0.0)

    async def play() -> None:
        async with two_brokers(tmp_path) as (fast, _), asyncio.timeout(SCENE_S):
            events, peers = asyncio.get_running_loop(), []
            for says in (1, 1, 1, 1 + TAKEN_BEFORE_MOVING):
                peers.append(peer := socket.create_connection(("127.0.0.1", fast.port)))
                peer.setblocking(False)
                for _ in range(says):
                    await events.sock_sendall(peer, send())
                    await events.sock_recv(peer, 4096)
            await until_async(lambda: len(fast_loop(fast).transports) == 1, "it is moved")
            for peer in peers[:-1]:
                peer.send(send(b"other"))
            peers[-1].send(send(b"alone"))
            for peer in peers:
                while unacknowledged(peer):
                    pass  # the event loop, which is this thread's, shall find all of them
            for peer in peers:
                await events.sock_recv(peer, 4096)
                peer.close()
            assert bodies_in_order(fast)[-4:].index(b"alone") < 3

    run(play())


def test_a_peer_that_does_not_read(tmp_path: Path) -> None:
    """Its answers wait, it is not read from, others are served; then it gets all of them."""

    async def play() -> None:
        async with two_brokers(tmp_path) as (fast, _), asyncio.timeout(SCENE_S), Wire(fast) as other:
            await other.say(send())
            loop = fast_loop(fast)
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(("127.0.0.1", fast.port))
            peer.setblocking(False)
            events = asyncio.get_running_loop()
            await events.sock_sendall(peer, send())
            for _ in range(TAKEN_BEFORE_MOVING):
                await events.sock_recv(peer, 4096)
                await events.sock_sendall(peer, send())
            await until_async(lambda: len(loop.transports) == 2, "it is moved")
            transport = next(
                t
                for t in loop.transports.values()
                if t.connection.remote_address.endswith(f":{peer.getsockname()[1]}")
            )
            data, count = b"".join(send(b"", opaque=n) for n in range(100)), 0
            while transport.is_reading():
                await events.sock_sendall(peer, data)
                count += 100
                await asyncio.sleep(0)
            assert transport.get_write_buffer_size() < 4 << 20
            assert len(await other.say(send(opaque=9))) == 1
            rest, answers = b"", 0
            while answers < count:
                rest += await events.sock_recv(peer, 1 << 16)
                while end := frame_end(rest, 0, len(rest)):
                    answers += b'"code":0' in rest[:end]
                    rest = rest[end:]
            await until_async(lambda: transport.is_at_rest, "it has read everything")
            peer.close()

    run(play())


def test_a_connection_that_sends_is_moved(tmp_path: Path) -> None:
    async def play() -> None:
        async with two_brokers(tmp_path) as (fast, _), asyncio.timeout(SCENE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", fast.port)
            loop, sent = fast_loop(fast), 0
            while not loop.transports:
                writer.write(send(opaque=sent))
                sent += 1
                assert b'"code":0' in await reader.read(4096)
            assert TAKEN_BEFORE_MOVING <= sent <= TAKEN_BEFORE_MOVING + 2
            writer.write(send())
            assert b'"code":0' in await reader.read(4096)
            assert loop.messages == 1
            writer.close()
            await until_async(lambda: not fast.server.connections, "it is gone")

    run(play())


def test_what_the_store_does_not_survive_closes_the_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with two_brokers(tmp_path) as (fast, _), asyncio.timeout(SCENE_S), Wire(fast) as wire:
            await wire.say(send())
            failures: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
            with monkeypatch.context() as patch:
                patch.setattr(fast.broker.store, "async_put_many", lambda *_: 1 // 0)
                assert set(await wire.say(send())) == {b"hung up"}
            assert "ZeroDivisionError" in repr(failures)
            async with Wire(fast) as another:
                assert len(await another.say(send())) == 1

    run(play())


@pytest.mark.parametrize("threads", [1, 2])
def test_connections_that_come_and_go(tmp_path: Path, threads: int) -> None:
    """In the middle of frames, by reset, and with answers on the way."""
    source = random.Random(5)

    async def play() -> None:
        async with (
            two_brokers(tmp_path, fastLoopThreads=str(threads)) as (fast, _),
            asyncio.timeout(SCENE_S),
            Wire(fast) as other,
        ):
            loop = fast_loop(fast)
            for _ in range(10 * (1 + threads)):
                async with contextlib.AsyncExitStack() as stack:
                    wires = [await stack.enter_async_context(Wire(fast)) for _ in range(10)]
                    for wire in wires:
                        data = b"".join(send(opaque=n) for n in range(20))
                        wire._writer.write(data[: source.randrange(len(data))])
                        if source.random() < 0.5:
                            raw = wire._writer.get_extra_info("socket")
                            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    assert len(await other.say(send())) == 1
            await until_async(lambda: len(loop.transports) == 1, "the others are gone")
            assert all(share._free[0] == SLOTS_MAX for share in loop.shares)

    run(play())


def test_a_broker_that_stops_answers_what_it_has(tmp_path: Path) -> None:
    async def play() -> None:
        async with two_brokers(tmp_path) as (fast, _), asyncio.timeout(SCENE_S), Wire(fast) as wire:
            assert len(await wire.say(send())) == 1
            [transport] = fast_loop(fast).transports.values()
            assert isinstance(transport, EpollTransport)
            fast.server.going_away = True
            wire._writer.write(send(opaque=1))
            assert b'"code":1500' in await wire._reader.read(4096)  # GO_AWAY
            fast.server.going_away = False

    run(play())


def test_the_event_loop_is_not_woken_for_what_a_lease_serves() -> None:
    numbers = np.zeros(NUMBERS_SIZE, np.int64)
    with select.epoll() as others, select.epoll() as served:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            others.register(served, select.EPOLLIN)
            served.register(ours, select.EPOLLIN)
            theirs.send(b"a pull")
            numbers[LEASE_AT + OTHERS] = others.fileno()
            seen = []
            for events in (0, select.EPOLLIN):
                kernels.show(served.fileno(), events, numbers)
                seen.append(others.poll(0))
            assert seen == [[], [(served.fileno(), select.EPOLLIN)]]
