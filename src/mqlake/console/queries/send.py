"""Sends test messages, at once or to be due later, and says where they were stored."""

from __future__ import annotations

from typing import Any

from mqlake.console.ask import Ask
from mqlake.errors import ConfigError, MessageError, MqlakeError
from mqlake.message import Message, validate_topic
from mqlake.remoting.bodies.topic import MessageQueue

FIELDS = ("body", "tags", "keys", "properties", "queue", "delay", "count")
COUNT_MAX = 1000
DELAY_MAX_S = 3 * 24 * 3600
"""RocketMQ's brokers take no longer delay unless they are set to."""


async def form(ask: Ask) -> dict[str, Any]:
    """A form for test messages."""
    topic = ask.need("topic")
    await ask.admin.examine_topic_route_info(topic)
    return {"topic": topic, "values": {name: ask.raw_text(name) for name in FIELDS}, "sent": None}


async def send(ask: Ask) -> dict[str, Any]:
    """Sends it, `count` times; consumers get it after `delay` seconds."""
    ask.check_changes()
    topic = ask.need("topic")
    validate_topic(topic)
    count, queue = ask.number("count", 1, 1, COUNT_MAX), _queue(ask, topic)
    made = _message(ask, topic)
    sent: dict[str, Any] = {}
    for number in range(count):
        message = Message(topic, made.body, properties=dict(made.properties))
        try:
            place, answer = await ask.admin.send(message, queue=queue)
        except MqlakeError as error:
            if number:
                raise MessageError(f"{number} of {count} were sent, then: {error}") from error
            raise
        sent = {
            "broker": place.broker_name,
            "queueId": answer.queue_id,
            "queueOffset": answer.queue_offset,
            "msgId": answer.msg_id,
            "uniqKey": message.uniq_key,
            "count": count,
            "delayMs": made.delay_time_ms or 0,
        }
    return await form(ask) | {"sent": sent}


def _message(ask: Ask, topic: str) -> Message:
    body = ask.raw_text("body").replace("\r\n", "\n").encode()
    if not body:
        raise MessageError(
            "RocketMQ's brokers refuse a message without a body; `mqlake produce --allow-empty-body` sends one"
        )
    message = Message(topic, body, tags=ask.text("tags") or None, keys=ask.text("keys") or None)
    for line in ask.raw_text("properties").splitlines():
        name, equals, value = line.partition("=")
        if line.strip() and (not equals or not name.strip()):
            raise ConfigError(f"properties: {line[:40]!r} is not name=value")
        if line.strip():
            message.properties[name.strip()] = value.strip()
    if delay_s := ask.number("delay", 0, 0, DELAY_MAX_S):
        message.delay_time_ms = delay_s * 1000
    return message


def _queue(ask: Ask, topic: str) -> MessageQueue | None:
    if not ask.text("queue"):
        return None
    broker, slash, number = ask.text("queue").rpartition("/")
    if not slash or not number.isdecimal():
        raise ConfigError("queue: write it as broker/id")
    return MessageQueue(topic=topic, broker_name=broker, queue_id=int(number))
