"""What NativeSends does with a read: stored and answered, or left as it was. What is stored is test_fast_send's."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from mqlake import native
from mqlake.broker.controller import BrokerController
from mqlake.native.send_layout import NEED_MORE, SLOW_PATH, UNKNOWN_QUEUE
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.codec import encode_frame
from mqlake.remoting.codes import SerializeType
from mqlake.remoting.command import ONEWAY_FLAG, RemotingCommand
from mqlake.remoting.loop import run
from tests.broker.fast.test_fast_send import Wire, batch, fast_path, half, item, send
from tests.broker.live import running
from tests.fuzz.keeping_transport import KeepingTransport
from tests.waiting import until_async

HOST = 0x7F00000100000001
produce = native.module("produce")
assert produce is not None


def on_a_broker(
    directory: Path, scene: Callable[[BrokerController], Awaitable[None]], **settings: str
) -> None:
    """That knows the topic and the queue of `send`."""

    async def play() -> None:
        async with running(directory, **settings) as controller, Wire(controller) as wire:
            await asyncio.to_thread(fast_path(controller).load)
            await wire.say(send())
            while controller.broker.topic_config_manager.unsettled:
                await asyncio.sleep(0.005)
            await wire.say(send())
            await wire.say(send())
            await scene(controller)

    run(play())


class Rest:
    """A connection, as a reader sees it: what is left to it."""

    def __init__(self) -> None:
        self.transport = KeepingTransport()
        self.is_at_rest = True
        self.reads = self.rests = 0
        self.left: list[tuple[int, int]] = []
        """Of each read that was not for the reader alone: its bytes, and where what is left begins."""
        self.own = memoryview(bytearray(1000))
        self.waits: list[asyncio.Future[Any]] = []

    def get_buffer(self, _hint: int) -> memoryview:
        return self.own

    def buffer_updated(self, size: int, handled: int) -> None:
        self.left.append((size, handled))

    def rest(self) -> None:
        self.rests += 1

    def stop_waits_for(self, later: asyncio.Future[Any]) -> None:
        self.waits.append(later)

    def write_now(self, frames: bytes) -> None:
        self.transport.write(frames)

    @property
    def answers(self) -> int:
        return self.transport.written.count(b'"opaque":')


class Reader:
    """A NativeReader of sends."""

    def __init__(self, controller: BrokerController, connection: Rest) -> None:
        module, fast = native.module("reader"), fast_path(controller)
        assert module is not None
        self._taker = fast.native.taker(fast, connection, HOST)
        self._reader = module.NativeReader(connection, controller.server.scratch)
        self._reader.add(self._taker)
        self.get_buffer, self.buffer_updated = self._reader.get_buffer, self._reader.buffer_updated

    @property
    def stored(self) -> int:
        return int(self._taker.stored)


def reader_of(controller: BrokerController) -> tuple[Reader, Rest]:
    connection = Rest()
    return Reader(controller, connection), connection


def read(reader: Reader, data: bytes) -> None:
    reader.get_buffer(-1)[: len(data)] = data
    reader.buffer_updated(len(data))


def test_a_read_is_stored_and_answered(tmp_path: Path) -> None:
    async def scene(controller: BrokerController) -> None:
        sends, store = fast_path(controller).native, controller.broker.store
        reader, connection = reader_of(controller)
        data = send(opaque=1) + batch(item(), item(), opaque=2)
        before = store.max_phy_offset
        read(reader, data + data[:30])
        assert connection.left == [(len(data) + 30, len(data))]
        assert (sends.messages, sends.places, sends.transactional, sends.why) == (3, 1, 0, NEED_MORE)
        assert sends.end == store.max_phy_offset > before
        assert [b'"opaque":%d' % n in connection.transport.written for n in (1, 2, 3)] == [True, True, False]
        assert store.commit_log.queue_offsets["Orders", 1] == 6
        read(reader, data)
        assert (len(connection.left), connection.reads, connection.answers, reader.stored) == (1, 1, 4, 6)

    on_a_broker(tmp_path, scene)


def test_a_read_that_fills_the_buffer_lets_others_go_first(tmp_path: Path) -> None:
    """Also one that the reader has handled whole: uvloop would go on with this socket."""

    async def scene(controller: BrokerController) -> None:
        reader, connection = reader_of(controller)
        room = len(controller.server.scratch)
        frame = send(bytes(room // 4 - len(send(b""))))
        assert 4 * len(frame) == room
        read(reader, 4 * frame)
        assert (connection.left, connection.rests, reader.stored) == ([], 1, 4)
        read(reader, 3 * frame)
        assert (connection.left, connection.rests, reader.stored) == ([], 1, 7)
        read(reader, 3 * frame + bytes(len(frame)))
        assert (connection.left, connection.rests, reader.stored) == ([(room, 3 * len(frame))], 2, 10)

    on_a_broker(tmp_path, scene)


def test_what_goes_on_with_a_frame_is_the_connections(tmp_path: Path) -> None:
    """It was begun there; and answers that wait there come first."""

    async def scene(controller: BrokerController) -> None:
        reader, connection = reader_of(controller)
        connection.is_at_rest = False
        read(reader, send())
        assert (connection.left, reader.stored) == ([(len(send()), 0)], 0)
        assert bytes(connection.own[: len(send())]) == send()
        connection.is_at_rest = True
        read(reader, send())
        assert (len(connection.left), reader.stored) == (1, 1)

    on_a_broker(tmp_path, scene)


def changes(controller: BrokerController) -> dict[str, Callable[[], object]]:
    broker, topics = controller.broker, controller.broker.topic_config_manager
    return {
        "a hook": lambda: broker.hooks.send.append(cast(Any, object())),
        "settings": lambda: setattr(
            broker, "config", dataclasses.replace(broker.config, region_id="Elsewhere")
        ),
        "topics": lambda: topics.update_topic_config(TopicConfig(topic_name="Another")),
        "long turns": lambda: setattr(fast_path(controller).flow_control, "long_turns", 2),
        "a slow put": lambda: setattr(broker.store, "longest_python_put_ms", 60_001),
    }


@pytest.mark.parametrize("change", ["a hook", "settings", "topics", "long turns", "a slow put"])
def test_what_changes_between_two_reads_is_known_to_the_second(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook at the end of OPEN_NS; all else at once, in the same turn of the event loop."""

    async def scene(controller: BrokerController) -> None:
        reader, connection = reader_of(controller)
        monkeypatch.setattr("mqlake.broker.fast.fast_send.OPEN_NS", 0 if change == "a hook" else 10**12)
        fast_path(controller).native.open_until = 0
        read(reader, send())
        assert (connection.left, reader.stored) == ([], 1)
        changes(controller)[change]()
        before = controller.broker.store.max_phy_offset
        read(reader, send())
        assert (connection.left, reader.stored) == ([(len(send()), 0)], 1)
        assert controller.broker.store.max_phy_offset == before

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_requests_are_measured_where_metrics_are_served(tmp_path: Path, slow: bool, flush: str) -> None:
    """Also those of a millisecond and more, of which native code keeps no count; each kind by itself."""
    data = send(opaque=1) + batch(item(), item(), opaque=2) + send(opaque=3, command_flag=ONEWAY_FLAG)

    async def scene(controller: BrokerController) -> None:
        assert controller.metrics is not None
        latencies = controller.metrics.rpc_latencies
        before = {rpc: ([*each.counts], each.sum) for rpc, each in latencies.histograms.items()}
        connection = Rest()

        def write(_: bytes) -> None:
            time.sleep(0.004 if slow else 0)

        connection.transport.write = write  # type: ignore[method-assign]
        reader = Reader(controller, connection)
        for _ in range(2):
            read(reader, data)
        await until_async(lambda: all(later.done() for later in connection.waits))
        assert (reader.stored, connection.left) == (8, [])
        found = {
            (rpc.request_code, rpc.oneway): (each.counts, each.sum, *before.get(rpc, ([0] * 10, 0)))
            for rpc, each in latencies.histograms.items()
            if rpc.request_code in (310, 320)
        }
        assert set(found) == {(310, False), (320, False), (310, True)}
        for counts, elapsed, counts_before, elapsed_before in found.values():
            added = [now - then for now, then in zip(counts, counts_before, strict=True)]
            assert sum(added) == 2
            assert elapsed - elapsed_before >= (8_000_000 if slow else 1)
            if slow:
                assert sum(added[2:]) == 2, "none of them in 3 ms"

    on_a_broker(tmp_path, scene, flushDiskType=flush, metricsExporterType="PROM", metricsPromExporterPort="0")


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
        reader, connection = reader_of(controller)
        for code, is_one in ((11, False), (310, True), (320, True), (10, True), (34, False), (3100, False)):
            data = encode_frame(RemotingCommand(code, ext_fields={"a": "b"}, serialize_type=kind))
            sends.take(send(), 0, HOST, False)
            assert sends.why == NEED_MORE
            read(reader, data)
            assert (connection.left.pop(), reader.stored) == ((len(data), 0), 0)
            assert (sends.why == SLOW_PATH) == is_one

    on_a_broker(tmp_path, scene)


def test_sizes_that_lie(tmp_path: Path) -> None:
    async def scene(controller: BrokerController) -> None:
        sends = fast_path(controller).native
        with pytest.raises(ValueError, match="31 of 30 bytes"):
            sends.take(bytes(30), 31, HOST, True)
        with pytest.raises(ValueError, match="no arrays of send_layout"):
            tables = fast_path(controller).tables
            sends.use(tables.numbers[:50].copy(), tables.octets, 1)
        with pytest.raises(ValueError, match="there are no arrays yet"):
            produce.NativeSends(None).take(send(), 0, HOST, True)
        reader, connection = reader_of(controller)
        for size in range(1, len(send())):
            read(reader, send()[:size])
            assert connection.left.pop() == (size, 0)
        assert reader.stored == 0

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
