"""What the Java broker was seen to answer, answered the same: the conversation of the reference, and more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mqlake.metaq.broker.broker import MetaMorphosisBroker
from mqlake.metaq.formats.command import BooleanCommand, DataCommand
from mqlake.metaq.formats.record import MessageIterator
from mqlake.remoting.loop import run
from tests.metaq.brokers import Peer, running

HUGE = 9223372036854775807


def failed(broker: MetaMorphosisBroker, partition: str, detail: str) -> str:
    return (
        f"Put message to [broker 'meta://127.0.0.1:{broker.server.port}'] [partition '{partition}'] failed."
        f"Detail:{detail}"
    )


def test_the_conversation(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path) as broker:
            peer = await Peer.connect(broker.server.port)

            async def put(request: bytes) -> tuple[int, int, int]:
                code, text = await peer.said(request)
                assert code == 200, text
                identity, partition, offset = map(int, text.split(" "))
                return identity, partition, offset

            first = await put(b"put test 0 3 0 891568578 -2147483648\r\nabc")
            assert first[1:] == (0, 0) and first[0] > 0
            assert (await put(b"put test 0 3 0 11\r\nabc"))[1:] == (0, 23)  # before 1.4.4
            assert (await put(b"put test 0 0 0 -1 16\r\n"))[1:] == (0, 46)
            assert (await put(b"put test 0 17 1 1018681804 7\r\n\0\0\0\6attr-1hello-1"))[1:] == (0, 66)
            anywhere = {(await put(b"put test -1 3 0 -1 12\r\nabc"))[1] for _ in range(30)}
            assert anywhere == {0, 1, 2}
            assert await peer.said(b"put test 0 3 0 5 13\r\nabc") == (
                500,
                failed(
                    broker,
                    "test-0",
                    "Checksum failure,message may be corrupted when transfering on networking.",
                ),
            )
            assert await peer.said(b"put test 9 3 0 -1 14\r\nabc") == (
                500,
                failed(broker, "test-9", "wrong partition 9"),
            )
            assert await peer.said(b"put nosuch 0 3 0 -1 15\r\nabc") == (
                500,
                failed(broker, "nosuch-0", "The server do not accept topic nosuch"),
            )

            answer = await peer.ask(b"get test g1 0 0 30 21\r\n")
            assert isinstance(answer, DataCommand) and len(answer.data) == 30 and answer.opaque == 21
            messages = MessageIterator("test", answer.data)
            assert [(m.id, m.data) for m in messages] == [(first[0], b"abc")] and messages.offset == 23
            answer = await peer.ask(b"get test g1 0 66 37 21\r\n")
            assert isinstance(answer, DataCommand)
            assert [(m.attribute, m.data) for m in MessageIterator("test", answer.data)] == [
                ("attr-1", b"hello-1")
            ]
            assert len((await peer.ask(b"get test g1 0 5 100 27\r\n")).data) == 100  # type: ignore[union-attr]

            end = broker.manager.stores("test")[0].max_offset
            gone = "The topic `test` in partition `5` is not exists"
            for request, expected in {
                b"get test g1 0 0 0 22\r\n": (400, "Bad request,invalid max size:0"),
                b"get test g1 0 %d 1048576 23\r\n" % end: (404, f"Could not find message at position {end}"),
                b"get test g1 0 99999 100 23\r\n": (404, "Could not find message at position 99999"),
                b"get test g1 0 %d 100 24\r\n" % HUGE: (301, str(end)),
                b"get test g1 0 -5 100 26\r\n": (301, "0"),
                b"get test g1 5 0 100 25\r\n": (404, gone),
                b"get nosuch g1 5 0 0 25\r\n": (404, gone.replace("test", "nosuch")),
                b"offset test g1 0 50 31\r\n": (200, "0"),
                b"offset test g1 0 99999 32\r\n": (200, str(end)),
                b"offset test g1 5 0 34\r\n": (404, gone),
                b"version 7\r\n": (200, "1.4.6.2"),
                b"sync test 0 3 0 99 -1 40\r\nabc": (
                    503,
                    "未注册请求处理器，请求处理器类为com.taobao.metamorphosis.network.SyncCommand",
                ),
            }.items():
                assert await peer.said(request) == expected, request
            peer.send(b"quit\r\n")
            with pytest.raises(ConnectionError):
                await peer.answer()

    run(conversation())


def test_offsets_are_told_when_so_configured(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path, update_consumer_offsets=True) as broker:
            peer = await Peer.connect(broker.server.port)
            await peer.said(b"put test 0 3 0 -1 12\r\nabc")
            assert await peer.said(b"get test g1 0 1000 100 23\r\n") == (301, "23")
            assert await peer.said(b"get test g1 0 23 100 23\r\n") == (
                404,
                "Could not find message at position 23",
            )

    run(conversation())


def test_closed_partitions(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path, broker_id=4) as broker:
            peer = await Peer.connect(broker.server.port)
            broker.config.close_partitions("test", 1, 2)
            assert await peer.said(b"put test 1 3 0 -1 1\r\nabc") == (
                403,
                failed(broker, "test-1", "partition[4-1] has been closed"),
            )
            assert await peer.said(b"get test g 2 0 10 1\r\n") == (403, "Partition[4-2] has been closed")
            assert (await peer.said(b"put test 0 3 0 -1 1\r\nabc"))[0] == 200
            broker.config.open_partitions("test")
            assert (await peer.said(b"put test 1 3 0 -1 1\r\nabc"))[0] == 200

    run(conversation())


def test_what_is_no_command_ends_its_connection_and_no_other(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path) as broker:
            other = await Peer.connect(broker.server.port)
            for garbage in (
                b"nonsense\r\n",
                b"\r\n",
                b"put test x 0 0 1\r\n",
                b"put test 0 -1 0 1\r\n",
                b"x" * 70000,
            ):
                peer = await Peer.connect(broker.server.port)
                peer.send(b"version 1\r\n", garbage)
                assert await peer.answer() == BooleanCommand(200, "1.4.6.2", 1)
                with pytest.raises(ConnectionError):
                    await peer.answer()
                assert await other.said(b"version 2\r\n") == (200, "1.4.6.2")

    run(conversation())


def test_split_at_every_byte_and_all_at_once(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path) as broker:
            peer = await Peer.connect(broker.server.port)
            requests = b"put test 0 3 0 -1 1\r\nabcversion 2\r\nget test g 0 99 5 3\r\n"
            for i, byte in enumerate(requests):
                peer.send(bytes([byte]))
                if i % 7 == 0:
                    await asyncio.sleep(0)
            found = [await peer.answer() for _ in range(3)]
            assert sorted(answer.opaque for answer in found) == [1, 2, 3]
            peer.send(requests * 50)
            found = [await peer.answer() for _ in range(150)]
            offsets = [int(each.message.split()[2]) for each in found if each.opaque == 1]  # type: ignore[union-attr]
            assert offsets == [23 * i for i in range(1, 51)]

    run(conversation())


def test_large_messages_are_flushed_before_the_answer_and_sent_whole(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path) as broker:
            peer = await Peer.connect(broker.server.port)
            body = bytes(range(256)) * 12_000
            code, text = await peer.said(b"put test 0 %d 0 -1 1\r\n" % len(body) + body)
            assert (code, text.split()[2]) == (200, "0")
            assert broker.manager.stores()[0].max_offset == len(body) + 20
            found = b""
            while len(found) < len(body) + 20:
                answer = await peer.ask(b"get test g 0 %d 1048576 2\r\n" % len(found))
                assert isinstance(answer, DataCommand) and len(answer.data) <= 1 << 20
                found += answer.data
            assert found[20:] == body
            answer = await peer.ask(b"get test g 0 0 5000000 2\r\n")
            assert isinstance(answer, DataCommand) and answer.data == found, "one message may be longer"

    run(conversation())


def test_a_peer_that_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path) as broker:
            peer = await Peer.connect(broker.server.port)
            await peer.said(b"put test 0 1000000 0 -1 1\r\n" + bytes(1_000_000))
            peer.send(b"get test g 0 0 1000020 5\r\n" * 200)
            other = await Peer.connect(broker.server.port)
            for _ in range(20):
                assert await other.said(b"version 2\r\n") == (200, "1.4.6.2")
            for _ in range(200):
                answer = await peer.answer()
                assert isinstance(answer, DataCommand) and len(answer.data) == 1_000_020

    run(conversation())


def test_a_store_that_is_fenced_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    async def conversation() -> None:
        async with running(tmp_path) as broker:
            peer = await Peer.connect(broker.server.port)
            await peer.said(b"put test 0 3 0 -1 1\r\nabc")
            monkeypatch.setattr(os, "fdatasync", fails)
            for _ in range(2):
                code, text = await peer.said(b"put test 0 3 0 -1 1\r\nabc")
                assert code == 500 and "Input/output error" in text
            monkeypatch.undo()
            assert (await peer.said(b"put test 1 3 0 -1 1\r\nabc"))[0] == 200
            assert isinstance(await peer.ask(b"get test g 0 0 100 2\r\n"), DataCommand)
            assert broker.stats.put_failed == 2

    run(conversation())


def test_restart_over_the_same_directory(tmp_path: Path) -> None:
    async def conversation() -> None:
        for i in range(3):
            async with running(tmp_path) as broker:
                peer = await Peer.connect(broker.server.port)
                assert (await peer.said(b"put test 0 3 0 -1 1\r\nabc"))[1].endswith(f" 0 {23 * i}")
                await peer.close()

    run(conversation())


def test_the_transfer_log_names_who_got_which_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    large = b"x" * 100_000

    async def conversation() -> None:
        async with running(tmp_path) as broker:
            peer = await Peer.connect(broker.server.port)
            for number, body in enumerate((b"abc", large)):
                code, _ = await peer.said(b"put test 0 %d 0 -1 %d\r\n%b" % (len(body), number, body))
                assert code == 200
            await peer.ask(b"get test g 0 0 23 10\r\n")
            assert caplog.records == []
            with caplog.at_level("DEBUG", "mqlake.metaq.TransferLog"):
                await peer.ask(b"get test g 0 0 23 11\r\n")
                await peer.ask(b"get test other 0 23 200000 12\r\n")
                await peer.ask(b"get test g 0 999999 23 13\r\n")  # nothing there
            client = peer.writer.get_extra_info("sockname")
            small, huge = caplog.records
            assert small.getMessage() == (
                "topic:test group:g partition:0 offset:0 sizeInBytes:23 zeroCopyBytes:0 "
                f"client:127.0.0.1:{client[1]}"
            )
            assert vars(huge).items() >= {
                "topic": "test", "group": "other", "partition": 0, "offset": 23, "sizeInBytes": len(large) + 20,
            }.items()  # fmt: skip
            assert 0 < vars(huge)["zeroCopyBytes"] <= len(large) + 20
            await peer.close()

    run(conversation())
