"""TransactionMQProducer: messages that consumers get if, and only if, something else of the program's was done.

    class Orders:
        async def execute_local_transaction(self, message, arg):     between the two steps of the message
            return LocalTransactionState.COMMIT_MESSAGE
        async def check_local_transaction(self, message):            when a broker has not heard of it for some time
            return LocalTransactionState.COMMIT_MESSAGE

    async with TransactionMQProducer("group", "127.0.0.1:9876", Orders()) as producer:
        result = await producer.send_message_in_transaction(Message("T", b"body"), order)

The half message is stored, the local transaction is executed, the broker gets the outcome. If the outcome does not
arrive, or is still unknown, the broker asks any producer of the group, in any process: so the outcome has to be kept
where all of them can find it.

A program that keeps the outcome elsewhere (a database, a checkpoint) can take the two steps itself with
`send_half_message` and `end_transaction`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

from mqlake.base.arguments import checked
from mqlake.client.client_base import Where
from mqlake.client.namespace import with_namespace
from mqlake.client.produce.producer import MessageQueueSelector, Producer, ProducerConfig
from mqlake.client.records import MessageClientExt
from mqlake.client.results import SendResult, SendStatus
from mqlake.errors import MessageError, MqlakeError, ResponseError
from mqlake.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    Message,
    MessageSysFlag,
    decode_message_id,
)
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.produce import CheckTransactionStateRequestHeader, EndTransactionRequestHeader

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LocalTransactionState(enum.Enum):
    """A listener's verdict on a transaction."""

    COMMIT_MESSAGE = MessageSysFlag.TRANSACTION_COMMIT_TYPE
    ROLLBACK_MESSAGE = MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
    UNKNOW = MessageSysFlag.TRANSACTION_NOT_TYPE
    """Not known yet: the broker asks later. RocketMQ's spelling."""


class TransactionListener(Protocol):
    """The program's part. Plain functions are called in threads, async ones on the event loop."""

    def execute_local_transaction(
        self, message: Message, arg: Any
    ) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """Does what the message is about, when the broker has it. `arg` is what the sender gave."""
        ...

    def check_local_transaction(
        self, message: MessageClientExt
    ) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """The state of the transaction."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionSendResult(SendResult):
    local_transaction_state: LocalTransactionState = LocalTransactionState.UNKNOW


@checked
class TransactionMQProducer(Producer):
    """A producer whose messages consumers get when its listener has said that the transaction is committed."""

    def __init__(
        self,
        group: str,
        where: Where,
        listener: TransactionListener,
        config: ProducerConfig | None = None,
        *,
        topics: Iterable[str] = (),
    ) -> None:
        """`topics`: their brokers know this producer from its start on, and may ask it about transactions of others
        of its group; else they do after the first message."""
        super().__init__(group, where, config)
        self._listener = listener
        self._known_topics = tuple(with_namespace(self.namespace, topic) for topic in topics)

    async def _start(self) -> None:
        await super()._start()
        for topic in self._known_topics:
            await self.fetch_publish_info(topic)
        if self._known_topics:
            await self.client.send_heartbeat_to_all_brokers()

    # --- a message and what belongs to it

    async def send_message_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> TransactionSendResult:
        """Stores the half message, has the listener execute the local transaction, and reports the outcome.

        Raises as `send` when the half message was not stored; then nothing is executed. An exception of the listener
        comes through, and the transaction stays open: the broker asks. A word that does not reach the broker is
        logged: the broker asks as well.
        """
        sent = await self.send_half_message(message, queue=queue, selector=selector, timeout_s=timeout_s)
        if sent.send_status is SendStatus.SEND_OK:
            state = await _called(self._listener.execute_local_transaction, message, arg)
        else:  # it may get lost before anybody asks for it
            state = LocalTransactionState.ROLLBACK_MESSAGE
        if state is not LocalTransactionState.UNKNOW:
            try:
                await self.end_transaction(sent, state)
            except MqlakeError as error:
                logger.warning(
                    "transaction %s: %s did not arrive, the broker will ask: %s",
                    sent.transaction_id,
                    state.name,
                    error,
                )
        given = {each.name: getattr(sent, each.name) for each in fields(SendResult)}
        return TransactionSendResult(**given, local_transaction_state=state)

    # --- the two steps by hand

    async def send_half_message(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Stores a message that no consumer gets before `end_transaction`. Raises as `send`.

        The result's queue is the message's own, its offset that of the half message.
        """
        self._check_running()
        self._check(message)
        if PROPERTY_DELAY_TIME_LEVEL in message.properties:
            raise MessageError(f"topic {message.topic}: a transactional message cannot be delayed")
        message.properties[PROPERTY_TRANSACTION_PREPARED] = "true"
        message.properties[PROPERTY_PRODUCER_GROUP] = self.group
        return await self._send_one(
            message, MessageSysFlag.TRANSACTION_PREPARED_TYPE, queue, selector, timeout_s
        )

    async def end_transaction(
        self, sent: SendResult, state: LocalTransactionState, *, timeout_s: float | None = None
    ) -> None:
        """Tells the broker what becomes of a half message. Returns when it has done so.

        RemotingError (ResponseError for a refusal) when it is not known whether the word counts; a broker may store a
        message twice if it gets two commits.
        """
        self._check_running()
        queue = dataclasses.replace(
            sent.message_queue, topic=with_namespace(self.namespace, sent.message_queue.topic)
        )
        if self.client.broker_name_of(queue) not in self.client.broker_addr_table:
            await self.fetch_publish_info(queue.topic)
        await self._end(
            self.client.find_broker_address_in_publish(self.client.broker_name_of(queue)),
            EndTransactionRequestHeader(
                topic=queue.topic,
                producer_group=self.group,
                tran_state_table_offset=sent.queue_offset,
                commit_log_offset=decode_message_id(sent.offset_msg_id)[1],
                commit_or_rollback=state.value,
                msg_id=sent.msg_id,
                transaction_id=sent.transaction_id,
                bname=queue.broker_name,
            ),
            self.config.send_msg_timeout_s if timeout_s is None else timeout_s,
        )

    async def _end(self, address: str, header: EndTransactionRequestHeader, timeout_s: float) -> None:
        request = RemotingCommand.create_request(RequestCode.END_TRANSACTION, header)
        if header.commit_or_rollback == LocalTransactionState.UNKNOW.value:
            await self.client.remoting.invoke_oneway(address, request)  # RocketMQ gives no answer to this one
            return
        answer = await self.client.remoting.invoke(address, request, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise ResponseError(answer.code, answer.remark or "")

    # --- a broker asks

    async def check_transaction_state(
        self, address: str, header: CheckTransactionStateRequestHeader, message: MessageClientExt
    ) -> None:
        try:
            state = await _called(self._listener.check_local_transaction, message)
        except Exception:
            logger.exception("transaction %s: it is not known what became of it", header.transaction_id)
            state = LocalTransactionState.UNKNOW
        logger.info("%s asks for transaction %s: %s", address, header.transaction_id, state.name)
        end = EndTransactionRequestHeader(
            topic=message.topic,
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=message.uniq_key or header.msg_id or "",
            transaction_id=header.transaction_id,
            bname=header.bname,
        )
        try:
            await self._end(address, end, self.config.send_msg_timeout_s)
        except MqlakeError as error:
            logger.warning("transaction %s: the answer did not arrive: %s", header.transaction_id, error)


async def _called(
    function: Callable[..., LocalTransactionState | Awaitable[LocalTransactionState]], *args: Any
) -> LocalTransactionState:
    if inspect.iscoroutinefunction(function):
        state = await function(*args)
    else:
        state = await asyncio.to_thread(function, *args)
    if not isinstance(state, LocalTransactionState):
        raise TypeError(
            f"{function.__name__} has to return LocalTransactionState, not {type(state).__name__}"
        )
    return state
