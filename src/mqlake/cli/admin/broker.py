"""`mqlake admin cluster` and `mqlake admin broker`: brokers, their state and their settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import click

from mqlake.cli.admin.ha import ha, promote, replicas_text
from mqlake.cli.admin.shared import (
    admin_command,
    broker_option,
    cluster_option,
    listing_command,
    need_target,
    targets,
)
from mqlake.cli.options import confirm, yes_option
from mqlake.cli.output import note, print_fields, print_json, time_text
from mqlake.cli.table import Column, Table
from mqlake.client.admin import Admin, Broker
from mqlake.client.overview import ha_status, latest_rate, replicas_object, runtime_info
from mqlake.errors import MqlakeError
from mqlake.remoting.bodies.admin import HARuntimeInfo, OffsetWrapper
from mqlake.remoting.bodies.topic import MessageQueue

# ---------------------------------------------------------------------- cluster


@click.group()
def cluster() -> None:
    """Clusters and their brokers."""


@cluster.command("list")
@cluster_option
@listing_command
async def cluster_list(admin: Admin, cluster: str | None, as_json: bool) -> None:
    """List brokers: address, version, message rates, disk usage and oldest message."""
    brokers = await admin.list_brokers(cluster)
    states = await asyncio.gather(*(runtime_info(admin, broker.address) for broker in brokers))
    replicas = await asyncio.gather(*(ha_status(admin, broker.address) for broker in brokers))
    rows = [
        _BrokerState(broker, *state, ha) for broker, state, ha in zip(brokers, states, replicas, strict=True)
    ]
    if as_json:
        errors = [{"error": row.error} if row.error else {} for row in rows]
        print_json([shown | error for shown, error in zip(_BROKERS.objects(rows), errors, strict=True)])
        return
    for row in rows:
        if row.error:
            note(f"{row.broker.name} at {row.broker.address} does not report its state: {row.error}")
    _BROKERS.print(rows)


class _BrokerState(NamedTuple):
    broker: Broker
    state: dict[str, str]
    error: str
    ha: HARuntimeInfo | None


def _column(name: str, key: str, header: str, number_format: str) -> tuple[Column[_BrokerState], ...]:
    """A rate or ratio: a number in JSON; `?` in a table if the broker did not answer."""

    def value(row: _BrokerState) -> float:
        return latest_rate(row.state.get(key))

    def cell(row: _BrokerState) -> str:
        return "?" if row.error else format(value(row), number_format)

    return Column(name, value, None), Column("", cell, header)


_BROKERS: Table[_BrokerState] = Table(
    Column("cluster", lambda row: row.broker.cluster),
    Column("broker", lambda row: row.broker.name),
    Column("brokerId", lambda row: row.broker.broker_id, "id", str),
    Column("address", lambda row: row.broker.address),
    Column("version", lambda row: row.state.get("brokerVersionDesc"), show=lambda version: version or "?"),
    *_column("inTps", "putTps", "in/s", ".2f"),
    *_column("outTps", "getTransferredTps", "out/s", ".2f"),
    *_column("commitLogDiskRatio", "commitLogDiskRatio", "disk", ".1%"),
    Column("replicas", lambda row: replicas_object(row.ha), None),
    Column("", lambda row: replicas_text(row.ha), "replicas"),
    Column(
        "earliestMessageTimeStamp",
        lambda row: int(row.state.get("earliestMessageTimeStamp") or -1),
        "first message",
        time_text,
    ),
)


# ---------------------------------------------------------------------- broker


@click.group()
def broker() -> None:
    """Brokers: their state and settings, and cleaning up."""


@broker.command("status")
@broker_option
@cluster_option
@listing_command
async def broker_status(admin: Admin, broker: str | None, cluster: str | None, as_json: bool) -> None:
    """Show a broker's runtime figures, under RocketMQ's names."""
    await _print_tables(admin, broker, cluster, as_json, admin.brokers.get_broker_runtime_info)


@broker.command("config")
@broker_option
@cluster_option
@click.option("-k", "--key", help="Only this setting.")
@click.option(
    "--pending", is_flag=True, help="Only settings that were changed and count from the next start on."
)
@admin_command
async def broker_config(
    admin: Admin, broker: str | None, cluster: str | None, key: str | None, pending: bool, as_json: bool
) -> None:
    """Show a broker's settings."""

    async def settings(address: str) -> dict[str, str]:
        if pending:
            return await admin.brokers.get_pending_settings(address)
        found = await admin.brokers.get_broker_config(address)
        if key is None:
            return found
        if key not in found:
            raise MqlakeError(f"{address} has no setting {key!r}")
        return {key: found[key]}

    await _print_tables(admin, broker, cluster, as_json, settings)


async def _print_tables(
    admin: Admin,
    broker: str | None,
    cluster: str | None,
    as_json: bool,
    ask: Callable[[str], Awaitable[dict[str, str]]],
) -> None:
    """A table of keys and values for each broker."""
    tables = {name: await ask(address) for name, address in await targets(admin, broker, cluster)}
    if as_json:
        print_json(tables)
        return
    for number, (name, table) in enumerate(sorted(tables.items())):
        click.echo(("\n" if number else "") + name)
        print_fields(sorted(table.items()), indent=2)


@broker.command("set")
@broker_option
@cluster_option
@click.option("-k", "--key", required=True, help="Setting, by its RocketMQ name.")
@click.option("-v", "--value", required=True, help="New value.")
@admin_command
async def broker_set(
    admin: Admin, broker: str | None, cluster: str | None, key: str, value: str, as_json: bool
) -> None:
    """Change a setting of a running broker."""
    need_target(broker, cluster)
    await _each(
        admin,
        broker,
        cluster,
        as_json,
        lambda at: admin.brokers.update_broker_config(at, {key: value}),
        f"{key}={value}",
    )


async def _each(
    admin: Admin,
    broker: str | None,
    cluster: str | None,
    as_json: bool,
    do: Callable[[str], Awaitable[Any]],
    what: str,
) -> None:
    done, remarks = [], {}
    for name, address in await targets(admin, broker, cluster):
        remark = await do(address)
        done.append(name)
        if isinstance(remark, str) and remark:
            remarks[name] = remark
        if not as_json:
            click.echo(f"{name}: {what}" + (f" ({remarks[name]})" if name in remarks else ""))
    if as_json:
        print_json({"done": what, "brokers": done} | ({"remarks": remarks} if remarks else {}))


def _where(broker: str | None, cluster: str | None) -> str:
    """The brokers a command is for, in a question."""
    if broker:
        return f"broker {broker}"
    return f"every broker of {cluster}" if cluster else "every broker"


@broker.command("delete-expired-log")
@broker_option
@cluster_option
@yes_option
@admin_command
async def delete_expired_log(
    admin: Admin, broker: str | None, cluster: str | None, yes: bool, as_json: bool
) -> None:
    """Delete commit log files older than fileReservedTime now, regardless of deleteWhen."""
    confirm(
        f"Delete log files older than fileReservedTime on {_where(broker, cluster)}", yes=yes, as_json=as_json
    )
    do = admin.brokers.delete_expired_commit_log
    await _each(admin, broker, cluster, as_json, do, "deletes expired commit log files")


@broker.command("clean-queues")
@broker_option
@cluster_option
@yes_option
@admin_command
async def clean_queues(
    admin: Admin, broker: str | None, cluster: str | None, yes: bool, as_json: bool
) -> None:
    """Delete consume queue files whose messages are gone."""
    confirm(
        f"Delete consume queues whose messages are gone on {_where(broker, cluster)}",
        yes=yes,
        as_json=as_json,
    )
    do = admin.brokers.clean_expired_consume_queue
    await _each(admin, broker, cluster, as_json, do, "expired consume queues deleted")


@broker.command("clean-topics")
@broker_option
@cluster_option
@yes_option
@admin_command
async def clean_topics(
    admin: Admin, broker: str | None, cluster: str | None, yes: bool, as_json: bool
) -> None:
    """Delete the consume queues of topics that the broker no longer knows."""
    confirm(f"Delete the queues of unknown topics on {_where(broker, cluster)}", yes=yes, as_json=as_json)
    do = admin.brokers.clean_unused_topic
    await _each(admin, broker, cluster, as_json, do, "queues of unknown topics deleted")


@broker.command("consume-stats")
@broker_option
@cluster_option
@click.option("-o", "--ordered", is_flag=True, help="Only ordered topics.")
@admin_command
async def consume_stats(
    admin: Admin, broker: str | None, cluster: str | None, ordered: bool, as_json: bool
) -> None:
    """Show the progress of every group in every queue of a broker."""
    rows = []
    for _, address in await targets(admin, broker, cluster):
        found = await admin.brokers.fetch_consume_stats_in_broker(address, is_order=ordered)
        rows += [
            (group, queue, offsets)
            for groups in found.consume_stats_list
            for group, stats_list in groups.items()
            for stats in stats_list
            for queue, offsets in sorted(stats.offset_table.items())
        ]
    _CONSUME_STATS.show(rows, as_json=as_json)


_CONSUME_STATS: Table[tuple[str, MessageQueue, OffsetWrapper]] = Table(
    Column("broker", lambda row: row[1].broker_name),
    Column("group", lambda row: row[0]),
    Column("topic", lambda row: row[1].topic),
    Column("queueId", lambda row: row[1].queue_id, "queue", str),
    Column("brokerOffset", lambda row: row[2].broker_offset, "broker offset"),
    Column("consumerOffset", lambda row: row[2].consumer_offset, "consumer offset"),
    Column("behind", lambda row: row[2].behind),
    Column("beyond", lambda row: row[2].beyond, "beyond the end"),
    Column("lastTimestamp", lambda row: row[2].last_timestamp, "last consumed", time_text),
)


async def _change_write_perm(
    change: Callable[[str], Awaitable[dict[str, int]]], broker: str, as_json: bool, what: str
) -> None:
    counts = await change(broker)
    if as_json:
        print_json({"broker": broker, "topics": counts})
        return
    for address, count in counts.items():
        click.echo(f"{address}: {count} topics of {broker} {what}")


@broker.command("wipe-write")
@click.option("-b", "--broker", metavar="BROKER", required=True, help="Name of the broker.")
@admin_command
async def wipe_write(admin: Admin, broker: str, as_json: bool) -> None:
    """Stop clients from sending to a broker, before it is shut down."""
    await admin.broker_address(broker)
    await _change_write_perm(
        admin.name_servers.wipe_write_perm_of_broker, broker, as_json, "are no longer sent to"
    )


@broker.command("add-write")
@click.option("-b", "--broker", metavar="BROKER", required=True, help="Name of the broker.")
@admin_command
async def add_write(admin: Admin, broker: str, as_json: bool) -> None:
    """Let clients send to a broker again, after wipe-write."""
    await admin.broker_address(broker)
    await _change_write_perm(
        admin.name_servers.add_write_perm_of_broker, broker, as_json, "are sent to again"
    )


for _command in (ha, promote):
    broker.add_command(_command)
