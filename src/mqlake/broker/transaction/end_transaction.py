"""EndTransactionProcessor: 37 END_TRANSACTION, a producer's word on one of its half messages.

    commit     the message is stored in its own topic, then the op queue is told
    rollback   the op queue is told
    unknown    nothing happens; the producer is asked later

A producer that does not know whether its word arrived says it again, and one that was asked may answer after the first
word came through all the same. The same word twice is answered as the first time and does nothing; another word
than the first is refused. (RocketMQ would store the message twice.)
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from mqlake.broker.broker import Broker
from mqlake.broker.requests.send_message import STORED
from mqlake.broker.transaction import messages
from mqlake.broker.transaction.service import TransactionalMessageService, TransactionState, place_of
from mqlake.errors import FormatError, HeaderError, ResponseError
from mqlake.message import PROPERTY_PRODUCER_GROUP, MessageExt, MessageSysFlag
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Answer, Connection
from mqlake.remoting.headers.produce import EndTransactionRequestHeader
from mqlake.remoting.processors import answers
from mqlake.store.config import BrokerRole
from mqlake.store.results import PutMessageResult, PutMessageStatus

logger = logging.getLogger(__name__)

_STATES = {
    MessageSysFlag.TRANSACTION_COMMIT_TYPE: TransactionState.COMMITTED,
    MessageSysFlag.TRANSACTION_ROLLBACK_TYPE: TransactionState.ROLLED_BACK,
}
_REFUSED = {
    PutMessageStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
}
"""Codes of messages that were not stored; any other is SYSTEM_ERROR."""


class EndTransactionProcessor:
    def __init__(self, broker: Broker, service: TransactionalMessageService) -> None:
        self._broker = broker
        self._service = service

    @answers(RequestCode.END_TRANSACTION)
    def end_transaction(
        self, connection: Connection, header: EndTransactionRequestHeader
    ) -> Answer | Awaitable[Answer]:
        if self._broker.store_config.broker_role is BrokerRole.SLAVE:
            raise ResponseError(ResponseCode.SLAVE_NOT_AVAILABLE, "transactions are ended at the master")
        state = _STATES.get(header.commit_or_rollback)
        if state is None:
            if header.commit_or_rollback != MessageSysFlag.TRANSACTION_NOT_TYPE:
                raise HeaderError(f"commitOrRollback is {header.commit_or_rollback}: it can be 0, 8 or 12")
            logger.info("%s: transaction %s is still open", connection.remote_address, header.transaction_id)
            return RemotingCommand.create_response()
        half = self._prepare_message(header)
        ended = self._service.ended_as(place_of(half))
        if ended is state:
            return RemotingCommand.create_response()
        if ended is not None:
            raise ResponseError(
                ResponseCode.ILLEGAL_OPERATION,
                f"transaction {half.uniq_key} was {ended.value} before; it cannot be {state.value}",
            )
        if state is TransactionState.COMMITTED:
            return self._commit(half)
        self._service.end(place_of(half), state)
        self._service.delete_prepare_message(half)
        return RemotingCommand.create_response()

    def _prepare_message(self, header: EndTransactionRequestHeader) -> MessageExt:
        """The half message that is meant. ResponseError."""
        half = self._service.look_half_message(header.commit_log_offset)
        if half is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"Find prepared transaction message failed: no half message at {header.commit_log_offset}",
            )
        if half.properties.get(PROPERTY_PRODUCER_GROUP) != header.producer_group:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        immunity_ms = messages.check_immunity_ms(half)
        if immunity_ms is not None and not header.from_transaction_check:
            allowed_ms = max(immunity_ms, self._broker.config.transaction_time_out)
            age_ms = self._service.clock_ms() - half.born_timestamp
            if age_ms > allowed_ms:
                raise ResponseError(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the message is {age_ms} ms old and CHECK_IMMUNITY_TIME_IN_SECONDS allows {allowed_ms}: "
                    "wait for the check",
                )
        return half

    def _commit(self, half: MessageExt) -> Answer | Awaitable[Answer]:
        try:
            final = messages.final(half)
        except FormatError as error:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        self._service.end(place_of(half), TransactionState.COMMITTED)
        future = self._service.store.async_put_message(final)
        if future.done():
            return self._committed(half, future.result())

        async def stored() -> Answer:
            return self._committed(half, await future)

        return stored()

    def _committed(self, half: MessageExt, result: PutMessageResult) -> RemotingCommand:
        if result.status in STORED:
            self._service.delete_prepare_message(half)
        else:
            self._service.reopen(place_of(half))
        return answer_to_commit(result)


def answer_to_commit(result: PutMessageResult) -> RemotingCommand:
    """The answer to a commit whose message was put so."""
    if result.status in STORED:
        return RemotingCommand.create_response()
    return RemotingCommand.create_response(
        _REFUSED.get(result.status, ResponseCode.SYSTEM_ERROR),
        f"{result.status.name}: {result.reason or 'the message could not be stored'}",
    )
