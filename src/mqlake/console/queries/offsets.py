"""Offsets of a group: reset them, or copy them to another group, after a look at what would change."""

from __future__ import annotations

import asyncio
from typing import Any

from mqlake.base.clock import now_ms
from mqlake.client.admin import END_OF_QUEUE
from mqlake.client.overview import connections
from mqlake.console.ask import Ask
from mqlake.console.queries.groups import topics_of
from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.message import RETRY_GROUP_TOPIC_PREFIX
from mqlake.remoting.bodies.topic import MessageQueue

TOPICS_SHOWN = 1000


async def offsets(ask: Ask) -> dict[str, Any]:
    """The topics of a group whose offsets can be reset or copied, and how many members are connected."""
    admin, group = ask.admin, ask.need("group")
    await admin.check_group(group)
    topics, members = await asyncio.gather(topics_of(admin, group), connections(admin, group))
    own = [topic for topic in topics if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)]
    return {
        "group": group,
        "topic": ask.text("topic") or (own[0] if len(own) == 1 else ""),
        "topics": topics[:TOPICS_SHOWN],
        "members": len(members.connection_set),
        "change": None,
    }


async def change_offsets(ask: Ask) -> dict[str, Any]:
    """Shows for each queue where the group is and where it would be; with `confirm` moves it there."""
    ask.check_changes()
    change = await (_copy(ask) if ask.text("action") == "copy" else _reset(ask))
    return await offsets(ask) | {"change": change}


async def _reset(ask: Ask) -> dict[str, Any]:
    admin, group, topic = ask.admin, ask.need("group"), ask.need("topic")
    to = ask.text("to") or "time"
    if to == "time":
        ask.need("time")
        timestamp = ask.time("time") or 0
    elif to in ("earliest", "latest", "now"):
        timestamp = {"earliest": 0, "latest": END_OF_QUEUE, "now": now_ms()}[to]
    elif to == "offset":
        return await _reset_queue(ask)
    else:
        raise ConfigError(f"to: {to!r} is not one of earliest, latest, now, time and offset")
    before = await admin.consumed_offsets(group, topic)
    if ask.flag("confirm"):
        after = await admin.reset_offset_by_timestamp(topic, group, timestamp)
    else:
        after = await admin.offsets_at(topic, timestamp)
    # what `now` was when it was looked at is what is confirmed
    fields = {"action": "reset", "topic": topic, "to": "time" if to == "now" else to, "time": str(timestamp)}
    return _change(fields, before, after, done=ask.flag("confirm"), target=group)


async def _reset_queue(ask: Ask) -> dict[str, Any]:
    admin, group, topic = ask.admin, ask.need("group"), ask.need("topic")
    broker, slash, number = ask.need("queue").rpartition("/")
    if not slash or not number.isdecimal():
        raise ConfigError("queue: write it as broker/id")
    queue = MessageQueue(topic=topic, broker_name=broker, queue_id=int(number))
    stats = await admin.examine_topic_stats(topic)
    if queue not in stats.offset_table:
        known = [f"{each.broker_name}/{each.queue_id}" for each in stats.offset_table]
        raise UnknownKeyError(ask.text("queue"), known, what="queue")
    at = stats.offset_table[queue]
    ask.need("offset")
    offset = ask.number("offset", 0, at.min_offset, at.max_offset)
    before = await admin.consumed_offsets(group, topic)
    if ask.flag("confirm"):
        await admin.reset_offset_by_queue(queue, group, offset)
    fields = {
        "action": "reset",
        "topic": topic,
        "to": "offset",
        "queue": ask.text("queue"),
        "offset": str(offset),
    }
    done = ask.flag("confirm")
    return _change(fields, {queue: before.get(queue, 0)}, {queue: offset}, done=done, target=group)


async def _copy(ask: Ask) -> dict[str, Any]:
    """From the group of the page to `target`."""
    admin, source, target, topic = ask.admin, ask.need("group"), ask.need("target"), ask.need("topic")
    if source == target:
        raise ConfigError("target: this is the same group")
    await admin.check_group(target)
    after = await admin.consumed_offsets(source, topic)
    before = await admin.consumed_offsets(target, topic)
    if ask.flag("confirm"):
        await admin.clone_group_offset(source, target, topic, is_offline=True)
    fields = {"action": "copy", "topic": topic, "target": target}
    return _change(fields, before, after, done=ask.flag("confirm"), target=target)


def _change(
    fields: dict[str, str],
    before: dict[MessageQueue, int],
    after: dict[MessageQueue, int],
    *,
    done: bool,
    target: str,
) -> dict[str, Any]:
    """`fields` are what a form sends to confirm this."""
    moves = {queue: offset - before.get(queue, 0) for queue, offset in after.items()}
    rows = [
        {
            "broker": queue.broker_name,
            "queueId": queue.queue_id,
            "before": before.get(queue, 0),
            "after": offset,
            "moves": moves[queue],
        }
        for queue, offset in sorted(after.items())
    ]
    return {
        "fields": fields,
        "group": target,
        "done": done,
        "queues": rows,
        "again": sum(-move for move in moves.values() if move < 0),
        "skipped": sum(move for move in moves.values() if move > 0),
    }
