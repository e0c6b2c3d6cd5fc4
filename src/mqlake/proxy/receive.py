"""ReceiveMessage: a pop as a stream, at the broker that the client names; else at those of the topic's route in turn.

    status, message*, delivery_timestamp

What a client cannot be given any more (it has gone, or the stream broke) becomes visible again after a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from mqlake.base.clock import now_ms
from mqlake.client.records import MessageClientExt, decode_messages
from mqlake.errors import MessageError, RemotingConnectError
from mqlake.message import (
    PROPERTY_POP_CK,
    PROPERTY_TAGS,
    ReceiptHandle,
    parse_msg_offset_info,
    parse_order_count_info,
    parse_start_offset_info,
    retry_flag,
)
from mqlake.proxy.acknowledge import Acknowledger
from mqlake.proxy.backend import Backend
from mqlake.proxy.clients import Client, Renewal
from mqlake.proxy.context import GrpcContext, RequestContext
from mqlake.proxy.messages import sent_message
from mqlake.proxy.request import Request
from mqlake.proxy.settings import LONG_POLLING_MS, RECEIVE_BATCH_SIZE, existing_group, max_attempts
from mqlake.proxy.status import OK, StatusError, status_of_response
from mqlake.proxy.v2.definition_pb2 import Code, Status
from mqlake.proxy.v2.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse
from mqlake.proxy.values import duration_ms, filter_of, group_name, tags_of, timestamp, topic_name
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.route import MASTER_ID, TopicRouteData
from mqlake.remoting.bodies.topic import PERM_READ
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import PopMessageRequestHeader, PopMessageResponseHeader

logger = logging.getLogger(__name__)

INVISIBLE_MIN_MS, INVISIBLE_MAX_MS = 10_000, 12 * 3600 * 1000
POLLING_MIN_MS, POLLING_MAX_MS = 5000, 20_000
FIRST_INVISIBLE_MS = 60_000
"""Invisible time of a message that was received with auto_renew."""
RESERVE_MS = 100
"""Milliseconds of a client's deadline that are left for the way back."""
REQUEST_TIMEOUT_MS = 3000
AFTER_POLL_S = 5.0
"""How much longer than the polling time a broker may take."""
RETURN_AFTER_MS = 1000
RENEWALS_MAX = 20_000
"""Renewals for one client, whose cache has room for a thousand messages of each queue; more are not renewed."""
FROM_THE_END = 1
"""initMode of a group that has not consumed the topic before."""
_EMPTY = (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT)


@dataclass(slots=True)
class Popped:
    """A message that a pop returned."""

    record: MessageClientExt
    handle: ReceiptHandle
    attempt: int
    """Which delivery this is, from 1 on."""


class Receiver:
    def __init__(self, backend: Backend, acknowledger: Acknowledger) -> None:
        self._backend = backend
        self._acknowledger = acknowledger
        self._returning: set[asyncio.Task[None]] = set()

    async def receive_message(
        self,
        context: RequestContext,
        client: Client,
        request: ReceiveMessageRequest,
        stream: GrpcContext,
    ) -> None:
        topic, group = topic_name(request.message_queue.topic, system=True), group_name(request.group)
        config = await existing_group(self._backend, group)
        polling_ms = polling_time(context, client, request)
        invisible_ms = invisible_time(request)
        named = request.message_queue.broker.name
        brokers = [named] if named else await self._brokers_in_turn(client, topic)
        header = self._header(client, request, topic, group, config, polling_ms, invisible_ms)
        status, found = await self._pop(client, brokers, header)
        found = await self._deliverable(client, request, group, topic, found, config)
        if status is OK and not found:
            status = Status(code=Code.MESSAGE_NOT_FOUND, message="no match message")
        await self._write(client, request, stream, status, found)

    def _header(
        self,
        client: Client,
        request: ReceiveMessageRequest,
        topic: str,
        group: str,
        config: SubscriptionGroupConfig,
        polling_ms: int,
        invisible_ms: int,
    ) -> PopMessageRequestHeader:
        kind, expression = filter_of(request.filter_expression)
        return PopMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=-1,  # whichever queue it names, as in RocketMQ: a simple consumer names them in turn
            max_msg_nums=min(max(request.batch_size, 1), RECEIVE_BATCH_SIZE),
            invisible_time=invisible_ms,
            poll_time=polling_ms,
            born_time=now_ms(),
            init_mode=FROM_THE_END,
            exp_type=kind,
            exp=expression,
            order=config.consume_message_orderly,
            attempt_id=request.attempt_id if request.HasField("attempt_id") else None,
        )

    async def _brokers_in_turn(self, client: Client, topic: str) -> list[str]:
        """The brokers that the topic can be read from, each time with another one first. StatusError, ResponseError."""
        names = readable_brokers(await self._backend.route(topic))
        if not names:
            raise StatusError(Code.FORBIDDEN, f"topic {topic} has no readable queue")
        turn = client.turns.get(topic, -1) + 1
        client.turns[topic] = turn
        first = turn % len(names)
        return names[first:] + names[:first]

    # --- the pop

    async def _pop(
        self, client: Client, brokers: Sequence[str], header: PopMessageRequestHeader
    ) -> tuple[Status, list[Popped]]:
        asking = asyncio.ensure_future(self._ask(client, brokers, header))
        try:
            broker, answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda done: self._return_late(client, header, done))
            raise
        if answer.code in _EMPTY:
            return Status(code=Code.MESSAGE_NOT_FOUND, message="no new message"), []
        if answer.code != ResponseCode.SUCCESS:
            return status_of_response(answer.code, answer.remark), []
        return OK, popped_messages(answer, broker)

    async def _ask(
        self, client: Client, brokers: Sequence[str], header: PopMessageRequestHeader
    ) -> tuple[str, RemotingCommand]:
        """The first broker that can be reached, and its answer. RemotingConnectError of the last."""
        for number, broker in enumerate(brokers, 1):
            header.bname = broker
            command = Request(RequestCode.POP_MESSAGE, header)
            command.language = client.language
            try:
                return broker, await client.channel.invoke(
                    broker, command, header.poll_time / 1000 + AFTER_POLL_S
                )
            except RemotingConnectError:
                if number == len(brokers):
                    raise
        raise AssertionError("there is a broker to ask")

    def _return_late(
        self,
        client: Client,
        header: PopMessageRequestHeader,
        asking: asyncio.Future[tuple[str, RemotingCommand]],
    ) -> None:
        """The answer came when the client had gone."""
        if asking.cancelled() or asking.exception() is not None:
            return
        broker, answer = asking.result()
        if answer.code == ResponseCode.SUCCESS:
            self._give_back(client, header.consumer_group, header.topic, popped_messages(answer, broker))

    def _give_back(self, client: Client, group: str, topic: str, found: Sequence[Popped]) -> None:
        if found:
            task = asyncio.ensure_future(self._return(client, group, topic, found))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _return(self, client: Client, group: str, topic: str, found: Sequence[Popped]) -> None:
        for one in found:
            client.renewals.pop((group, one.record.uniq_key or one.record.msg_id), None)
            try:
                await self._acknowledger.change(
                    client, group, topic, one.handle, RETURN_AFTER_MS, suspend=True
                )
            except Exception as error:
                logger.info(
                    "%s: a message it was not given is visible again later: %s", client.client_id, error
                )
                return

    async def _deliverable(
        self,
        client: Client,
        request: ReceiveMessageRequest,
        group: str,
        topic: str,
        found: list[Popped],
        config: SubscriptionGroupConfig,
    ) -> list[Popped]:
        """Returns the messages without those that do not match, which are acknowledged, and those that came too
        often, which become dead letters. A broker filters by the hash of a tag, so others may come."""
        tags = tags_of(request.filter_expression)
        most = max_attempts(config)
        kept = []
        for one in found:
            if tags is not None and one.record.properties.get(PROPERTY_TAGS, "") not in tags:
                await self._acknowledger.ack(client, group, topic, one.handle)
            elif one.attempt > most:
                message_id = one.record.uniq_key or one.record.msg_id
                await self._acknowledger.to_dead_letters(client, group, topic, one.handle, message_id)
            else:
                kept.append(one)
        return kept

    # --- the stream

    async def _write(
        self,
        client: Client,
        request: ReceiveMessageRequest,
        stream: GrpcContext,
        status: Status,
        found: Sequence[Popped],
    ) -> None:
        group = request.group.name
        written = 0
        try:
            await stream.write(ReceiveMessageResponse(status=status))
            for one in found:
                message = sent_message(
                    one.record,
                    request.message_queue.topic,
                    attempt=one.attempt,
                    receipt_handle=one.handle.text,
                )
                if request.auto_renew and len(client.renewals) < RENEWALS_MAX:
                    message_id = message.system_properties.message_id
                    client.renewals[group, message_id] = Renewal(
                        group, request.message_queue.topic.name, one.handle, one.attempt
                    )
                await stream.write(ReceiveMessageResponse(message=message))
                written += 1
            await stream.write(ReceiveMessageResponse(delivery_timestamp=timestamp(now_ms())))
        except BaseException:
            self._give_back(client, group, request.message_queue.topic.name, found[written:])
            raise


def polling_time(context: RequestContext, client: Client, request: ReceiveMessageRequest) -> int:
    """How long the broker holds the pop, in ms. StatusError ILLEGAL_POLLING_TIME."""
    remaining_s = context.remaining_s()
    remaining = LONG_POLLING_MS + RESERVE_MS if remaining_s is None else int(remaining_s * 1000)
    if request.HasField("long_polling_timeout"):
        wanted = duration_ms(request.long_polling_timeout)
    else:
        settings = client.settings
        timeout = duration_ms(settings.request_timeout) if settings is not None else 0
        wanted = remaining - (timeout or REQUEST_TIMEOUT_MS) // 2
    polling = min(max(wanted, POLLING_MIN_MS), POLLING_MAX_MS)
    if polling <= remaining - RESERVE_MS:
        return polling
    if remaining < POLLING_MIN_MS:
        raise StatusError(
            Code.ILLEGAL_POLLING_TIME if _knows_polling_time(context) else Code.BAD_REQUEST,
            "The deadline time remaining is not enough for polling, please check network condition "
            f"({remaining} ms remain, {POLLING_MIN_MS} are needed)",
        )
    return max(remaining - RESERVE_MS, 0)


def _knows_polling_time(context: RequestContext) -> bool:
    """Clients older than 5.0.3 do not know the code."""
    numbers = context.client_version.split("-")[0].split(".")
    return all(number.isdigit() for number in numbers) and [int(number[:9]) for number in numbers] >= [
        5,
        0,
        3,
    ]


def invisible_time(request: ReceiveMessageRequest) -> int:
    """ms. StatusError ILLEGAL_INVISIBLE_TIME."""
    if request.auto_renew:
        return FIRST_INVISIBLE_MS
    wanted = duration_ms(request.invisible_duration)
    if wanted < INVISIBLE_MIN_MS:
        text = f"the invisibleTime is too small. min is {INVISIBLE_MIN_MS}"
        raise StatusError(Code.ILLEGAL_INVISIBLE_TIME, text)
    if wanted > INVISIBLE_MAX_MS:
        text = f"the invisibleTime is too large. max is {INVISIBLE_MAX_MS}"
        raise StatusError(Code.ILLEGAL_INVISIBLE_TIME, text)
    return wanted


def readable_brokers(route: TopicRouteData) -> list[str]:
    """Names of the brokers that have a master and a queue to read from, sorted."""
    with_master = {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}
    return sorted(
        data.broker_name
        for data in route.queue_datas
        if data.perm & PERM_READ and data.read_queue_nums and data.broker_name in with_master
    )


def popped_messages(answer: RemotingCommand, broker_name: str) -> list[Popped]:
    """The messages in the answer to a pop, with their handles."""
    header = answer.decode_header(PopMessageResponseHeader)
    starts = parse_start_offset_info(header.start_offset_info)
    offsets = parse_msg_offset_info(header.msg_offset_info)
    counts = parse_order_count_info(header.order_count_info)
    found = []
    for record in decode_messages(answer.body_bytes(), broker_name):
        given = record.properties.pop(PROPERTY_POP_CK, None)
        handle = None
        if given is not None:
            try:
                handle = ReceiptHandle.parse(given)._replace(physical_offset=record.physical_offset)
            except MessageError as error:
                logger.warning("message %s has no usable POP_CK: %s", record.msg_id, error)
        if handle is None:
            key = retry_flag(record.topic), record.queue_id
            if key not in starts and len(starts) == 1 and key not in offsets:
                key = next(iter(starts))
            handle = ReceiptHandle(
                starts.get(key, record.queue_offset),
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                key[0],
                broker_name,
                key[1],
                record.queue_offset,
                record.physical_offset,
            )
        flag, queue_id, offset = handle.flag, handle.queue_id, handle.queue_offset
        again = (
            counts.get((flag, queue_id, offset), counts.get((flag, queue_id, None)))
            if handle.is_order
            else None
        )
        attempt = (record.reconsume_times if again is None else again) + 1
        found.append(Popped(record, handle, attempt))
    return found
