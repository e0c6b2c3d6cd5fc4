"""Views of a cluster for operators that take more than one request, or more than an answer as it is.

Rates, how far groups are behind, who consumes, how replication is. `mqlake admin` prints it, the
console shows it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mqlake.client.admin import QUEUES_AT_ONCE, Admin
from mqlake.errors import MqlakeError, RemotingError, ResponseError
from mqlake.message import RETRY_GROUP_TOPIC_PREFIX
from mqlake.remoting.bodies.admin import (
    ConsumerConnection,
    HARuntimeInfo,
    TopicOffset,
    TopicStatsTable,
)
from mqlake.remoting.bodies.client import ConsumerRunningInfo
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.static_topic import is_mock_broker

DAY_MS = 24 * 3600 * 1000


async def rate(admin: Admin, addresses: list[str], name: str, key: str) -> tuple[float, int]:
    """(messages per second in the last minute, messages counted) of all brokers together.

    Brokers count from their start on, at most a day back, and by samples: the latest minutes may be missing.
    """
    answers = await asyncio.gather(
        *(admin.brokers.view_broker_stats_data(address, name, key) for address in addresses),
        return_exceptions=True,
    )
    tps, total = 0.0, 0
    for answer in answers:
        if isinstance(answer, ResponseError):  # the broker has counted nothing
            continue
        if isinstance(answer, BaseException):
            raise answer
        if answer.stats_minute is not None:
            tps += answer.stats_minute.tps
        spans = (answer.stats_minute, answer.stats_hour, answer.stats_day)
        total += max((span.sum for span in spans if span is not None), default=0)
    return tps, total


async def stored_since(admin: Admin, stats: TopicStatsTable, since: int) -> int:
    """Messages of a topic that were stored at `since` (ms since 1970) or later and are still there."""
    addresses = {broker.name: broker.address for broker in await admin.masters()}
    turns = asyncio.Semaphore(QUEUES_AT_ONCE)

    async def of_queue(queue: MessageQueue, at: TopicOffset) -> int:
        if at.last_update_timestamp < since:
            return 0
        async with turns:
            address = addresses.get(queue.broker_name)
            if address is None and is_mock_broker(queue.broker_name):
                address = await admin.queue_address(queue)
            if address is None:
                return 0
            first = await admin.brokers.search_offset(address, queue, since)
        return max(0, at.max_offset - max(first, at.min_offset))

    return sum(await asyncio.gather(*(of_queue(*each) for each in stats.offset_table.items())))


async def connections(admin: Admin, group: str) -> ConsumerConnection:
    """The connected consumers, which may be none."""
    try:
        return await admin.examine_consumer_connection_info(group)
    except ResponseError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return ConsumerConnection()


async def connected_clients(admin: Admin, group: str) -> list[str]:
    return sorted(each.client_id or "" for each in (await connections(admin, group)).connection_set)


async def running_info(admin: Admin, group: str, client_id: str, *, jstack: bool) -> ConsumerRunningInfo:
    """Returns a consumer's report of itself. Raises the last broker's ResponseError if it is connected to none."""
    failure: MqlakeError | None = None
    for broker in await admin.masters():
        try:
            return await admin.brokers.get_consumer_running_info(
                broker.address, group, client_id, jstack=jstack
            )
        except ResponseError as error:
            failure = error
    raise failure or MqlakeError(f"{client_id} is not connected")


async def reports(admin: Admin, group: str, client_ids: list[str]) -> dict[str, ConsumerRunningInfo | None]:
    """Client → what it says of itself; None for one that does not answer."""

    async def report(client_id: str) -> ConsumerRunningInfo | None:
        try:
            return await running_info(admin, group, client_id, jstack=False)
        except MqlakeError:
            return None

    found = await asyncio.gather(*map(report, client_ids))
    return dict(zip(client_ids, found, strict=True))


def mismatches(infos: dict[str, ConsumerRunningInfo | None]) -> list[dict[str, Any]]:
    """Topics to which members of one group subscribe differently: a part of the messages then reaches nobody.

    Each with its `topic` and `members`: client → expression, None for a client that does not subscribe to it.
    """
    of_client = {
        client: {
            each.topic: f"{each.expression_type or 'TAG'} {each.sub_string}" for each in info.subscription_set
        }
        for client, info in infos.items()
        if info is not None
    }
    topics = sorted(
        {
            topic
            for table in of_client.values()
            for topic in table
            if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        }
    )
    found = []
    for topic in topics:
        members = {client: table.get(topic) for client, table in of_client.items()}
        if len(set(members.values())) > 1:
            found.append({"topic": topic, "members": members})
    return found


async def queue_owners(admin: Admin, group: str) -> dict[MessageQueue, str]:
    """Queue → client, as the connected consumers report it."""
    found: dict[MessageQueue, str] = {}
    for client_id in await connected_clients(admin, group):
        info = await running_info(admin, group, client_id, jstack=False)
        found.update(dict.fromkeys(info.mq_table, client_id))
    return found


async def runtime_info(admin: Admin, address: str) -> tuple[dict[str, str], str]:
    """(runtime info, error): one of them is empty. (RocketMQ's brokers fail to answer in their first second.)"""
    try:
        return await admin.brokers.get_broker_runtime_info(address), ""
    except RemotingError as error:
        return {}, str(error)


def latest_rate(text: str | None) -> float:
    """The rate of the last 10 s in `"1.5 1.4 1.3"`; 0 if there is none."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):  # a broker that has just started has no rates yet
        return 0.0


async def ha_status(admin: Admin, address: str) -> HARuntimeInfo | None:
    """907; None if the broker does not answer it."""
    try:
        return await admin.brokers.get_broker_ha_status(address)
    except (RemotingError, ResponseError):
        return None


def slave_lag(info: HARuntimeInfo) -> int:
    """Returns the lag of a slave; -1 if the master's end is not known (RocketMQ's slave does not report it)."""
    end = info.master_commit_log_max_offset
    return max(end - info.ha_client_runtime_info.max_offset, 0) if end > 0 else -1


def replicas_object(info: HARuntimeInfo | None) -> dict[str, Any] | None:
    """For JSON: the slaves of a master, or how far a slave is."""
    if info is None:
        return None
    if info.master:
        return {
            "inSync": info.in_sync_slave_nums,
            "slaves": [
                {"address": each.addr, "lagBytes": each.diff, "inSync": each.in_sync}
                for each in info.ha_connection_info
            ],
        }
    client = info.ha_client_runtime_info
    return {"masterAddress": client.master_addr, "maxOffset": client.max_offset, "lagBytes": slave_lag(info)}
