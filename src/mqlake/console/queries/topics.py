"""Topics of a cluster: the list with rates and lag, one topic with its queues, groups and routes."""

from __future__ import annotations

import asyncio
from typing import Any

from mqlake.base.clock import now_ms
from mqlake.base.rendering import as_object, count_text
from mqlake.client.admin import Admin
from mqlake.client.overview import DAY_MS, rate, stored_since
from mqlake.console.ask import Ask
from mqlake.console.trends import POINTS
from mqlake.errors import ConfigError, MqlakeError, UnknownKeyError
from mqlake.message import is_system_topic, validate_topic
from mqlake.remoting.bodies.route import MASTER_ID, TopicRouteData
from mqlake.remoting.bodies.topic import QUEUES_MAX

QUEUES = 8
TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
AT_ONCE = 16
"""Topics that are asked about at the same time."""


async def topics(ask: Ask) -> dict[str, Any]:
    """Topics by name, or those that consumers are furthest behind in first, with rates and lag."""
    admin, sampler, part = ask.admin, ask.cluster.sampler, ask.text("filter").lower()
    lags = sampler.trends.lags
    names = await admin.fetch_all_topic_list()
    shown = names if ask.flag("system") else await admin.users_topics(names)
    found = sorted(name for name in shown if part in name.lower())
    sort = "lag" if ask.text("sort") == "lag" else "name"
    if sort == "lag":
        found.sort(key=lambda name: -lags.get(name, 0))
    rows, place = ask.paged(found)
    turns = asyncio.Semaphore(AT_ONCE)

    async def row(name: str) -> dict[str, Any]:
        async with turns:
            return await _row(admin, name, lags.get(name))

    return {
        "topics": await asyncio.gather(*map(row, rows)),
        "filter": ask.text("filter"),
        "system": ask.flag("system"),
        "sort": sort,
        "sampledAt": sampler.sampled_at,
        "place": place,
        "change": None,
    }


async def change_topics(ask: Ask) -> dict[str, Any]:
    """Shows what would be created or deleted; with `confirm` does it."""
    ask.check_changes()
    action = ask.need("action")
    if action not in ("create", "delete"):
        raise UnknownKeyError(action, ("create", "delete"), what="action")
    change = await (_create(ask) if action == "create" else _delete(ask))
    return await topics(Ask({}, ask.context)) | {"change": change | {"done": ask.flag("confirm")}}


async def _create(ask: Ask) -> dict[str, Any]:
    admin, name = ask.admin, ask.need("name")
    validate_topic(name)
    queues = ask.number("queues", QUEUES, 1, QUEUES_MAX)
    kind = (ask.text("type") or TYPES[0]).upper()
    if kind not in TYPES:
        raise UnknownKeyError(kind, TYPES, what="type")
    if name in await admin.fetch_all_topic_list():
        raise ConfigError(f"there is a topic {name} already")
    masters = await admin.masters()
    if ask.flag("confirm"):
        attributes = {} if kind == TYPES[0] else {"+message.type": kind}
        await admin.create_topic(name, queues=queues, attributes=attributes)
    what = "" if kind == TYPES[0] else f" for {kind} messages"
    return {
        "text": f"create the topic {name}{what} with {count_text(queues, 'queue')} on "
        + ", ".join(broker.name for broker in masters),
        "fields": {"action": "create", "name": name, "queues": str(queues), "type": kind},
        "warnings": [],
    }


async def _delete(ask: Ask) -> dict[str, Any]:
    admin, name = ask.admin, ask.need("name")
    if is_system_topic(name):
        raise ConfigError(f"{name} is a topic of RocketMQ itself")
    stats = await admin.examine_topic_stats(name)
    count = sum(max(0, at.max_offset - at.min_offset) for at in stats.offset_table.values())
    groups = sorted(await admin.query_topic_consume_by_who(name))
    warnings = [f"{count_text(count, 'message')} can no longer be read."] if count else []
    if groups:
        shown = ", ".join(groups[:10]) + (", …" if len(groups) > 10 else "")
        warnings.append(f"The offsets of {count_text(len(groups), 'group')} in it are lost: {shown}.")
    if ask.flag("confirm"):
        await admin.delete_topic(name)
    return {
        "text": f"delete the topic {name} on every broker",
        "fields": {"action": "delete", "name": name},
        "warnings": warnings,
    }


def _masters_of(route: TopicRouteData) -> list[str]:
    return [data.broker_addrs[MASTER_ID] for data in route.broker_datas if MASTER_ID in data.broker_addrs]


async def _row(admin: Admin, name: str, lag: int | None) -> dict[str, Any]:
    """A topic in the list. `error`: it is deleted, or may not be seen."""
    try:
        route = await admin.examine_topic_route_info(name)
        addresses = _masters_of(route)
        (in_rate, _), stats = await asyncio.gather(
            rate(admin, addresses, "TOPIC_PUT_NUMS", name), admin.examine_topic_stats(name)
        )
    except MqlakeError as error:
        return {"name": name, "error": str(error)}
    offsets = stats.offset_table.values()
    return {
        "name": name,
        "error": "",
        "queues": sum(data.write_queue_nums for data in route.queue_datas),
        "brokers": sorted(data.broker_name for data in route.queue_datas),
        "perm": max((data.perm for data in route.queue_datas), default=0),
        "inTps": in_rate,
        "messages": sum(max(0, at.max_offset - at.min_offset) for at in offsets),
        "lastUpdated": max((at.last_update_timestamp for at in offsets), default=0),
        "behind": lag,
    }


async def topic(ask: Ask) -> dict[str, Any]:
    """One topic: its queues on each broker, the groups that consume it, how far they are behind, rates over time."""
    admin, name, sampler = ask.admin, ask.need("topic"), ask.cluster.sampler
    route = await admin.examine_topic_route_info(name)
    sampler.watch(topic=name)
    stats, groups, (in_rate, _) = await asyncio.gather(
        admin.examine_topic_stats(name),
        admin.query_topic_consume_by_who(name),
        rate(admin, _masters_of(route), "TOPIC_PUT_NUMS", name),
    )
    queues = sorted(stats.offset_table.items())
    rows, place = ask.paged(queues)
    trends = sampler.trends
    trend = trends.topics.get(name)
    return {
        "topic": name,
        "inTps": in_rate,
        "in24h": await stored_since(admin, stats, now_ms() - DAY_MS),
        "messages": sum(max(0, at.max_offset - at.min_offset) for _, at in queues),
        "queues": [
            {"broker": queue.broker_name, "queueId": queue.queue_id}
            | as_object(at)
            | {"messages": max(0, at.max_offset - at.min_offset)}
            | {"rates": trends.queues[queue].rates.values(POINTS) if queue in trends.queues else []}
            for queue, at in rows
        ],
        "groups": await asyncio.gather(
            *(_group(admin, name, group, route) for group in sorted(groups)[:100])
        ),
        "moreGroups": max(0, len(groups) - 100),
        "rates": trend.rates.values() if trend else [],
        "history": trend.history.values() if trend else [],
        "intervalSeconds": sampler.interval_s,
        "routes": [as_object(data) for data in route.queue_datas],
        "place": place,
    }


async def _group(admin: Admin, topic: str, group: str, route: TopicRouteData) -> dict[str, Any]:
    progress = await admin.examine_consume_stats(group, topic)
    out_rate, _ = await rate(admin, _masters_of(route), "GROUP_GET_NUMS", f"{topic}@{group}")
    last = max((at.last_timestamp for at in progress.offset_table.values()), default=0)
    return {
        "group": group,
        "behind": progress.behind,
        "outTps": out_rate,
        "lastConsumed": last,
    }
