"""ConsumerLag: of groups that pull, pop, and pop in order."""

from __future__ import annotations

from pathlib import Path

from mqlake.broker.metrics.consumer_lag import ConsumerLag
from tests.broker.live import Peer, on_a_broker
from tests.broker.pop.popping import SMALL_TIMES, Popper
from tests.broker.pop.test_pop_message import sent
from tests.waiting import until_async


def figures(peer: Peer, group: str = "G", topic: str = "T") -> tuple[int, int, int]:
    """(lag, in flight, ready)"""
    consumer_lag = ConsumerLag(peer.controller.broker, peer.controller.pop_service.state)
    lag = consumer_lag.of(group, topic, pops=consumer_lag.pops(group, topic))
    assert lag is not None
    assert (lag.latency_ms >= 0, lag.queueing_ms >= 0) == (True, True)
    return lag.messages, lag.in_flight, lag.ready


def test_a_group_that_pulls(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        await sent(peer, *[b"%d" % number for number in range(5)])
        assert figures(peer) == (0, 0, 0)  # it has no offset
        offsets = peer.controller.broker.consumer_offset_manager
        offsets.commit_offset("h", "G", "T", 0, 1)
        assert figures(peer) == (4, 0, 4)
        offsets.commit_pull_offset("h", "G", "T", 0, 3)
        assert figures(peer) == (4, 2, 2)

    on_a_broker(tmp_path, scene)


def test_a_group_that_pops(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        await sent(peer, *[b"%d" % number for number in range(5)])
        popper = Popper(peer)
        answer = await popper.pop(max_msg_nums=3)
        assert figures(peer) == (5, 3, 2)
        await popper.ack(answer.messages[1])
        assert figures(peer) == (4, 2, 2)
        for popped in (answer.messages[0], answer.messages[2]):
            await popper.ack(popped)
        assert figures(peer) == (2, 0, 2)

    on_a_broker(tmp_path, scene)


def test_a_group_that_pops_in_order(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        await sent(peer, *[b"%d" % number for number in range(5)])
        popper = Popper(peer)
        answer = await popper.pop(queue_id=0, order=True, max_msg_nums=3)
        assert figures(peer) == (5, 3, 2)
        await popper.ack(answer.messages[1])
        assert figures(peer) == (5, 2, 2)
        await popper.ack(answer.messages[0])
        assert figures(peer) == (3, 1, 2)
        await popper.ack(answer.messages[2])
        assert figures(peer) == (2, 0, 2)

    on_a_broker(tmp_path, scene)


def test_retries_have_figures_of_their_own(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a", b"b")
        popper = Popper(peer)
        await popper.pop(invisible_time=300)
        store = peer.controller.broker.store
        await until_async(lambda: store.max_offset_in_queue("%RETRY%G_T", 0) == 2)
        assert figures(peer, topic="%RETRY%G_T")[1:] in [(0, 0), (0, 2)]
        assert len((await popper.pop(max_msg_nums=1)).messages) == 1
        assert figures(peer, topic="%RETRY%G_T") == (2, 1, 1)

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


def test_a_topic_that_is_not_there(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        consumer_lag = ConsumerLag(peer.controller.broker, peer.controller.pop_service.state)
        assert consumer_lag.of("G", "nothing", pops=True) is None

    on_a_broker(tmp_path, scene)
