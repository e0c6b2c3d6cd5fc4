"""END_TRANSACTION as a client sends it, to a broker in the test's own loop."""

from __future__ import annotations

import asyncio

import pytest

from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.produce import EndTransactionRequestHeader, SendMessageResponseHeader
from mqlake.store.results import PutMessageFuture, PutMessageResult, PutMessageStatus
from tests.broker.live import Peer, now_ms, on_a_broker
from tests.waiting import PATIENCE_S

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF_PROPERTIES = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K1\x02TAGS\x01a\x02"


async def prepare(peer: Peer, more: str = "", **fields) -> SendMessageResponseHeader:
    answer = await peer.send(
        "T", b"body", properties=HALF_PROPERTIES + more, sys_flag=4, queue_id=2, **fields
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.decode_header(SendMessageResponseHeader)


async def end(peer: Peer, sent: SendMessageResponseHeader, how: int, **fields) -> RemotingCommand:
    values = {
        "producer_group": "PG",
        "tran_state_table_offset": sent.queue_offset,
        "commit_log_offset": int(sent.msg_id[16:], 16),
        "commit_or_rollback": how,
        "msg_id": sent.transaction_id,
        "transaction_id": sent.transaction_id,
        **fields,
    }
    return await peer.ask(RequestCode.END_TRANSACTION, EndTransactionRequestHeader(**values))


def messages(peer: Peer, topic: str = "T", queue_id: int = 2) -> list:
    assert peer.controller.broker.store.wait_until_dispatched(PATIENCE_S)
    return list(peer.controller.broker.store.get_message("g", topic, queue_id, 0, 32).messages())


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_message_is_there_when_it_is_committed(tmp_path, flush):
    async def scene(peer: Peer) -> None:
        sent = await prepare(peer)
        assert (sent.queue_id, sent.queue_offset, sent.transaction_id) == (2, 0, "K1")
        assert messages(peer) == []
        assert peer.controller.transaction_metrics.transaction_counts["T"].count == 1
        assert (await end(peer, sent, UNKNOWN)).code == ResponseCode.SUCCESS
        assert messages(peer) == []
        assert (await end(peer, sent, COMMIT)).code == ResponseCode.SUCCESS
        (final,) = messages(peer)
        assert (final.body, final.sys_flag & 0xC, final.tags) == (b"body", COMMIT, "a")
        assert final.prepared_transaction_offset == int(sent.msg_id[16:], 16)
        assert final.properties["REAL_TOPIC"] == "T" and final.properties["REAL_QID"] == "2"
        assert final.born_host[0] == "127.0.0.1"
        assert peer.controller.transaction_metrics.transaction_counts["T"].count == 0

        # the word again, and another one
        assert (await end(peer, sent, COMMIT)).code == ResponseCode.SUCCESS
        again = await end(peer, sent, ROLLBACK)
        assert again.code == ResponseCode.ILLEGAL_OPERATION and "committed before" in again.remark
        assert len(messages(peer)) == 1

    on_a_broker(tmp_path, scene, flushDiskType=flush)


def test_a_message_that_is_rolled_back_never_comes(tmp_path):
    async def scene(peer: Peer) -> None:
        sent = await prepare(peer)
        assert (await end(peer, sent, ROLLBACK)).code == ResponseCode.SUCCESS
        assert (await end(peer, sent, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
        assert messages(peer) == []

    on_a_broker(tmp_path, scene)


def test_an_end_must_fit_its_half_message(tmp_path):
    async def scene(peer: Peer) -> None:
        sent = await prepare(peer)
        plain = await peer.send(
            "T", b"plain", properties="PGROUP\x01PG\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
        )
        for fields, words in (
            ({"producer_group": "other"}, "producer group wrong"),
            ({"tran_state_table_offset": 7}, "table offset wrong"),
            ({"commit_log_offset": 1 << 40}, "Find prepared transaction message failed"),
            ({"commit_log_offset": 3}, "Find prepared transaction message failed"),
            ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
            (
                {"commit_log_offset": int(plain.ext_fields["msgId"][16:], 16)},
                "Find prepared transaction message failed",
            ),
        ):
            for how in (COMMIT, ROLLBACK):
                answer = await end(peer, sent, how, **fields)
                assert answer.code == ResponseCode.SYSTEM_ERROR and words in answer.remark
        assert messages(peer) == []

    on_a_broker(tmp_path, scene)


def test_who_asked_for_time_must_not_come_later(tmp_path):
    async def scene(peer: Peer) -> None:
        sent = await prepare(peer, "CHECK_IMMUNITY_TIME_IN_SECONDS\x017\x02", born_timestamp=now_ms() - 7_001)
        answer = await end(peer, sent, COMMIT)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION and "wait for the check" in answer.remark
        asked = await end(peer, sent, COMMIT, from_transaction_check=True)
        assert asked.code == ResponseCode.SUCCESS and len(messages(peer)) == 1
        in_time = await prepare(peer, "CHECK_IMMUNITY_TIME_IN_SECONDS\x01600\x02", born_timestamp=now_ms())
        assert (await end(peer, in_time, COMMIT)).code == ResponseCode.SUCCESS and len(messages(peer)) == 2

    on_a_broker(tmp_path, scene)


def test_a_commit_that_cannot_be_stored_can_be_tried_again(tmp_path):
    async def scene(peer: Peer) -> None:
        sent = await prepare(peer)
        store = peer.controller.broker.store
        put = store.async_put_message
        store.async_put_message = lambda message: PutMessageFuture(  # type: ignore[method-assign]
            PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, None, "the disk is full")
        )
        answer = await end(peer, sent, COMMIT)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and "the disk is full" in answer.remark
        store.async_put_message = put  # type: ignore[method-assign]
        assert (await end(peer, sent, COMMIT)).code == ResponseCode.SUCCESS
        assert len(messages(peer)) == 1

    on_a_broker(tmp_path, scene)


def test_transactions_may_be_forbidden(tmp_path):
    async def scene(peer: Peer) -> None:
        answer = await peer.send("T", b"body", properties=HALF_PROPERTIES)
        assert answer.code == ResponseCode.NO_PERMISSION and "rejectTransactionMessage" in answer.remark

    on_a_broker(tmp_path, scene, rejectTransactionMessage="true")


def test_half_messages_survive_a_restart(tmp_path):
    sent: list[SendMessageResponseHeader] = []

    async def before(peer: Peer) -> None:
        sent.extend([await prepare(peer), await prepare(peer)])
        await end(peer, sent[0], COMMIT)

    async def after(peer: Peer) -> None:
        assert peer.controller.transaction_metrics.transaction_counts["T"].count == 1
        assert [op.body for op in messages(peer, "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)] == [b"0,"]
        assert (await end(peer, sent[1], COMMIT)).code == ResponseCode.SUCCESS
        assert len(messages(peer)) == 2

    on_a_broker(tmp_path, before)
    on_a_broker(tmp_path, after)


def test_ends_that_come_together_store_one_message(tmp_path):
    async def scene(peer: Peer) -> None:
        sent = await prepare(peer)
        answers = await asyncio.gather(*(end(peer, sent, COMMIT) for _ in range(8)))
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        assert len(messages(peer)) == 1

    on_a_broker(tmp_path, scene, flushDiskType="SYNC_FLUSH")
