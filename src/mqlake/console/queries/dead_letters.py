"""Dead letters of a group: look at them, send one or all back to its consumers, after a look at what would be sent.

    %DLQ%group ── copy ──▶ %RETRY%group ──▶ the members of this group alone, under the topic the message came from
                       └─▶ the topic it came from ──▶ every group of that topic

A dead letter stays where it is. How far "all" has come is the offset of the group CID_MQLAKE_REDRIVE in the topic of
the dead letters, so that the next "all" goes on after it, also from another console.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mqlake.client.admin import Admin
from mqlake.console.ask import Ask
from mqlake.console.jobs import Job
from mqlake.console.queries.groups import REDRIVE_GROUP
from mqlake.console.queries.messages import messages, pull_range, row_of
from mqlake.errors import ConfigError, MessageError
from mqlake.message import (
    DLQ_GROUP_TOPIC_PREFIX,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    RETRY_GROUP_TOPIC_PREFIX,
    Message,
    MessageExt,
    MessageSysFlag,
)
from mqlake.message.properties import (
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    STRING_PROPERTY,
)
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig, TopicStatsTable
from mqlake.remoting.bodies.route import MASTER_ID
from mqlake.remoting.bodies.topic import PERM_WRITE, MessageQueue

CHUNK = 32
SHOWN = 20
KEPT = {PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX}
"""RocketMQ's own properties that go with the copy; users' all do."""


async def dead_letters(ask: Ask) -> dict[str, Any]:
    """The dead letters of a group, newest first, and how many were not sent back yet."""
    admin, group = ask.admin, ask.need("group")
    await admin.check_group(group)
    topic = DLQ_GROUP_TOPIC_PREFIX + group
    job = ask.context.jobs.get(_job_name(group)) if ask.context.jobs is not None else None
    answer: dict[str, Any] = {
        "group": group,
        "topic": topic,
        "change": None,
        "job": job.state() if job else None,
    }
    if not await admin.topic_exists(topic):
        return answer | {"exists": False, "messages": [], "next": None, "waiting": 0, "total": 0}
    stats = await admin.examine_topic_stats(topic)
    waiting = sum(end - begin for begin, end in (await _waiting(admin, stats)).values())
    total = sum(max(0, at.max_offset - at.min_offset) for at in stats.offset_table.values())
    names = ("to", "skip", "rows", "text", "key", "tag", "from")
    shown = await messages(
        Ask({name: ask.values.get(name, "") for name in names} | {"topic": topic}, ask.context)
    )
    return (
        answer
        | {"exists": True, "waiting": waiting, "total": total}
        | {
            "messages": shown["messages"],
            "next": shown["next"],
        }
    )


async def redrive(ask: Ask) -> dict[str, Any]:
    """Shows what would be sent back: one message, or all that were not sent back yet; with `confirm` sends it."""
    ask.check_changes()
    group, where = ask.need("group"), ask.text("where") or "group"
    if where not in ("group", "topic"):
        raise ConfigError(f"where: {where!r} is neither group nor topic")
    await ask.admin.check_group(group)
    change = await (_all(ask, group, where) if ask.text("action") == "all" else _one(ask, group, where))
    page = Ask({"group": group}, ask.context)
    return await dead_letters(page) | {"change": change}


async def _one(ask: Ask, group: str, where: str) -> dict[str, Any]:
    queue = MessageQueue(
        topic=DLQ_GROUP_TOPIC_PREFIX + group, broker_name=ask.need("broker"), queue_id=ask.number("queue", 0)
    )
    letter = await ask.admin.message_at(queue, ask.number("offset", 0))
    fields = {
        "action": "one",
        "where": where,
        "broker": queue.broker_name,
        "queue": str(queue.queue_id),
        "offset": str(letter.queue_offset),
    }
    sent = redriven_message(letter, group, where)
    if ask.flag("confirm"):
        await _Sender(ask.admin).send(sent, letter.sys_flag)
    return {
        "fields": fields,
        "count": 1,
        "destinations": {sent.topic: 1},
        "sample": [row_of(letter, queue.broker_name)],
        "done": ask.flag("confirm"),
    }


async def _all(ask: Ask, group: str, where: str) -> dict[str, Any]:
    admin, topic = ask.admin, DLQ_GROUP_TOPIC_PREFIX + group
    if not await admin.topic_exists(topic):
        raise MessageError(f"{group} has no dead letters")
    ranges = await _waiting(admin, await admin.examine_topic_stats(topic))
    count = sum(end - begin for begin, end in ranges.values())
    fields = {"action": "all", "where": where}
    destinations: dict[str, int] = {}
    sample: list[dict[str, Any]] = []
    for queue, (begin, end) in ranges.items():
        if len(sample) < SHOWN and begin < end:
            for letter in await pull_range(admin, queue, begin, min(end, begin + SHOWN - len(sample))):
                sample.append(row_of(letter, queue.broker_name))
                to = redriven_message(letter, group, where).topic
                destinations[to] = destinations.get(to, 0) + 1
    if ask.flag("confirm"):
        assert ask.context.jobs is not None

        async def work(job: Job) -> int:
            return await _send_all(admin, group, where, ranges, job)

        ask.context.jobs.start(_job_name(group), work)
    return {
        "fields": fields,
        "count": count,
        "destinations": destinations,
        "sample": sample,
        "done": ask.flag("confirm"),
    }


def _job_name(group: str) -> str:
    return f"redrive {group}"


async def _send_all(
    admin: Admin, group: str, where: str, ranges: dict[MessageQueue, tuple[int, int]], job: Job
) -> int:
    """Each is sent before the offset passes it: after a failure none is missing, at most CHUNK come twice."""
    job.total = sum(end - begin for begin, end in ranges.values())
    await _make_group(admin)
    sender = _Sender(admin)
    for queue, (begin, end) in ranges.items():
        address = await admin.broker_address(queue.broker_name)
        while begin < end:
            following = min(begin + CHUNK, end)
            letters = await pull_range(admin, queue, begin, following)
            await asyncio.gather(
                *(sender.send(redriven_message(letter, group, where), letter.sys_flag) for letter in letters)
            )
            await admin.brokers.update_consumer_offset(
                address, REDRIVE_GROUP, queue.topic, queue.queue_id, following
            )
            job.done += following - begin
            begin = following
    return job.done


class _Sender:
    """Sends to the writable queues of each topic in turn; a topic's route is asked for once."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._places: dict[str, list[tuple[str, int]]] = {}
        self._turn = 0

    async def send(self, message: Message, sys_flag: int) -> None:
        """Sends a message with its body as it was stored; the flags of its record say how it is compressed."""
        if message.topic not in self._places:
            self._places[message.topic] = await self._find(message.topic)
        places = self._places[message.topic]
        self._turn += 1
        address, queue_id = places[self._turn % len(places)]
        compression = sys_flag & MessageSysFlag.COMPRESSED_FLAG
        if compression:
            compression |= MessageSysFlag.compression_type(sys_flag)
        await self._admin.brokers.send_message(address, message, queue_id, REDRIVE_GROUP, compression)

    async def _find(self, topic: str) -> list[tuple[str, int]]:
        route = await self._admin.examine_topic_route_info(topic)
        addresses = {data.broker_name: data.broker_addrs.get(MASTER_ID) for data in route.broker_datas}
        found = [
            (address, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_WRITE and (address := addresses.get(data.broker_name))
            for queue_id in range(data.write_queue_nums)
        ]
        if not found:
            raise MessageError(f"no broker takes messages of {topic}")
        return found


async def _make_group(admin: Admin) -> None:
    if REDRIVE_GROUP not in await admin.get_all_subscription_groups():
        await admin.create_subscription_group(SubscriptionGroupConfig(group_name=REDRIVE_GROUP))


async def _waiting(admin: Admin, stats: TopicStatsTable) -> dict[MessageQueue, tuple[int, int]]:
    """Queue → first and last + 1 of the dead letters that were not sent back yet."""
    found: dict[MessageQueue, tuple[int, int]] = {}
    brokers = {queue.broker_name for queue in stats.offset_table}
    topics = {queue.topic for queue in stats.offset_table}
    done: dict[MessageQueue, int] = {}
    for broker in brokers:
        address = await admin.broker_address(broker)
        for topic in topics:
            progress = await admin.brokers.get_consume_stats(address, REDRIVE_GROUP, topic)
            done |= {queue: at.consumer_offset for queue, at in progress.offset_table.items()}
    for queue, at in sorted(stats.offset_table.items()):
        begin = max(at.min_offset, min(done.get(queue, 0), at.max_offset))
        found[queue] = (begin, at.max_offset)
    return found


def redriven_message(letter: MessageExt, group: str, where: str) -> Message:
    """The message to send for a dead letter: its body, its keys, tag and id, and what users have put into it."""
    origin = letter.properties.get(PROPERTY_RETRY_TOPIC) or letter.properties.get(PROPERTY_DLQ_ORIGIN_TOPIC)
    if where == "topic" and not origin:
        raise MessageError(f"dead letter {letter.msg_id} does not say which topic it is from")
    properties = {
        name: value
        for name, value in letter.properties.items()
        if name in KEPT or name not in STRING_PROPERTY
    }
    topic = origin if where == "topic" and origin else RETRY_GROUP_TOPIC_PREFIX + group
    if where == "group" and origin:
        properties[PROPERTY_RETRY_TOPIC] = origin
    properties[PROPERTY_ORIGIN_MESSAGE_ID] = letter.properties.get(PROPERTY_ORIGIN_MESSAGE_ID, letter.msg_id)
    return Message(topic, letter.body, flag=letter.flag, properties=properties)
