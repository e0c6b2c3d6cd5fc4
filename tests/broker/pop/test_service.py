"""PopService: what happens to pop's state when topics, groups and roles change."""

from __future__ import annotations

import asyncio

from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.admin import DeleteTopicRequestHeader
from mqlake.store.config import BrokerRole
from tests.broker.live import Peer, on_a_broker
from tests.broker.metrics.test_exporter import ON, scrape
from tests.broker.pop.popping import SMALL_TIMES
from tests.broker.pop.test_ack import comes, popped
from tests.broker.pop.test_pop_message import sent
from tests.waiting import until_async


def test_topic_that_is_made_again_begins_anew(tmp_path):
    """#8479: what was pending of the old topic moves no offset of the new one."""

    async def scene(peer: Peer) -> None:
        popper, _ = await popped(peer, b"a", b"b")
        await popper.pop()
        header = DeleteTopicRequestHeader(topic="T")
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == ResponseCode.SUCCESS
        await sent(peer, b"c")
        assert (await popper.pop()).bodies == [b"c"]
        assert peer.controller.pop_service.state.queues.in_flight("T", "G", 0) == 1

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


def test_reset_brings_messages_back(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, _ = await popped(peer, b"a", b"b", b"c")
        waiting = asyncio.ensure_future(popper.pop(poll_time=60_000))
        polling = peer.controller.pop_service.state.pop_polling
        await until_async(lambda: len(polling))
        peer.controller.broker.consumer_offset_manager.assign_reset_offset("T", "G", 0, 1)
        assert (await waiting).bodies == [b"b", b"c"]
        assert peer.controller.broker.consumer_offset_manager.query_offset("G", "T", 0) == 3

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


def test_slave_neither_pops_nor_revives(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a", invisible_time=0)
        service, broker = peer.controller.pop_service, peer.controller.broker
        await service.stop_revive()
        assert not service.revive_service.is_running
        broker.store_config.become(BrokerRole.SLAVE)
        assert broker.is_slave
        assert (await popper.pop()).code == ResponseCode.SYSTEM_BUSY
        assert (await popper.ack(answer.messages[0])).code == ResponseCode.SYSTEM_BUSY
        broker.store_config.become(BrokerRole.ASYNC_MASTER)
        service.become_master()
        (again,) = await comes(popper)
        assert again.body == b"a"

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


def test_everything_works_under_sync_flush(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a", b"b", b"c", invisible_time=1000)
        await popper.ack(answer.messages[0])
        await popper.changed(answer.messages[1], 60_000)
        (again,) = await comes(popper)
        assert again.body == b"c"
        assert (await popper.batch_ack([again])).code == ResponseCode.SUCCESS
        waiting = asyncio.ensure_future(popper.pop(poll_time=60_000))
        await sent(peer, b"d")
        assert (await waiting).bodies == [b"d"]

    on_a_broker(tmp_path, scene, flushDiskType="SYNC_FLUSH", **SMALL_TIMES)


def test_figures(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a", b"b", invisible_time=300)
        await popper.ack(answer.messages[0])
        await comes(popper)
        samples = await scrape(peer.controller)
        read = {
            labels["revive_message_type"]: count
            for labels, count in samples["rocketmq_pop_revive_out_message_total"]
        }
        assert read["CK"] >= 1 and read["ACK"] == 1
        ((labels, count),) = samples["rocketmq_pop_revive_retry_messages_total"]
        assert (labels["topic"], labels["consumer_group"], count) == ("T", "G", 1)
        assert len(samples["rocketmq_pop_revive_lag"]) == 8

    on_a_broker(tmp_path, scene, **ON, **SMALL_TIMES)
