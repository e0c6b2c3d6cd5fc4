"""`mqlake admin topic …` and `mqlake admin stats`: topics, their queues, and how much goes through them."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from mqlake.cli.admin.shared import (
    admin_command,
    broker_option,
    cluster_option,
    targets,
    topic_argument,
    topic_option,
)
from mqlake.cli.options import confirm, yes_option
from mqlake.cli.output import as_object, note, print_json, print_table, time_text
from mqlake.client.admin import Admin
from mqlake.errors import ResponseError, UnknownKeyError
from mqlake.message import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX, is_system_topic
from mqlake.remoting.bodies.topic import QUEUES_MAX, TopicConfig
from mqlake.remoting.codes import ResponseCode

PERMISSIONS = {"r": 4, "w": 2, "rw": 6, "2": 2, "4": 4, "6": 6}
PERM_HELP = "What may be done with its queues: r (4) consume, w (2) send."
REPLY_TOPIC_POSTFIX = "_REPLY_TOPIC"


@click.group()
def topic() -> None:
    """Create, list, delete topics; where they are, how full."""


def _parse_perm(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else PERMISSIONS[value]


def perm_text(perm: int) -> str:
    return ("r" if perm & 4 else "-") + ("w" if perm & 2 else "-")


@topic.command("list")
@cluster_option
@click.option(
    "-a", "--all", "with_system", is_flag=True, help="Also the system's, retry and dead letter topics."
)
@admin_command
async def topic_list(admin: Admin, cluster: str | None, with_system: bool, as_json: bool) -> None:
    """The names of all topics."""
    if cluster is None:
        names = await admin.fetch_all_topic_list()
    else:
        await admin.list_brokers(cluster)  # an unknown cluster is an error, not an empty list
        names = await admin.name_servers.get_topics_by_cluster(cluster)
    shown = sorted(names if with_system else await _users_topics(admin, names))
    if as_json:
        print_json(shown)
    else:
        for name in shown:
            click.echo(name)


async def _users_topics(admin: Admin, names: set[str]) -> set[str]:
    """Without those that servers make for themselves or for groups."""
    own = await admin.name_servers.get_system_topic_list_from_ns()
    prefixes = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)
    return {
        name
        for name in names - own
        if not (is_system_topic(name) or name.startswith(prefixes) or name.endswith(REPLY_TOPIC_POSTFIX))
    }


@topic.command("create")
@topic_argument
@cluster_option
@broker_option
@click.option("-q", "--queues", type=click.IntRange(1, QUEUES_MAX), help="Queues on each broker.  [8]")
@click.option("-r", "--read-queues", type=click.IntRange(1, QUEUES_MAX), help="Queues that can be read.")
@click.option("-w", "--write-queues", type=click.IntRange(1, QUEUES_MAX), help="Queues that can be written.")
@click.option(
    "-p",
    "--perm",
    type=click.Choice(list(PERMISSIONS)),
    default="rw",
    callback=_parse_perm,
    help=PERM_HELP + "  [rw]",
)
@click.option("-o", "--order", type=bool, default=False, help="Mark it as an ordered topic.")
@click.option(
    "-a", "--attributes", default="", help="`+name=value` sets, `-name` drops; commas between several."
)
@admin_command
async def topic_create(
    admin: Admin,
    topic: str,
    cluster: str | None,
    broker: str | None,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: int,
    order: bool,
    attributes: str,
    as_json: bool,
) -> None:
    """Create a topic on every master, or change it; -c or -b hold it to some brokers."""
    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=read_queues or queues or write_queues or 8,
        write_queue_nums=write_queues or queues or read_queues or 8,
        perm=perm,
        order=order,
        attributes=parse_attributes(attributes),
    )
    brokers = await targets(admin, broker, cluster)
    for _, address in brokers:
        await admin.brokers.create_topic(address, config)
    if as_json:
        print_json({"topic": as_object(config), "brokers": [name for name, _ in brokers]})
    else:
        queues_text = f"{config.write_queue_nums} queues, {perm_text(perm)}"
        click.echo(f"{topic}: {queues_text} on {', '.join(name for name, _ in brokers)}")


def parse_attributes(text: str) -> dict[str, str]:
    """`+message.type=FIFO,-queue.type` → {"+message.type": "FIFO", "-queue.type": ""}. click.BadParameter."""
    attributes = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        if not (name.startswith("+") and equals and value) and not (name.startswith("-") and not equals):
            raise click.BadParameter(f"{item!r}: +name=value or -name is needed", param_hint="--attributes")
        attributes[name] = value
    return attributes


@topic.command("perm")
@topic_argument
@cluster_option
@broker_option
@click.option(
    "-p", "--perm", type=click.Choice(list(PERMISSIONS)), required=True, callback=_parse_perm, help=PERM_HELP
)
@admin_command
async def topic_perm(
    admin: Admin, topic: str, cluster: str | None, broker: str | None, perm: int, as_json: bool
) -> None:
    """Change what may be done with a topic's queues; all else of it stays."""
    await admin.examine_topic_route_info(topic)
    changed = []
    for name, address in await targets(admin, broker, cluster):
        try:
            config = await admin.brokers.get_topic_config(address, topic)
        except ResponseError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST or broker:
                raise
            continue
        changed.append({"broker": name, "before": perm_text(config.perm), "now": perm_text(perm)})
        config.perm = perm
        config.attributes = {}  # in this request attributes are changes
        await admin.brokers.create_topic(address, config)
    if as_json:
        print_json(changed)
    else:
        for change in changed:
            click.echo(f"{topic} on {change['broker']}: {change['before']} → {change['now']}")


@topic.command("delete")
@topic_argument
@cluster_option
@yes_option
@admin_command
async def topic_delete(admin: Admin, topic: str, cluster: str | None, yes: bool, as_json: bool) -> None:
    """Delete a topic with all its messages and the offsets of its consumers."""
    await admin.examine_topic_route_info(topic)
    place = f" on cluster {cluster}" if cluster else ""
    confirm(f"Delete topic {topic} with all its messages{place}", yes=yes, as_json=as_json)
    await admin.delete_topic(topic, cluster)
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        click.echo(f"{topic}: deleted")


@topic.command("route")
@topic_argument
@admin_command
async def topic_route(admin: Admin, topic: str, as_json: bool) -> None:
    """Which brokers have a topic, and how many queues."""
    route = await admin.examine_topic_route_info(topic)
    if as_json:
        print_json(route)
        return
    brokers = {data.broker_name: data for data in route.broker_datas}
    rows = []
    for queues in sorted(route.queue_datas, key=lambda data: data.broker_name):
        data = brokers.get(queues.broker_name)
        addresses = sorted(data.broker_addrs.items()) if data is not None else []
        rows.append(
            (
                queues.broker_name,
                (data.cluster if data is not None else None) or "-",
                queues.read_queue_nums,
                queues.write_queue_nums,
                perm_text(queues.perm),
                " ".join(f"{number}={address}" for number, address in addresses),
            )
        )
    print_table(("broker", "cluster", "read", "write", "perm", "addresses"), rows)


@topic.command("status")
@topic_argument
@admin_command
async def topic_status(admin: Admin, topic: str, as_json: bool) -> None:
    """First and last offset of every queue, and when the last message came."""
    stats = await admin.examine_topic_stats(topic)
    rows: list[dict[str, Any]] = [
        {
            "broker": queue.broker_name,
            "queueId": queue.queue_id,
            "minOffset": offsets.min_offset,
            "maxOffset": offsets.max_offset,
            "lastUpdated": offsets.last_update_timestamp,
        }
        for queue, offsets in sorted(stats.offset_table.items())
    ]
    if as_json:
        print_json({"topic": topic, "putTps": stats.topic_put_tps, "queues": rows})
        return
    print_table(
        ("broker", "queue", "min", "max", "messages", "last message"),
        [
            (
                row["broker"],
                str(row["queueId"]),
                row["minOffset"],
                row["maxOffset"],
                row["maxOffset"] - row["minOffset"],
                time_text(row["lastUpdated"]),
            )
            for row in rows
        ],
    )


@topic.command("clusters")
@topic_argument
@admin_command
async def topic_clusters(admin: Admin, topic: str, as_json: bool) -> None:
    """The clusters that have a topic."""
    clusters = sorted(await admin.get_topic_cluster_list(topic))
    if as_json:
        print_json(clusters)
    else:
        for name in clusters:
            click.echo(name)


# ---------------------------------------------------------------------- stats


@click.command()
@topic_option
@click.option("-a", "--active", is_flag=True, help="Only topics that messages came into today.")
@admin_command
async def stats(admin: Admin, topic: str | None, active: bool, as_json: bool) -> None:
    """Messages in and out, for every topic and group: rates of the last minute, sums of the last day."""
    names = await admin.fetch_all_topic_list()
    if topic is not None:
        if topic not in names:
            raise UnknownKeyError(topic, names, what="topic")
        names = {topic}
    rows = []
    for name in sorted(names if topic is not None else await _users_topics(admin, names)):
        rows += await _topic_rows(admin, name)
    if active:
        rows = [row for row in rows if row["in24h"]]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("topic", "group", "behind", "in/s", "out/s", "in 24 h", "out 24 h"),
        [
            (
                row["topic"],
                row["group"] or "-",
                row["behind"] if row["group"] else "-",
                f"{row['inTps']:.2f}",
                f"{row['outTps']:.2f}" if row["group"] else "-",
                row["in24h"],
                row["out24h"] if row["group"] else "-",
            )
            for row in rows
        ],
    )
    if not rows:
        note("no topics")


async def _topic_rows(admin: Admin, topic: str) -> list[dict[str, Any]]:
    """One row for each group that consumes the topic, or one without a group."""
    route = await admin.examine_topic_route_info(topic)
    addresses = [data.broker_addrs[0] for data in route.broker_datas if 0 in data.broker_addrs]
    in_tps, in_sum = await _rate(admin, addresses, "TOPIC_PUT_NUMS", topic)
    rows = []
    groups: list[str | None] = [*sorted(await admin.query_topic_consume_by_who(topic))]
    for group in groups or [None]:
        row: dict[str, Any] = {"topic": topic, "group": group, "behind": 0, "inTps": in_tps, "outTps": 0.0}
        row |= {"in24h": in_sum, "out24h": 0}
        if group is not None:
            progress = await admin.examine_consume_stats(group, topic)
            row["behind"] = sum(o.broker_offset - o.consumer_offset for o in progress.offset_table.values())
            row["outTps"], row["out24h"] = await _rate(admin, addresses, "GROUP_GET_NUMS", f"{topic}@{group}")
        rows.append(row)
    return rows


async def _rate(admin: Admin, addresses: list[str], name: str, key: str) -> tuple[float, int]:
    """(a second within the last minute, in the last day), of all brokers together."""
    answers = await asyncio.gather(
        *(admin.brokers.view_broker_stats_data(address, name, key) for address in addresses),
        return_exceptions=True,
    )
    tps, total = 0.0, 0
    for answer in answers:
        if isinstance(answer, ResponseError):  # nothing was counted there
            continue
        if isinstance(answer, BaseException):
            raise answer
        if answer.stats_minute is not None and answer.stats_day is not None:
            tps += answer.stats_minute.tps
            total += answer.stats_day.sum
    return tps, total
