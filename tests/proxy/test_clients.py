"""Clients: telemetry, heartbeats, and their end."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from mqlake.proxy.clients import EXPIRED_S
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import ClientType, Code, Settings
from tests.proxy.live import Peer, consumer_settings, on_a_broker, producer_settings
from tests.waiting import until_async

pytestmark = pytest.mark.usefixtures("each_server")

HEARTBEAT = v2.HeartbeatRequest(client_type=ClientType.SIMPLE_CONSUMER)


def test_a_consumer_is_a_member_of_its_group_until_it_leaves(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        manager = peer.controller.broker.consumer_manager
        stream, answer = await peer.settle(consumer_settings("G", "T"))
        assert answer.status.code == Code.OK
        info = manager.get_consumer_group_info("G")
        assert info is not None and info.all_client_ids() == ["client-1"]
        assert info.find_subscription_data("T") is not None
        assert (await peer.call("Heartbeat", HEARTBEAT)).status.code == Code.OK
        assert (
            await peer.call("NotifyClientTermination", v2.NotifyClientTerminationRequest())
        ).status.code == Code.OK
        assert manager.get_consumer_group_info("G") is None
        again = await peer.call("NotifyClientTermination", v2.NotifyClientTerminationRequest())
        assert again.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        stream.cancel()

    on_a_broker(tmp_path, scene)


def test_a_producer_is_known_by_its_topics(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        stream, _ = await peer.settle(producer_settings("T"))
        assert list(peer.controller.broker.producer_manager.group_channel_table) == ["T"]
        # settings may come again on the same stream
        await stream.write(producer_settings("T", "U"))
        answer = await stream.read()
        assert [topic.name for topic in answer.settings.publishing.topics] == ["T", "U"]
        assert sorted(peer.controller.broker.producer_manager.group_channel_table) == ["T", "U"]
        stream.cancel()

    on_a_broker(tmp_path, scene)


def test_a_heartbeat_without_settings(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        assert (await peer.call("Heartbeat", HEARTBEAT)).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        assert (await peer.call("Heartbeat", v2.HeartbeatRequest())).status.code == Code.OK  # Go's client

    on_a_broker(tmp_path, scene)


def test_bad_settings_end_the_stream_or_are_answered(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        _, answer = await peer.settle(producer_settings("a b"))
        assert answer.status.code == Code.ILLEGAL_TOPIC
        for bad in (v2.TelemetryCommand(settings=Settings()), consumer_settings("Unknown", "T")):
            stream = peer.telemetry()
            await stream.write(bad)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "process client telemetryCommand failed" in (caught.value.details() or "")

    on_a_broker(tmp_path, scene, autoCreateSubscriptionGroup="false")


def test_without_a_client_id_nothing_is_served(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        nobody = peer.another("")
        answer = await nobody.call("Heartbeat", HEARTBEAT)
        assert answer.status.code == Code.CLIENT_ID_REQUIRED
        _, answer = await nobody.settle(producer_settings("T"))
        assert answer.status.code == Code.CLIENT_ID_REQUIRED
        (answer,) = await nobody.stream("ReceiveMessage", v2.ReceiveMessageRequest())
        assert answer.status.code == Code.CLIENT_ID_REQUIRED
        await nobody.close()

    on_a_broker(tmp_path, scene)


def test_silent_clients_are_forgotten_unless_their_stream_is_open(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        stream, _ = await peer.settle(consumer_settings("G", "T"))
        table = peer.server.service.clients.table
        client = table["client-1"]
        client.seen_at -= 2 * EXPIRED_S
        await peer.server.service.housekeeping()
        assert "client-1" in table
        stream.cancel()
        await until_async(lambda: client.stream is None)
        await peer.server.service.housekeeping()
        assert "client-1" not in table
        assert peer.controller.broker.consumer_manager.get_consumer_group_info("G") is None

    on_a_broker(tmp_path, scene)
