"""ReplyMessageProcessor: 324 SEND_REPLY_MESSAGE, 325 SEND_REPLY_MESSAGE_V2.

A program that sends a request (`Producer.request` in RocketMQ) waits for the reply on its connection. The consumer of
the request sends the reply to the broker, which pushes it to the client that the property REPLY_TO_CLIENT names, and
answers when that client has it. With storeReplyMessageEnable it is stored as well, so that it can be looked up later.
"""

from __future__ import annotations

import logging

from mqlake.base.net import format_address
from mqlake.broker.broker import Broker
from mqlake.broker.mqtrace.contexts import note_result, send_context
from mqlake.broker.mqtrace.hooks import SendMessageContext
from mqlake.broker.requests.send_message import (
    SendHeader,
    SendMessageChecks,
    born_host,
    refused,
    region_fields,
)
from mqlake.broker.services.broker_to_client import Broker2Client
from mqlake.errors import RemotingError, ResponseError
from mqlake.message import (
    PROPERTY_MESSAGE_REPLY_TO_CLIENT,
    PROPERTY_PUSH_REPLY_TIME,
    MessageExtBrokerInner,
    properties_to_string,
    string_to_properties,
)
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.produce import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from mqlake.remoting.processors import answers

logger = logging.getLogger(__name__)


class ReplyMessageProcessor:
    def __init__(self, broker: Broker, broker_to_client: Broker2Client) -> None:
        self._broker = broker
        self._broker_to_client = broker_to_client
        self._checks = SendMessageChecks(broker)

    @answers(RequestCode.SEND_REPLY_MESSAGE)
    async def send_reply_message(
        self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> RemotingCommand:
        return await self._process(connection, request, header)

    @answers(RequestCode.SEND_REPLY_MESSAGE_V2)
    async def send_reply_message_v2(
        self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeaderV2
    ) -> RemotingCommand:
        return await self._process(connection, request, header)

    async def _process(
        self, connection: Connection, request: RemotingCommand, header: SendHeader
    ) -> RemotingCommand:
        hooks, config = self._broker.hooks, self._broker.config
        if not hooks.send:
            try:
                return await self._push_and_store(connection, request, header, None)
            except ResponseError as error:
                return refused(error, config)
        context = send_context(self._broker, connection, request, header)
        try:
            hooks.execute_send_message_hook_before(context)
            try:
                return await self._push_and_store(connection, request, header, context)
            except ResponseError as error:
                context.code, context.error_msg = error.code, error.remark
                return refused(error, config)
        except ResponseError as error:
            context.code, context.error_msg = error.code, error.remark
            raise
        finally:
            hooks.execute_send_message_hook_after(context)

    async def _push_and_store(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendHeader,
        context: SendMessageContext | None,
    ) -> RemotingCommand:
        broker = self._broker
        config = broker.config
        topic_config = self._checks.topic_config(connection, header)
        queue_id = self._checks.queue_id(header, topic_config)
        body = request.body_bytes()
        properties = string_to_properties(header.properties or "")
        self._checks.properties(header.topic, properties)
        failure = await self._push(connection, header, properties, body)
        answer = SendMessageResponseHeader(msg_id="0", queue_id=queue_id, queue_offset=0)
        if config.store_reply_message_enable:
            result = await broker.store.async_put_message(
                MessageExtBrokerInner(
                    header.topic,
                    body,
                    flag=header.flag,
                    properties=properties,
                    queue_id=queue_id,
                    sys_flag=header.sys_flag,
                    born_timestamp=header.born_timestamp,
                    born_host=born_host(connection),
                    store_host=broker.store_host,
                    reconsume_times=header.reconsume_times or 0,
                )
            )
            stored = result.append_result
            if context is not None:
                note_result(context, result, queue_id)
            if stored is None:
                logger.warning("a reply was not stored: %s %s", result.status.name, result.reason)
            else:
                answer.msg_id = stored.msg_id or "0"
                answer.queue_offset = stored.logics_offset
        code = ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR
        if context is not None:
            context.code, context.error_msg = code, failure or ""
        response = RemotingCommand.create_response(code, failure, header=answer)
        response.ext_fields |= region_fields(config)
        return response

    async def _push(
        self, connection: Connection, header: SendHeader, properties: dict[str, str], body: bytes
    ) -> str | None:
        """Pushes the reply to the client that waits for it; returns why that failed, or None."""
        broker = self._broker
        client_id = properties.get(PROPERTY_MESSAGE_REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{PROPERTY_MESSAGE_REPLY_TO_CLIENT}] is null"
        channel = broker.producer_manager.find_channel(client_id)
        if channel is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now = broker.clock_ms()
        properties[PROPERTY_PUSH_REPLY_TIME] = str(now)
        push = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=properties_to_string(properties),
            reconsume_times=header.reconsume_times,
            unit_mode=bool(header.unit_mode),
            born_host=format_address(born_host(connection)),
            store_host=format_address(broker.store_host),
            store_timestamp=now,
        )
        request = RemotingCommand.create_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, body)
        try:
            answer = await self._broker_to_client.call_client(channel, request)
        except RemotingError as error:
            return f"push reply message to {client_id} fail: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail: {answer.remark or f'code {answer.code}'}"
        return None
