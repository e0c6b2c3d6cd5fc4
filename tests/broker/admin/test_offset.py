from __future__ import annotations

import asyncio

import pytest

from mqlake.base import json_config
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.errors import ResponseError
from mqlake.remoting.bodies.admin import QueryCorrectionOffsetBody
from mqlake.remoting.bodies.topic import MessageQueue, TopicConfig
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.admin import QueryCorrectionOffsetHeader
from mqlake.remoting.headers.consume import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    PullMessageResponseHeader,
    SearchOffsetRequestHeader,
)
from tests.broker.live import SUBSCRIPTION, SUSPEND, Peer, on_a_broker
from tests.waiting import until_async


async def three_messages(peer: Peer) -> BrokerAPI:
    """Three messages in queue 0 of T, which has two queues; a group G."""
    api = BrokerAPI(peer.client)
    await api.create_topic(peer.address, TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    peer.controller.broker.subscription_group_manager.find_subscription_group_config("G")
    for _ in range(3):
        await peer.send("T")
    await peer.dispatched()
    return api


def test_offsets_of_a_queue(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = await three_messages(peer), peer.address
        queue = MessageQueue(topic="T", broker_name="", queue_id=0)
        assert (await api.get_min_offset(at, queue), await api.get_max_offset(at, queue)) == (0, 3)
        assert (await api.search_offset(at, queue, 0), await api.search_offset(at, queue, 2**62)) == (0, 3)
        header = GetEarliestMsgStoretimeRequestHeader(topic="T", queue_id=0)
        answer = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        assert answer.decode_header(GetEarliestMsgStoretimeResponseHeader).timestamp > 0
        header = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=0, boundary_type="middle")
        answer = await peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        assert answer.code == ResponseCode.INVALID_PARAMETER and "lower or upper" in answer.remark

    on_a_broker(tmp_path, scene)


def test_a_reset_holds_from_the_next_pull_on(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = await three_messages(peer), peer.address
        table = await api.invoke_broker_to_reset_offset(at, "T", "G", -1)
        assert {queue.queue_id: offset for queue, offset in table.items()} == {0: 3, 1: 0}
        on_disk = json_config.loads((tmp_path / "store/config/consumerOffset.json").read_bytes())
        assert on_disk["offsetTable"]["T@G"] == {0: 3, 1: 0}

        table = await api.invoke_broker_to_reset_offset(at, "T", "G", 0, queue_id=0, offset=1)
        assert table == {MessageQueue(topic="T", broker_name="broker-a", queue_id=0): 1}
        answer = await peer.pull("T", 3, consumer_group="G")
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.decode_header(PullMessageResponseHeader).next_begin_offset == 1

    on_a_broker(tmp_path, scene)


def test_a_reset_reaches_a_pull_that_waits(tmp_path):
    async def scene(peer: Peer) -> None:
        api = await three_messages(peer)

        def wait(group: str) -> asyncio.Task[object]:
            pull = peer.pull("T", 3, consumer_group=group, sys_flag=SUSPEND | SUBSCRIPTION)
            return asyncio.create_task(pull)

        mine, other = wait("G"), wait("OTHER")
        await until_async(lambda: peer.controller.pull_request_hold_service.held_count == 2)
        await api.invoke_broker_to_reset_offset(peer.address, "T", "G", 0)
        answer = await asyncio.wait_for(mine, 60)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.decode_header(PullMessageResponseHeader).next_begin_offset == 0
        assert not other.done()
        other.cancel()

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize(
    ("topic", "group", "fields", "code"),
    [
        ("U", "G", {}, ResponseCode.TOPIC_NOT_EXIST),
        ("T", "H", {}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ("T", "G", {"queue_id": 0, "offset": 5}, ResponseCode.SYSTEM_ERROR),
        ("T", "G", {"queue_id": 0, "offset": -2}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_resets_that_cannot_be(tmp_path, topic, group, fields, code):
    async def scene(peer: Peer) -> None:
        api = await three_messages(peer)
        with pytest.raises(ResponseError) as refused:
            await api.invoke_broker_to_reset_offset(peer.address, topic, group, 0, **fields)
        assert refused.value.code == code
        assert peer.controller.broker.consumer_offset_manager.query_offset(group, topic, 0) == -1

    on_a_broker(tmp_path, scene)


def test_without_server_side_resets_the_consumers_must_be_there(tmp_path):
    async def scene(peer: Peer) -> None:
        api = await three_messages(peer)
        for queue_id in range(2):
            peer.controller.broker.consumer_offset_manager.commit_offset("h", "G", "T", queue_id, 0)
        with pytest.raises(ResponseError) as refused:
            await api.invoke_broker_to_reset_offset(peer.address, "T", "G", 0)
        assert refused.value.code == ResponseCode.CONSUMER_NOT_ONLINE

    on_a_broker(tmp_path, scene, useServerSideResetOffset="false")


def test_clones_and_corrections(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = await three_messages(peer), peer.address
        offsets = peer.controller.broker.consumer_offset_manager
        offsets.commit_offset("h", "G", "T", 0, 2)
        await api.clone_group_offset(at, "G", "H", "T", is_offline=True)
        await api.clone_group_offset(at, "G", "I")
        assert offsets.query_offset("H", "T", 0) == offsets.query_offset("I", "T", 0) == 2
        offsets.commit_offset("h", "H", "T", 0, 1)

        async def correction(**fields: str) -> dict[int, int]:
            header = QueryCorrectionOffsetHeader(topic="T", **fields)
            answer = await peer.ask(RequestCode.QUERY_CORRECTION_OFFSET, header)
            return QueryCorrectionOffsetBody.from_json(answer.body_bytes()).correction_offsets

        assert await correction(compare_group="G") == {0: 1}
        assert await correction(compare_group="G", filter_groups="H") == {0: 2}
        assert await correction(compare_group="nobody") == {0: 1}

        answer = await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert b'"T@G":{0:2}' in answer.body_bytes()

    on_a_broker(tmp_path, scene)
