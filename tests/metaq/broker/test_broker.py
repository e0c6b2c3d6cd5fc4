"""The conversation that the Java broker 1.4.6.2 was seen to have, byte for byte.

What is not the same: the version, the port in the broker's address, and the address's length where it has other than
five digits. The ids are the original's, since the clock is set to when it gave them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake.metaq.broker.broker import MetaMorphosisBroker
from mqlake.metaq.config import MetaConfig, SystemConfig, ZKConfig
from mqlake.metaq.formats.ids import EPOCH_MS, IdWorker
from mqlake.metaq.formats.record import encode_record
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.remoting.loop import run
from tests.metaq.brokers import HOST, Peer, running
from tests.waiting import PATIENCE_S

Conversation = list[tuple[bytes, bytes]]

FIRST = bytes.fromhex("00000011 3cb7d9cc b41a7ba58b400000 00000001 00000006") + b"attr-1hello-1"
"""The first record of test-0: 37 bytes."""
FIRST_ID = int.from_bytes(FIRST[8:16], "big", signed=True)
PUT_FIRST = b"put test 0 17 1 1018681804 7\r\n" + FIRST[20:]
FAILED = b"Put message to [broker 'meta://127.0.0.1:%d'] [partition '%b'] failed.Detail:"
GONE = b"The topic `test` in partition `%d` is not exists"


def result(code: int, text: bytes, opaque: int) -> bytes:
    return b"result %d %d %d\r\n%b" % (code, len(text), opaque, text)


def messages(port: int) -> Conversation:
    """On a broker with 54 bytes in test-1."""
    stored = (
        FIRST
        + FIRST.replace(FIRST[8:16], (FIRST_ID + 1).to_bytes(8, "big", signed=True))
        + encode_record(b"abc", -5468922608802070528, 0)
        + encode_record(b"abc", -5468922602699358208, 0)
    )
    return [
        (PUT_FIRST, b"result 200 24 7\r\n%d 0 0" % FIRST_ID),
        (PUT_FIRST, b"result 200 25 7\r\n%d 0 37" % (FIRST_ID + 1)),
        (
            b"put test 0 3 0 891568578 -2147483648\r\nabc",
            b"result 200 25 -2147483648\r\n-5468922608802070528 0 74",
        ),
        (b"put test 0 3 0 11\r\nabc", b"result 200 25 11\r\n-5468922602699358208 0 97"),
        (b"put test -1 3 0 -1 12\r\nabc", b"result 200 25 12\r\n-5468922597871714304 1 54"),
        (b"put test 0 0 0 -1 16\r\n", b"result 200 26 16\r\n-5468922572663947264 0 120"),
        (
            b"put test 0 3 0 5 13\r\nabc",
            result(
                500,
                FAILED % (port, b"test-0")
                + b"Checksum failure,message may be corrupted when transfering on networking.",
                13,
            ),
        ),
        (b"put test 9 3 0 -1 14\r\nabc", result(500, FAILED % (port, b"test-9") + b"wrong partition 9", 14)),
        (
            b"put nosuch 0 3 0 -1 15\r\nabc",
            result(500, FAILED % (port, b"nosuch-0") + b"The server do not accept topic nosuch", 15),
        ),
        (b"get test g1 0 0 30 21\r\n", b"value 30 21\r\n" + FIRST[:30]),
        (b"get test g1 0 0 0 22\r\n", b"result 400 30 22\r\nBad request,invalid max size:0"),
        (
            b"get test g1 0 140 1048576 23\r\n",
            b"result 404 38 23\r\nCould not find message at position 140",
        ),
        (
            b"get test g1 0 201 1048576 23\r\n",
            b"result 404 38 23\r\nCould not find message at position 201",
        ),
        (b"get test g1 0 9223372036854775807 100 24\r\n", b"result 301 3 24\r\n140"),
        (b"get test g1 0 -5 100 26\r\n", b"result 301 1 26\r\n0"),
        (b"get test g1 5 0 100 25\r\n", b"result 404 47 25\r\n" + GONE % 5),
        (b"get test g1 0 5 100 27\r\n", b"value 100 27\r\n" + stored[5:105]),
        (b"offset test g1 0 50 31\r\n", b"result 200 1 31\r\n0"),
        (b"offset test g1 0 9999 32\r\n", b"result 200 3 32\r\n140"),
        (b"offset test g1 7 0 34\r\n", b"result 404 47 34\r\n" + GONE % 7),
        (
            b"sync test 0 3 0 99 -1 40\r\nabc",
            "result 503 92 40\r\n未注册请求处理器，请求处理器类为com.taobao.metamorphosis.network.SyncCommand".encode(),
        ),
        (b"version 7\r\n", b"result 200 7 7\r\n1.4.6.2"),
    ]


def transactions(_: int) -> Conversation:
    xid = b"XID:100:0a0b:0c0d:uq1"
    again = b"result 500 84 %d\r\nXAException:code=-4,msg=XA transaction '" + xid + b"' has not been started."
    return [
        (b"transaction TX:s1:1 s1 BEGIN 3 100\r\n", b"result 200 0 100\r\n"),
        (
            b"put meta-test 0 3 0 -1 TX:s1:1 101\r\nabc",
            b"result 200 25 101\r\n-5468922500081516544 0 -1",
        ),
        (
            b"put meta-test -1 3 0 -1 TX:s1:1 103\r\nabc",
            b"result 500 44 103\r\nInvalid partition for transaction command:-1",
        ),
        (
            b"put meta-test 0 3 0 -1 TX:s1:2 104\r\nabc",
            b"result 500 49 104\r\nLocal transaction 'TX:s1:2' has not been started.",
        ),
        (b"transaction TX:s1:1 s1 COMMIT_ONE_PHASE 105\r\n", b"result 200 0 105\r\n"),
        (
            b"transaction TX:s1:1 s1 COMMIT_ONE_PHASE 106\r\n",
            b"result 500 49 106\r\nLocal transaction 'TX:s1:1' has not been started.",
        ),
        (b"transaction %b s1 BEGIN 30 uq1 110\r\n" % xid, b"result 200 0 110\r\n"),
        (
            b"put meta-test 0 3 0 -1 %b 111\r\nabc" % xid,
            b"result 200 25 111\r\n-5468922500081516543 0 -1",
        ),
        (b"transaction %b s1 END uq1 112\r\n" % xid, b""),
        (b"transaction %b s1 PREPARE uq1 113\r\n" % xid, b"result 200 1 113\r\n0"),
        (b"transaction null s1 RECOVER uq1 114\r\n", b"result 200 21 114\r\n" + xid),
        (b"transaction %b s1 COMMIT_TWO_PHASE uq1 117\r\n" % xid, b"result 200 0 117\r\n"),
        (b"transaction %b s1 COMMIT_TWO_PHASE uq1 118\r\n" % xid, again % 118),
        (b"transaction null s1 RECOVER uq1 119\r\n", b"result 200 0 119\r\n"),
        (
            b"transaction TX:s1:1 s1 FORGET 122\r\n",
            b"result 500 50 122\r\nXAException:code=-4,msg=TX:s1:1 is not a valid xid",
        ),
    ]


async def speak(broker: MetaMorphosisBroker, conversation: Conversation) -> None:
    peer = await Peer.connect(broker.server.port)
    for request, answer in conversation:
        peer.send(request)
        async with asyncio.timeout(PATIENCE_S):
            assert await peer.reader.readexactly(len(answer)) == answer, request
    peer.send(b"quit\r\n")
    assert await peer.reader.read() == b"", "quit has no answer, and nothing else was said"


@pytest.mark.parametrize(
    ("conversation", "ids"),
    [
        (
            messages,
            [
                *(FIRST_ID, FIRST_ID),
                *(-5468922608802070528, -5468922602699358208),
                *(-5468922597871714304, -5468922572663947264, 0),
            ],
        ),
        (transactions, [-5468922500081516544] * 2),
    ],
)
def test_the_golden_conversation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    conversation: Callable[[int], Conversation],
    ids: list[int],
) -> None:
    async def test() -> None:
        topics = {"test": {"numPartitions": "2"}, "meta-test": {}}
        async with running(tmp_path, topics) as broker:
            times = (EPOCH_MS + (identity >> 22) for identity in ids)
            broker.processor.ids = IdWorker(0, lambda: next(times))
            monkeypatch.setattr(broker.manager, "choose_random_partition", lambda topic: 1)
            for _ in range(2):
                broker.manager.get_or_create("test", 1).append(encode_record(b"hello-0", 1, 0))
            await speak(broker, conversation(broker.server.port))

    run(test())


def test_the_end_is_told_to_those_who_are_beyond_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, update_consumer_offsets=True) as broker:
            broker.manager.get_or_create("test", 0).append(encode_record(bytes(120), 1, 0))
            broker.manager.get_or_create("test", 0).flush()
            await speak(broker, [(b"get test g1 0 1000 100 23\r\n", b"result 301 3 23\r\n140")])

    run(test())


def test_a_topic_that_only_a_pattern_allows_is_shown_with_its_first_message(
    zookeeper: EmbeddedZookeeper, tmp_path: Path
) -> None:
    zk = ZKConfig(zk_connect=zookeeper.connect_string, zk_root=f"/{tmp_path.name}")
    system = SystemConfig(data_path=str(tmp_path), server_port=0, host_name=HOST)

    async def test() -> None:
        config = MetaConfig(system, zk, {"log-*": {"numPartitions": "2"}})
        broker = MetaMorphosisBroker(config, host=HOST)
        await broker.start()
        assert broker.zookeeper is not None and broker.zookeeper.session is not None
        node = f"{broker.zookeeper_paths.topic_pub('log-x')}/0-m"
        session = broker.zookeeper.session
        assert session.read(node) is None
        peer = await Peer.connect(broker.server.port)
        assert (await peer.said(b"put log-x 1 3 0 -1 1\r\nabc"))[0] == 200
        async with asyncio.timeout(PATIENCE_S):
            while (value := session.read(node)) is None:
                await asyncio.sleep(0.01)
        assert value == b'{"numParts":2,"broker":"0-m"}'
        await broker.stop()

    run(test())
