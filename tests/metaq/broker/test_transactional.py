"""Transactions over the wire, as the Java broker was seen to answer, and over restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mqlake.errors import TransactionError
from mqlake.metaq.broker.broker import MetaMorphosisBroker
from mqlake.metaq.formats.command import BooleanCommand
from mqlake.metaq.formats.journal import (
    AppendMessage,
    OperationType,
    TransactionOperation,
    encode_journal_record,
)
from mqlake.metaq.formats.record import MessageIterator
from mqlake.remoting.loop import run
from tests.metaq.brokers import Peer, running

XID = b"XID:100:0a0b:0c0d:uq1"
NOT_STARTED = f"XAException:code=-4,msg=XA transaction '{XID.decode()}' has not been started."


def messages(broker: MetaMorphosisBroker, topic: str = "meta-test", partition: int = 0) -> list[bytes]:
    store = broker.manager.get(topic, partition)
    return (
        []
        if store is None
        else [m.data for m in MessageIterator(topic, store.read(store.min_offset, 1 << 20))]
    )


async def begun(
    broker: MetaMorphosisBroker, xid: bytes = XID, *bodies: bytes, topic: bytes = b"meta-test"
) -> Peer:
    """A connection with an open XA transaction and messages in it."""
    peer = await Peer.connect(broker.server.port)
    assert await peer.said(b"transaction %b s1 BEGIN 30 uq1 110\r\n" % xid) == (200, "")
    for body in bodies:
        code, _ = await peer.said(b"put %b 0 %d 0 -1 %b 1\r\n%b" % (topic, len(body), xid, body))
        assert code == 200
    return peer


def test_the_local_conversation(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path) as broker:
            peer = await Peer.connect(broker.server.port)
            assert await peer.said(b"transaction TX:s1:1 s1 BEGIN 3 100\r\n") == (200, "")
            code, text = await peer.said(b"put meta-test 0 3 0 -1 TX:s1:1 101\r\nabc")
            assert code == 200 and text.split()[1:] == ["0", "-1"]
            assert await peer.said(b"put meta-test -1 3 0 -1 TX:s1:1 103\r\nabc") == (
                500,
                "Invalid partition for transaction command:-1",
            )
            assert await peer.said(b"put meta-test 0 3 0 -1 TX:s1:2 104\r\nabc") == (
                500,
                "Local transaction 'TX:s1:2' has not been started.",
            )
            assert await peer.said(b"put nosuch 0 3 0 -1 TX:s1:1 104\r\nabc") == (
                500,
                "The server do not accept topic nosuch",
            )
            assert messages(broker) == []
            assert await peer.said(b"transaction TX:s1:1 s1 COMMIT_ONE_PHASE 105\r\n") == (200, "")
            assert messages(broker) == [b"abc"]
            assert await peer.said(b"transaction TX:s1:1 s1 COMMIT_ONE_PHASE 105\r\n") == (
                500,
                "Local transaction 'TX:s1:1' has not been started.",
            )
            assert await peer.said(b"transaction TX:s1:1 s1 FORGET 122\r\n") == (
                500,
                "XAException:code=-4,msg=TX:s1:1 is not a valid xid",
            )
            await peer.said(b"transaction TX:s1:3 s1 BEGIN 100\r\n")
            assert await peer.said(b"transaction TX:s1:3 s1 PREPARE 100\r\n") == (
                500,
                "XAException:code=-3,msg=Prepare not implemented on Local Transactions.",
            )
            # END is not answered
            peer.send(b"transaction TX:s1:3 s1 END 106\r\n", b"version 107\r\n")
            assert (await peer.answer()).opaque == 107
            stats = broker.stats
            assert (stats.tx_begin, stats.tx_commit, stats.tx_rollback) == (2, 2, 0)

    run(conversation())


def test_a_closed_partition_takes_no_message_of_a_transaction(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path, broker_id=4) as broker:
            peer = await begun(broker, XID, b"before")
            broker.config.close_partitions("meta-test", 0, 0)
            code, text = await peer.said(b"put meta-test 0 3 0 -1 %b 1\r\nabc" % XID)
            assert (code, text.partition("Detail:")[2]) == (403, "partition[4-0] has been closed")
            assert await peer.said(b"transaction %b s1 COMMIT_ONE_PHASE 2\r\n" % XID) == (200, "")
            assert messages(broker) == [b"before"]

    run(conversation())


def test_the_xa_conversation(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path) as broker:
            peer = await begun(broker)
            assert await peer.said(b"transaction %b s1 COMMIT_TWO_PHASE uq1 1\r\n" % XID) == (
                500,
                "XAException:code=-6,msg=Cannot do 2 phase commit if the transaction has not been prepared.",
            )
            await peer.said(b"put meta-test 0 3 0 -1 %b 111\r\nabc" % XID)
            assert await peer.said(b"transaction %b s1 PREPARE uq1 113\r\n" % XID) == (200, "0")
            assert await peer.said(b"transaction %b s1 PREPARE uq1 113\r\n" % XID) == (
                500,
                "XAException:code=-6,msg=Cannot call prepare now.",
            )
            assert (await peer.said(b"put meta-test 0 3 0 -1 %b 111\r\nabc" % XID))[0] == 500
            for question in (b"RECOVER uq1", b"RECOVER"):
                assert await peer.said(b"transaction null s1 %b 114\r\n" % question) == (200, XID.decode())
            assert await peer.said(b"transaction null s1 RECOVER other 114\r\n") == (200, "")
            assert await peer.said(b"transaction %b s1 COMMIT_TWO_PHASE uq1 118\r\n" % XID) == (200, "")
            assert messages(broker) == [b"abc"]
            for verb in (b"COMMIT_TWO_PHASE", b"PREPARE", b"ROLLBACK"):
                assert await peer.said(b"transaction %b s1 %b uq1 118\r\n" % (XID, verb)) == (
                    500,
                    NOT_STARTED,
                )
            assert await peer.said(b"transaction %b s1 FORGET uq1 118\r\n" % XID) == (200, "")
            text = NOT_STARTED.partition("msg=")[2]
            assert await peer.said(b"put meta-test 0 3 0 -1 %b 111\r\nabc" % XID) == (500, text)
            peer = await begun(broker, XID)
            assert await peer.said(b"transaction %b s1 PREPARE uq1 113\r\n" % XID) == (200, "3")

    run(conversation())


def test_rolled_back_by_request_by_the_end_of_the_connection_and_by_time(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path, max_tx_timeout_in_seconds=1) as broker:
            peer = await Peer.connect(broker.server.port)
            for name, timeout in ((b"TX:s:1", b""), (b"TX:s:2", b" 99"), (b"TX:s:3", b"")):
                await peer.said(b"transaction %b s BEGIN%b 1\r\n" % (name, timeout))
                await peer.said(b"put meta-test 0 3 0 -1 %b 1\r\nabc" % name)
            other = await begun(broker, XID, b"kept")
            assert await peer.said(b"transaction TX:s:1 s ROLLBACK 1\r\n") == (200, "")
            while (await peer.said(b"put meta-test 0 3 0 -1 TX:s:2 1\r\nabc"))[0] == 200:
                await asyncio.sleep(0.05)
            assert await peer.said(b"transaction TX:s:2 s COMMIT_ONE_PHASE 1\r\n") == (
                500,
                "Local transaction 'TX:s:2' has not been started.",
            )
            await peer.close()
            while broker.transactions is not None and broker.transactions._store.active_transaction_count:
                await asyncio.sleep(0.01)
            assert messages(broker) == []
            assert (await other.said(b"transaction %b s1 COMMIT_ONE_PHASE uq1 1\r\n" % XID))[1] == NOT_STARTED

    run(conversation())


def test_a_transaction_over_partitions_and_attributes_in_pipelined_requests(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path) as broker:
            peer = await Peer.connect(broker.server.port)
            peer.send(
                b"transaction TX:s:1 s BEGIN 1\r\n",
                *(b"put test %d 1 0 -1 TX:s:1 %d\r\n%d" % (i % 3, i + 2, i) for i in range(9)),
                b"transaction TX:s:1 s COMMIT_ONE_PHASE 20\r\n",
                b"put test 0 5 0 -1 21\r\nplain",
            )
            answers = {answer.opaque: answer for answer in [await peer.answer() for _ in range(12)]}
            assert all(isinstance(each, BooleanCommand) and each.code == 200 for each in answers.values())
            assert messages(broker, "test", 1) == [b"1", b"4", b"7"]
            assert sorted(messages(broker, "test", 0)) == [b"0", b"3", b"6", b"plain"]
            assert [m for m in messages(broker, "test", 0) if m != b"plain"] == [b"0", b"3", b"6"]

    run(conversation())


def test_prepared_transactions_outlive_the_broker(tmp_path: Path) -> None:
    """The original overwrites what came between a restart and the commit."""

    async def conversation() -> None:
        async with running(tmp_path) as broker:
            peer = await begun(broker, XID, b"prepared")
            await peer.said(b"transaction %b s1 PREPARE uq1 1\r\n" % XID)
            await begun(broker, b"XID:100:0a0b:0c0d:uq2", b"not prepared")
            await peer.said(b"transaction TX:s:1 s BEGIN 1\r\n")
            await peer.said(b"put meta-test 0 5 0 -1 TX:s:1 1\r\nlocal")
        async with running(tmp_path) as broker:
            peer = await Peer.connect(broker.server.port)
            assert await peer.said(b"transaction null s1 RECOVER 1\r\n") == (200, XID.decode())
            assert (await peer.said(b"put meta-test 0 5 0 -1 1\r\nplain"))[0] == 200
            assert await peer.said(b"transaction %b s1 COMMIT_TWO_PHASE uq1 1\r\n" % XID) == (200, "")
            assert (await peer.said(b"put meta-test 0 5 0 -1 1\r\nafter"))[0] == 200
            assert messages(broker) == [b"plain", b"prepared", b"after"]
        async with running(tmp_path) as broker:
            assert messages(broker) == [b"plain", b"prepared", b"after"]
            peer = await Peer.connect(broker.server.port)
            assert await peer.said(b"transaction null s1 RECOVER 1\r\n") == (200, "")

    run(conversation())


def test_what_an_operator_decides_is_told_until_it_is_forgotten(tmp_path: Path) -> None:
    xids = [b"XID:1:aa:bb:uq%d" % i for i in range(3)]

    async def conversation() -> None:
        async with running(tmp_path) as broker:
            for xid in xids:
                peer = await begun(broker, xid, xid)
                await peer.said(b"transaction %b s1 PREPARE uq 1\r\n" % xid)
            transactions = broker.transactions
            assert transactions is not None
            await transactions.commit_heuristically(xids[0].decode())
            await transactions.rollback_heuristically(xids[1].decode())
            await transactions.complete_heuristically(xids[2].decode())
            for key in ("nonsense", "TX:s:1", xids[0].decode()):
                with pytest.raises(TransactionError):
                    await transactions.commit_heuristically(key)
            assert messages(broker) == [xids[0]]
        async with running(tmp_path) as broker:
            peer = await Peer.connect(broker.server.port)
            assert (await peer.said(b"transaction null s1 RECOVER 1\r\n"))[1].split("\r\n") == [
                xid.decode() for xid in xids
            ]
            for xid, code, what in zip(
                xids, (7, 6, 8), ("committed", "rolled back", "completed"), strict=True
            ):
                text = f"XAException:code={code},msg=XA transaction '{xid.decode()}' has been heuristically {what}."
                assert await peer.said(b"transaction %b s1 COMMIT_TWO_PHASE uq 1\r\n" % xid) == (500, text)
                assert await peer.said(b"transaction %b s1 FORGET uq 1\r\n" % xid) == (200, "")
            assert await peer.said(b"transaction null s1 RECOVER 1\r\n") == (200, "")

    run(conversation())


def test_a_foreign_heuristic_file_is_left_alone(tmp_path: Path) -> None:
    async def conversation() -> None:
        (tmp_path / "transactions").mkdir()
        java = tmp_path / "transactions" / "heuristic.log"
        java.write_bytes(b"\xac\xed\0\x05...")
        (tmp_path / "transactions" / "heuristic.json").write_bytes(b"{")  # ours, damaged
        async with running(tmp_path) as broker:
            peer = await begun(broker, XID, b"x")
            assert (await peer.said(b"transaction %b s1 COMMIT_ONE_PHASE uq1 1\r\n" % XID))[0] == 200
        assert java.read_bytes() == b"\xac\xed\0\x05..."
        assert (tmp_path / "transactions" / "heuristic.json.unreadable").read_bytes() == b"{"

    run(conversation())


def test_a_start_that_fails_leaves_the_journal_to_the_next(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with running(tmp_path) as broker:
            peer = await begun(broker, XID, b"prepared")
            await peer.said(b"transaction %b s1 PREPARE uq1 1\r\n" % XID)
        journal = tmp_path / "transactions" / "redo.1"
        committed = (
            AppendMessage(1, b"put test 2 3 0 -1 TX:s:1 1\r\nabc"),
            TransactionOperation(OperationType.LOCAL_COMMIT, "TX:s:1"),
        )
        journal.write_bytes(journal.read_bytes() + b"".join(map(encode_journal_record, committed)))
        (tmp_path / "test-2").write_bytes(b"a file where the partition's directory should be")
        for _ in range(2):
            with pytest.raises(OSError, match="test-2"):
                async with running(tmp_path):
                    pass
        (tmp_path / "test-2").unlink()
        async with running(tmp_path) as broker:
            peer = await Peer.connect(broker.server.port)
            assert await peer.said(b"transaction null s1 RECOVER 1\r\n") == (200, XID.decode())

    run(conversation())
