"""Transactions as a program makes them, with `mqlake serve`; what brokers ask is in tests/interop."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake.client import (
    LocalTransactionState,
    Message,
    MessageClientExt,
    SendResult,
    SendStatus,
    TransactionMQProducer,
    blocking,
)
from mqlake.errors import MessageError, ResponseError
from mqlake.remoting.headers.produce import CheckTransactionStateRequestHeader
from mqlake.remoting.loop import run
from tests.client.test_guide import GUIDE
from tests.interop.brokers import MqlakeBroker
from tests.interop.transactions import bodies
from tests.waiting import until

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)


class Listener:
    """Does what it is given."""

    def __init__(self) -> None:
        self.executed: list[tuple[bytes, Any]] = []

    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        self.executed.append((message.body, arg))
        if isinstance(arg, Exception):
            raise arg
        return arg if isinstance(arg, LocalTransactionState) else UNKNOWN

    async def check_local_transaction(self, message: MessageClientExt) -> LocalTransactionState:
        raise OSError("the database is away")


@pytest.fixture
def topic() -> str:
    return f"T-{uuid.uuid4().hex[:8]}"


def with_producer(
    broker: MqlakeBroker, work: Callable[[TransactionMQProducer, Listener], Awaitable[None]]
) -> None:
    async def main() -> None:
        listener = Listener()
        async with TransactionMQProducer("PG", broker.namesrv, listener) as producer:
            await work(producer, listener)

    run(main())


def test_a_message_and_its_transaction(mqlake_broker: MqlakeBroker, topic: str) -> None:
    async def work(producer: TransactionMQProducer, listener: Listener) -> None:
        for body, state in ((b"yes" * 4000, COMMIT), (b"no", ROLLBACK), (b"later", UNKNOWN)):
            result = await producer.send_message_in_transaction(Message(topic, body), state)
            assert (result.local_transaction_state, result.send_status) == (state, SendStatus.SEND_OK)
            assert result.transaction_id == result.msg_id and result.message_queue.topic == topic
        assert [arg for _, arg in listener.executed] == [COMMIT, ROLLBACK, UNKNOWN]

    with_producer(mqlake_broker, work)
    until(lambda: bodies(mqlake_broker.namesrv, topic) == ["yes" * 4000])


def test_an_exception_of_the_local_transaction_leaves_it_open(
    mqlake_broker: MqlakeBroker, topic: str
) -> None:
    async def work(producer: TransactionMQProducer, _: Listener) -> None:
        with pytest.raises(ZeroDivisionError):
            await producer.send_message_in_transaction(Message(topic, b"x"), ZeroDivisionError())

    with_producer(mqlake_broker, work)
    assert bodies(mqlake_broker.namesrv, topic) == []


def test_what_may_get_lost_is_not_executed(mqlake_broker: MqlakeBroker, topic: str) -> None:
    async def work(producer: TransactionMQProducer, listener: Listener) -> None:
        send = producer._send_one

        async def unsafe(*args: Any) -> SendResult:
            sent = await send(*args)
            return SendResult(
                SendStatus.FLUSH_DISK_TIMEOUT,
                sent.msg_id,
                sent.offset_msg_id,
                sent.message_queue,
                sent.queue_offset,
            )

        producer._send_one = unsafe  # type: ignore[method-assign]
        result = await producer.send_message_in_transaction(Message(topic, b"x"), COMMIT)
        assert result.local_transaction_state is ROLLBACK and listener.executed == []
        with pytest.raises(ResponseError, match="rolled back before"):
            await producer.end_transaction(result, COMMIT)

    with_producer(mqlake_broker, work)


def test_the_two_steps_by_hand(mqlake_broker: MqlakeBroker, topic: str) -> None:
    sent: list[SendResult] = []

    async def first(producer: TransactionMQProducer, _: Listener) -> None:
        sent.append(await producer.send_half_message(Message(topic, b"by hand")))
        await producer.end_transaction(sent[0], UNKNOWN)
        with pytest.raises(MessageError, match="cannot be delayed"):
            message = Message(topic, b"x")
            message.delay_time_level = 3
            await producer.send_half_message(message)

    async def second(
        producer: TransactionMQProducer, listener: Listener
    ) -> None:  # which never sent anything
        await producer.end_transaction(sent[0], COMMIT)
        assert listener.executed == []

    with_producer(mqlake_broker, first)
    with_producer(mqlake_broker, second)
    until(lambda: bodies(mqlake_broker.namesrv, topic) == ["by hand"])


def test_a_check_that_fails_leaves_it_open(mqlake_broker: MqlakeBroker, topic: str) -> None:
    async def work(producer: TransactionMQProducer, _: Listener) -> None:
        sent = await producer.send_half_message(Message(topic, b"x"))
        asked = MessageClientExt(topic, b"x", properties={"UNIQ_KEY": sent.msg_id})
        asked.broker_name = sent.message_queue.broker_name
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=int(sent.offset_msg_id[16:], 16),
            transaction_id=sent.transaction_id,
        )
        await producer.check_transaction_state(mqlake_broker.address, header, asked)
        await producer.end_transaction(sent, COMMIT)

    with_producer(mqlake_broker, work)
    until(lambda: bodies(mqlake_broker.namesrv, topic) == ["x"])


def test_without_an_event_loop(mqlake_broker: MqlakeBroker, topic: str) -> None:
    class Plain:
        def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
            return COMMIT

        def check_local_transaction(self, message: MessageClientExt) -> LocalTransactionState:
            return UNKNOWN

    with blocking.TransactionMQProducer("PG", mqlake_broker.namesrv, Plain(), topics=["TBW102"]) as producer:
        assert producer.send_message_in_transaction(Message(topic, b"a")).local_transaction_state is COMMIT
        producer.end_transaction(producer.send_half_message(Message(topic, b"b")), COMMIT)
    until(lambda: bodies(mqlake_broker.namesrv, topic) == ["a", "b"])


def test_the_guide(mqlake_broker: MqlakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(GUIDE).parent / "transactions.md").read_text()
    program = text.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(program.replace("127.0.0.1:9876", mqlake_broker.namesrv), names)
    run(names["main"]())
    assert capsys.readouterr().out.startswith("COMMIT_MESSAGE ")
