"""Dead letters of a group: look at them, send one or all back to its consumers, after a look at what would be sent."""

from __future__ import annotations

from typing import Any

from mqlake.client.dead_letters import GROUP, Redrive, waiting
from mqlake.console.ask import Ask
from mqlake.console.jobs import Job
from mqlake.console.queries.messages import messages, row_of
from mqlake.errors import MessageError
from mqlake.message import DLQ_GROUP_TOPIC_PREFIX
from mqlake.remoting.bodies.topic import MessageQueue

SHOWN = 20


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
    left = sum(end - begin for begin, end in (await waiting(admin, stats)).values())
    total = sum(max(0, at.max_offset - at.min_offset) for at in stats.offset_table.values())
    names = ("to", "skip", "rows", "text", "key", "tag", "from")
    shown = await messages(
        Ask({name: ask.values.get(name, "") for name in names} | {"topic": topic}, ask.context)
    )
    return (
        answer
        | {"exists": True, "waiting": left, "total": total}
        | {
            "messages": shown["messages"],
            "next": shown["next"],
        }
    )


async def redrive(ask: Ask) -> dict[str, Any]:
    """Shows what would be sent back: one message, or all that were not sent back yet; with `confirm` sends it."""
    ask.check_changes()
    group = ask.need("group")
    redriving = Redrive(ask.admin, group, ask.text("where") or GROUP)
    await ask.admin.check_group(group)
    change = await (_all(ask, redriving) if ask.text("action") == "all" else _one(ask, redriving))
    page = Ask({"group": group}, ask.context)
    return await dead_letters(page) | {"change": change}


async def _one(ask: Ask, redriving: Redrive) -> dict[str, Any]:
    queue = MessageQueue(
        topic=DLQ_GROUP_TOPIC_PREFIX + redriving.group,
        broker_name=ask.need("broker"),
        queue_id=ask.number("queue", 0),
    )
    letter = await ask.admin.message_at(queue, ask.number("offset", 0))
    fields = {
        "action": "one",
        "where": redriving.where,
        "broker": queue.broker_name,
        "queue": str(queue.queue_id),
        "offset": str(letter.queue_offset),
    }
    destination = redriving.message(letter).topic
    if ask.flag("confirm"):
        await redriving.send(letter)
    return {
        "fields": fields,
        "count": 1,
        "destinations": {destination: 1},
        "sample": [row_of(letter, queue.broker_name)],
        "done": ask.flag("confirm"),
    }


async def _all(ask: Ask, redriving: Redrive) -> dict[str, Any]:
    admin, group = ask.admin, redriving.group
    topic = DLQ_GROUP_TOPIC_PREFIX + group
    if not await admin.topic_exists(topic):
        raise MessageError(f"{group} has no dead letters")
    ranges = await waiting(admin, await admin.examine_topic_stats(topic))
    count = sum(end - begin for begin, end in ranges.values())
    fields = {"action": "all", "where": redriving.where}
    destinations: dict[str, int] = {}
    sample: list[dict[str, Any]] = []
    for queue, (begin, end) in ranges.items():
        if len(sample) < SHOWN and begin < end:
            for letter in await admin.messages_in(queue, begin, min(end, begin + SHOWN - len(sample))):
                sample.append(row_of(letter, queue.broker_name))
                to = redriving.message(letter).topic
                destinations[to] = destinations.get(to, 0) + 1
    if ask.flag("confirm"):
        assert ask.context.jobs is not None

        async def work(job: Job) -> int:
            return await redriving.send_all(ranges, job.progress)

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
