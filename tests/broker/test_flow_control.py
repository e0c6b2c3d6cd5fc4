from __future__ import annotations

import asyncio
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from mqlake import native
from mqlake.broker.fast.fast_send import FastSend
from mqlake.broker.flow_control import SendFlowControl
from mqlake.message import MessageExtBrokerInner
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.results import PutMessageResult
from tests.broker.live import Peer, on_a_broker, send_header
from tests.waiting import PATIENCE_S, until_async


def test_a_slave_takes_no_sends(tmp_path):
    async def scene(peer: Peer) -> None:
        answer = await peer.send("T")
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark.startswith("[REJECTREQUEST]system busy") and "brokerRole=SLAVE" in answer.remark
        answer = await peer.pull("T")
        assert answer.code == ResponseCode.SYSTEM_BUSY and "slaveReadEnable" in answer.remark

    on_a_broker(tmp_path, scene, brokerRole="SLAVE", brokerId="1")


def test_a_put_that_writes_for_too_long(tmp_path):
    async def scene(peer: Peer) -> None:
        store = peer.controller.broker.store
        store.commit_log.appender.begin_time_in_lock = store.clock_ms() - 3000
        answer = await peer.send("T")
        store.commit_log.appender.begin_time_in_lock = 0
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark.startswith("[REJECTREQUEST]system busy")
        assert "page cache" in answer.remark and "the limit is 1000 ms" in answer.remark
        assert (await peer.send("T")).code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene, osPageCacheBusyTimeOutMills="1000")


class SlowWrites:
    """Writes that the next ones of a store wait for, once each; `began` is set when one does."""

    def __init__(self) -> None:
        self.left = 0
        self.began = threading.Event()

    def wait(self) -> None:
        if self.left:
            self.left -= 1
            self.began.set()
            time.sleep(0.3)


slow_writes = SlowWrites()


class SlowFile(MappedFile):
    """A file of the commit log on a disk that takes its time."""

    __slots__ = ()

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        slow_writes.wait()
        super().write_at(position, data)


class SlowSends:
    """Native code that stores nothing by itself, and whose page of the log is not there yet."""

    def __init__(self) -> None:
        produce = native.module("produce")
        assert produce is not None
        self._sends = produce.NativeSends(None)

    def __getattr__(self, name: str) -> object:
        return getattr(self._sends, name)

    def store(self, *arguments: object) -> object:
        slow_writes.wait()
        return self._sends.store(*arguments)


@pytest.mark.parametrize("way", ["without a map", "compiled"])
def test_sends_that_a_slow_write_holds_up_are_refused(tmp_path, monkeypatch, way):
    """The thread that would see how long a put has been writing is the one that waits for it: a broker whose disk
    stands still would take all that its clients have given up and sent again."""

    async def scene(peer: Peer) -> None:
        if way == "compiled":
            peer.controller.load_compiled()
            fast_send = peer.controller.server.fast_paths[0]
            assert isinstance(fast_send, FastSend) and fast_send.native is not None
            fast_send.native = SlowSends()
            fast_send._prepare()
        for _ in range(3):  # after which the fast path knows the queue
            assert (await peer.send("T")).code == ResponseCode.SUCCESS
        request = RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"late")
        frame = encode_frame(request)
        with (
            socket.create_connection(("127.0.0.1", peer.controller.port)) as slow,
            socket.create_connection(("127.0.0.1", peer.controller.port)) as late,
        ):
            await until_async(lambda: len(peer.controller.server.connections) == 3)
            slow_writes.began.clear()
            slow_writes.left = 1

            def held_up() -> list[RemotingCommand]:
                slow.sendall(frame)
                assert slow_writes.began.wait(PATIENCE_S)
                late.sendall(frame * 2)
                return [*read_frames(slow, 1), *read_frames(late, 2)]

            stored, *refused = await asyncio.to_thread(held_up)
            assert stored.code == ResponseCode.SUCCESS
            for answer in refused:
                assert answer.code == ResponseCode.SYSTEM_BUSY
                assert answer.remark.startswith("[REJECTREQUEST]system busy")
                assert "page cache: a put took 3" in answer.remark and "the limit is 100 ms" in answer.remark
            late.sendall(frame)
            assert (await asyncio.to_thread(read_frames, late, 1))[0].code == ResponseCode.SUCCESS

    monkeypatch.setattr(
        "mqlake.remoting.connection.TURN_S", PATIENCE_S
    )  # both late ones in the turn of their read
    if way == "without a map":
        monkeypatch.setattr("mqlake.store.message_store.mapped_file_class", lambda _name: SlowFile)
    on_a_broker(
        tmp_path,
        scene,
        osPageCacheBusyTimeOutMills="100",
        writeWithoutMmap=str(way == "without a map").lower(),
    )


def test_a_slow_put_holds_up_what_its_turn_still_brings(tmp_path):
    """Whether sends are refused is asked once in a while; but not if a put of this turn took long."""

    async def scene(peer: Peer) -> None:
        server = peer.controller.server
        await asyncio.to_thread(peer.controller.load_compiled)
        for _ in range(3):
            assert (await peer.send("T")).code == ResponseCode.SUCCESS
        store = peer.controller.broker.store
        (connection,) = server.connections
        reader = connection.transport.get_protocol()
        request = RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"late")
        request.mark_oneway()
        frame = encode_frame(request)
        [taker] = reader.takers
        stored = taker.stored

        def read() -> int:
            reader.get_buffer(-1)[: len(frame)] = frame
            reader.buffer_updated(len(frame))
            return taker.stored - stored

        assert read() == 1
        assert read() == 2
        real, message = (
            store.commit_log.put_message,
            MessageExtBrokerInner("T", b"slow", born_host=("127.0.0.1", 1)),
        )

        def slow(inner: MessageExtBrokerInner) -> PutMessageResult:
            time.sleep(0.12)
            return real(inner)

        store.commit_log.put_message = slow
        assert store.put_message(message).is_ok
        before = store.max_phy_offset
        assert read() == 2
        assert store.max_phy_offset == before, "nor by anybody else"

    on_a_broker(tmp_path, scene, osPageCacheBusyTimeOutMills="100")


def test_a_pool_without_buffers(tmp_path):
    async def scene(peer: Peer) -> None:
        pool = peer.controller.broker.store.transient_store_pool
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        taken = []
        while pool.available_buffer_nums:
            taken.append(pool.borrow())
        answer = await peer.send("T")
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "0 of the 3 buffers" in answer.remark
        for buffer in taken:
            pool.give_back(buffer)

    on_a_broker(tmp_path, scene, transientStorePoolEnable="true", transientStorePoolSize="3")


def read_frames(connected: socket.socket, count: int) -> list[RemotingCommand]:
    data = b""
    frames: list[RemotingCommand] = []
    while len(frames) < count:
        data += connected.recv(65536)
        while end := frame_end(memoryview(data), 0, len(data)):
            frames.append(decode_frame(memoryview(data), 0, end))
            data = data[end:]
    return frames


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_sends_that_waited_for_their_turn(tmp_path, monkeypatch, enabled):
    now = 1_000_000_000
    monkeypatch.setattr("mqlake.broker.flow_control.time", SimpleNamespace(monotonic_ns=lambda: now))

    async def scene(peer: Peer) -> None:
        peer.controller.server.fast_paths = ()  # which puts in its own way
        store = peer.controller.broker.store
        put = store.async_put_message
        request = RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"late")
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        with socket.create_connection(("127.0.0.1", peer.controller.port)) as late:
            await until_async(lambda: len(peer.controller.server.connections) == 2)

            turns = []

            def slow_put(message):
                nonlocal now
                turns.append(message)
                if len(turns) == 2:
                    store.async_put_message = put
                late.sendall(encode_frame(request))  # read in the next turn
                now += 600_000_000  # the loop does not come round
                return put(message)

            store.async_put_message = slow_put
            assert (await peer.send("T")).code == ResponseCode.SUCCESS
            answers = await asyncio.to_thread(read_frames, late, 2)
        assert answers[0].code == ResponseCode.SUCCESS, answers[0].remark  # one long turn is a hiccup
        answer = answers[1]
        if enabled == "true":
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert answer.remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy")
            assert "queue wait" in answer.remark and "the limit is 500 ms" in answer.remark
        else:
            assert answer.code == ResponseCode.SUCCESS
        assert (await peer.send("T")).code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene, waitTimeMillsInSendQueue="500", brokerFastFailureEnable=enabled)


def test_long_turns_count_only_one_after_the_other(tmp_path, monkeypatch):
    """A turn is as long as its sends waited: two long ones refuse, and a short one between them forgets the first."""
    now = 1_000_000_000
    monkeypatch.setattr("mqlake.broker.flow_control.time", SimpleNamespace(monotonic_ns=lambda: now))

    async def scene(peer: Peer) -> None:
        nonlocal now
        control = SendFlowControl(peer.controller.broker)
        refused = []
        for turn_ms in (501, 501, 501, 501, 0, 501, 500, 501, 501, 0):
            refused.append(control.refusal() is not None)
            now += turn_ms * 1_000_000
            await asyncio.sleep(0)  # the turn ends; what comes now waited for it
        refused.append(control.refusal() is not None)
        assert [number for number, each in enumerate(refused) if each] == [2, 4, 9]

    on_a_broker(tmp_path, scene, waitTimeMillsInSendQueue="500")
