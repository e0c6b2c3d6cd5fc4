"""Messages that are received, returned and acknowledged, on a broker that is restarted in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.message import ReceiptHandle
from mqlake.proxy.v2 import definition_pb2 as definition
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code
from mqlake.proxy.values import duration
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from tests.proxy.live import Peer, message, on_a_broker, resource
from tests.waiting import until_async

pytestmark = pytest.mark.usefixtures("each_server")

GROUP, TOPIC = resource("G"), resource("T")


def messages(answers: list[v2.ReceiveMessageResponse]) -> list[definition.Message]:
    return [answer.message for answer in answers if answer.HasField("message")]


async def received(peer: Peer, count: int) -> list[definition.Message]:
    found: list[definition.Message] = []

    async def enough() -> bool:
        found.extend(messages(await peer.receive("T", "G")))
        return len(found) >= count

    await until_async(enough)
    return found


async def ack(peer: Peer, *taken: definition.Message) -> v2.AckMessageResponse:
    entries = [
        v2.AckMessageEntry(
            message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
        )
        for one in taken
    ]
    answer: v2.AckMessageResponse = await peer.call(
        "AckMessage", v2.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries)
    )
    return answer


async def give_back(peer: Peer, one: definition.Message) -> v2.ChangeInvisibleDurationResponse:
    request = v2.ChangeInvisibleDurationRequest(
        group=GROUP,
        topic=TOPIC,
        receipt_handle=one.system_properties.receipt_handle,
        message_id=one.system_properties.message_id,
        invisible_duration=duration(0),
    )
    answer: v2.ChangeInvisibleDurationResponse = await peer.call("ChangeInvisibleDuration", request)
    return answer


def test_handles_outlive_a_restart_of_the_broker(tmp_path: Path):
    kept: list[definition.Message] = []

    async def before(peer: Peer) -> None:
        peer.create_topic("T", queues=1)
        for number in range(4):
            assert (await peer.send(message("T", b"%d" % number, f"id-{number}"))).status.code == Code.OK
        kept.extend(await received(peer, 4))
        assert (await ack(peer, kept[0])).status.code == Code.OK

    async def after(peer: Peer) -> None:
        assert messages(await peer.receive("T", "G")) == []  # all are invisible or acknowledged
        assert (await ack(peer, kept[1])).status.code == Code.OK
        assert (await give_back(peer, kept[2])).status.code == Code.OK
        (again,) = await received(peer, 1)
        assert (again.body, again.system_properties.delivery_attempt) == (kept[2].body, 2)
        assert again.topic.name == "T"
        assert ReceiptHandle.parse(again.system_properties.receipt_handle).flag == 1  # from the retry topic
        assert (await ack(peer, again, kept[3])).status.code == Code.OK

    on_a_broker(tmp_path, before)
    on_a_broker(tmp_path, after)


def test_a_fifo_group_gets_its_messages_one_batch_at_a_time(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T", "FIFO", queues=1)
        peer.controller.broker.subscription_group_manager.update_subscription_group_config(
            SubscriptionGroupConfig(group_name="G", consume_message_orderly=True)
        )
        for number in range(3):
            await peer.send(message("T", b"%d" % number, f"id-{number}", message_group="g"))
        await peer.records("T", 3)
        first = messages(await peer.receive("T", "G", attempt_id="a"))
        assert [one.body for one in first] == [b"0", b"1", b"2"]
        # the same attempt gets them again: its first answer may have been lost; another one has to wait
        again = messages(await peer.receive("T", "G", attempt_id="a"))
        assert [one.body for one in again] == [b"0", b"1", b"2"]
        assert messages(await peer.receive("T", "G", attempt_id="b")) == []
        assert (await ack(peer, *again)).status.code == Code.OK

    on_a_broker(tmp_path, scene)
