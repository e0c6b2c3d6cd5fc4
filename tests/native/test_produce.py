"""What NativeSends does with a read: stored and answered, or left as it was. What is stored is test_fast_send's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mqlake import native
from mqlake.broker.controller import BrokerController
from mqlake.native.send_layout import NEED_MORE, SLOW_PATH, UNKNOWN_QUEUE
from mqlake.remoting.codec import encode_frame
from mqlake.remoting.codes import SerializeType
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.loop import run
from tests.broker.fast.test_fast_send import Wire, batch, fast_path, half, item, send
from tests.broker.live import running

HOST = 0x7F00000100000001
produce = native.module("produce")
assert produce is not None


def on_a_broker(directory: Path, scene: Callable[[BrokerController], Awaitable[None]]) -> None:
    """That knows the topic and the queue of `send`."""

    async def play() -> None:
        async with running(directory) as controller, Wire(controller) as wire:
            await asyncio.to_thread(fast_path(controller).load)
            await wire.say(send())
            while controller.broker.topic_config_manager.unsettled:
                await asyncio.sleep(0.005)
            await wire.say(send())
            await wire.say(send())
            await scene(controller)

    run(play())


def test_a_read_is_stored_and_answered(tmp_path: Path) -> None:
    async def scene(controller: BrokerController) -> None:
        sends, store = fast_path(controller).native, controller.broker.store
        data = send(opaque=1) + batch(item(), item(), opaque=2)
        before = store.max_phy_offset
        assert sends.take_read(data + data[:30], len(data) + 30, HOST) == len(data)
        assert (sends.messages, sends.places, sends.transactional, sends.why) == (3, 1, 0, NEED_MORE)
        assert sends.end == store.max_phy_offset > before
        assert [b'"opaque":%d' % n in sends.answers for n in (1, 2, 3)] == [True, True, False]
        assert store.commit_log.queue_offsets["Orders", 1] == 6

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize("why", ["lock", "flag", "not asked", "half", "other", "a topic that was forgotten"])
def test_what_it_leaves_has_changed_nothing(tmp_path: Path, why: str) -> None:
    """Else two would write the same place, or one who must not."""

    async def scene(controller: BrokerController) -> None:
        sends, store = fast_path(controller).native, controller.broker.store
        log = store.commit_log
        data = {"half": half(), "other": send(topic="Others")}.get(why, send())
        ends = store.max_phy_offset, dict(log.queue_offsets), log.fast_put.puts
        if why == "lock":
            log.appender.lock.acquire()
        if why == "flag":
            store.running_flags.make_fenced("for a test")
        if why.startswith("a topic"):
            log.fast_put.forget("Orders")
        sends.take(data, 0, HOST, why != "not asked")
        if why == "lock":
            log.appender.lock.release()
        assert sends.answers is None
        assert sends.messages == (0 if why == "other" else 1)
        assert (store.max_phy_offset, dict(log.queue_offsets), log.fast_put.puts) == ends

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize("kind", list(SerializeType))
def test_only_what_begins_as_a_send_is_read(tmp_path: Path, kind: SerializeType) -> None:
    """Pulls have their own fast path, and are not to be read twice."""

    async def scene(controller: BrokerController) -> None:
        sends = fast_path(controller).native
        for code, is_one in ((11, False), (310, True), (320, True), (10, True), (34, False), (3100, False)):
            data = encode_frame(RemotingCommand(code, ext_fields={"a": "b"}, serialize_type=kind))
            sends.take(send(), 0, HOST, False)
            assert sends.why == NEED_MORE
            assert sends.take_read(data, len(data), HOST) == 0
            assert (sends.messages, sends.answers) == (0, None)
            assert (sends.why == SLOW_PATH) == is_one

    on_a_broker(tmp_path, scene)


def test_sizes_that_lie(tmp_path: Path) -> None:
    async def scene(controller: BrokerController) -> None:
        sends = fast_path(controller).native
        with pytest.raises(ValueError, match="31 of 30 bytes"):
            sends.take(bytes(30), 31, HOST, True)
        with pytest.raises(ValueError, match="31 of 30 bytes"):
            sends.take_read(bytes(30), 31, HOST)
        with pytest.raises(ValueError, match="no arrays of send_layout"):
            tables = fast_path(controller).tables
            sends.use(tables.numbers[:50].copy(), tables.octets, 1)
        with pytest.raises(ValueError, match="there are no arrays yet"):
            produce.NativeSends(None).take(send(), 0, HOST, True)
        for size in range(len(send())):
            assert sends.take_read(send(), size, HOST) == 0

    on_a_broker(tmp_path, scene)


def test_queues_are_known_until_there_is_no_room(tmp_path: Path) -> None:
    async def scene(controller: BrokerController) -> None:
        fast = fast_path(controller)
        fast._prepare()  # nothing is known
        sends = fast.native
        assert sends.queues == [("RMQ_SYS_TRANS_HALF_TOPIC", 0)]
        assert not sends.add_queue(b"x" * 256, 0, ("x", 0))
        added = 1
        for form in (b"%0255d", b"%06d"):  # then none as long as the one that is sent to
            while sends.add_queue(form % added, 3, (str(added), 3)):
                added += 1
        assert len(sends.queues) == added > 1000
        sends.take(send(), 0, HOST, True)
        assert sends.why == UNKNOWN_QUEUE
        assert fast._learn(0)
        assert sends.queues[1:] == [("Orders", 1)]
        assert sends.take(send(), 0, HOST, True) == len(send())
        assert sends.answers is not None

    on_a_broker(tmp_path, scene)
