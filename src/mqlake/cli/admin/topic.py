"""`mqlake admin topic` and `mqlake admin stats`: topics, their queues, and their traffic."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import click

from mqlake.base.clock import now_ms
from mqlake.base.rendering import count_text
from mqlake.cli.admin.shared import (
    admin_command,
    broker_option,
    cluster_option,
    listing_command,
    of_each,
    targets,
    topic_argument,
    topic_option,
)
from mqlake.cli.admin.static_topic import remap, static
from mqlake.cli.options import Whole, confirm, yes_option
from mqlake.cli.output import as_object, note, print_json, print_result, print_table, time_text
from mqlake.cli.table import Column, Table, or_dash, two_digits
from mqlake.client.admin import Admin
from mqlake.client.overview import DAY_MS, rate, stored_since
from mqlake.errors import NotFoundError, ResponseError
from mqlake.remoting.bodies.admin import TopicOffset
from mqlake.remoting.bodies.route import BrokerData
from mqlake.remoting.bodies.topic import QUEUES_MAX, MessageQueue, TopicConfig
from mqlake.remoting.codes import ResponseCode

PERMISSIONS = {"r": 4, "w": 2, "rw": 6, "2": 2, "4": 4, "6": 6}
PERM_HELP = "Permissions: r (4) to consume, w (2) to send."


@click.group()
def topic() -> None:
    """Create, list and delete topics; show their routes and offsets."""


topic.add_command(static)
topic.add_command(remap)


def _parse_perm(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else PERMISSIONS[value]


def perm_text(perm: int) -> str:
    return ("r" if perm & 4 else "-") + ("w" if perm & 2 else "-")


@topic.command("list")
@cluster_option
@click.option(
    "-a", "--all", "with_system", is_flag=True, help="Include system, retry and dead letter topics."
)
@listing_command
async def topic_list(admin: Admin, cluster: str | None, with_system: bool, as_json: bool) -> None:
    """List the names of all topics."""
    if cluster is None:
        names = await admin.fetch_all_topic_list()
    else:
        await admin.list_brokers(cluster)  # an unknown cluster is an error, not an empty list
        names = await admin.name_servers.get_topics_by_cluster(cluster)
    shown = sorted(names if with_system else await admin.users_topics(names))
    if as_json:
        print_json(shown)
    else:
        for name in shown:
            click.echo(name)


@topic.command("create")
@topic_argument
@cluster_option
@broker_option
@click.option("-q", "--queues", type=Whole(1, QUEUES_MAX), help="Number of queues on each broker.  [8]")
@click.option("-r", "--read-queues", type=Whole(1, QUEUES_MAX), help="Number of queues to consume from.")
@click.option("-w", "--write-queues", type=Whole(1, QUEUES_MAX), help="Number of queues to send to.")
@click.option(
    "-p",
    "--perm",
    type=click.Choice(list(PERMISSIONS)),
    default="rw",
    callback=_parse_perm,
    help=PERM_HELP + "  [rw]",
)
@click.option("-o", "--order", type=bool, default=False, help="Mark the topic as ordered.")
@click.option(
    "-a",
    "--attributes",
    default="",
    help="`+name=value` sets an attribute, `-name` removes it; separated by commas.",
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
    """Create or change a topic on every master; -c or -b limit it to some brokers."""
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
    names = [name for name, _ in brokers]
    text = f"{topic}: {config.write_queue_nums} queues, {perm_text(perm)} on {', '.join(names)}"
    print_result({"topic": as_object(config), "brokers": names}, text, as_json=as_json)


def parse_attributes(text: str) -> dict[str, str]:
    """`+message.type=FIFO,-queue.type` → {"+message.type": "FIFO", "-queue.type": ""}. click.BadParameter."""
    attributes = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        if not (name.startswith("+") and equals and value) and not (name.startswith("-") and not equals):
            raise click.BadParameter(f"{item!r}: use +name=value or -name", param_hint="--attributes")
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
    """Change a topic's permissions, and nothing else."""
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
    print_result({"topic": topic, "deleted": True}, f"{topic}: deleted", as_json=as_json)


@topic.command("route")
@topic_argument
@listing_command
async def topic_route(admin: Admin, topic: str, as_json: bool) -> None:
    """Show which brokers have a topic, with how many queues."""
    route = await admin.examine_topic_route_info(topic)
    if as_json:
        print_json(route)
        return
    brokers = {data.broker_name: data for data in route.broker_datas}
    rows = []
    for queues in sorted(route.queue_datas, key=lambda data: data.broker_name):
        data = brokers.get(queues.broker_name, BrokerData())
        addresses = " ".join(f"{number}={address}" for number, address in sorted(data.broker_addrs.items()))
        counts = (queues.read_queue_nums, queues.write_queue_nums, perm_text(queues.perm))
        rows.append((queues.broker_name, data.cluster or "-", *counts, addresses))
    print_table(("broker", "cluster", "read", "write", "perm", "addresses"), rows)


_QUEUES: Table[tuple[MessageQueue, TopicOffset]] = Table(
    Column("broker", lambda row: row[0].broker_name),
    Column("queueId", lambda row: row[0].queue_id, "queue", str),
    Column("minOffset", lambda row: row[1].min_offset, "min"),
    Column("maxOffset", lambda row: row[1].max_offset, "max"),
    Column("", lambda row: row[1].max_offset - row[1].min_offset, "messages"),
    Column("lastUpdated", lambda row: row[1].last_update_timestamp, "last message", time_text),
)


@topic.command("status")
@topic_argument
@listing_command
async def topic_status(admin: Admin, topic: str, as_json: bool) -> None:
    """Show the first and last offset of each queue, the time of its last message, and how many there are in all."""
    stats = await admin.examine_topic_stats(topic)
    rows = sorted(stats.offset_table.items())
    messages = sum(queue.max_offset - queue.min_offset for _, queue in rows)
    if as_json:
        found = {"topic": topic, "messages": messages, "putTps": stats.topic_put_tps}
        print_json(found | {"queues": _QUEUES.objects(rows)})
    else:
        _QUEUES.print(rows)
        click.echo(f"\n{count_text(messages, 'message')}, {stats.topic_put_tps:.2f} messages/s coming in")


@topic.command("clusters")
@topic_argument
@listing_command
async def topic_clusters(admin: Admin, topic: str, as_json: bool) -> None:
    """List the clusters that have a topic."""
    clusters = sorted(await admin.get_topic_cluster_list(topic))
    if as_json:
        print_json(clusters)
    else:
        for name in clusters:
            click.echo(name)


# ---------------------------------------------------------------------- stats


@click.command()
@topic_option
@click.option("-a", "--active", is_flag=True, help="Only topics with messages of the last 24 hours.")
@listing_command
async def stats(admin: Admin, topic: str | None, active: bool, as_json: bool) -> None:
    """Show messages in and out per topic and group: rates of the last minute, and messages of the last 24 hours.

    "in 24 h" are the messages stored since then that are still there. "out counted" is what the brokers have counted:
    since their start, at most a day back, without the latest minutes.
    """
    names = await admin.fetch_all_topic_list()
    if topic is not None:
        if topic not in names:
            raise NotFoundError(topic, names, what="topic")
        names = {topic}
    shown = sorted(names if topic is not None else await admin.users_topics(names))
    rates = await of_each(shown, lambda name: _topic_rates(admin, name))
    rows = list(itertools.chain.from_iterable(rates))
    if active:
        rows = [row for row in rows if row.sum_in]
    _RATES.show(rows, as_json=as_json)
    if not rows and not as_json:
        note("no topics")


@dataclass(frozen=True)
class _TopicRates:
    """A topic and one of its groups; without a group what only groups have is 0."""

    topic: str
    group: str | None
    behind: int
    tps_in: float
    tps_out: float
    sum_in: int
    sum_out: int


_RATES: Table[_TopicRates] = Table(
    Column("topic", lambda row: row.topic),
    Column("group", lambda row: row.group, show=or_dash),
    Column("behind", lambda row: row.behind, None),
    Column("", lambda row: row.behind if row.group else "-", "behind"),
    Column("inTps", lambda row: row.tps_in, "in/s", two_digits),
    Column("outTps", lambda row: row.tps_out, None),
    Column("", lambda row: two_digits(row.tps_out) if row.group else "-", "out/s"),
    Column("in24h", lambda row: row.sum_in, "in 24 h"),
    Column("outCounted", lambda row: row.sum_out, None),
    Column("", lambda row: row.sum_out if row.group else "-", "out counted"),
)


async def _topic_rates(admin: Admin, topic: str) -> list[_TopicRates]:
    """One row for each group that consumes the topic, or one without a group."""
    route = await admin.examine_topic_route_info(topic)
    addresses = [data.broker_addrs[0] for data in route.broker_datas if 0 in data.broker_addrs]
    tps_in, _ = await rate(admin, addresses, "TOPIC_PUT_NUMS", topic)
    sum_in = await stored_since(admin, await admin.examine_topic_stats(topic), now_ms() - DAY_MS)
    rows = []
    for group in sorted(await admin.query_topic_consume_by_who(topic)):
        progress = await admin.examine_consume_stats(group, topic)
        tps_out, sum_out = await rate(admin, addresses, "GROUP_GET_NUMS", f"{topic}@{group}")
        rows.append(_TopicRates(topic, group, progress.behind, tps_in, tps_out, sum_in, sum_out))
    return rows or [_TopicRates(topic, None, 0, tps_in, 0.0, sum_in, 0)]
