"""The contexts of hooks, made from requests and their results."""

from __future__ import annotations

from mqlake.broker.broker import Broker
from mqlake.broker.mqtrace.hooks import ConsumeMessageContext, SendMessageContext, StatsType
from mqlake.errors import FormatError
from mqlake.formats.batch import decode_messages
from mqlake.formats.trace import MessageType
from mqlake.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    MessageExt,
    bytes_to_properties,
    string_to_properties,
)
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.consume import PullMessageRequestHeader
from mqlake.remoting.headers.produce import SendMessageRequestHeader, SendMessageRequestHeaderV2
from mqlake.store.results import GetMessageResult, PutMessageResult

_DELAYS = {
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
}


def send_context(
    broker: Broker,
    connection: Connection,
    request: RemotingCommand,
    header: SendMessageRequestHeader | SendMessageRequestHeaderV2,
) -> SendMessageContext:
    """The context of a send, before any check."""
    properties = string_to_properties(header.properties or "")
    body = request.body_bytes()
    return SendMessageContext(
        producer_group=header.producer_group or "",
        topic=header.topic,
        queue_id=header.queue_id,
        body_length=len(body),
        msg_props=properties,
        born_host=connection.remote_address,
        broker_addr=broker.broker_addr,
        broker_region_id=broker.config.region_id,
        born_timestamp=header.born_timestamp,
        request_timestamp=broker.clock_ms(),
        msg_unique_key=_keys_of_batch(body)
        if header.batch
        else properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, ""),
        msg_type=_kind_of(properties),
    )


def _keys_of_batch(body: bytes) -> str:
    try:
        items = decode_messages(body)
    except FormatError:  # the checks that follow report it
        return ""
    of_each = (bytes_to_properties(item.properties) for item in items)
    return ",".join(each.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "") for each in of_each)


def _kind_of(properties: dict[str, str]) -> MessageType:
    if PROPERTY_SHARDING_KEY in properties:
        return MessageType.ORDER_MSG
    if not _DELAYS.isdisjoint(properties):
        return MessageType.DELAY_MSG
    if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() == "true":
        return MessageType.TRANS_MSG_HALF
    return MessageType.NORMAL_MSG


def note_result(context: SendMessageContext, result: PutMessageResult, queue_id: int) -> None:
    """Completes a send's context with the result."""
    appended = result.append_result
    if appended is not None and appended.is_ok:
        context.msg_id = appended.msg_id or ""
        context.queue_id, context.queue_offset = queue_id, appended.logics_offset
        context.send_msg_num, context.send_msg_size = appended.msg_num, appended.wrote_bytes
    if result.is_ok:
        context.success, context.send_stat = True, StatsType.SEND_SUCCESS


def pull_context(
    broker: Broker,
    connection: Connection,
    header: PullMessageRequestHeader,
    result: GetMessageResult,
    response: RemotingCommand,
) -> ConsumeMessageContext:
    """The context of a pull that is about to be answered."""
    found = response.code == ResponseCode.SUCCESS
    return ConsumeMessageContext(
        consumer_group=header.consumer_group,
        topic=header.topic,
        queue_id=header.queue_id,
        client_host=connection.remote_address,
        store_host=broker.broker_addr,
        success=found,
        status=response.remark or "",
        rcv_stat=StatsType.RCV_SUCCESS if found else StatsType.RCV_EPOLLS,
        rcv_msg_num=result.message_count if found else 0,
        rcv_msg_size=result.buffer_total_size if found else 0,
        read=(lambda: list(result.messages())) if found else tuple,
    )


def pop_context(
    broker: Broker,
    connection: Connection | None,
    group: str,
    topic: str,
    queue_id: int,
    result: GetMessageResult,
) -> ConsumeMessageContext:
    """The context of what a pop took from one queue and is about to answer."""
    return ConsumeMessageContext(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        client_host="" if connection is None else connection.remote_address,
        store_host=broker.broker_addr,
        success=True,
        status=result.status.name,
        rcv_stat=StatsType.RCV_SUCCESS,
        rcv_msg_num=result.message_count,
        rcv_msg_size=result.buffer_total_size,
        read=lambda: list(result.messages()),
    )


def send_back_context(
    broker: Broker,
    connection: Connection,
    group: str,
    topic: str,
    message: MessageExt,
    result: PutMessageResult,
    *,
    is_dlq: bool,
) -> ConsumeMessageContext:
    """The context of a `message` of `topic` that a consumer of `group` sent back, and which was stored again."""
    return ConsumeMessageContext(
        consumer_group=group,
        topic=topic,
        queue_id=message.queue_id,
        client_host=connection.remote_address,
        store_host=broker.broker_addr,
        success=result.is_ok,
        status=result.status.name,
        rcv_stat=StatsType.SEND_BACK_TO_DLQ if is_dlq else StatsType.SEND_BACK,
        rcv_msg_num=1,
        delay_level=message.delay_time_level,
        read=lambda: [message],
    )
