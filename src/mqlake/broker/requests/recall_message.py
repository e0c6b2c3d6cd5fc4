"""RecallMessageProcessor: 370 RECALL_MESSAGE, which cancels a timer message that is not due yet.

The answer says that the cancelling message is stored. It takes effect if it is in the timer wheel before the step of
the other one is read, for which it has a step more than the handle says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from mqlake.broker.broker import Broker
from mqlake.broker.requests.send_message import STORED, born_host
from mqlake.broker.services.error_responses import refusal
from mqlake.errors import MessageError, ResponseError
from mqlake.message import (
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_MSG_REGION,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    MessageExtBrokerInner,
)
from mqlake.message.recall import RecallHandle, decode_recall_handle
from mqlake.remoting.bodies.topic import PERM_WRITE
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RESPONSE_FLAG, RemotingCommand
from mqlake.remoting.connection import Answer, Connection
from mqlake.remoting.headers.produce import RecallMessageRequestHeader
from mqlake.remoting.processors import answers
from mqlake.store.config import BrokerRole
from mqlake.store.results import PutMessageFuture

RECALL_TAG = "_RECALL_TAG_"
RECALL_BODY = b"0"


class RecallMessageProcessor:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @answers(RequestCode.RECALL_MESSAGE)
    def recall_message(
        self, connection: Connection, header: RecallMessageRequestHeader
    ) -> Answer | Awaitable[Answer]:
        broker = self._broker
        try:
            handle = self._check(header)
        except ResponseError as error:
            return refusal(error, {PROPERTY_MSG_REGION: broker.config.region_id})
        properties = {
            PROPERTY_TAGS: RECALL_TAG,
            PROPERTY_TIMER_DEL_UNIQKEY: delete_key(
                handle, append_topic=broker.store_config.append_topic_for_timer_delete_key
            ),
            PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: handle.uniq_key,
            PROPERTY_TIMER_DELIVER_MS: str(handle.timestamp),
            PROPERTY_BORN_TIMESTAMP: str(broker.clock_ms()),
            PROPERTY_TRACE_CONTEXT: "",
        }
        if header.producer_group:
            properties[PROPERTY_PRODUCER_GROUP] = header.producer_group
        put = broker.store.async_put_message(
            MessageExtBrokerInner(
                handle.topic,
                RECALL_BODY,
                properties=properties,
                born_timestamp=broker.clock_ms(),
                born_host=born_host(connection),
                store_host=broker.store_host,
            )
        )
        return self._answer(put, handle)

    def _check(self, header: RecallMessageRequestHeader) -> RecallHandle:
        """RocketMQ's checks, in its order. ResponseError."""
        broker, config = self._broker, self._broker.config
        if not config.recall_message_enable:
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden: recallMessageEnable is false",
            )
        if broker.store_config.broker_role is BrokerRole.SLAVE:
            raise ResponseError(
                ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, operation is forbidden on a slave"
            )
        if broker.clock_ms() < config.start_accept_send_request_time_stamp:
            raise ResponseError(
                ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
            )
        if not config.broker_permission & PERM_WRITE and not config.allow_recall_when_broker_not_writeable:
            raise ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker is not writable")
        if broker.topic_config_manager.select_topic_config(header.topic) is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
            )
        try:
            handle = decode_recall_handle(header.recall_handle)
        except MessageError as error:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        if handle.topic != header.topic:
            raise ResponseError(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, topic not match: the handle is of {handle.topic}",
            )
        if handle.broker_name != config.broker_name:
            raise ResponseError(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, broker service not available: the handle is of {handle.broker_name}",
            )
        left = handle.timestamp - broker.clock_ms()
        if not 0 < left < broker.store_config.timer_max_delay_sec * 1000:
            raise ResponseError(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, timestamp invalid: the message is due in {left} ms",
            )
        return handle

    def _answer(self, put: PutMessageFuture, handle: RecallHandle) -> Answer | Awaitable[Answer]:
        def answer() -> RemotingCommand:
            result = put.result()
            fields = {PROPERTY_MSG_REGION: self._broker.config.region_id}
            if result.status in STORED:
                fields["msgId"] = handle.uniq_key
                return RemotingCommand(ResponseCode.SUCCESS, flag=RESPONSE_FLAG, ext_fields=fields)
            return RemotingCommand(
                ResponseCode.SYSTEM_ERROR,
                flag=RESPONSE_FLAG,
                remark=f"recall failed, execute error: {result.status.name}: {result.reason}",
                ext_fields=fields,
            )

        if put.done():
            return answer()
        loop = asyncio.get_running_loop()
        later: asyncio.Future[Answer] = loop.create_future()
        put.add_loop_callback(loop, lambda: None if later.done() else later.set_result(answer()))
        return later


def delete_key(handle: RecallHandle, *, append_topic: bool) -> str:
    """The key that the cancelling message names: RocketMQ 5.3.3 matches topic and UNIQ_KEY, 5.4 the latter alone."""
    return f"{handle.topic}+{handle.uniq_key}" if append_topic else handle.uniq_key
