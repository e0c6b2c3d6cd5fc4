"""NOTIFICATION on a live broker."""

from __future__ import annotations

import asyncio

from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.headers.consume import NotificationResponseHeader
from tests.broker.live import Peer, on_a_broker
from tests.broker.pop.popping import Popper
from tests.broker.pop.test_pop_message import sent
from tests.waiting import until_async


async def notified(popper: Popper, **fields: object) -> tuple[bool, bool]:
    answer = await popper.notification(**fields)
    assert answer.code == ResponseCode.SUCCESS, answer
    header = answer.decode_header(NotificationResponseHeader)
    return header.has_msg, header.polling_full


def test_says_whether_there_are_messages(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a", queue_id=1)
        popper = Popper(peer)
        assert await notified(popper) == (True, False)
        assert await notified(popper, queue_id=0) == (False, False)
        assert await notified(popper) == (True, False)  # it takes none
        first = await popper.pop(order=True)
        assert first.bodies == [b"a"]
        assert await notified(popper) == (True, False)
        assert await notified(popper, order=True) == (False, False)
        await popper.ack(first.messages[0])
        assert await notified(popper) == (False, False)

    on_a_broker(tmp_path, scene)


def test_waits(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        popper = Popper(peer)
        await popper.pop()
        waiting = [asyncio.ensure_future(notified(popper, poll_time=60_000)) for _ in range(2)]
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result() for one in done] == [(False, True)]
        assert await notified(popper, queue_id=0, poll_time=200) == (False, False)
        await sent(peer, b"b")
        (last,) = rest
        assert await last == (True, False)

    on_a_broker(tmp_path, scene, popPollingSize="1")


def test_whoever_was_not_woken_looks_before_its_time_is_over(tmp_path):
    """One waiter is woken for a message; the message is there for the other one, too."""

    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        popper = Popper(peer)
        await popper.ack((await popper.pop(order=True)).messages[0])
        order = {"order": True, "attempt_id": "first"}
        waiting = [asyncio.ensure_future(notified(popper, poll_time=ms, **order)) for ms in (60_000, 90_000)]
        polling = peer.controller.pop_service.state.notification_polling
        await until_async(lambda: len(polling) == 2)
        await sent(peer, b"b")
        assert await waiting[1] == (True, False)  # the one that was woken
        assert (await popper.pop(**order)).bodies == [b"b"]
        assert not waiting[0].done()
        assert await notified(popper, order=True, attempt_id="second") == (False, False)
        peer.controller.pop_service.answer_all()  # as when their time is over
        assert await waiting[0] == (True, False)  # b is still the first attempt's

    on_a_broker(tmp_path, scene)


def test_whoever_is_woken_for_nothing_waits_again(tmp_path):
    """Another consumer was faster: to say that there is a message would send its client to pop in vain."""

    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        popper = Popper(peer)
        await popper.pop()
        polling = peer.controller.pop_service.state.notification_polling
        waiting = asyncio.ensure_future(notified(popper, poll_time=60_000))
        await until_async(lambda: len(polling) == 1)
        polling.wake(("T", "G", -1))
        assert len(polling) == 0
        await until_async(lambda: len(polling) == 1)
        assert not waiting.done()
        await sent(peer, b"b")
        assert await waiting == (True, False)

    on_a_broker(tmp_path, scene)


def test_wrong_requests_are_refused(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        assert (await Popper(peer, "unknown").notification()).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await Popper(peer).notification(queue_id=9)).code == ResponseCode.INVALID_PARAMETER
        assert (await Popper(peer, group="no group").notification()).code == (
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        )

    on_a_broker(tmp_path, scene)
