"""`mqlake admin group` and `mqlake admin producer`: consumer groups, their offsets, and connected clients."""

from __future__ import annotations

import datetime
import enum
from typing import Any, NamedTuple

import click

from mqlake.base.clock import now_ms
from mqlake.base.rendering import count_text
from mqlake.cli.admin.shared import (
    admin_command,
    broker_option,
    cluster_option,
    group_argument,
    listing_command,
    of_each,
    optional_group_argument,
    targets,
    topic_option,
)
from mqlake.cli.options import Whole, confirm, time_ms, yes_option
from mqlake.cli.output import as_object, note, print_fields, print_json, print_result, print_table, time_text
from mqlake.cli.table import Column, Table, or_dash, two_digits
from mqlake.client.admin import END_OF_QUEUE, Admin
from mqlake.client.overview import (
    connected_clients,
    connections,
    mismatches,
    queue_owners,
    reports,
    running_info,
)
from mqlake.remoting.bodies.admin import (
    Connection,
    ConsumerConnection,
    ConsumeStats,
    OffsetWrapper,
    ProducerInfo,
    SubscriptionGroupConfig,
)
from mqlake.remoting.bodies.client import (
    ConsumerRunningInfo,
    ConsumeStatus,
    MessageRequestMode,
    ProcessQueueInfo,
    SubscriptionData,
)
from mqlake.remoting.bodies.topic import MessageQueue

MQADMIN_TIME = "%Y-%m-%d#%H:%M:%S:%f"


@click.group()
def group() -> None:
    """Consumer groups: their settings, progress, clients and offsets."""


# ---------------------------------------------------------------------- settings


@group.command("list")
@cluster_option
@listing_command
async def group_list(admin: Admin, cluster: str | None, as_json: bool) -> None:
    """List all groups with their main settings and their brokers."""
    groups = await admin.get_all_subscription_groups(cluster)
    if as_json:
        print_json({name: as_object(configs) for name, configs in sorted(groups.items())})
        return
    rows = []
    for name, configs in sorted(groups.items()):
        config = next(iter(configs.values()))
        rows.append(
            (name, _mode(config), config.retry_max_times, config.retry_queue_nums, ", ".join(sorted(configs)))
        )
    print_table(("group", "consumes", "retries", "retry queues", "brokers"), rows)


def _mode(config: SubscriptionGroupConfig) -> str:
    if not config.consume_enable:
        return "no"
    return "in order" if config.consume_message_orderly else "yes"


@group.command("config")
@group_argument
@admin_command
async def group_config(admin: Admin, group: str, as_json: bool) -> None:
    """Show the settings of a group on each broker."""
    await admin.check_group(group)
    configs = (await admin.get_all_subscription_groups())[group]
    if as_json:
        print_json(configs)
        return
    for number, (broker, config) in enumerate(sorted(configs.items())):
        click.echo(("\n" if number else "") + broker)
        fields = as_object(config)
        print_fields([(key, _plain(value)) for key, value in fields.items()], indent=2)


def _plain(value: Any) -> str:
    return "-" if value is None or value == {} else str(value)


@group.command("create")
@group_argument
@cluster_option
@broker_option
@click.option("-s", "--consume", type=bool, help="Allow the group to consume.  [true]")
@click.option("-m", "--from-min", type=bool, help="Allow it to start from the first message.  [true]")
@click.option("-d", "--broadcast", type=bool, help="Allow broadcasting.  [true]")
@click.option("-o", "--orderly", type=bool, help="Mark the group as consuming in order.  [false]")
@click.option(
    "-q", "--retry-queues", type=Whole(0, 1 << 16), help="Number of queues of its retry topic.  [1]"
)
@click.option(
    "-r",
    "--retries",
    type=Whole(-1),
    help="Redeliveries before a message becomes a dead letter.  [16]",
)
@admin_command
async def group_create(
    admin: Admin,
    group: str,
    cluster: str | None,
    broker: str | None,
    consume: bool | None,
    from_min: bool | None,
    broadcast: bool | None,
    orderly: bool | None,
    retry_queues: int | None,
    retries: int | None,
    as_json: bool,
) -> None:
    """Create a group on every master, or change the given settings; -c or -b limit it to some brokers."""
    given = {
        "consume_enable": consume,
        "consume_from_min_enable": from_min,
        "consume_broadcast_enable": broadcast,
        "consume_message_orderly": orderly,
        "retry_queue_nums": retry_queues,
        "retry_max_times": retries,
    }
    brokers = await targets(admin, broker, cluster)
    for _, address in brokers:
        known = await admin.brokers.get_all_subscription_group_config(address)
        config = known.get(group) or SubscriptionGroupConfig(group_name=group)
        for attribute, value in given.items():
            if value is not None:
                setattr(config, attribute, value)
        config.attributes = {}  # in this request attributes are changes
        await admin.brokers.create_subscription_group(address, config)
    names = [name for name, _ in brokers]
    print_result({"group": group, "brokers": names}, f"{group}: on {', '.join(names)}", as_json=as_json)


@group.command("delete")
@group_argument
@cluster_option
@click.option("-r", "--clean-offset", is_flag=True, help="Delete its offsets as well.")
@yes_option
@admin_command
async def group_delete(
    admin: Admin, group: str, cluster: str | None, clean_offset: bool, yes: bool, as_json: bool
) -> None:
    """Delete a group with its retry and dead letter topics."""
    await admin.check_group(group)
    offsets = " and its offsets" if clean_offset else ""
    confirm(f"Delete group {group} with its retry and dead letter topics{offsets}", yes=yes, as_json=as_json)
    await admin.delete_subscription_group(group, cluster, clean_offset=clean_offset)
    print_result({"group": group, "deleted": True}, f"{group}: deleted", as_json=as_json)


# ---------------------------------------------------------------------- progress


class _Progress(NamedTuple):
    queue: MessageQueue
    at: OffsetWrapper
    client: str | None


_PROGRESS_COLUMNS: list[Column[_Progress]] = [
    Column("topic", lambda row: row.queue.topic),
    Column("broker", lambda row: row.queue.broker_name),
    Column("queueId", lambda row: row.queue.queue_id, "queue", str),
    Column("brokerOffset", lambda row: row.at.broker_offset, "broker offset"),
    Column("consumerOffset", lambda row: row.at.consumer_offset, "consumer offset"),
    Column("pullOffset", lambda row: row.at.pull_offset, None),
    Column("behind", lambda row: row.at.behind),
    Column("beyond", lambda row: row.at.beyond, "beyond the end"),
    Column("inFlight", lambda row: row.at.in_flight, "pulled ahead"),
    Column("lastTimestamp", lambda row: row.at.last_timestamp, "last consumed", time_text),
]
_PROGRESS = Table(*_PROGRESS_COLUMNS)
_PROGRESS_WITH_CLIENTS = Table(*_PROGRESS_COLUMNS, Column("client", lambda row: row.client, show=or_dash))


@group.command("progress")
@optional_group_argument
@topic_option
@click.option("-s", "--clients", is_flag=True, help="Show which client has which queue.")
@listing_command
async def group_progress(
    admin: Admin, group: str | None, topic: str | None, clients: bool, as_json: bool
) -> None:
    """Show the progress of a group in each queue, and how far it is behind; without GROUP, one line per group.

    "pulled ahead": messages from the committed offset to the farthest that a member pulled, be it connected or gone.
    """
    if group is None:
        await _all_progress(admin, as_json)
        return
    if topic is not None:
        await admin.examine_topic_route_info(topic)
    await admin.check_group(group)
    stats = await admin.examine_consume_stats(group, topic)
    owners = await queue_owners(admin, group) if clients else {}
    rows = [
        _Progress(queue, offsets, owners.get(queue)) for queue, offsets in sorted(stats.offset_table.items())
    ]
    if as_json:
        found = {
            "group": group,
            "consumeTps": stats.consume_tps,
            "behind": stats.behind,
            "beyond": stats.beyond,
        }
        print_json(found | {"queues": _PROGRESS_WITH_CLIENTS.objects(rows)})
        return
    (_PROGRESS_WITH_CLIENTS if clients else _PROGRESS).print(rows)
    click.echo(f"\n{stats.behind:,} behind, {stats.consume_tps:.2f} messages/s")
    if stats.beyond:
        note(
            f"the group is beyond the end of a queue, and will skip what comes there up to its offset "
            f"({count_text(stats.beyond, 'message')}): `mqlake admin group reset-offset` sets its offsets"
        )


class _GroupProgress(NamedTuple):
    group: str
    connection: ConsumerConnection
    stats: ConsumeStats


_GROUPS: Table[_GroupProgress] = Table(
    Column("group", lambda row: row.group),
    Column("clients", lambda row: len(row.connection.connection_set)),
    Column("type", lambda row: _value(row.connection.consume_type), show=or_dash),
    Column("model", lambda row: _value(row.connection.message_model), show=or_dash),
    Column("consumeTps", lambda row: row.stats.consume_tps, "messages/s", two_digits),
    Column("behind", lambda row: row.stats.behind),
    Column("beyond", lambda row: row.stats.beyond, "beyond the end"),
)


async def _all_progress(admin: Admin, as_json: bool) -> None:
    async def ask(name: str) -> _GroupProgress:
        return _GroupProgress(name, await connections(admin, name), await admin.examine_consume_stats(name))

    rows = await of_each(sorted(await admin.get_all_subscription_groups()), ask)
    used = [row for row in rows if row.stats.offset_table or row.connection.connection_set]
    _GROUPS.show(used, as_json=as_json)


# ---------------------------------------------------------------------- clients


_CLIENTS: Table[Connection] = Table(
    Column("clientId", lambda client: client.client_id, "client"),
    Column("address", lambda client: client.client_addr),
    Column("language", lambda client: client.language),
    Column("version", lambda client: client.version, show=str),
)
_SUBSCRIPTIONS: Table[SubscriptionData] = Table(
    Column("topic", lambda each: each.topic),
    Column("type", lambda each: each.expression_type),
    Column("expression", lambda each: each.sub_string),
)


def _value(choice: enum.Enum | None) -> Any:
    return choice.value if choice else None


@group.command("connections")
@group_argument
@listing_command
async def group_connections(admin: Admin, group: str, as_json: bool) -> None:
    """Show the connected consumers of a group, their subscriptions, and where these differ."""
    found = await connections(admin, group)
    clients = sorted(found.connection_set, key=lambda each: each.client_id or "")
    subscriptions = sorted(found.subscription_table.values(), key=lambda each: each.topic)
    kind, model = _value(found.consume_type), _value(found.message_model)
    different = mismatches(await reports(admin, group, [each.client_id or "" for each in clients]))
    begins = found.consume_from_where.name if found.consume_from_where else None
    if as_json:
        value: dict[str, Any] = {"group": group, "connections": _CLIENTS.objects(clients)}
        value |= {"consumeType": kind, "messageModel": model}
        if clients:
            value["consumeFromWhere"] = begins
        print_json(value | {"subscriptions": _SUBSCRIPTIONS.objects(subscriptions), "mismatches": different})
        return
    if not clients:
        await admin.check_group(group)
        click.echo(f"no consumer of {group} is connected")
        return
    _CLIENTS.print(clients)
    click.echo()
    _SUBSCRIPTIONS.print(subscriptions)
    click.echo()
    print_fields([("type", kind), ("model", model), ("begins at", begins)])
    for each in different:
        click.echo(
            f"\n{each['topic']}: members subscribe differently, so a part of the messages reaches nobody"
        )
        print_fields(
            [(client, expression or "not subscribed") for client, expression in each["members"].items()],
            indent=2,
        )


@group.command("status")
@group_argument
@click.option("-i", "--client", "client_id", help="Only this client.")
@click.option("-s", "--jstack", is_flag=True, help="Include the client's stack traces, if it reports them.")
@admin_command
async def group_status(admin: Admin, group: str, client_id: str | None, jstack: bool, as_json: bool) -> None:
    """Show what the connected consumers report: queues, rates and times."""
    client_ids = [client_id] if client_id is not None else await connected_clients(admin, group)
    if not client_ids:
        await admin.check_group(group)
    infos = {each: await running_info(admin, group, each, jstack=jstack) for each in client_ids}
    if as_json:
        print_json({name: info.to_value() | {"mqTable": _queues(info)} for name, info in infos.items()})
        return
    if not infos:
        click.echo(f"no consumer of {group} is connected")
    for name, info in infos.items():
        click.echo(name)
        _CONSUMED_QUEUES.print(sorted(info.mq_table.items()), indent=2)
        click.echo()
        _CONSUME_RATES.print(sorted(info.status_table.items()), indent=2)
        if info.jstack:
            click.echo(f"\n{info.jstack}")


_CONSUMED_QUEUES: Table[tuple[MessageQueue, ProcessQueueInfo]] = Table(
    Column("topic", lambda row: row[0].topic),
    Column("broker", lambda row: row[0].broker_name),
    Column("queue", lambda row: row[0].queue_id, show=str),
    Column("offset", lambda row: row[1].commit_offset),
    Column("cached", lambda row: row[1].cached_msg_count),
    Column("last pull", lambda row: row[1].last_pull_timestamp, show=time_text),
    Column("last consumed", lambda row: row[1].last_consume_timestamp, show=time_text),
)
_CONSUME_RATES: Table[tuple[str, ConsumeStatus]] = Table(
    Column("topic", lambda row: row[0]),
    Column("pulled/s", lambda row: row[1].pull_tps, show=two_digits),
    Column("ok/s", lambda row: row[1].consume_ok_tps, show=two_digits),
    Column("failed/s", lambda row: row[1].consume_failed_tps, show=two_digits),
    Column("ms each", lambda row: row[1].consume_rt, show=two_digits),
)


def _queues(info: ConsumerRunningInfo) -> list[dict[str, Any]]:
    return [
        {"topic": queue.topic, "broker": queue.broker_name, "queueId": queue.queue_id} | as_object(state)
        for queue, state in sorted(info.mq_table.items())
    ]


# ---------------------------------------------------------------------- offsets


def reset_time(text: str) -> int:
    """ms since 1970 of `now`, `earliest`, `latest` (-1), ms, ISO 8601, or mqadmin's 2024-05-01#12:30:00:500."""
    text = text.strip()
    if text in ("latest", str(END_OF_QUEUE)):
        return END_OF_QUEUE
    if text == "now":
        return now_ms()
    if text == "earliest":
        return 0
    try:
        return int(datetime.datetime.strptime(text, MQADMIN_TIME).timestamp() * 1000)
    except ValueError:
        return time_ms(text)


@group.command("reset-offset")
@group_argument
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="The topic.")
@click.option(
    "-s",
    "--time",
    "timestamp",
    type=reset_time,
    metavar="TIME",
    help="New position: earliest, latest, now, milliseconds since 1970, or ISO 8601.",
)
@click.option("-b", "--broker", metavar="BROKER", help="Broker of --queue.")
@click.option(
    "-q",
    "--queue",
    "queue_id",
    type=Whole(0),
    help="Reset only this queue; requires --broker and --offset.",
)
@click.option("-o", "--offset", type=Whole(0), help="New offset in --queue.")
@click.option("-f", "--force", type=bool, default=True, help="Also move forward, skipping messages.  [true]")
@yes_option
@admin_command
async def group_reset_offset(
    admin: Admin,
    group: str,
    topic: str,
    timestamp: int | None,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Move a group to a point in time, or one queue to an offset. Connected consumers follow at once."""
    if (timestamp is None) == (offset is None):
        raise click.UsageError("Use either --time, or --offset with --queue and --broker.")
    if offset is not None:
        if queue_id is None or broker is None:
            raise click.UsageError("--offset requires --queue and --broker.")
        queue = MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
        await admin.examine_topic_route_info(topic)
        confirm(
            f"Move group {group} to offset {offset} of {topic} in {broker}/{queue_id}",
            yes=yes,
            as_json=as_json,
        )
        before = await admin.consumed_offsets(group, topic)
        _show_reset(before, await admin.reset_offset_by_queue(queue, group, offset), as_json)
        return
    await admin.check_group(group)
    assert timestamp is not None
    place = (
        "the end" if timestamp == END_OF_QUEUE else time_text(timestamp) if timestamp else "the first message"
    )
    confirm(f"Move group {group} to {place} of {topic}", yes=yes, as_json=as_json)
    before = await admin.consumed_offsets(group, topic)
    _show_reset(
        before, await admin.reset_offset_by_timestamp(topic, group, timestamp, is_force=force), as_json
    )


@group.command("skip")
@group_argument
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="The topic.")
@click.option("-f", "--force", type=bool, default=True, hidden=True)
@yes_option
@admin_command
async def group_skip(admin: Admin, group: str, topic: str, force: bool, yes: bool, as_json: bool) -> None:
    """Skip the backlog of a group: move it to the end of every queue."""
    await admin.check_group(group)
    confirm(f"Let group {group} skip its backlog in {topic}", yes=yes, as_json=as_json)
    before = await admin.consumed_offsets(group, topic)
    _show_reset(
        before, await admin.reset_offset_by_timestamp(topic, group, END_OF_QUEUE, is_force=force), as_json
    )


class _Moved(NamedTuple):
    queue: MessageQueue
    before: int | None
    offset: int


_RESET: Table[_Moved] = Table(
    Column("topic", lambda row: row.queue.topic),
    Column("broker", lambda row: row.queue.broker_name),
    Column("queueId", lambda row: row.queue.queue_id, "queue", str),
    Column("before", lambda row: row.before, show=or_dash),
    Column("offset", lambda row: row.offset),
)


def _show_reset(before: dict[MessageQueue, int], now: dict[MessageQueue, int], as_json: bool) -> None:
    """With the offsets before, which take a mistaken reset back."""
    _RESET.show(
        [_Moved(queue, before.get(queue), offset) for queue, offset in sorted(now.items())], as_json=as_json
    )


@group.command("clone-offset")
@click.option("-s", "--source", required=True, metavar="GROUP", help="Group to copy offsets from.")
@click.option("-d", "--target", required=True, metavar="GROUP", help="Group to copy offsets to.")
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="The topic.")
@click.option(
    "-o",
    "--offline",
    type=bool,
    default=True,
    help="Copy even if the source group no longer subscribes.  [true]",
)
@yes_option
@admin_command
async def group_clone_offset(
    admin: Admin, source: str, target: str, topic: str, offline: bool, yes: bool, as_json: bool
) -> None:
    """Copy the offsets of one group to another."""
    await admin.check_group(source)
    confirm(
        f"Replace the offsets of group {target} in {topic} with those of {source}", yes=yes, as_json=as_json
    )
    await admin.clone_group_offset(source, target, topic, is_offline=offline)
    value = {"source": source, "target": target, "topic": topic}
    print_result(value, f"{target} now has the offsets of {source} in {topic}", as_json=as_json)


@group.command("set-mode")
@group_argument
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="The topic.")
@click.option(
    "-m",
    "--mode",
    required=True,
    type=click.Choice(("pull", "pop"), case_sensitive=False),
    help="pull or pop.",
)
@click.option(
    "-q",
    "--share",
    type=Whole(0),
    default=0,
    show_default=True,
    metavar="N",
    help="With pop: each member pops from its own queues and those of N others; 0: from all.",
)
@admin_command
async def group_set_mode(admin: Admin, group: str, topic: str, mode: str, share: int, as_json: bool) -> None:
    """Set how members that ask brokers for their queues (clientRebalance=false) get the messages of a topic."""
    await admin.set_message_request_mode(topic, group, MessageRequestMode[mode.upper()], share)
    value = {"group": group, "topic": topic, "mode": mode.upper(), "popShareQueueNum": share}
    print_result(value, f"{group} consumes {topic} in mode {mode.upper()}", as_json=as_json)


@group.command("polling")
@group_argument
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="The topic.")
@click.option("-q", "--queue", type=Whole(-1), default=-1, show_default=True, help="-1: any queue.")
@admin_command
async def group_polling(admin: Admin, group: str, topic: str, queue: int, as_json: bool) -> None:
    """Show how many pops of the group wait for messages."""
    count = await admin.polling_num(topic, group, queue)
    value = {"group": group, "topic": topic, "queueId": queue, "waiting": count}
    print_result(value, f"{count} pops of {group} wait for messages of {topic}", as_json=as_json)


# ---------------------------------------------------------------------- producers


@click.group()
def producer() -> None:
    """Connected producers."""


@producer.command("list")
@broker_option
@cluster_option
@listing_command
async def producer_list(admin: Admin, broker: str | None, cluster: str | None, as_json: bool) -> None:
    """List all connected producers by group."""
    rows = []
    for name, address in await targets(admin, broker, cluster):
        table = await admin.brokers.get_all_producer_info(address)
        for group_name, clients in sorted(table.data.items()):
            rows += [(name, group_name, client) for client in clients]
    _PRODUCERS.show(rows, as_json=as_json)


_PRODUCERS: Table[tuple[str, str, ProducerInfo]] = Table(
    Column("broker", lambda row: row[0]),
    Column("group", lambda row: row[1]),
    Column("clientId", lambda row: row[2].client_id, "client"),
    Column("remoteIp", lambda row: row[2].remote_ip, "address"),
    Column("language", lambda row: row[2].language),
    Column("version", lambda row: row[2].version, show=str),
    Column("lastUpdateTimestamp", lambda row: row[2].last_update_timestamp, "last heartbeat", time_text),
)


@producer.command("connections")
@group_argument
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="A topic that the group sends to.")
@listing_command
async def producer_connections(admin: Admin, group: str, topic: str, as_json: bool) -> None:
    """List the producers of a group that are connected to a topic's brokers."""
    found = await admin.examine_producer_connection_info(group, topic)
    _CLIENTS.show(found.connection_set, as_json=as_json)
