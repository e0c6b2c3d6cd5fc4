"""A record as people see it: a JSON object, or a line of text."""

from __future__ import annotations

import base64
from typing import Any

from mqlake.base.rendering import time_text
from mqlake.message.ids import Host
from mqlake.message.message import MessageExt

BODY_SHOWN = 60


def host_text(host: Host) -> str:
    ip, port = host
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _place_and_names(message: MessageExt) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "msgId": message.msg_id,
        "uniqKey": message.uniq_key,
        "tags": message.tags,
        "keys": message.keys,
    }


def message_row(message: MessageExt, body: bytes) -> dict[str, Any]:
    """A message as a row of a list; `body` is decompressed."""
    return {
        **_place_and_names(message),
        "storeTimestamp": message.store_timestamp,
        "size": message.store_size,
        "bodyText": body_text(body),
    }


def record_object(message: MessageExt) -> dict[str, Any]:
    """All fields of a record under RocketMQ's names; the body in base64."""
    return {
        **_place_and_names(message),
        "body": base64.b64encode(message.body).decode(),
        "bodyCrc": message.body_crc,
        "properties": message.properties,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": host_text(message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": host_text(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "size": message.store_size,
    }


def record_line(message: MessageExt) -> str:
    """`physical offset  topic/queue@offset  store time  size  tags=… keys=…  beginning of the body`."""
    parts = [
        f"{message.physical_offset:>12}",
        f"{message.topic}/{message.queue_id}@{message.queue_offset}",
        time_text(message.store_timestamp),
        f"{message.store_size} B",
    ]
    if message.tags:
        parts.append(f"tags={message.tags}")
    if message.keys:
        parts.append(f"keys={message.keys}")
    if message.uniq_key:
        parts.append(f"id={message.uniq_key}")
    parts.append(body_text(message.body))
    return "  ".join(parts)


def body_text(body: bytes) -> str:
    """The beginning of a body on one line: as text if it is text, else in hexadecimal."""
    try:
        text = body[: 4 * BODY_SHOWN].decode("utf-8")
    except UnicodeDecodeError as error:
        # cut in the middle of a character, or not text
        whole = error.start > len(body[: 4 * BODY_SHOWN]) - 4 and len(body) > 4 * BODY_SHOWN
        text = body[: error.start].decode("utf-8") if whole else ""
        if not whole:
            shown = body[: BODY_SHOWN // 2].hex()
            return f"0x{shown}{'…' if len(body) > BODY_SHOWN // 2 else ''}"
    shown = "".join(character if character.isprintable() else "·" for character in text[:BODY_SHOWN])
    return shown + ("…" if len(text) > BODY_SHOWN or len(body) > 4 * BODY_SHOWN else "")
