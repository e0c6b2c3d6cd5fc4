"""Transaction: messages that consumers get if, and only if, the `async with` ends without an exception.

    async with broker.transaction():
        await broker.publish(order, "Orders")     a half message: the broker has it, consumers do not
        await database.commit()
                                                  ends: committed          raises: rolled back

Each message is a transaction of its own in RocketMQ. A broker that has not heard of one asks a producer of the group:
this process answers for the transactions that it remembers, `check_transaction` for those of a process that is gone.
"""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from mqlake.client.produce.transaction_producer import LocalTransactionState, TransactionMQProducer
from mqlake.client.records import MessageClientExt
from mqlake.client.results import SendResult, SendStatus
from mqlake.errors import MessageError, MqlakeError
from mqlake.message import Message, create_uniq_id

logger = logging.getLogger(__name__)

REMEMBERED_MAX = 10_000
"""Messages whose outcome a process remembers for a broker that missed it."""

CheckTransaction = Callable[[MessageClientExt], bool | Awaitable[bool | None] | None]
"""True: commit, False: roll back, None: not known yet, ask again."""


class Transactions:
    """The producer's listener: what is open in this process, and what became of the latest."""

    def __init__(self, check: CheckTransaction | None) -> None:
        self._check = check
        self.states: OrderedDict[str, LocalTransactionState] = OrderedDict()
        """The message's own id → its state; UNKNOW while the transaction is open."""

    def remember(self, message_id: str, state: LocalTransactionState) -> None:
        self.states[message_id] = state
        self.states.move_to_end(message_id)
        while len(self.states) > REMEMBERED_MAX:
            self.states.popitem(last=False)

    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        """Not called: the two steps are taken one by one."""
        return LocalTransactionState.UNKNOW

    async def check_local_transaction(self, message: MessageClientExt) -> LocalTransactionState:
        known = self.states.get(message.uniq_key or "")
        if known is not None:
            return known
        if self._check is None:
            logger.warning(
                "%s: a broker asks what became of it, which a process knew that is gone: without check_transaction= "
                "nobody can say",
                message.uniq_key,
            )
            return LocalTransactionState.UNKNOW
        found = self._check(message)
        committed = await found if inspect.isawaitable(found) else found
        if committed is None:
            return LocalTransactionState.UNKNOW
        return LocalTransactionState.COMMIT_MESSAGE if committed else LocalTransactionState.ROLLBACK_MESSAGE


class Transaction:
    """Publishes messages within `broker.transaction()`."""

    def __init__(self, producer: TransactionMQProducer, transactions: Transactions) -> None:
        self._producer, self._transactions = producer, transactions
        self._halves: list[SendResult] = []
        self._ended = False

    async def send(self, message: Message, **where: Any) -> SendResult:
        """A half message. SendError, and MessageError when the transaction is over."""
        if self._ended:
            raise MessageError(f"topic {message.topic}: published in a transaction that has ended")
        message.uniq_key = message_id = create_uniq_id()
        self._transactions.remember(message_id, LocalTransactionState.UNKNOW)
        try:
            sent = await self._producer.send_half_message(message, **where)
        except (
            BaseException
        ):  # it may be stored all the same: whoever was told that it is not does not want it
            self._transactions.remember(message_id, LocalTransactionState.ROLLBACK_MESSAGE)
            raise
        self._halves.append(sent)
        if sent.send_status is not SendStatus.SEND_OK:
            raise MessageError(
                f"topic {message.topic}: the half message may get lost: {sent.send_status.name}"
            )
        return sent

    async def end(self, state: LocalTransactionState) -> None:
        """A word that does not arrive is logged: the broker asks for it."""
        self._ended = True
        for sent in self._halves:
            self._transactions.remember(sent.msg_id, state)
        for sent in self._halves:
            try:
                await self._producer.end_transaction(sent, state)
            except MqlakeError as error:
                logger.warning(
                    "%s: %s did not arrive, the broker will ask: %s", sent.msg_id, state.name, error
                )
