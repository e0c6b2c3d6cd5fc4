"""RocketProducer: FastStream's publish, request and publish_batch over `mqlake.client`'s producer."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from typing import Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from mqlake.adapters.faststream.command import RocketPublishCommand, message_of, messages_of, properties_of
from mqlake.adapters.faststream.message import PARSER, Delivery, sent_body
from mqlake.adapters.faststream.transaction import Transaction
from mqlake.client.produce.producer import select_by_hash
from mqlake.client.produce.request_reply import create_reply_message
from mqlake.client.produce.transaction_producer import TransactionMQProducer
from mqlake.client.results import SendResult
from mqlake.errors import MessageError, NoReplyError, SendError

logger = logging.getLogger(__name__)


class RocketProducer(ProducerProto):
    def __init__(self, parser: Any, decoder: Any) -> None:
        self._parser = ParserComposition(parser, PARSER.parse_message)
        self._decoder = ParserComposition(decoder, PARSER.decode_message)
        self._producer: TransactionMQProducer | None = None
        self.codec: Any = DefaultCodec()
        self.serializer: Any = None
        self.transaction: ContextVar[Transaction | None] = ContextVar("transaction", default=None)

    def connect(self, producer: TransactionMQProducer | None, serializer: Any, codec: Any) -> None:
        self._producer, self.serializer = producer, serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        self._producer = None

    @property
    def producer(self) -> TransactionMQProducer:
        if self._producer is None:
            raise IncorrectState("the broker is not connected: start it, or use `async with broker`")
        return self._producer

    async def publish(self, cmd: RocketPublishCommand) -> SendResult | None:
        """SendError, MessageError, TopicNotFoundError, NoNameServerError. None for a reply."""
        if cmd.request is not None:
            await self._reply(cmd)
            return None
        message = await message_of(cmd, self.codec, self.serializer)
        where = _where(cmd)
        transaction = self.transaction.get()
        if transaction is not None:
            return await transaction.send(message, **where)
        return await self.producer.send(message, **where)

    async def publish_batch(self, cmd: RocketPublishCommand) -> SendResult | None:
        """All of them are stored, in order in one queue, or none. None for an empty batch."""
        if self.transaction.get() is not None:
            raise MessageError(f"topic {cmd.destination}: a batch cannot be part of a transaction")
        messages = await messages_of(cmd, self.codec, self.serializer)
        if not messages:
            return None
        return await self.producer.send_batch(messages, **_where(cmd))

    async def request(self, cmd: RocketPublishCommand) -> Delivery:
        """TimeoutError when there is no reply in time; else as `publish`."""
        message = await message_of(cmd, self.codec, self.serializer)
        try:
            async with asyncio.timeout(cmd.timeout):
                return Delivery(await self.producer.request(message, timeout_s=cmd.timeout, **_where(cmd)))
        except NoReplyError as error:
            raise TimeoutError(f"{error}") from error

    async def _reply(self, cmd: RocketPublishCommand) -> None:
        assert cmd.request is not None
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        properties = properties_of(cmd, content_type, cmd)
        reply = create_reply_message(cmd.request, sent_body(body, properties))
        reply.properties |= properties
        try:
            await self.producer.send(reply)
        except SendError as error:  # who asks has gone: the request is done all the same
            logger.warning("topic %s: a reply did not arrive: %s", cmd.request.topic, error)


def _where(cmd: RocketPublishCommand) -> dict[str, Any]:
    return {"selector": select_by_hash(cmd.sharding_key)} if cmd.sharding_key else {}
