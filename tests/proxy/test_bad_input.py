"""Bad input on a real channel: the code that official clients expect, a sentence that helps, and nothing lost."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import grpc
import pytest

from mqlake.base.clock import now_ms
from mqlake.message import ReceiptHandle
from mqlake.proxy.transaction_ids import TransactionId
from mqlake.proxy.v2 import definition_pb2 as definition
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code, MessageType
from mqlake.proxy.values import duration, timestamp
from tests.proxy.live import Peer, consumer_settings, message, on_a_broker, producer_settings, resource
from tests.waiting import trying, until_async

pytestmark = pytest.mark.usefixtures("each_server")

SETTINGS = {"timerWheelEnable": "true", "recallMessageEnable": "true", "transactionCheckInterval": "200"}


async def begin(peer: Peer, group: str, topic: str) -> None:
    """The group has consumed nothing of the topic; else it would begin at the end."""
    for queue_id in range(4):
        queue = definition.MessageQueue(topic=resource(topic), id=queue_id)
        await peer.call(
            "UpdateOffset", v2.UpdateOffsetRequest(group=resource(group), message_queue=queue, offset=0)
        )


async def received(peer: Peer, topic: str, group: str, **more: Any) -> definition.Message:
    """One message."""
    for _ in trying("a message comes"):
        answers = await peer.receive(topic, group, batch_size=1, **more)
        if found := [answer.message for answer in answers if answer.HasField("message")]:
            break
    return found[0]


async def acknowledged(peer: Peer, topic: str, group: str, handle: str, message_id: str = "id-1") -> Any:
    entries = [v2.AckMessageEntry(message_id=message_id, receipt_handle=handle)]
    request = v2.AckMessageRequest(group=resource(group), topic=resource(topic), entries=entries)
    return (await peer.call("AckMessage", request)).entries[0].status


async def changed(peer: Peer, topic: str, group: str, handle: str, ms: int) -> Any:
    request = v2.ChangeInvisibleDurationRequest(
        group=resource(group),
        topic=resource(topic),
        receipt_handle=handle,
        message_id="id-1",
        invisible_duration=duration(ms),
    )
    return (await peer.call("ChangeInvisibleDuration", request)).status


async def dead(peer: Peer, topic: str, group: str, handle: str) -> Any:
    request = v2.ForwardMessageToDeadLetterQueueRequest(
        group=resource(group), topic=resource(topic), receipt_handle=handle, message_id="id-1"
    )
    return (await peer.call("ForwardMessageToDeadLetterQueue", request)).status


def test_handles(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        for topic in ("Mine", "Secret"):
            peer.create_topic(topic)
            await begin(peer, "G", topic)
            assert (await peer.send(message(topic, topic.encode()))).status.code == Code.OK
        mine, secret = await received(peer, "Mine", "G"), await received(peer, "Secret", "G")
        handle = ReceiptHandle.parse(mine.system_properties.receipt_handle)
        other = ReceiptHandle.parse(secret.system_properties.receipt_handle)

        expired = handle._replace(pop_time=now_ms() - 40_000)
        forged = handle._replace(physical_offset=other.physical_offset)
        far = handle._replace(physical_offset=1 << 60)
        for text in ("", "garbage", expired.text, "9" * 10_000):
            for answer in (
                await acknowledged(peer, "Mine", "G", text),
                await changed(peer, "Mine", "G", text, 20_000),
                await dead(peer, "Mine", "G", text),
            ):
                assert answer.code == Code.INVALID_RECEIPT_HANDLE and answer.message, answer
        for one in (forged, far):  # whose message would a dead letter have been?
            answer = await dead(peer, "Mine", "G", one.text)
            assert answer.code == Code.INVALID_RECEIPT_HANDLE
            assert "leads to no message that group G received from topic Mine" in answer.message
        assert (await dead(peer, "Secret", "G", handle.text)).code == Code.INVALID_RECEIPT_HANDLE
        for ms in (-1, 12 * 3_600_000 + 1, 1 << 60):
            answer = await changed(peer, "Mine", "G", handle.text, ms)
            assert answer.code == Code.ILLEGAL_INVISIBLE_TIME, answer
        # nothing of this has touched the messages: they come again when their handles say so
        assert (await changed(peer, "Mine", "G", handle.text, 0)).code == Code.OK
        assert (await changed(peer, "Secret", "G", other.text, 0)).code == Code.OK
        assert (await received(peer, "Mine", "G")).body == b"Mine"
        again = await received(peer, "Secret", "G")
        assert (again.body, again.system_properties.delivery_attempt) == (b"Secret", 2)
        assert peer.count("%DLQ%G") == 0

    on_a_broker(tmp_path, scene, **SETTINGS)


def test_brokers_that_are_unknown_here(tmp_path: Path):
    """What names another broker, at an endpoint without name servers: nothing happens to the own broker's messages."""

    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        peer.create_topic("D", "DELAY")
        await begin(peer, "G", "T")
        assert (await peer.send(message("T", b"mine"))).status.code == Code.OK
        mine = await received(peer, "T", "G")
        handle = ReceiptHandle.parse(mine.system_properties.receipt_handle)
        text = handle._replace(broker_name="broker-z").text
        end = v2.EndTransactionRequest(
            topic=resource("T"), transaction_id=TransactionId("broker-z", 0, 0, "id-1").text, resolution=1
        )
        recall_handle = base64.urlsafe_b64encode(b"v1 D broker-z 1795310562001 id-1").decode()
        recall = v2.RecallMessageRequest(topic=resource("D"), recall_handle=recall_handle)
        poll = (await peer.receive("T", "G", broker="broker-z"))[0]
        for answer, code in (
            (await acknowledged(peer, "T", "G", text), Code.INVALID_RECEIPT_HANDLE),
            (await changed(peer, "T", "G", text, 20_000), Code.INVALID_RECEIPT_HANDLE),
            (await dead(peer, "T", "G", text), Code.INVALID_RECEIPT_HANDLE),
            ((await peer.call("EndTransaction", end)).status, Code.INVALID_TRANSACTION_ID),
            ((await peer.call("RecallMessage", recall)).status, Code.BAD_REQUEST),
            (poll.status, Code.BAD_REQUEST),
        ):
            assert answer.code == code, answer
            assert "broker 'broker-z' is not known here: this is 'broker-a'" in answer.message
        assert peer.count("%DLQ%G") == 0
        assert (await changed(peer, "T", "G", handle.text, 0)).code == Code.OK
        assert (await received(peer, "T", "G")).body == b"mine"

    on_a_broker(tmp_path, scene, **SETTINGS)


def test_times_and_sizes(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("D", "DELAY")
        peer.create_topic("T")
        late = timestamp(now_ms() + 25 * 3_600_000)
        delay = {"message_type": MessageType.DELAY}
        answer = await peer.send(message("D", **delay, delivery_timestamp=late))
        assert (
            answer.status.code == Code.ILLEGAL_DELIVERY_TIME
            and "86400 s are allowed" in answer.status.message
        )
        past = timestamp(now_ms() - 3_600_000)  # as RocketMQ: it is delivered at once
        assert (await peer.send(message("D", **delay, delivery_timestamp=past))).status.code == Code.OK
        await until_async(lambda: peer.count("D") == 1)
        answer = await peer.send(message("T", b"." * (4 * 1024 * 1024 + 1)))
        assert answer.status.code == Code.MESSAGE_BODY_TOO_LARGE
        assert (await peer.send(message("T", b""))).status.code == Code.MESSAGE_BODY_EMPTY
        many = message("T")
        many.user_properties.update({f"p{number}": "v" for number in range(129)})
        assert (await peer.send(many)).status.code == Code.MESSAGE_PROPERTIES_TOO_LARGE
        for ms in (0, 9_999, 12 * 3_600_000 + 1):
            (answer,) = await peer.receive("T", "G", invisible_ms=ms)
            assert answer.status.code == Code.ILLEGAL_INVISIBLE_TIME
        for handle in ("", "garbage", "djEgVCBi"):
            recall = v2.RecallMessageRequest(topic=resource("D"), recall_handle=handle)
            assert (await peer.call("RecallMessage", recall)).status.code == Code.BAD_REQUEST
        for transaction_id in ("", "garbage", "djEgYnJva2VyLWEgMCA5OTkgaWQ="):
            end = v2.EndTransactionRequest(
                topic=resource("T"), transaction_id=transaction_id, message_id="id-1", resolution=1
            )
            answer = await peer.call("EndTransaction", end)
            assert answer.status.code != Code.OK and answer.status.message, answer
        assert (peer.count("T"), peer.count("D")) == (0, 1)

    on_a_broker(tmp_path, scene, **SETTINGS)


def test_unknown_clients_and_streams_that_break(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        nobody = peer.another("")
        assert (await nobody.send(message("T"))).status.code == Code.CLIENT_ID_REQUIRED
        beat = v2.HeartbeatRequest(group=resource("G"), client_type=definition.ClientType.PUSH_CONSUMER)
        answer = await peer.call("Heartbeat", beat)
        assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE and "Telemetry" in answer.status.message
        end = v2.NotifyClientTerminationRequest()
        stranger = peer.another("stranger")
        answer = await stranger.call("NotifyClientTermination", end)
        assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        # settings without a kind end the stream with a status of gRPC itself, as RocketMQ's proxy does
        stream = peer.telemetry()
        await stream.write(v2.TelemetryCommand(settings=definition.Settings()))
        try:
            await stream.read()
        except grpc.aio.AioRpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        else:
            raise AssertionError("the stream is still open")
        # a stream that is cut off in the middle of a poll: what it would have got comes to the next one
        stream, _ = await peer.settle(consumer_settings("G", "T"))
        await begin(peer, "G", "T")
        poll = asyncio.create_task(peer.receive("T", "G", polling_ms=20_000))
        await until_async(lambda: "client-1" in peer.server.service.clients.table)
        poll.cancel()
        stream.cancel()
        other = peer.another("client-2")
        producer, _ = await other.settle(producer_settings("T"))
        assert (await other.send(message("T", b"kept"))).status.code == Code.OK
        assert (await received(other, "T", "G")).body == b"kept"
        producer.cancel()
        for one in (nobody, stranger, other):
            await one.close()

    on_a_broker(tmp_path, scene, **SETTINGS)
