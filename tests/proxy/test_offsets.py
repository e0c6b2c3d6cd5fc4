"""PullMessage and the offsets of a group."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mqlake.base.clock import now_ms
from mqlake.proxy.v2 import definition_pb2 as definition
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code, QueryOffsetPolicy
from mqlake.proxy.values import duration, timestamp
from tests.proxy.live import Peer, message, on_a_broker, resource

pytestmark = pytest.mark.usefixtures("each_server")

POLICIES = QueryOffsetPolicy


def queue(topic: str = "T", number: int = 0) -> definition.MessageQueue:
    return definition.MessageQueue(
        topic=resource(topic), id=number, broker=definition.Broker(name="broker-a")
    )


def pull(offset: int, *, tag: str = "*") -> v2.PullMessageRequest:
    return v2.PullMessageRequest(
        group=resource("G"),
        message_queue=queue(),
        offset=offset,
        batch_size=10,
        filter_expression=definition.FilterExpression(expression=tag),
        long_polling_timeout=duration(0),
    )


def test_messages_are_pulled_by_offset(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T", queues=1)
        for number in range(3):
            await peer.send(message("T", b"%d" % number, tag="ab"[number % 2]))
        await peer.records("T", 3)
        status, *messages, last = await peer.stream("PullMessage", pull(1))
        assert status.status.code == Code.OK
        assert [one.message.body for one in messages] == [b"1", b"2"]
        assert last.next_offset == 3
        status, one, _ = await peer.stream("PullMessage", pull(0, tag="b"))
        assert one.message.system_properties.tag == "b"
        status, last = await peer.stream("PullMessage", pull(3))
        assert (status.status.code, last.next_offset) == (Code.MESSAGE_NOT_FOUND, 3)
        status, last = await peer.stream("PullMessage", pull(99))
        assert (status.status.code, last.next_offset) == (Code.ILLEGAL_OFFSET, 3)

    on_a_broker(tmp_path, scene)


def test_a_pull_that_waits_is_answered_before_the_client_gives_up(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T", queues=1)
        await peer.send(message("T", b"0"))
        await peer.records("T", 1)
        waiting = pull(1)
        waiting.long_polling_timeout.CopyFrom(duration(300))
        status, last = await peer.stream("PullMessage", waiting)
        assert (status.status.code, last.next_offset) == (Code.MESSAGE_NOT_FOUND, 1)
        waiting.long_polling_timeout.CopyFrom(duration(20_000))
        answer = asyncio.ensure_future(peer.stream("PullMessage", waiting))
        await peer.send(message("T", b"1"))
        status, one, last = await answer
        assert (one.message.body, last.next_offset) == (b"1", 2)

    on_a_broker(tmp_path, scene)


def test_offsets_of_a_group(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T", queues=1)
        for number in range(3):
            await peer.send(message("T", b"%d" % number))
        await peer.records("T", 3)
        get = v2.GetOffsetRequest(group=resource("G"), message_queue=queue())
        assert (await peer.call("GetOffset", get)).status.code == Code.OFFSET_NOT_FOUND
        update = v2.UpdateOffsetRequest(group=resource("G"), message_queue=queue(), offset=2)
        assert (await peer.call("UpdateOffset", update)).status.code == Code.OK
        assert (await peer.call("GetOffset", get)).offset == 2
        for policy, offset in ((POLICIES.BEGINNING, 0), (POLICIES.END, 3), (POLICIES.TIMESTAMP, 3)):
            query = v2.QueryOffsetRequest(
                message_queue=queue(), query_offset_policy=policy, timestamp=timestamp(now_ms() + 60_000)
            )
            answer = await peer.call("QueryOffset", query)
            assert (answer.status.code, answer.offset) == (Code.OK, offset)

    on_a_broker(tmp_path, scene)


BAD = [
    (
        "UpdateOffset",
        v2.UpdateOffsetRequest(group=resource("G"), message_queue=queue(), offset=-1),
        Code.ILLEGAL_OFFSET,
    ),
    (
        "UpdateOffset",
        v2.UpdateOffsetRequest(group=resource("G"), message_queue=queue("U")),
        Code.TOPIC_NOT_FOUND,
    ),
    (
        "UpdateOffset",
        v2.UpdateOffsetRequest(group=resource(""), message_queue=queue()),
        Code.ILLEGAL_CONSUMER_GROUP,
    ),
    ("GetOffset", v2.GetOffsetRequest(group=resource("G"), message_queue=queue("U")), Code.TOPIC_NOT_FOUND),
    ("GetOffset", v2.GetOffsetRequest(group=resource("G"), message_queue=queue("T", -1)), Code.BAD_REQUEST),
    ("QueryOffset", v2.QueryOffsetRequest(message_queue=queue("U")), Code.TOPIC_NOT_FOUND),
    ("QueryOffset", v2.QueryOffsetRequest(), Code.ILLEGAL_TOPIC),
]


def test_what_is_refused(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        for rpc, request, code in BAD:
            answer = await peer.call(rpc, request)
            assert Code.Name(answer.status.code) == Code.Name(code), (rpc, answer.status.message)
        (answer,) = await peer.stream("PullMessage", pull(-1))
        assert answer.status.code == Code.ILLEGAL_OFFSET

    on_a_broker(tmp_path, scene)


def test_a_broker_that_is_alone_answers_for_itself_and_for_no_name(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        request = v2.QueryOffsetRequest(message_queue=queue())
        request.message_queue.broker.name = ""
        assert (await peer.call("QueryOffset", request)).status.code == Code.OK
        request.message_queue.broker.name = "another-broker"
        status = (await peer.call("QueryOffset", request)).status
        assert status.code == Code.BAD_REQUEST and "'another-broker' is not known here" in status.message

    on_a_broker(tmp_path, scene)
