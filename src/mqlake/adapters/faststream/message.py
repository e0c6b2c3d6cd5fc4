"""RocketMessage: a message, or a batch of them, as handlers and middlewares of FastStream see it; and its parser.

MessageClientExt ─▶ Delivery, which knows what acknowledges it ─▶ RocketMessage

property content-type, correlation_id, reply_to      FastStream's own, as its other brokers name them
other properties that are not RocketMQ's             headers
content-length 0                                      the body is empty: brokers refuse such, so one byte is sent
REPLY_TO_CLIENT                                       a request: what the handler returns is the reply
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from faststream.message import StreamMessage, decode_message

from mqlake.client.records import MessageClientExt
from mqlake.message import PROPERTY_MESSAGE_REPLY_TO_CLIENT, STRING_PROPERTY, MessageExt

CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"
CONTENT_LENGTH = "content-length"
NOTHING = b"\0"


class Settles(Protocol):
    """Settles a message: acknowledges it, gives it back, or gives it up."""

    async def ack(self) -> None: ...

    async def back(self, delay_s: float | None) -> None:
        """It comes again; None: after the subscriber's own delay."""
        ...

    async def dead(self) -> None: ...


class Delivery:
    """A message and what settles it. FastStream's `raw_message`; of a batch, a tuple of them."""

    __slots__ = ("message", "settles")

    def __init__(self, message: MessageExt, settles: Settles | None = None) -> None:
        self.message = message
        self.settles = settles
        """None: nothing has to, as for a reply."""

    def __repr__(self) -> str:
        message = self.message
        topic = message.read_topic if isinstance(message, MessageClientExt) else message.topic
        return f"Delivery({topic}, queue {message.queue_id}, offset {message.queue_offset})"


Raw = Delivery | tuple[Delivery, ...]


def deliveries_of(raw: Raw) -> tuple[Delivery, ...]:
    return (raw,) if isinstance(raw, Delivery) else raw


class RocketMessage(StreamMessage):
    """`raw_message.message` is the message with its tags, keys, queue, offset and all properties."""

    async def ack(self) -> None:
        """It is done."""
        if self.committed is None:
            await self._settle(*(each.settles.ack() for each in self._open()))
        await super().ack()

    async def nack(self, delay_s: float | None = None) -> None:
        """It comes again: after `delay_s`, or after the subscriber's `retry_delays_s`."""
        if self.committed is None:
            await self._settle(*(each.settles.back(delay_s) for each in self._open()))
        await super().nack()

    async def reject(self) -> None:
        """It becomes a dead letter of the group."""
        if self.committed is None:
            await self._settle(*(each.settles.dead() for each in self._open()))
        await super().reject()

    def _open(self) -> Sequence[Any]:
        return [each for each in deliveries_of(self.raw_message) if each.settles is not None]

    @staticmethod
    async def _settle(*settling: Any) -> None:
        await asyncio.gather(*settling)


def headers_of(message: MessageExt) -> dict[str, str]:
    """The properties that are not RocketMQ's own."""
    return {name: value for name, value in message.properties.items() if name not in STRING_PROPERTY}


def sent_body(body: bytes, properties: dict[str, str]) -> bytes:
    if body:
        return body
    properties[CONTENT_LENGTH] = "0"
    return NOTHING


def body_of(message: MessageExt) -> bytes:
    if message.body == NOTHING and message.properties.get(CONTENT_LENGTH) == "0":
        return b""
    return message.body


def _id_of(message: MessageExt) -> str:
    return message.uniq_key or getattr(message, "msg_id", "") or ""


class RocketParser:
    """The default parser and decoder, which a user's own get as `original`."""

    async def parse_message(self, raw: Delivery) -> RocketMessage:
        message = raw.message
        headers = headers_of(message)
        return RocketMessage(
            raw_message=raw,
            body=body_of(message),
            headers=headers,
            reply_to=_reply_to(message, headers),
            content_type=headers.get(CONTENT_TYPE),
            correlation_id=headers.get(CORRELATION_ID),
            message_id=_id_of(message),
        )

    async def parse_batch(self, raw: tuple[Delivery, ...]) -> RocketMessage:
        """The first message's headers stand for all; each one's own are `batch_headers`."""
        every = [headers_of(each.message) for each in raw]
        first = raw[0].message
        return RocketMessage(
            raw_message=raw,
            body=[body_of(each.message) for each in raw],
            headers=every[0],
            batch_headers=every,
            reply_to=_reply_to(first, every[0]),
            content_type=every[0].get(CONTENT_TYPE),
            correlation_id=every[0].get(CORRELATION_ID),
            message_id=f"{_id_of(first)}-{_id_of(raw[-1].message)}",
        )

    async def decode_message(self, message: StreamMessage) -> Any:
        return decode_message(message)

    async def decode_batch(self, message: StreamMessage) -> list[Any]:
        return [decode_message(await self.parse_message(each)) for each in message.raw_message]


PARSER = RocketParser()


def _reply_to(message: MessageExt, headers: dict[str, str]) -> str:
    return headers.get(REPLY_TO) or message.properties.get(PROPERTY_MESSAGE_REPLY_TO_CLIENT) or ""


def destination_of(raw: Raw) -> str:
    """The topic."""
    return deliveries_of(raw)[0].message.topic


def received(raw: Raw) -> MessageClientExt | None:
    """The first message as a consumer got it; None of a reply."""
    message = deliveries_of(raw)[0].message
    return message if isinstance(message, MessageClientExt) else None
