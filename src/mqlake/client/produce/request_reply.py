"""Request and reply over topics: a producer sends a request and waits for a consumer's reply.

    request   CORRELATION_ID, REPLY_TO_CLIENT = the asker's client id, TTL in ms; the broker adds CLUSTER
    reply     MSG_TYPE=reply and the same three, to the topic CLUSTER_REPLY_TOPIC: the broker pushes it to the asker

Facts: request codes 324 to 326, and MessageUtil, of RocketMQ 5.3.3.
"""

from __future__ import annotations

import asyncio
import uuid

from mqlake.base.arguments import checked_function
from mqlake.base.net import parse_address
from mqlake.errors import FormatError, MessageError, NoReplyError
from mqlake.formats.compression import decompress_body
from mqlake.message import (
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MESSAGE_REPLY_TO_CLIENT,
    PROPERTY_MESSAGE_TTL,
    PROPERTY_MESSAGE_TYPE,
    Message,
    MessageExt,
    string_to_properties,
)
from mqlake.message.topics import REPLY_TOPIC_POSTFIX
from mqlake.remoting.headers.produce import ReplyMessageRequestHeader

REPLY_MESSAGE_FLAG = "reply"


@checked_function
def create_reply_message(request: Message, body: bytes) -> Message:
    """The reply to `request`, to be sent with any producer. Raises MessageError unless it is a request."""
    properties = request.properties
    cluster = properties.get(PROPERTY_CLUSTER)
    if cluster is None or PROPERTY_MESSAGE_REPLY_TO_CLIENT not in properties:
        raise MessageError("the message is not a request: no producer waits for a reply")
    reply = Message(f"{cluster}_{REPLY_TOPIC_POSTFIX}", body)
    reply.properties[PROPERTY_MESSAGE_TYPE] = REPLY_MESSAGE_FLAG
    for name in (PROPERTY_CORRELATION_ID, PROPERTY_MESSAGE_REPLY_TO_CLIENT, PROPERTY_MESSAGE_TTL):
        if name in properties:
            reply.properties[name] = properties[name]
    return reply


def is_reply(message: Message) -> bool:
    return message.properties.get(PROPERTY_MESSAGE_TYPE) == REPLY_MESSAGE_FLAG


class Requests:
    """Requests that wait for their reply, by correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def prepare(self, message: Message, client_id: str, timeout_s: float) -> str:
        """Makes a request of the message; its correlation id, which `wait` takes (also to forget it)."""
        correlation_id = str(uuid.uuid4())
        message.properties[PROPERTY_CORRELATION_ID] = correlation_id
        message.properties[PROPERTY_MESSAGE_REPLY_TO_CLIENT] = client_id
        message.properties[PROPERTY_MESSAGE_TTL] = str(int(timeout_s * 1000))
        self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        return correlation_id

    async def wait(self, correlation_id: str, topic: str, timeout_s: float, *, total_s: float) -> MessageExt:
        """The reply. NoReplyError (which says `total_s`) after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._waiting[correlation_id]
        except TimeoutError:
            raise NoReplyError(topic, total_s) from None

    def forget(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def arrived(self, header: ReplyMessageRequestHeader, body: bytes) -> bool:
        """True if a request waits for it here."""
        properties = string_to_properties(header.properties or "")
        waiting = self._waiting.get(properties.get(PROPERTY_CORRELATION_ID, ""))
        if waiting is None or waiting.done():
            return False
        try:
            plain = decompress_body(body, header.sys_flag)
        except FormatError as error:
            waiting.set_exception(error)
            return True
        waiting.set_result(
            MessageExt(
                header.topic,
                plain,
                flag=header.flag,
                properties=properties,
                queue_id=header.queue_id,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                born_host=parse_address(header.born_host),
                store_timestamp=header.store_timestamp,
                store_host=parse_address(header.store_host),
                reconsume_times=header.reconsume_times or 0,
            )
        )
        return True
