"""Sends one test message, and says where it was stored."""

from __future__ import annotations

from typing import Any

from mqlake.console.ask import Ask
from mqlake.errors import ConfigError, MessageError
from mqlake.message import Message, validate_topic
from mqlake.remoting.bodies.topic import MessageQueue

FIELDS = ("body", "tags", "keys", "properties", "queue")


async def form(ask: Ask) -> dict[str, Any]:
    """A form for one test message."""
    topic = ask.need("topic")
    await ask.admin.examine_topic_route_info(topic)
    return {"topic": topic, "values": {name: ask.exactly(name) for name in FIELDS}, "sent": None}


async def send(ask: Ask) -> dict[str, Any]:
    """Sends it."""
    ask.check_changes()
    topic = ask.need("topic")
    validate_topic(topic)
    body = ask.exactly("body").replace("\r\n", "\n").encode()
    if not body:
        raise MessageError("brokers refuse a message without a body")
    message = Message(topic, body, tags=ask.text("tags") or None, keys=ask.text("keys") or None)
    for line in ask.exactly("properties").splitlines():
        name, equals, value = line.partition("=")
        if line.strip() and (not equals or not name.strip()):
            raise ConfigError(f"properties: {line[:40]!r} is not name=value")
        if line.strip():
            message.properties[name.strip()] = value.strip()
    queue = None
    if ask.text("queue"):
        broker, slash, number = ask.text("queue").rpartition("/")
        if not slash or not number.isdecimal():
            raise ConfigError("queue: write it as broker/id")
        queue = MessageQueue(topic=topic, broker_name=broker, queue_id=int(number))
    place, answer = await ask.admin.send(message, queue=queue)
    sent = {
        "broker": place.broker_name,
        "queueId": answer.queue_id,
        "queueOffset": answer.queue_offset,
        "msgId": answer.msg_id,
        "uniqKey": message.uniq_key,
    }
    return await form(ask) | {"sent": sent}
