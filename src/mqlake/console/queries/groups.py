"""Consumer groups: the list, lag by queue and over time, members, and subscriptions that do not agree."""

from __future__ import annotations

import asyncio
from typing import Any

from mqlake.base.shown import as_object
from mqlake.client.admin import Admin
from mqlake.client.overview import behind, connections, mismatches, reports
from mqlake.console.ask import Ask
from mqlake.console.trends import POINTS
from mqlake.errors import MqlakeError, ResponseError, UnknownKeyError
from mqlake.remoting.bodies.admin import ConsumeStats
from mqlake.remoting.bodies.topic import MessageQueue

TOPICS_MAX = 50
"""Topics of a group that one page shows."""
MEMBERS_MAX = 64
"""Members that are asked what they do."""


async def groups(ask: Ask) -> dict[str, Any]:
    """Groups by name, or the furthest behind first, with members, rates and lag."""
    admin, sampler, part = ask.admin, ask.cluster.sampler, ask.text("filter").lower()
    trends = sampler.trends.groups
    known = await admin.get_all_subscription_groups()
    found = sorted(name for name in known if part in name.lower())
    sort = "lag" if ask.text("sort") == "lag" else "name"
    if sort == "lag":
        found.sort(key=lambda name: -(trends[name].behind if name in trends else 0))
    names, place = ask.paged(found)

    async def row(name: str) -> dict[str, Any]:
        sample = trends.get(name)
        config = next(iter(known[name].values()))
        try:
            members = await connections(admin, name)
        except MqlakeError as error:
            return {"name": name, "error": str(error)}
        return {
            "name": name,
            "error": "",
            "members": len(members.connection_set),
            "model": members.message_model.value if members.message_model else None,
            "type": members.consume_type.value if members.consume_type else None,
            "enabled": config.consume_enable,
            "inOrder": config.consume_message_orderly,
            "brokers": sorted(known[name]),
            "behind": sample.behind if sample else None,
            "rate": sample.rate if sample else None,
            "history": sample.history.values(POINTS) if sample else [],
        }

    return {
        "groups": await asyncio.gather(*map(row, names)),
        "filter": ask.text("filter"),
        "sort": sort,
        "sampledAt": sampler.sampled_at,
        "place": place,
    }


async def group(ask: Ask) -> dict[str, Any]:
    """One group: lag by queue and over time, members, settings, and where members' subscriptions differ."""
    admin, name, topic = ask.admin, ask.need("group"), ask.text("topic")
    known = await admin.get_all_subscription_groups()
    if name not in known:
        raise UnknownKeyError(name, known, what="group")
    sampler = ask.cluster.sampler
    sampler.watch(group=name)
    topics = await topics_of(admin, name)
    stats, members = await asyncio.gather(
        _progress(admin, name, [topic] if topic else topics[:TOPICS_MAX]), connections(admin, name)
    )
    infos = await reports(
        admin, name, [each.client_id or "" for each in members.connection_set[:MEMBERS_MAX]]
    )
    owners: dict[MessageQueue, str] = {
        queue: client for client, info in infos.items() if info is not None for queue in info.mq_table
    }
    rows, place = ask.paged(sorted(stats.offset_table.items()))
    sample, of_queues = sampler.trends.groups.get(name), sampler.trends.group_queues
    return {
        "group": name,
        "topic": topic,
        "behind": sample.behind if sample and not topic and len(topics) > TOPICS_MAX else behind(stats),
        "consumeTps": stats.consume_tps,
        "queues": [
            {"topic": queue.topic, "broker": queue.broker_name, "queueId": queue.queue_id}
            | as_object(at)
            | {"behind": at.broker_offset - at.consumer_offset, "client": owners.get(queue)}
            | {"history": of_queues[name, queue].history.values(POINTS) if (name, queue) in of_queues else []}
            for queue, at in rows
        ],
        "topics": topics[:TOPICS_MAX],
        "moreTopics": max(0, len(topics) - TOPICS_MAX),
        "members": [as_object(each) for each in members.connection_set],
        "consumeType": members.consume_type.value if members.consume_type else None,
        "messageModel": members.message_model.value if members.message_model else None,
        "subscriptions": [
            {"topic": each.topic, "type": each.expression_type, "expression": each.sub_string}
            for each in members.subscription_table.values()
        ],
        "mismatches": mismatches(infos),
        "settings": {broker: as_object(config) for broker, config in sorted(known[name].items())},
        "history": sample.history.values() if sample else [],
        "rates": sample.rates.values() if sample else [],
        "intervalSeconds": sampler.interval_s,
        "place": place,
    }


async def topics_of(admin: Admin, group: str) -> list[str]:
    """The topics in which a group has offsets, by name."""
    masters = await admin.masters()
    answers = await asyncio.gather(
        *(admin.brokers.query_topics_by_consumer(broker.address, group) for broker in masters),
        return_exceptions=True,
    )
    found: set[str] = set()
    for answer in answers:
        if isinstance(answer, ResponseError):  # a broker where it has none
            continue
        if isinstance(answer, BaseException):
            raise answer
        found |= answer
    return sorted(found)


async def _progress(admin: Admin, group: str, topics: list[str]) -> ConsumeStats:
    """The offsets in these topics. A group may have consumed thousands: it is asked about a few at a time."""
    total, turns = ConsumeStats(), asyncio.Semaphore(16)

    async def one(topic: str) -> ConsumeStats:
        async with turns:
            return await admin.examine_consume_stats(group, topic)

    for stats in await asyncio.gather(*map(one, topics)):
        total.offset_table |= stats.offset_table
        total.consume_tps += stats.consume_tps
    return total
