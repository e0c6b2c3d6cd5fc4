"""Transactions that mqlake's own client commits."""

from __future__ import annotations

import asyncio

from tests.interop.brokers import Broker

from mqlake.client import Message
from mqlake.client.produce.transaction_producer import LocalTransactionState, TransactionMQProducer
from mqlake.client.records import MessageClientExt

TOPIC = "Committed"
TASKS = 16
BODY = b"." * 128


class _Commits:
    """A listener that always commits."""

    async def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, message: MessageClientExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


async def commit(broker: Broker, count: int) -> int:
    """Sends and commits about so many transactions, of TASKS tasks that wait for each; how many."""
    async with TransactionMQProducer("bench", broker.namesrv, _Commits(), topics=[TOPIC]) as producer:

        async def work() -> None:
            for _ in range(count // TASKS):
                await producer.send_message_in_transaction(Message(TOPIC, BODY))

        await asyncio.gather(*(work() for _ in range(TASKS)))
    return count // TASKS * TASKS
