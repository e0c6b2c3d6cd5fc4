"""What was acknowledged before a question is counted in its answer, although dispatch gathers messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.client.api.broker_api import BrokerAPI
from mqlake.remoting.bodies.topic import MessageQueue, TopicConfig
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.headers.consume import QueryConsumerOffsetRequestHeader
from tests.broker.live import Peer, on_a_broker
from tests.waiting import PATIENCE_S

EVER = 1 << 62
QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


def test_questions_hurry_dispatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(peer: Peer) -> None:
        api, at = BrokerAPI(peer.client), peer.address
        await api.create_topic(at, TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        peer.controller.broker.subscription_group_manager.find_subscription_group_config("CG")
        await peer.send("T")
        await peer.dispatched()
        await peer.pull("T", commit_offset=1, sys_flag=5)
        monkeypatch.setattr("mqlake.store.dispatch.RELAXED_S", PATIENCE_S)
        sent = 1

        async def send() -> int:
            nonlocal sent
            sent += 1
            answer = await peer.send("T", properties=f"KEYS\x01k{sent}\x02")
            assert answer.code == 0
            return sent

        for _ in range(3):
            assert await send() == await api.get_max_offset(at, QUEUE)
            assert await send() == await api.search_offset(at, QUEUE, EVER)
            assert await send() == (await api.get_topic_stats_info(at, "T")).offset_table[QUEUE].max_offset
            assert (
                await send() == (await api.get_consume_stats(at, "CG", "T")).offset_table[QUEUE].broker_offset
            )
            assert await send() == (await api.invoke_broker_to_reset_offset(at, "T", "CG", -1))[QUEUE]
            number = await send()
            found = await api.query_message(at, "T", f"k{number}", 10, 0, EVER)
            assert [message.queue_offset for message in found] == [number - 1]

    on_a_broker(tmp_path, scene)


def test_a_new_group_begins_with_the_first_message_however_late_dispatch_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its client is told that there is nothing, asks for the end, which is dispatched first, and begins there."""

    async def scene(peer: Peer) -> None:
        await BrokerAPI(peer.client).create_topic(
            peer.address, TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
        )
        await peer.send("Other")
        await peer.dispatched()
        monkeypatch.setattr("mqlake.store.dispatch.RELAXED_S", PATIENCE_S)
        await peer.send("T")
        header = QueryConsumerOffsetRequestHeader(consumer_group="G", topic="T", queue_id=0)
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
        assert (answer.code, answer.ext_fields["offset"]) == (0, "0")

    on_a_broker(tmp_path, scene)
