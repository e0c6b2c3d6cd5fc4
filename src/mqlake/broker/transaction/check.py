"""TransactionalMessageCheckService: looks for open half messages every transactionCheckInterval, and asks for them.

A producer of the message's group is asked, each time another one; its answer is an END_TRANSACTION. The request holds
the message as its consumers would get it.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import time
from collections.abc import Callable

from mqlake.base.background import BackgroundTask, repeat
from mqlake.broker.config import BrokerConfig
from mqlake.broker.state.clients import ProducerManager
from mqlake.broker.transaction import messages
from mqlake.broker.transaction.service import TransactionalMessageService
from mqlake.errors import MqlakeError
from mqlake.formats.record import encode_message
from mqlake.message import PROPERTY_PRODUCER_GROUP, MessageExt
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.produce import CheckTransactionStateRequestHeader

logger = logging.getLogger(__name__)

WRITABLE_WAIT_S = 1.0
"""A producer that does not read is waited for so long, once; until it reads it is not asked."""
_SLOW = "does not read"


class TransactionalMessageCheckListener:
    """Asks producers about half messages."""

    def __init__(self, producer_manager: ProducerManager, broker_name: str) -> None:
        self._producer_manager = producer_manager
        self._broker_name = broker_name
        self._turns = itertools.count()

    async def send_check_message(self, half: MessageExt) -> bool:
        """39 CHECK_TRANSACTION_STATE to one of the group's producers; False when none can be asked in this round."""
        group = half.properties.get(PROPERTY_PRODUCER_GROUP, "")
        connection = self._available_channel(group)
        if connection is None:
            return False
        if not await self._reads(connection):
            logger.debug(
                "half message %d: %s of group %s does not read",
                half.queue_offset,
                connection.remote_address,
                group,
            )
            return False
        try:
            connection.invoke_oneway(self.check_request(half))
        except MqlakeError as error:
            logger.warning("half message %d: %s cannot be asked: %s", half.queue_offset, group, error)
            return False
        return True

    def check_request(self, half: MessageExt) -> RemotingCommand:
        """FormatError when the half message does not say where it belongs."""
        header = CheckTransactionStateRequestHeader(
            topic=half.topic,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            msg_id=half.uniq_key,
            transaction_id=half.uniq_key,
            offset_msg_id=half.msg_id,
            bname=self._broker_name,
        )
        asked = copy.copy(half)
        asked.topic, asked.queue_id = messages.real_place(half)
        record = encode_message(asked)
        return RemotingCommand.create_request(RequestCode.CHECK_TRANSACTION_STATE, header, record)

    def _available_channel(self, group: str) -> Connection | None:
        """The group's producers in turn."""
        connections = [
            connection
            for connection in self._producer_manager.group_channel_table.get(group, ())
            if not connection.closed
        ]
        return connections[next(self._turns) % len(connections)] if connections else None

    @staticmethod
    async def _reads(connection: Connection) -> bool:
        """True if the connection takes more, after a while perhaps."""
        slow = connection.attributes.pop(_SLOW, None) is not None
        give_up = time.monotonic() + (0.0 if slow else WRITABLE_WAIT_S)
        while not connection.is_writable and not connection.closed and time.monotonic() < give_up:
            await asyncio.sleep(0.01)
        if not connection.is_writable:
            connection.attributes[_SLOW] = True
        return connection.is_writable


class TransactionalMessageCheckService:
    def __init__(
        self,
        service: TransactionalMessageService,
        listener: TransactionalMessageCheckListener,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._service = service
        self._listener = listener
        self._config = config
        self._task = BackgroundTask(self._run, "TransactionalMessageCheckService")

    def start(self) -> None:
        """Starts to look at each interval."""
        self._task.start()

    async def shutdown(self) -> None:
        """Ends; a round in flight is not finished; the next start does it again."""
        await self._task.stop()

    async def _run(self) -> None:
        await repeat(
            "checks of half messages",
            logger,
            lambda: self._config().transaction_check_interval / 1000,
            lambda: self._service.check(self._listener.send_check_message),
        )
