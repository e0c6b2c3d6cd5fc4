"""What a broker asks producers about half messages."""

from __future__ import annotations

import asyncio

from mqlake.broker.state.clients import ProducerManager
from mqlake.broker.transaction import check
from mqlake.broker.transaction.check import TransactionalMessageCheckListener
from mqlake.formats.record import decode_record
from mqlake.message import MessageExt, MessageExtBrokerInner
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.headers.produce import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    SendMessageRequestHeaderV2,
)
from tests.broker.live import send_header
from tests.broker.live_broker import Client, live_broker, run
from tests.waiting import until_async

FAST = {"transactionTimeOut": "1", "transactionCheckInterval": "20", "transactionOpBatchInterval": "10"}


def half_header(key: str) -> SendMessageRequestHeaderV2:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01{key}\x02"
    return send_header("T", properties=properties, sys_flag=4, queue_id=1, flag=3)


def test_the_groups_producers_are_asked_in_turn_until_one_knows(tmp_path):
    async def main() -> None:
        async with (
            live_broker(tmp_path, **FAST) as controller,
            Client(controller, "a") as first,
            Client(controller, "b") as second,
        ):
            await first.ask(RequestCode.SEND_MESSAGE_V2, half_header("K1"), b"body")
            for client in (first, second):
                await client.heartbeat(group=None, producer="PG")
            asked = RequestCode.CHECK_TRANSACTION_STATE
            await until_async(lambda: first.told_of(asked) and second.told_of(asked))
            request = second.told_of(asked)[-1]
            header = request.decode_header(CheckTransactionStateRequestHeader)
            message = decode_record(request.body)
            assert (message.topic, message.queue_id, message.body, message.flag) == ("T", 1, b"body", 3)
            assert (header.topic, header.bname) == ("RMQ_SYS_TRANS_HALF_TOPIC", "broker-a")
            assert header.msg_id == header.transaction_id == message.uniq_key == "K1"
            assert message.physical_offset == header.commit_log_offset
            assert message.queue_offset == header.tran_state_table_offset
            answer = await second.ask(
                RequestCode.END_TRANSACTION,
                EndTransactionRequestHeader(
                    producer_group="PG",
                    tran_state_table_offset=header.tran_state_table_offset,
                    commit_log_offset=header.commit_log_offset,
                    commit_or_rollback=8,
                    from_transaction_check=True,
                    msg_id="K1",
                ),
            )
            assert answer.code == 0
            store = controller.broker.store
            await until_async(lambda: store.max_offset_in_queue("T", 1) == 1)
            (final,) = store.get_message("g", "T", 1, 0, 32).messages()
            assert final.flag == 3 and int(final.properties["TRANSACTION_CHECK_TIMES"]) >= 1
            # nothing is open any more: the queue is dealt with to its end
            await until_async(
                lambda: (
                    controller.broker.consumer_offset_manager.query_offset(
                        "CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0
                    )
                    == store.max_offset_in_queue("RMQ_SYS_TRANS_HALF_TOPIC", 0)
                )
            )
            assert store.max_offset_in_queue("T", 1) == 1

    run(main())


def test_a_group_without_producers_is_asked_when_one_comes(tmp_path):
    async def main() -> None:
        async with (
            live_broker(tmp_path, **FAST, transactionCheckMax="1000") as controller,
            Client(controller, "a") as client,
        ):
            await client.ask(RequestCode.SEND_MESSAGE_V2, half_header("K1"), b"body")
            half = "RMQ_SYS_TRANS_HALF_TOPIC"
            await until_async(lambda: controller.broker.store.max_offset_in_queue(half, 0) > 2)
            assert not client.told
            await client.heartbeat(group=None, producer="PG")
            await until_async(lambda: client.told_of(RequestCode.CHECK_TRANSACTION_STATE))

    run(main())


def test_a_half_message_without_a_place_goes_to_the_operator(tmp_path):
    async def main() -> None:
        async with live_broker(tmp_path, **FAST, transactionCheckMax="2") as controller:
            bad = MessageExtBrokerInner("RMQ_SYS_TRANS_HALF_TOPIC", b"?", properties={"PGROUP": "PG"})
            bad.born_timestamp = 1_000 * 1_700_000_000
            assert (await asyncio.to_thread(controller.broker.store.put_message, bad)).is_ok
            await until_async(
                lambda: controller.broker.store.max_offset_in_queue("TRANS_CHECK_MAX_TIME_TOPIC", 0) == 1
            )

    run(main())


def test_a_producer_that_does_not_read_is_waited_for_once(monkeypatch):
    class Slow:
        closed = writable = False
        remote_address = "10.0.0.1:5"

        def __init__(self) -> None:
            self.attributes: dict[str, object] = {}
            self.told: list[object] = []
            self.asked = 0

        @property
        def is_writable(self) -> bool:
            self.asked += 1
            return self.writable

        def invoke_oneway(self, command: object) -> None:
            self.told.append(command)

    slow, producers = Slow(), ProducerManager()
    producers.group_channel_table["PG"] = {slow: None}
    listener = TransactionalMessageCheckListener(producers, "broker-a")
    half = MessageExt("H", b"x", properties={"PGROUP": "PG", "REAL_TOPIC": "T", "REAL_QID": "0"})

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(check, "WRITABLE_WAIT_S", 0.05)
            assert not await listener.send_check_message(half)
        for _ in range(10):
            slow.asked = 0
            assert not await listener.send_check_message(half)
            assert slow.asked < 10 and slow.told == []  # a wait would look a hundred times
        slow.writable = True
        assert await listener.send_check_message(half)
        slow.writable = False
        asyncio.get_running_loop().call_later(0.01, setattr, slow, "writable", True)
        assert await listener.send_check_message(half)
        assert len(slow.told) == 2

    run(main())
