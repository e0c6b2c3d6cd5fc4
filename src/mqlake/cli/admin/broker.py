"""`mqlake admin cluster …` and `mqlake admin broker …`: who is there, in what state, with which settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import click

from mqlake.cli.admin.shared import admin_command, broker_option, cluster_option, need_target, targets
from mqlake.cli.options import confirm, yes_option
from mqlake.cli.output import note, print_fields, print_json, print_table, time_text
from mqlake.client.admin import Admin
from mqlake.errors import MqlakeError, RemotingError

# ---------------------------------------------------------------------- cluster


@click.group()
def cluster() -> None:
    """Clusters and their brokers."""


@cluster.command("list")
@cluster_option
@admin_command
async def cluster_list(admin: Admin, cluster: str | None, as_json: bool) -> None:
    """Every broker: address, version, messages in and out a second, how long it keeps them."""
    brokers = await admin.list_brokers(cluster)
    states = await asyncio.gather(*(_runtime(admin, broker.address) for broker in brokers))
    rows: list[dict[str, Any]] = [
        {
            "cluster": broker.cluster,
            "broker": broker.name,
            "brokerId": broker.broker_id,
            "address": broker.address,
            "version": state.get("brokerVersionDesc"),
            "inTps": _first_number(state.get("putTps")),
            "outTps": _first_number(state.get("getTransferredTps")),
            "commitLogDiskRatio": _first_number(state.get("commitLogDiskRatio")),
            "earliestMessageTimeStamp": int(state.get("earliestMessageTimeStamp") or -1),
            **({"error": failure} if failure else {}),
        }
        for broker, (state, failure) in zip(brokers, states, strict=True)
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        if "error" in row:
            note(f"{row['broker']} at {row['address']} does not tell of itself: {row['error']}")
    print_table(
        ("cluster", "broker", "id", "address", "version", "in/s", "out/s", "disk", "first message"),
        [
            (
                row["cluster"],
                row["broker"],
                str(row["brokerId"]),
                row["address"],
                *(
                    "?" * 4
                    if "error" in row
                    else (
                        row["version"] or "?",
                        f"{row['inTps']:.2f}",
                        f"{row['outTps']:.2f}",
                        f"{row['commitLogDiskRatio']:.1%}",
                    )
                ),
                time_text(row["earliestMessageTimeStamp"]),
            )
            for row in rows
        ],
    )


async def _runtime(admin: Admin, address: str) -> tuple[dict[str, str], str]:
    """What a broker tells of itself; when it does not, nothing, and why. (RocketMQ's fails in its first second.)"""
    try:
        return await admin.brokers.get_broker_runtime_info(address), ""
    except RemotingError as error:
        return {}, str(error)


def _first_number(text: str | None) -> float:
    """The rate of the last 10 s in `"1.5 1.4 1.3"`; 0 when there is none."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):  # a broker that has just started has no rates yet
        return 0.0


# ---------------------------------------------------------------------- broker


@click.group()
def broker() -> None:
    """State, settings and cleaning of brokers."""


@broker.command("status")
@broker_option
@cluster_option
@admin_command
async def broker_status(admin: Admin, broker: str | None, cluster: str | None, as_json: bool) -> None:
    """The broker's own figures, under RocketMQ's names."""
    await _print_tables(admin, broker, cluster, as_json, admin.brokers.get_broker_runtime_info)


@broker.command("config")
@broker_option
@cluster_option
@click.option("-k", "--key", help="This setting only.")
@admin_command
async def broker_config(
    admin: Admin, broker: str | None, cluster: str | None, key: str | None, as_json: bool
) -> None:
    """The broker's settings."""

    async def settings(address: str) -> dict[str, str]:
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
@click.option("-k", "--key", required=True, help="The setting, by RocketMQ's name.")
@click.option("-v", "--value", required=True, help="Its new value.")
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
    done = []
    for name, address in await targets(admin, broker, cluster):
        await do(address)
        done.append(name)
        if not as_json:
            click.echo(f"{name}: {what}")
    if as_json:
        print_json({"done": what, "brokers": done})


def _where(broker: str | None, cluster: str | None) -> str:
    """Whom a command is for, in a question."""
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
    """Delete commit log files older than fileReservedTime now, whatever the hour."""
    confirm(
        f"Delete log files older than fileReservedTime on {_where(broker, cluster)}", yes=yes, as_json=as_json
    )
    do = admin.brokers.delete_expired_commit_log
    await _each(admin, broker, cluster, as_json, do, "deletes expired files of the commit log")


@broker.command("clean-queues")
@broker_option
@cluster_option
@yes_option
@admin_command
async def clean_queues(
    admin: Admin, broker: str | None, cluster: str | None, yes: bool, as_json: bool
) -> None:
    """Delete what is left of consume queues whose messages are gone."""
    confirm(
        f"Delete consume queues whose messages are gone on {_where(broker, cluster)}",
        yes=yes,
        as_json=as_json,
    )
    do = admin.brokers.clean_expired_consume_queue
    await _each(admin, broker, cluster, as_json, do, "expired consume queues are deleted")


@broker.command("clean-topics")
@broker_option
@cluster_option
@yes_option
@admin_command
async def clean_topics(
    admin: Admin, broker: str | None, cluster: str | None, yes: bool, as_json: bool
) -> None:
    """Delete the queues of topics that the broker does not know any more."""
    confirm(f"Delete the queues of unknown topics on {_where(broker, cluster)}", yes=yes, as_json=as_json)
    do = admin.brokers.clean_unused_topic
    await _each(admin, broker, cluster, as_json, do, "queues of unknown topics are deleted")


@broker.command("consume-stats")
@broker_option
@cluster_option
@click.option("-o", "--ordered", is_flag=True, help="Only ordered topics.")
@admin_command
async def consume_stats(
    admin: Admin, broker: str | None, cluster: str | None, ordered: bool, as_json: bool
) -> None:
    """How far every group is in every queue of a broker."""
    rows: list[dict[str, Any]] = []
    for _, address in await targets(admin, broker, cluster):
        found = await admin.brokers.fetch_consume_stats_in_broker(address, is_order=ordered)
        for groups in found.consume_stats_list:
            rows += [
                {
                    "broker": queue.broker_name,
                    "group": group,
                    "topic": queue.topic,
                    "queueId": queue.queue_id,
                    "brokerOffset": offsets.broker_offset,
                    "consumerOffset": offsets.consumer_offset,
                    "behind": offsets.broker_offset - offsets.consumer_offset,
                    "lastTimestamp": offsets.last_timestamp,
                }
                for group, stats_list in groups.items()
                for stats in stats_list
                for queue, offsets in sorted(stats.offset_table.items())
            ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("broker", "group", "topic", "queue", "broker offset", "consumer offset", "behind", "last consumed"),
        [
            (
                row["broker"],
                row["group"],
                row["topic"],
                str(row["queueId"]),
                row["brokerOffset"],
                row["consumerOffset"],
                row["behind"],
                time_text(row["lastTimestamp"]),
            )
            for row in rows
        ],
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
@click.option("-b", "--broker", metavar="BROKER", required=True, help="The broker's name.")
@admin_command
async def wipe_write(admin: Admin, broker: str, as_json: bool) -> None:
    """Let clients send nothing more to a broker, before it is stopped."""
    await admin.broker_address(broker)
    await _change_write_perm(
        admin.name_servers.wipe_write_perm_of_broker, broker, as_json, "are no longer sent to"
    )


@broker.command("add-write")
@click.option("-b", "--broker", metavar="BROKER", required=True, help="The broker's name.")
@admin_command
async def add_write(admin: Admin, broker: str, as_json: bool) -> None:
    """Take wipe-write back."""
    await admin.broker_address(broker)
    await _change_write_perm(
        admin.name_servers.add_write_perm_of_broker, broker, as_json, "are sent to again"
    )
