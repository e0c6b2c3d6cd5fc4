"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: what becomes of a message that was received.

A receipt handle says which broker, topic, queue and checkpoint it is about, so the server keeps nothing for it. One
that was renewed in the meantime (see `renew`) is looked up by its message id.
"""

from __future__ import annotations

import asyncio

from mqlake.base.clock import now_ms
from mqlake.client.records import decode_messages
from mqlake.errors import MessageError
from mqlake.message import ReceiptHandle, real_topic
from mqlake.proxy.clients import Client
from mqlake.proxy.context import RequestContext
from mqlake.proxy.request import Request
from mqlake.proxy.status import (
    OK,
    StatusError,
    UnknownBrokerError,
    common_status,
    status_of,
    status_of_response,
)
from mqlake.proxy.v2.definition_pb2 import Code, Status
from mqlake.proxy.v2.service_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
)
from mqlake.proxy.values import duration_ms, group_name, topic_name
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    ViewMessageRequestHeader,
)
from mqlake.remoting.headers.produce import ConsumerSendMsgBackRequestHeader

INVISIBLE_MAX_MS = 12 * 3600 * 1000
ENTRIES_MAX = 4096
_AT_ONCE = 64


class Acknowledger:
    # --- the RPCs

    async def ack_message(
        self, context: RequestContext, client: Client, request: AckMessageRequest
    ) -> AckMessageResponse:
        topic, group = topic_name(request.topic, system=True), group_name(request.group)
        if len(request.entries) > ENTRIES_MAX:
            text = f"{len(request.entries)} entries in one request; {ENTRIES_MAX} are allowed"
            raise StatusError(Code.PAYLOAD_TOO_LARGE, text)
        if len(request.entries) == 1:
            only = await self._ack_entry(client, group, topic, request.entries[0])
            return AckMessageResponse(status=only.status, entries=[only])
        entries: list[AckMessageResultEntry] = []
        for start in range(0, len(request.entries), _AT_ONCE):
            some = request.entries[start : start + _AT_ONCE]
            entries += await asyncio.gather(*[self._ack_entry(client, group, topic, entry) for entry in some])
        return AckMessageResponse(status=common_status([entry.status for entry in entries]), entries=entries)

    async def _ack_entry(
        self, client: Client, group: str, topic: str, entry: AckMessageEntry
    ) -> AckMessageResultEntry:
        try:
            handle = current_handle(client, group, entry.message_id, entry.receipt_handle, end=True)
            status = await self.ack(client, group, topic, handle)
        except Exception as error:
            status = status_of(error)
        return AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )

    async def change_invisible_duration(
        self, context: RequestContext, client: Client, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        topic, group = topic_name(request.topic, system=True), group_name(request.group)
        wanted = duration_ms(request.invisible_duration)
        if not 0 <= wanted <= INVISIBLE_MAX_MS:
            raise StatusError(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisibleTime is {wanted} ms; 0 to {INVISIBLE_MAX_MS} are allowed (12 hours)",
            )
        handle = current_handle(client, group, request.message_id, request.receipt_handle, end=True)
        changed = await self.change(client, group, topic, handle, wanted, suspend=request.suspend)
        return ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed.text)

    async def forward_to_dead_letter_queue(
        self, context: RequestContext, client: Client, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        topic, group = topic_name(request.topic, system=True), group_name(request.group)
        handle = current_handle(client, group, request.message_id, request.receipt_handle, end=True)
        if handle.physical_offset < 0:
            raise StatusError(
                Code.INVALID_RECEIPT_HANDLE, "the receipt handle does not say where the message is in the log"
            )
        await self._check_place(client, group, topic, handle)
        status = await self.to_dead_letters(client, group, topic, handle, request.message_id)
        return ForwardMessageToDeadLetterQueueResponse(status=status)

    # --- requests to brokers

    async def ack(self, client: Client, group: str, topic: str, handle: ReceiptHandle) -> Status:
        header = AckMessageRequestHeader(
            consumer_group=group,
            topic=real_topic(topic, group, handle.flag),
            queue_id=handle.queue_id,
            extra_info=handle.text,
            offset=handle.queue_offset,
            bname=handle.broker_name,
        )
        command = Request(RequestCode.ACK_MESSAGE, header)
        answer = await _asked(client, handle, command)
        return status_of_response(answer.code, answer.remark)

    async def change(
        self,
        client: Client,
        group: str,
        topic: str,
        handle: ReceiptHandle,
        invisible_ms: int,
        *,
        suspend: bool = False,
    ) -> ReceiptHandle:
        """The handle that is good from now on. ResponseError, RemotingError."""
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=group,
            topic=real_topic(topic, group, handle.flag),
            queue_id=handle.queue_id,
            extra_info=handle.text,
            offset=handle.queue_offset,
            invisible_time=invisible_ms,
            suspend=suspend,
            bname=handle.broker_name,
        )
        command = Request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        answer = await _asked(client, handle, command)
        if answer.code != ResponseCode.SUCCESS:
            status = status_of_response(answer.code, answer.remark)
            raise StatusError(status.code, status.message)
        changed = answer.decode_header(ChangeInvisibleTimeResponseHeader)
        return handle._replace(
            start_offset=handle.queue_offset,
            pop_time=changed.pop_time,
            invisible_time=changed.invisible_time,
            revive_queue_id=changed.revive_qid,
        )

    async def _check_place(self, client: Client, group: str, topic: str, handle: ReceiptHandle) -> None:
        """Checks that the place in a handle has the message that the rest of the handle is about: a dead letter is
        copied by its place in the log, which a forger may choose. StatusError INVALID_RECEIPT_HANDLE."""
        header = ViewMessageRequestHeader(topic=topic, offset=handle.physical_offset)
        command = Request(RequestCode.VIEW_MESSAGE_BY_ID, header)
        answer = await _asked(client, handle, command)
        if answer.code == ResponseCode.SUCCESS:
            messages = decode_messages(answer.body_bytes(), handle.broker_name)
            wanted = real_topic(topic, group, handle.flag), handle.queue_id, handle.queue_offset
            if wanted in [(one.topic, one.queue_id, one.queue_offset) for one in messages]:
                return
        raise StatusError(
            Code.INVALID_RECEIPT_HANDLE,
            f"the receipt handle leads to no message that group {group} received from topic {topic}",
        )

    async def to_dead_letters(
        self, client: Client, group: str, topic: str, handle: ReceiptHandle, message_id: str
    ) -> Status:
        """Copies the message to %DLQ%group, then acknowledges it."""
        header = ConsumerSendMsgBackRequestHeader(
            offset=handle.physical_offset,
            group=group,
            delay_level=-1,
            origin_msg_id=message_id,
            origin_topic=topic,
            max_reconsume_times=0,
            bname=handle.broker_name,
        )
        command = Request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        answer = await _asked(client, handle, command)
        if answer.code == ResponseCode.SUCCESS:
            await self.ack(client, group, topic, handle)
        return status_of_response(answer.code, answer.remark)


async def _asked(client: Client, handle: ReceiptHandle, command: Request) -> RemotingCommand:
    """The answer of the broker that a handle names. StatusError INVALID_RECEIPT_HANDLE if it cannot be reached."""
    try:
        return await client.channel.invoke(handle.broker_name, command)
    except UnknownBrokerError as error:
        raise StatusError(Code.INVALID_RECEIPT_HANDLE, f"receipt handle: {error}") from None


def current_handle(
    client: Client, group: str, message_id: str, text: str, *, end: bool = False
) -> ReceiptHandle:
    """The handle that a client sent, or the one that replaced it. `end`: it is not renewed any more.

    StatusError INVALID_RECEIPT_HANDLE if it is none, or has expired.
    """
    try:
        handle = ReceiptHandle.parse(text)
    except MessageError as error:
        raise StatusError(Code.INVALID_RECEIPT_HANDLE, str(error)) from None
    if handle.queue_offset < 0:
        raise StatusError(Code.INVALID_RECEIPT_HANDLE, f"the receipt handle {text!r} names no message")
    renewal = client.renewals.get((group, message_id))
    if renewal is not None and renewal.first.queue_offset == handle.queue_offset:
        handle = renewal.handle
        if end:
            renewal.ended = True
            del client.renewals[group, message_id]
    if handle.visible_at < now_ms():
        raise StatusError(
            Code.INVALID_RECEIPT_HANDLE,
            f"receipt handle is expired: the message was invisible for {handle.invisible_time} ms, which are over",
        )
    return handle
