"""Consumer groups: the list, lag by queue and over time, members, and subscriptions that do not agree."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from mqlake.base.rendering import as_object, count_text
from mqlake.client.admin import Admin
from mqlake.client.dead_letters import REDRIVE_GROUP
from mqlake.client.overview import connections, mismatches, reports
from mqlake.console.ask import Ask
from mqlake.console.trends import POINTS
from mqlake.errors import ConfigError, MqlakeError, ResponseError, UnknownKeyError
from mqlake.message import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX, validate_topic
from mqlake.message.groups import is_system_group
from mqlake.remoting.bodies.admin import ConsumeStats, SubscriptionGroupConfig
from mqlake.remoting.bodies.topic import MessageQueue

TOPICS_MAX = 50
"""Topics of a group that one page shows."""
RETRIES = 16
AT_ONCE = 16
MEMBERS_MAX = 64
"""Members that are asked what they do."""


async def groups(ask: Ask) -> dict[str, Any]:
    """Groups by name, or the furthest behind first, with members, rates and lag."""
    admin, sampler, part = ask.admin, ask.cluster.sampler, ask.text("filter").lower()
    trends = sampler.trends.groups
    known = await admin.get_all_subscription_groups()
    with_system = ask.flag("system")
    found = sorted(name for name in known if part in name.lower() and (with_system or is_users(name)))
    sort = "lag" if ask.text("sort") == "lag" else "name"
    if sort == "lag":
        found.sort(key=lambda name: -(trends[name].behind if name in trends else 0))
    names, place = ask.paged(found)
    letters = await dead_letter_counts(admin, names)

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
            "deadLetters": letters.get(name, 0),
        }

    return {
        "groups": await asyncio.gather(*map(row, names)),
        "filter": ask.text("filter"),
        "system": with_system,
        "change": None,
        "sort": sort,
        "sampledAt": sampler.sampled_at,
        "place": place,
    }


def is_users(group: str) -> bool:
    """False for groups of RocketMQ itself, and of the console."""
    return not is_system_group(group) and group != REDRIVE_GROUP


async def dead_letter_counts(admin: Admin, groups: Sequence[str]) -> dict[str, int | None]:
    """Group → its dead letters, of those that have a topic for them; None if the user may not see it."""
    known = await admin.fetch_all_topic_list()
    asked = [group for group in groups if DLQ_GROUP_TOPIC_PREFIX + group in known]
    turns = asyncio.Semaphore(AT_ONCE)

    async def count(group: str) -> int | None:
        async with turns:
            try:
                stats = await admin.examine_topic_stats(DLQ_GROUP_TOPIC_PREFIX + group)
            except MqlakeError:
                return None
        return sum(max(0, at.max_offset - at.min_offset) for at in stats.offset_table.values())

    return dict(zip(asked, await asyncio.gather(*map(count, asked)), strict=True))


async def change_groups(ask: Ask) -> dict[str, Any]:
    """Shows which group would be created or deleted; with `confirm` does it."""
    ask.check_changes()
    action = ask.need("action")
    if action not in ("create", "delete"):
        raise UnknownKeyError(action, ("create", "delete"), what="action")
    change = await (_create(ask) if action == "create" else _delete(ask))
    return await groups(Ask({}, ask.context)) | {"change": change | {"done": ask.flag("confirm")}}


async def _create(ask: Ask) -> dict[str, Any]:
    admin, name = ask.admin, ask.need("name")
    validate_topic(RETRY_GROUP_TOPIC_PREFIX + name)
    retries, in_order = ask.number("retries", RETRIES, -1, 1000), ask.flag("inOrder")
    if name in await admin.get_all_subscription_groups():
        raise ConfigError(f"there is a group {name} already")
    masters = await admin.masters()
    if ask.flag("confirm"):
        config = SubscriptionGroupConfig(
            group_name=name, retry_max_times=retries, consume_message_orderly=in_order
        )
        await admin.create_subscription_group(config)
    how = "in order, " if in_order else ""
    return {
        "text": f"create the group {name} ({how}{count_text(retries, 'retry', 'retries')}) on "
        + ", ".join(broker.name for broker in masters),
        "fields": {"action": "create", "name": name, "retries": str(retries)}
        | ({"inOrder": "true"} if in_order else {}),
        "warnings": [],
    }


async def _delete(ask: Ask) -> dict[str, Any]:
    admin, name = ask.admin, ask.need("name")
    if is_system_group(name):
        raise ConfigError(f"{name} is a group of RocketMQ itself")
    await admin.check_group(name)
    members, topics, letters = await asyncio.gather(
        connections(admin, name), topics_of(admin, name), dead_letter_counts(admin, [name])
    )
    own = [topic for topic in topics if topic != RETRY_GROUP_TOPIC_PREFIX + name]
    warnings = []
    if members.connection_set:
        warnings.append(
            f"{count_text(len(members.connection_set), 'member')} connected. Stop them first, or they create it again "
            "(autoCreateSubscriptionGroup)."
        )
    if own:
        warnings.append(f"Its offsets in {count_text(len(own), 'topic')} are lost.")
    if letters.get(name):
        warnings.append(f"{count_text(letters[name] or 0, 'dead letter')} can no longer be read.")
    if ask.flag("confirm"):
        await admin.delete_subscription_group(name, clean_offset=True)
    return {
        "text": f"delete the group {name} with its offsets, its retries and its dead letters",
        "fields": {"action": "delete", "name": name},
        "warnings": warnings,
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
    stats, members, letters = await asyncio.gather(
        _progress(admin, name, [topic] if topic else topics[:TOPICS_MAX]),
        connections(admin, name),
        dead_letter_counts(admin, [name]),
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
        "behind": sample.behind if sample and not topic and len(topics) > TOPICS_MAX else stats.behind,
        "consumeTps": stats.consume_tps,
        "deadLetters": letters.get(name, 0),
        "queues": [
            {"topic": queue.topic, "broker": queue.broker_name, "queueId": queue.queue_id}
            | as_object(at)
            | {"behind": at.behind, "beyond": at.beyond, "client": owners.get(queue)}
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
