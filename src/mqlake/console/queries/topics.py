"""Topics of a cluster: the list with rates and lag, one topic with its queues, groups and routes."""

from __future__ import annotations

import asyncio
from typing import Any

from mqlake.base.shown import as_object
from mqlake.client.admin import Admin
from mqlake.client.overview import behind, rate, users_topics
from mqlake.console.ask import Ask
from mqlake.console.trends import POINTS
from mqlake.errors import MqlakeError
from mqlake.remoting.bodies.route import MASTER_ID, TopicRouteData

AT_ONCE = 16
"""Topics that are asked about at the same time."""


async def topics(ask: Ask) -> dict[str, Any]:
    """Topics by name, or those that consumers are furthest behind in first, with rates and lag."""
    admin, sampler, part = ask.admin, ask.cluster.sampler, ask.text("filter").lower()
    lags = sampler.trends.lags
    names = await admin.fetch_all_topic_list()
    shown = names if ask.flag("system") else await users_topics(admin, names)
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
    }


def _masters_of(route: TopicRouteData) -> list[str]:
    return [data.broker_addrs[MASTER_ID] for data in route.broker_datas if MASTER_ID in data.broker_addrs]


async def _row(admin: Admin, name: str, lag: int | None) -> dict[str, Any]:
    """A topic in the list. `error`: it is deleted, or may not be seen."""
    try:
        route = await admin.examine_topic_route_info(name)
        addresses = _masters_of(route)
        in_rate, stats = await asyncio.gather(
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
        "inTps": in_rate[0],
        "in24h": in_rate[1],
        "messages": sum(max(0, at.max_offset - at.min_offset) for at in offsets),
        "lastUpdated": max((at.last_update_timestamp for at in offsets), default=0),
        "behind": lag,
    }


async def topic(ask: Ask) -> dict[str, Any]:
    """One topic: its queues on each broker, the groups that consume it, how far they are behind, rates over time."""
    admin, name, sampler = ask.admin, ask.need("topic"), ask.cluster.sampler
    route = await admin.examine_topic_route_info(name)
    sampler.watch(topic=name)
    stats, groups, in_rate = await asyncio.gather(
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
        "inTps": in_rate[0],
        "in24h": in_rate[1],
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
    out_rate, out_day = await rate(admin, _masters_of(route), "GROUP_GET_NUMS", f"{topic}@{group}")
    last = max((at.last_timestamp for at in progress.offset_table.values()), default=0)
    return {
        "group": group,
        "behind": behind(progress),
        "outTps": out_rate,
        "out24h": out_day,
        "lastConsumed": last,
    }
