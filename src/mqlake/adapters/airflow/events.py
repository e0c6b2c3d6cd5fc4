"""event_of: a message as a dict of JSON's types, which XCom and the events of assets can have."""

from __future__ import annotations

import base64
from typing import Any

from mqlake.client.records import MessageClientExt


def event_of(message: MessageClientExt) -> dict[str, Any]:
    """A body that is not UTF-8 is base64, and `body_encoding` says so."""
    try:
        body, encoding = message.body.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(message.body).decode("ascii"), "base64"
    return {
        "topic": message.topic,
        "tags": message.tags or "",
        "keys": message.keys or "",
        "body": body,
        "body_encoding": encoding,
        "properties": dict(message.properties),
        "message_id": message.msg_id,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "born_timestamp": message.born_timestamp,
        "reconsume_times": message.reconsume_times,
    }
