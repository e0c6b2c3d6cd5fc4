"""SendMessage and RecallMessage: what a message may be, which queue it goes to, and how it is stored.

message_group     a jump consistent hash over the writable queues: one group, one queue
anything else     the queues in turn
"""

from __future__ import annotations

import asyncio
import itertools
import re
import zlib
from collections.abc import Sequence

from mqlake.base.clock import now_ms
from mqlake.errors import MessageError
from mqlake.message import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    DLQ_GROUP_TOPIC_PREFIX,
    KEY_SEPARATOR,
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_PRIORITY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    RETRY_GROUP_TOPIC_PREFIX,
    STRING_PROPERTY,
    MessageSysFlag,
    decode_message_id,
    java_hash,
    properties_to_string,
)
from mqlake.message.recall import decode_recall_handle
from mqlake.proxy.backend import Backend
from mqlake.proxy.clients import Client
from mqlake.proxy.context import RequestContext
from mqlake.proxy.request import Request
from mqlake.proxy.status import OK, StatusError, common_status, status_of, status_of_response
from mqlake.proxy.transaction_ids import TransactionId
from mqlake.proxy.v2.definition_pb2 import Code, Encoding, Message, MessageType
from mqlake.proxy.v2.service_pb2 import (
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from mqlake.proxy.values import (
    MESSAGE_TYPE_ATTRIBUTE,
    accepted_types,
    duration_ms,
    message_type,
    timestamp_ms,
    topic_name,
)
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.produce import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)

MAX_BODY_SIZE = 4 * 1024 * 1024
USER_PROPERTIES_MAX = 128
PROPERTIES_SIZE_MAX = 16384
MESSAGE_GROUP_SIZE_MAX = 64
DELAY_MAX_MS = 24 * 3600 * 1000
RECOVERY_MAX_S = 3600
MESSAGES_MAX = 1024
SEND_TIMEOUT_S = 3.0

_GZIP, _TRANSACTION = (
    Encoding.GZIP,
    MessageType.TRANSACTION,
)  # looking up a name takes longer than the comparison
_STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f]")
_RESERVED = STRING_PROPERTY | {
    PROPERTY_SHARDING_KEY,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_PRIORITY,
    PROPERTY_LITE_TOPIC,
    PROPERTY_INNER_MULTI_DISPATCH,
}


class Publisher:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._turns = itertools.count()

    async def send_message(
        self, context: RequestContext, client: Client, request: SendMessageRequest
    ) -> SendMessageResponse:
        topic = _checked_topic(request.messages)
        now = now_ms()
        for message in request.messages:
            check_message(message, now)
        kinds = accepted_types(await self._backend.topic_config(topic))
        prepared = [(message, stored_properties(context, message, topic)) for message in request.messages]
        for _, properties in prepared:
            _check_type(topic, message_type(properties), kinds)
        queues = await self._backend.queues_to_send(topic)
        if not queues:
            raise StatusError(Code.FORBIDDEN, f"topic {topic} has no writable queue")
        if len(prepared) == 1:
            message, properties = prepared[0]
            entries = [
                await self._send(client, message, properties, self._queue_for(queues, properties), context)
            ]
        else:
            entries = await asyncio.gather(
                *[
                    self._send(client, message, properties, self._queue_for(queues, {}), context)
                    for message, properties in prepared
                ]
            )
        return SendMessageResponse(status=common_status([entry.status for entry in entries]), entries=entries)

    def _queue_for(self, queues: Sequence[MessageQueue], properties: dict[str, str]) -> MessageQueue:
        key = properties.get(PROPERTY_SHARDING_KEY)
        number = jump_hash(key, len(queues)) if key is not None else next(self._turns) % len(queues)
        return queues[number]

    async def _send(
        self,
        client: Client,
        message: Message,
        properties: dict[str, str],
        queue: MessageQueue,
        context: RequestContext,
    ) -> SendResultEntry:
        system = message.system_properties
        is_transaction = PROPERTY_TRANSACTION_PREPARED in properties
        flag, body = MessageSysFlag.TRANSACTION_PREPARED_TYPE if is_transaction else 0, message.body
        if system.body_encoding == _GZIP:
            flag |= MessageSysFlag.COMPRESSED_FLAG
            try:
                body = zlib_of_gzip(body)
            except StatusError as error:
                return SendResultEntry(status=error.status, message_id=system.message_id)
        header = SendMessageRequestHeaderV2(
            producer_group=queue.topic,
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=flag,
            born_timestamp=timestamp_ms(system.born_timestamp)
            if system.HasField("born_timestamp")
            else now_ms(),
            flag=0,
            properties=properties_to_string(properties),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=queue.broker_name,
        )
        command = Request(RequestCode.SEND_MESSAGE_V2, header, body)
        command.language = context.language
        remaining = context.remaining_s()
        try:
            answer = await client.channel.invoke(
                queue.broker_name, command, SEND_TIMEOUT_S if remaining is None else remaining
            )
        except Exception as error:
            return SendResultEntry(status=status_of(error), message_id=system.message_id)
        status = status_of_response(answer.code, answer.remark)
        if answer.code not in _STORED:
            return SendResultEntry(status=status, message_id=system.message_id)
        stored = answer.decode_header(SendMessageResponseHeader)
        entry = SendResultEntry(
            status=status if answer.code else OK,
            message_id=system.message_id,
            offset=stored.queue_offset,
            recall_handle=stored.recall_handle or "",
        )
        if is_transaction:
            entry.transaction_id = TransactionId(
                queue.broker_name,
                stored.queue_offset,
                decode_message_id(stored.msg_id)[1],
                stored.transaction_id or system.message_id,
            ).text
        return entry

    async def recall_message(
        self, context: RequestContext, client: Client, request: RecallMessageRequest
    ) -> RecallMessageResponse:
        topic = topic_name(request.topic)
        kinds = accepted_types(await self._backend.topic_config(topic))
        _check_type(topic, MessageType.DELAY, kinds)
        try:
            broker_name = decode_recall_handle(request.recall_handle).broker_name
        except MessageError as error:
            raise StatusError(Code.BAD_REQUEST, str(error)) from None
        header = RecallMessageRequestHeader(
            producer_group=topic, topic=topic, recall_handle=request.recall_handle, bname=broker_name
        )
        command = Request(RequestCode.RECALL_MESSAGE, header)
        answer = await client.channel.invoke(broker_name, command, context.remaining_s())
        status = status_of_response(answer.code, answer.remark)
        if answer.code != ResponseCode.SUCCESS:
            return RecallMessageResponse(status=status)
        recalled = answer.decode_header(RecallMessageResponseHeader)
        return RecallMessageResponse(status=OK, message_id=recalled.msg_id)


# --- checks


def _checked_topic(messages: Sequence[Message]) -> str:
    """The topic of all messages. StatusError."""
    if not messages:
        raise StatusError(Code.MESSAGE_CORRUPTED, "no message to send")
    if len(messages) > MESSAGES_MAX:
        text = f"{len(messages)} messages in one request; {MESSAGES_MAX} are allowed"
        raise StatusError(Code.PAYLOAD_TOO_LARGE, text)
    topic = topic_name(messages[0].topic)
    if len(messages) > 1 and any(message.topic != messages[0].topic for message in messages):
        raise StatusError(
            Code.MESSAGE_CORRUPTED, "topic in message is not same: one request is for one topic"
        )
    return topic


def check_message(message: Message, now: int) -> None:
    """Raises StatusError for a message that cannot be sent."""
    system = message.system_properties
    size = len(message.body)
    if size > MAX_BODY_SIZE:
        raise StatusError(
            Code.MESSAGE_BODY_TOO_LARGE, f"the body has {size} bytes; {MAX_BODY_SIZE} are allowed (4 MiB)"
        )
    if not size:
        raise StatusError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    _check_properties(message)
    if system.HasField("tag"):
        _check_text(Code.ILLEGAL_MESSAGE_TAG, "tag", system.tag)
        if "|" in system.tag:
            raise StatusError(
                Code.ILLEGAL_MESSAGE_TAG, f"tag {system.tag!r} contains '|', which separates tags"
            )
    for key in system.keys:
        _check_text(Code.ILLEGAL_MESSAGE_KEY, "key", key)
    _check_text(Code.ILLEGAL_MESSAGE_ID, "message id", system.message_id)
    if system.HasField("message_group"):
        _check_text(Code.ILLEGAL_MESSAGE_GROUP, "message group", system.message_group)
        if len(system.message_group.encode()) >= MESSAGE_GROUP_SIZE_MAX:
            raise StatusError(
                Code.ILLEGAL_MESSAGE_GROUP,
                f"the message group has {len(system.message_group.encode())} bytes; less than "
                f"{MESSAGE_GROUP_SIZE_MAX} are allowed",
            )
    if system.HasField("lite_topic"):
        raise StatusError(
            Code.NOT_IMPLEMENTED,
            f"the message is for the lite topic {system.lite_topic[:100]!r}: lite topics are not supported, so that it "
            "would reach nobody",
        )
    recovery = system.orphaned_transaction_recovery_duration
    if system.message_type == _TRANSACTION and duration_ms(recovery) > RECOVERY_MAX_S * 1000:
        raise StatusError(
            Code.BAD_REQUEST,
            f"orphaned_transaction_recovery_duration is {recovery.seconds} s; {RECOVERY_MAX_S} s are allowed",
        )
    if system.HasField("delivery_timestamp"):
        delay = timestamp_ms(system.delivery_timestamp) - now
        if delay > DELAY_MAX_MS:
            raise StatusError(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the delivery time is {delay // 1000} s from now; {DELAY_MAX_MS // 1000} s are allowed (1 day)",
            )


def _check_properties(message: Message) -> None:
    users, system = message.user_properties, message.system_properties
    if len(users) > USER_PROPERTIES_MAX:
        raise StatusError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(users)} properties; {USER_PROPERTIES_MAX} are allowed",
        )
    size = len(system.tag.encode()) + sum(len(key.encode()) for key in system.keys)
    for name, value in users.items():
        size += len(name.encode()) + len(value.encode())
        if name in _RESERVED:
            raise StatusError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {name!r} is one of RocketMQ's own; use another name",
            )
        if not name or _CONTROL.search(name) or _CONTROL.search(value):
            raise StatusError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {name[:100]!r}: a name is needed, and neither it nor the value may contain control "
                f"characters",
            )
    if size > PROPERTIES_SIZE_MAX:
        raise StatusError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the properties, tag and keys have {size} bytes; {PROPERTIES_SIZE_MAX} are allowed",
        )


def _check_text(code: int, what: str, text: str) -> None:
    if not text.strip() or _CONTROL.search(text):
        raise StatusError(code, f"the {what} {text[:100]!r} is blank or contains control characters")


def _check_type(topic: str, kind: MessageType, accepted: Sequence[MessageType]) -> None:
    if kind in accepted or topic.startswith((RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)):
        return
    takes = ", ".join(MessageType.Name(one) for one in accepted)
    name = MessageType.Name(kind)
    raise StatusError(
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"topic {topic} takes messages of type {takes}, not {name}: create it with the attribute "
        f"+{MESSAGE_TYPE_ATTRIBUTE}={name}, or change it",
    )


# --- how it is stored


GZIP_MAGIC = b"\x1f\x8b"


def zlib_of_gzip(body: bytes) -> bytes:
    """The body as other clients can unpack it, with zlib. StatusError MESSAGE_CORRUPTED.

    The deflated bytes in both are the same, what is around them differs. What is no gzip stays as it is: a client may
    say GZIP and mean zlib, as RocketMQ's proxy does.
    """
    if not body.startswith(GZIP_MAGIC):
        return body
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        plain = unpacker.decompress(body, MAX_BODY_SIZE + 1)
    except zlib.error as error:
        raise StatusError(Code.MESSAGE_CORRUPTED, f"the body is not gzip: {error}") from None
    if len(plain) > MAX_BODY_SIZE:
        text = f"the body unpacks to more than {MAX_BODY_SIZE} bytes (4 MiB)"
        raise StatusError(Code.MESSAGE_BODY_TOO_LARGE, text)
    if not unpacker.eof or unpacker.unused_data:
        raise StatusError(Code.MESSAGE_CORRUPTED, "the body is not one gzip stream from its begin to its end")
    if body[3]:  # a name or a comment before the deflated bytes
        return zlib.compress(plain)
    return b"\x78\x9c" + body[10:-8] + zlib.adler32(plain).to_bytes(4, "big")


def stored_properties(context: RequestContext, message: Message, topic: str) -> dict[str, str]:
    system = message.system_properties
    properties = dict(message.user_properties)
    if system.tag:
        properties[PROPERTY_TAGS] = system.tag
    if system.keys:
        properties[PROPERTY_KEYS] = KEY_SEPARATOR.join(system.keys)
    properties[PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = system.message_id
    if system.message_type == _TRANSACTION:
        properties[PROPERTY_TRANSACTION_PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            properties[PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS] = str(
                system.orphaned_transaction_recovery_duration.seconds
            )
    if system.HasField("delivery_timestamp"):
        properties[PROPERTY_TIMER_DELIVER_MS] = str(timestamp_ms(system.delivery_timestamp))
    properties[PROPERTY_RECONSUME_TIME] = str(system.delivery_attempt)
    if system.HasField("message_group"):
        properties[PROPERTY_SHARDING_KEY] = system.message_group
    if system.HasField("priority"):
        properties[PROPERTY_PRIORITY] = str(system.priority)
    if system.trace_context:
        properties[PROPERTY_TRACE_CONTEXT] = system.trace_context
    properties[PROPERTY_BORN_HOST] = system.born_host or context.remote_address.rpartition(":")[0]
    if system.HasField("born_timestamp"):
        properties[PROPERTY_BORN_TIMESTAMP] = str(timestamp_ms(system.born_timestamp))
    properties[PROPERTY_PRODUCER_GROUP] = topic
    return properties


_MASK = (1 << 64) - 1


def jump_hash(key: str, count: int) -> int:
    """The bucket of `key` among `count`: Java's hash of it through a jump consistent hash, as in RocketMQ's proxy."""
    state = java_hash(key) & _MASK
    candidate = 0
    while True:
        state = (state * 2862933555777941757 + 1) & _MASK
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if following >= count:
            return candidate
        candidate = following
