"""Delayed messages change hands: RocketMQ's broker delivers what mqlake has scheduled, from its cursor on, and the
other way round; and a message that either has delivered is the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mqlake.formats.record import decode_record
from mqlake.message import MessageExt
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.loop import run
from tests.broker.live import pull_header, send_header
from tests.broker.services.test_schedule_message import Room
from tests.clock import Clock
from tests.interop.brokers import SMALL_STORE, JavaBroker
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.java

SETTINGS = {key: value for key, value in SMALL_STORE.items() if key != "enablePropertyFilter"}
LEVELS = {"messageDelayLevel": "1s 1h"}


async def send(client: RemotingClient, address: str, body: bytes, properties: str) -> None:
    header = send_header("T", queue_id=3, properties=properties)
    request = RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, header, body)
    assert (await client.invoke(address, request)).code == ResponseCode.SUCCESS


async def arrived(client: RemotingClient, address: str, count: int) -> list[MessageExt]:
    """The first messages of queue 3, once there are so many."""
    found: list[MessageExt] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            header = pull_header("T", len(found), queue_id=3)
            answer = await client.invoke(
                address, RemotingCommand.create_request(RequestCode.PULL_MESSAGE, header)
            )
            body, at = answer.body_bytes(), 0
            while at < len(body):
                found.append(decode_record(body, at))
                at += found[-1].store_size
            await asyncio.sleep(0.05)
    return found


def test_each_goes_on_where_the_other_has_stopped(tmp_path: Path) -> None:
    clock = Clock()
    with Room(tmp_path / "store", clock, **SETTINGS, **LEVELS) as room:
        for body in ("0", "1", "2"):
            room.put(body, 1, reconsume_times=2, flag=9)
        clock.now += 1_000
        assert room.service._deliver(1, 0, room.messages("SCHEDULE_TOPIC_XXXX", 0)[0].store_size)
        room.service._advance(1, 1)
        room.service.persist()  # one delivered, two to go
        assert room.store.wait_until_dispatched(PATIENCE_S)
        (by_mqlake,) = room.messages()

    broker = JavaBroker(tmp_path, LEVELS)
    with broker:

        async def scene() -> list[MessageExt]:
            async with RemotingClient() as client:
                properties = "".join(
                    f"{name}\x01{value}\x02"
                    for name, value in by_mqlake.properties.items()
                    if "REAL" not in name
                )
                await send(client, broker.address, b"3", properties)
                await send(client, broker.address, b"4", "DELAY\x012\x02")
                return await arrived(client, broker.address, 4)

        found = run(scene())
        broker.kill()  # a SIGTERM takes it ten seconds
    assert [message.body for message in found] == [b"0", b"1", b"2", b"3"]
    for by_java in found[1:3]:
        assert by_java.properties == by_mqlake.properties
        for field in ("topic", "queue_id", "flag", "reconsume_times", "sys_flag", "born_host", "store_host"):
            assert getattr(by_java, field) == getattr(by_mqlake, field)
    # of one that was sent to Java the broker's own properties are more
    assert by_mqlake.properties.items() <= found[3].properties.items()
    clock.now = found[3].store_timestamp
    with Room(tmp_path / "store", clock, **SETTINGS, **LEVELS) as room:
        cursor = room.service.offset_table[1]  # what it had delivered since it last wrote this comes again
        before = ["0", "1", "2", "3"]
        room.deliver(1)
        room.deliver(2)
        assert room.bodies() == before + before[cursor:]
        clock.now += 3_600_000
        room.deliver(2)
        assert room.bodies() == [*before, *before[cursor:], "4"]
