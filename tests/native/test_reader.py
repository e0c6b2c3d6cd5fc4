"""Sends, pulls and other requests of one connection, as a client that produces and consumes brings them."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from mqlake.broker.controller import BrokerController
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from tests.broker.fast.test_fast_pull import frame as pull
from tests.broker.fast.test_fast_send import Wire, send
from tests.broker.live import Peer, on_a_broker
from tests.fuzz.keeping_transport import KeepingTransport
from tests.waiting import until_async

COUNT = 20
UNKNOWN = 31_998
"""A request that no broker knows."""


def play(directory: Path, scene: Callable[[BrokerController], Awaitable[None]]) -> None:
    """On a broker that has COUNT messages of topic Pulled."""

    async def begin(peer: Peer) -> None:
        await asyncio.to_thread(peer.controller.load_compiled)
        for number in range(COUNT):
            await peer.send("Pulled", b"%d" % number * number)
        await peer.dispatched()
        await peer.pull("Pulled")  # makes the group
        async with Wire(peer.controller) as wire:
            await wire.say(send())  # makes the topic
        await until_async(lambda: not peer.controller.broker.topic_config_manager.unsettled)
        await scene(peer.controller)

    on_a_broker(directory, begin, longPollingEnable="false", shortPollingTimeMills="1")


def requests(chance: random.Random, opaque: int) -> list[bytes]:
    """Whatever clients send, in any order; the n-th has the opaque `opaque` + n."""
    made = []
    for number in range(opaque, opaque + chance.choice((1, 1, 2, 5, 30))):
        kind = chance.random()
        if kind < 0.45:
            made.append(send(b"x" * chance.randrange(300), opaque=number))
        elif kind < 0.95:
            made.append(pull(chance.randrange(COUNT), opaque=number, topic="Pulled", max_msg_nums=3))
        else:
            made.append(encode_frame(RemotingCommand(UNKNOWN, opaque=number)))
    return made


def answers_of(data: bytes) -> list[bytes]:
    found, start = [], 0
    while end := frame_end(memoryview(data), start, len(data)):
        found.append(data[start:end])
        start = end
    assert start == len(data)
    return found


def check(asked: list[bytes], answers: list[bytes], plain: dict[int, bytes]) -> None:
    """Each request has its answer, in their order, and pulls have the one of the plain way."""
    for request, answer in zip(asked, answers, strict=True):
        command, said = (decode_frame(memoryview(each), 0, len(each)) for each in (request, answer))
        assert said.opaque == command.opaque
        if command.code == RequestCode.PULL_MESSAGE:
            offset = int(command.ext_fields["queueOffset"])
            assert said.body_bytes() == plain[offset]
        else:
            unknown = command.code == UNKNOWN
            assert said.code == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED if unknown else ResponseCode.SUCCESS)


async def plainly(controller: BrokerController) -> dict[int, bytes]:
    """What a pull from each offset brings where nothing is taken."""
    paths, controller.server.fast_paths = controller.server.fast_paths, ()
    async with Wire(controller) as wire:
        said = await wire.say(
            b"".join(pull(offset, opaque=offset, topic="Pulled", max_msg_nums=3) for offset in range(COUNT))
        )
    controller.server.fast_paths = paths
    found = [decode_frame(memoryview(each), 0, len(each)) for each in said]
    return {each.opaque: each.body_bytes() for each in found}


def reader_of(connection: Connection) -> Any:
    """A NativeReader, once the connection has one."""
    assert connection.transport is not None
    return connection.transport.get_protocol()


FIRST = {"sends first": send(opaque=0), "pulls first": pull(opaque=0, topic="Pulled", max_msg_nums=3)}
"""Which taker a connection gets first, and its reads go to first."""


@pytest.mark.parametrize("first", FIRST)
def test_one_connection_sends_and_pulls(tmp_path: Path, first: str) -> None:
    async def scene(controller: BrokerController) -> None:
        plain, chance = await plainly(controller), random.Random(1)
        others = set(controller.server.connections)
        async with Wire(controller) as wire:
            for _ in range(2):
                await wire.ask(FIRST[first])
            opaque = 0
            for _ in range(150):
                asked = requests(chance, opaque)
                opaque += len(asked)
                check(asked, await wire.ask(b"".join(asked)), plain)
            (connection,) = controller.server.connections - others
            kinds = [type(taker).__name__ for taker in reader_of(connection).takers]
            assert kinds == (
                ["SendTaker", "PullTaker"] if first == "sends first" else ["PullTaker", "SendTaker"]
            )

    play(tmp_path, scene)


@pytest.mark.parametrize("first", FIRST)
def test_reads_may_end_anywhere(tmp_path: Path, first: str) -> None:
    """And what the socket does not take of a pull's answer comes before all that is answered later."""

    async def scene(controller: BrokerController) -> None:
        plain, chance = await plainly(controller), random.Random(2)
        connection = Connection(controller.server, asyncio.get_running_loop())
        transport = KeepingTransport()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        connection.remote_address = "127.0.0.1:1"
        opaque = 0
        for number in range(300):
            asked = [FIRST[first]] if number < 2 else requests(chance, opaque)
            opaque += len(asked) if number >= 2 else 0
            data = b"".join(asked)
            ends = sorted({len(data), *(chance.randrange(len(data)) for _ in range(chance.randrange(3)))})
            transport.written.clear()
            for start, end in zip([0, *ends], ends, strict=False):
                reader = cast(asyncio.BufferedProtocol, transport.get_protocol())
                room = cast(memoryview, reader.get_buffer(-1))
                room[: end - start] = data[start:end]
                reader.buffer_updated(end - start)
                if chance.random() < 0.5:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
            check(asked, answers_of(bytes(transport.written)), plain)
        assert len(cast(Any, transport.get_protocol()).takers) == 2
        connection.connection_lost(None)

    play(tmp_path, scene)


def readers() -> int:
    return sum(
        type(each).__name__ in ("TransportReader", "PullTaker", "Connection") for each in gc.get_objects()
    )


def test_nothing_is_left_of_a_connection_that_has_gone(tmp_path: Path) -> None:
    """No reader either, and without the collector."""

    async def scene(controller: BrokerController) -> None:
        server = controller.server
        await until_async(lambda: len(server.connections) == 1)
        others = set(server.connections)
        gc.collect()
        gc.disable()
        left = readers()
        try:
            for number in range(50):
                async with Wire(controller) as wire:
                    await wire.ask(send(opaque=1))
                    for _ in range(2):
                        await wire.ask(pull(number % COUNT, opaque=2, topic="Pulled"))
                    (connection,) = server.connections - others
                    reader = reader_of(connection)
                    assert len(reader.takers) == 2
                    del reader, connection
                await until_async(lambda: server.connections <= others)
            assert readers() == left
        finally:
            gc.enable()

    play(tmp_path, scene)
