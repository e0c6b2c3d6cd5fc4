"""PullMessage, UpdateOffset, GetOffset and QueryOffset: consuming by offsets, which RocketMQ's proxy does not serve.

PullMessage streams a status, messages, and last the offset to go on from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from mqlake.client.records import decode_messages
from mqlake.errors import HeaderError, RemotingTimeoutError, ResponseError
from mqlake.proxy.backend import Backend
from mqlake.proxy.clients import Client
from mqlake.proxy.context import RequestContext
from mqlake.proxy.messages import sent_message
from mqlake.proxy.receive import AFTER_POLL_S, POLLING_MAX_MS, RESERVE_MS, readable_brokers
from mqlake.proxy.request import Request
from mqlake.proxy.settings import RECEIVE_BATCH_SIZE, existing_group
from mqlake.proxy.status import OK, StatusError, status_of_response
from mqlake.proxy.v2.definition_pb2 import Code, MessageQueue, QueryOffsetPolicy, Status
from mqlake.proxy.v2.service_pb2 import (
    GetOffsetRequest,
    GetOffsetResponse,
    PullMessageRequest,
    PullMessageResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    UpdateOffsetRequest,
    UpdateOffsetResponse,
)
from mqlake.proxy.values import duration_ms, filter_of, group_name, timestamp_ms, topic_name
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers import consume

SUSPEND, SUBSCRIPTION = 2, 4
"""Bits of a pull's sysFlag: hold it, and it has its own filter."""


class Offsets:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def pull_message(
        self, context: RequestContext, client: Client, request: PullMessageRequest
    ) -> AsyncIterator[PullMessageResponse]:
        topic, queue_id, broker = await self._place(request.message_queue)
        group = group_name(request.group)
        await existing_group(self._backend, group)
        if request.offset < 0:
            raise StatusError(Code.ILLEGAL_OFFSET, f"the offset is {request.offset}; 0 or more is needed")
        kind, expression = filter_of(request.filter_expression)
        hold_ms = _hold_ms(context, request)
        header = consume.PullMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=request.offset,
            max_msg_nums=min(max(request.batch_size, 1), RECEIVE_BATCH_SIZE),
            sys_flag=SUBSCRIPTION | (SUSPEND if hold_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=hold_ms,
            subscription=expression,
            sub_version=0,
            expression_type=kind,
            bname=broker or None,
        )
        command = Request(RequestCode.PULL_MESSAGE, header)
        patience_s = hold_ms / 1000 + RESERVE_MS / 2000 if hold_ms else AFTER_POLL_S
        try:
            answer = await client.channel.invoke(broker, command, patience_s)
        except RemotingTimeoutError:
            if not hold_ms:
                raise
            # a broker looks at the pulls that it holds every few seconds, which is too late for the client
            yield PullMessageResponse(status=Status(code=Code.MESSAGE_NOT_FOUND, message="no new message"))
            yield PullMessageResponse(next_offset=request.offset)
            return
        for response in _pulled(answer, request, broker):
            yield response

    async def update_offset(
        self, context: RequestContext, client: Client, request: UpdateOffsetRequest
    ) -> UpdateOffsetResponse:
        topic, queue_id, broker = await self._place(request.message_queue)
        if request.offset < 0:
            raise StatusError(Code.ILLEGAL_OFFSET, f"the offset is {request.offset}; 0 or more is needed")
        group = group_name(request.group)
        await existing_group(self._backend, group)
        await self._existing_topic(topic)
        header = consume.UpdateConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            commit_offset=request.offset,
            bname=broker or None,
        )
        command = Request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        answer = await client.channel.invoke(broker, command, context.remaining_s())
        return UpdateOffsetResponse(status=status_of_response(answer.code, answer.remark))

    async def get_offset(
        self, context: RequestContext, client: Client, request: GetOffsetRequest
    ) -> GetOffsetResponse:
        topic, queue_id, broker = await self._place(request.message_queue)
        group = group_name(request.group)
        await self._existing_topic(topic)
        header = consume.QueryConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            set_zero_if_not_found=False,
            bname=broker or None,
        )
        command = Request(RequestCode.QUERY_CONSUMER_OFFSET, header)
        answer = await client.channel.invoke(broker, command, context.remaining_s())
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            raise StatusError(
                Code.OFFSET_NOT_FOUND, f"group {group} has no offset in topic {topic}, queue {queue_id}"
            )
        if answer.code != ResponseCode.SUCCESS:
            return GetOffsetResponse(status=status_of_response(answer.code, answer.remark))
        offset = answer.decode_header(consume.QueryConsumerOffsetResponseHeader).offset
        return GetOffsetResponse(status=OK, offset=offset)

    async def query_offset(
        self, context: RequestContext, client: Client, request: QueryOffsetRequest
    ) -> QueryOffsetResponse:
        topic, queue_id, broker = await self._place(request.message_queue)
        await self._existing_topic(topic)
        bname = broker or None
        policy = request.query_offset_policy
        if policy == QueryOffsetPolicy.TIMESTAMP:
            command = Request(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                consume.SearchOffsetRequestHeader(
                    topic=topic, queue_id=queue_id, timestamp=timestamp_ms(request.timestamp), bname=bname
                ),
            )
        elif policy == QueryOffsetPolicy.END:
            command = Request(
                RequestCode.GET_MAX_OFFSET,
                consume.GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id, bname=bname),
            )
        else:
            command = Request(
                RequestCode.GET_MIN_OFFSET,
                consume.GetMinOffsetRequestHeader(topic=topic, queue_id=queue_id, bname=bname),
            )
        answer = await client.channel.invoke(broker, command, context.remaining_s())
        if answer.code != ResponseCode.SUCCESS:
            return QueryOffsetResponse(status=status_of_response(answer.code, answer.remark))
        return QueryOffsetResponse(
            status=OK, offset=answer.decode_header(consume.SearchOffsetResponseHeader).offset
        )

    async def _place(self, queue: MessageQueue) -> tuple[str, int, str]:
        """Topic, queue id, broker name. StatusError, also where several brokers have the queue and none is named."""
        topic = topic_name(queue.topic, system=True)
        if queue.id < 0:
            raise StatusError(
                Code.BAD_REQUEST, f"queue {queue.id}: 0 or more is needed, offsets belong to one queue"
            )
        return topic, queue.id, queue.broker.name or await self._only_broker(topic)

    async def _only_broker(self, topic: str) -> str:
        """The broker that has the topic; empty if none does."""
        try:
            names = readable_brokers(await self._backend.route(topic))
        except ResponseError:
            return ""
        if len(names) > 1:
            raise StatusError(
                Code.BAD_REQUEST,
                f"several brokers have topic {topic} ({', '.join(names)}): name one in message_queue.broker, since "
                "offsets belong to a queue of one broker",
            )
        return names[0] if names else ""

    async def _existing_topic(self, topic: str) -> None:
        """StatusError TOPIC_NOT_FOUND."""
        if await self._backend.topic_config(topic) is None:
            raise StatusError(Code.TOPIC_NOT_FOUND, f"there is no topic {topic}")


def _pulled(
    answer: RemotingCommand, request: PullMessageRequest, broker: str
) -> Iterator[PullMessageResponse]:
    """A broker's answer to a pull, as the status, the messages and the next offset."""
    try:
        next_offset = answer.decode_header(consume.PullMessageResponseHeader).next_begin_offset
    except HeaderError:
        next_offset = None
    if answer.code == ResponseCode.SUCCESS:
        yield PullMessageResponse(status=OK)
        for record in decode_messages(answer.body_bytes(), broker):
            attempt = record.reconsume_times + 1
            yield PullMessageResponse(
                message=sent_message(record, request.message_queue.topic, attempt=attempt)
            )
    elif answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
        yield PullMessageResponse(status=Status(code=Code.MESSAGE_NOT_FOUND, message="no new message"))
    elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
        text = f"offset {request.offset} is not in the queue; go on from {next_offset}"
        yield PullMessageResponse(status=Status(code=Code.ILLEGAL_OFFSET, message=text))
    else:
        yield PullMessageResponse(status=status_of_response(answer.code, answer.remark))
    if next_offset is not None:
        yield PullMessageResponse(next_offset=next_offset)


def _hold_ms(context: RequestContext, request: PullMessageRequest) -> int:
    wanted = min(max(duration_ms(request.long_polling_timeout), 0), POLLING_MAX_MS)
    remaining_s = context.remaining_s()
    return wanted if remaining_s is None else max(min(wanted, int(remaining_s * 1000) - RESERVE_MS), 0)
