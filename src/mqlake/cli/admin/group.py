"""`mqlake admin group …` and `mqlake admin producer …`: consumer groups, their places, and who is connected."""

from __future__ import annotations

import datetime
from typing import Any

import click

from mqlake.base.clock import now_ms
from mqlake.cli.admin.shared import (
    admin_command,
    broker_option,
    cluster_option,
    group_argument,
    optional_group_argument,
    targets,
    topic_option,
)
from mqlake.cli.options import confirm, time_ms, yes_option
from mqlake.cli.output import as_object, print_fields, print_json, print_table, time_text
from mqlake.client.admin import Admin
from mqlake.errors import MqlakeError, ResponseError
from mqlake.remoting.bodies.admin import ConsumeStats, SubscriptionGroupConfig
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import ResponseCode

MQADMIN_TIME = "%Y-%m-%d#%H:%M:%S:%f"
END_OF_QUEUE = -1


@click.group()
def group() -> None:
    """Consumer groups: settings, progress, clients, offsets."""


# ---------------------------------------------------------------------- settings


@group.command("list")
@cluster_option
@admin_command
async def group_list(admin: Admin, cluster: str | None, as_json: bool) -> None:
    """All groups, their settings and on which brokers."""
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
    """The settings of a group on every broker."""
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
@click.option("-s", "--consume", type=bool, help="Whether it may consume at all.  [true]")
@click.option("-m", "--from-min", type=bool, help="Whether it may begin at the first message.  [true]")
@click.option("-d", "--broadcast", type=bool, help="Whether it may broadcast.  [true]")
@click.option("-o", "--orderly", type=bool, help="Mark it as consuming in order.  [false]")
@click.option("-q", "--retry-queues", type=click.IntRange(0, 1 << 16), help="Queues of its retry topic.  [1]")
@click.option(
    "-r", "--retries", type=click.IntRange(-1), help="Deliveries before a message is a dead letter.  [16]"
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
    """Create a group on every master, or change what is given of it; -c or -b hold it to some brokers."""
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
    if as_json:
        print_json({"group": group, "brokers": [name for name, _ in brokers]})
    else:
        click.echo(f"{group}: on {', '.join(name for name, _ in brokers)}")


@group.command("delete")
@group_argument
@cluster_option
@click.option("-r", "--clean-offset", is_flag=True, help="Its offsets, too.")
@yes_option
@admin_command
async def group_delete(
    admin: Admin, group: str, cluster: str | None, clean_offset: bool, yes: bool, as_json: bool
) -> None:
    """Delete a group, with its retry and dead letter topics."""
    await admin.check_group(group)
    offsets = " and its offsets" if clean_offset else ""
    confirm(f"Delete group {group} with its retry and dead letter topics{offsets}", yes=yes, as_json=as_json)
    await admin.delete_subscription_group(group, cluster, clean_offset=clean_offset)
    if as_json:
        print_json({"group": group, "deleted": True})
    else:
        click.echo(f"{group}: deleted")


# ---------------------------------------------------------------------- progress


@group.command("progress")
@optional_group_argument
@topic_option
@click.option("-s", "--clients", is_flag=True, help="Also which client has which queue.")
@admin_command
async def group_progress(
    admin: Admin, group: str | None, topic: str | None, clients: bool, as_json: bool
) -> None:
    """How far a group is in every queue, and how far behind; without GROUP, all groups in a line each."""
    if group is None:
        await _all_progress(admin, as_json)
        return
    if topic is not None:
        await admin.examine_topic_route_info(topic)
    await admin.check_group(group)
    stats = await admin.examine_consume_stats(group, topic)
    owners = await _owners(admin, group) if clients else {}
    rows: list[dict[str, Any]] = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queueId": queue.queue_id,
            "brokerOffset": offsets.broker_offset,
            "consumerOffset": offsets.consumer_offset,
            "pullOffset": offsets.pull_offset,
            "behind": offsets.broker_offset - offsets.consumer_offset,
            "inFlight": offsets.pull_offset - offsets.consumer_offset,
            "lastTimestamp": offsets.last_timestamp,
            "client": owners.get(queue),
        }
        for queue, offsets in sorted(stats.offset_table.items())
    ]
    behind = _behind(stats)
    if as_json:
        print_json({"group": group, "consumeTps": stats.consume_tps, "behind": behind, "queues": rows})
        return
    header = (
        "topic",
        "broker",
        "queue",
        "broker offset",
        "consumer offset",
        "behind",
        "in flight",
        "last consumed",
    )
    print_table(
        (*header, "client") if clients else header,
        [
            (
                row["topic"],
                row["broker"],
                str(row["queueId"]),
                row["brokerOffset"],
                row["consumerOffset"],
                row["behind"],
                row["inFlight"],
                time_text(row["lastTimestamp"]),
                *((row["client"] or "-",) if clients else ()),
            )
            for row in rows
        ],
    )
    click.echo(f"\n{behind:,} behind, {stats.consume_tps:.2f} messages/s")


def _behind(stats: ConsumeStats) -> int:
    return sum(each.broker_offset - each.consumer_offset for each in stats.offset_table.values())


async def _owners(admin: Admin, group: str) -> dict[MessageQueue, str]:
    """Queue → client, as the connected consumers tell it."""
    owners = {}
    connection = await _connections(admin, group)
    for client_id in (each["clientId"] for each in connection["connections"]):
        info = await _running_info(admin, group, client_id, jstack=False)
        owners.update(dict.fromkeys(info.mq_table, client_id))
    return owners


async def _all_progress(admin: Admin, as_json: bool) -> None:
    rows = []
    for name in sorted(await admin.get_all_subscription_groups()):
        stats = await admin.examine_consume_stats(name)
        connection = await _connections(admin, name)
        if not stats.offset_table and not connection["connections"]:
            continue
        rows.append(
            {
                "group": name,
                "clients": len(connection["connections"]),
                "type": connection["consumeType"],
                "model": connection["messageModel"],
                "consumeTps": stats.consume_tps,
                "behind": _behind(stats),
            }
        )
    if as_json:
        print_json(rows)
        return
    print_table(
        ("group", "clients", "type", "model", "messages/s", "behind"),
        [
            (
                row["group"],
                row["clients"],
                row["type"] or "-",
                row["model"] or "-",
                f"{row['consumeTps']:.2f}",
                row["behind"],
            )
            for row in rows
        ],
    )


# ---------------------------------------------------------------------- clients


async def _connections(admin: Admin, group: str) -> dict[str, Any]:
    """The connected consumers; none when none is."""
    try:
        found = await admin.examine_consumer_connection_info(group)
    except ResponseError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return {"connections": [], "consumeType": None, "messageModel": None, "subscriptions": []}
    return {
        "connections": [
            {
                "clientId": each.client_id,
                "address": each.client_addr,
                "language": each.language,
                "version": each.version,
            }
            for each in sorted(found.connection_set, key=lambda each: each.client_id or "")
        ],
        "consumeType": found.consume_type.value if found.consume_type else None,
        "messageModel": found.message_model.value if found.message_model else None,
        "consumeFromWhere": found.consume_from_where.name if found.consume_from_where else None,
        "subscriptions": [
            {"topic": each.topic, "type": each.expression_type, "expression": each.sub_string}
            for each in sorted(found.subscription_table.values(), key=lambda each: each.topic)
        ],
    }


@group.command("connections")
@group_argument
@admin_command
async def group_connections(admin: Admin, group: str, as_json: bool) -> None:
    """Consumers of a group that are connected, and what they subscribe to."""
    found = await _connections(admin, group)
    if as_json:
        print_json({"group": group, **found})
        return
    if not found["connections"]:
        await admin.check_group(group)
        click.echo(f"no consumer of {group} is connected")
        return
    print_table(("client", "address", "language", "version"), [_client_row(c) for c in found["connections"]])
    click.echo()
    print_table(("topic", "type", "expression"), [tuple(s.values()) for s in found["subscriptions"]])
    click.echo()
    print_fields(
        [
            ("type", found["consumeType"]),
            ("model", found["messageModel"]),
            ("begins at", found["consumeFromWhere"]),
        ]
    )


def _client_row(client: dict[str, Any]) -> tuple[object, ...]:
    return client["clientId"], client["address"], client["language"], str(client["version"])


async def _running_info(admin: Admin, group: str, client_id: str, *, jstack: bool) -> Any:
    failure: MqlakeError | None = None
    for broker in await admin.masters():
        try:
            return await admin.brokers.get_consumer_running_info(
                broker.address, group, client_id, jstack=jstack
            )
        except ResponseError as error:
            failure = error
    raise failure or MqlakeError(f"{client_id} is not connected")


@group.command("status")
@group_argument
@click.option("-i", "--client", "client_id", help="This client only.")
@click.option("-s", "--jstack", is_flag=True, help="With the client's threads, as far as it tells them.")
@admin_command
async def group_status(admin: Admin, group: str, client_id: str | None, jstack: bool, as_json: bool) -> None:
    """What the connected consumers tell of themselves: queues, rates, times."""
    if client_id is None:
        connected = (await _connections(admin, group))["connections"]
        if not connected:
            await admin.check_group(group)
    else:
        connected = [{"clientId": client_id}]
    infos = {
        each["clientId"]: await _running_info(admin, group, each["clientId"], jstack=jstack)
        for each in connected
    }
    if as_json:
        print_json({name: info.to_value() | {"mqTable": _queues(info)} for name, info in infos.items()})
        return
    if not infos:
        click.echo(f"no consumer of {group} is connected")
    for name, info in infos.items():
        click.echo(name)
        print_table(
            ("topic", "broker", "queue", "offset", "cached", "last pull", "last consumed"),
            [
                (
                    row["topic"],
                    row["broker"],
                    str(row["queueId"]),
                    row["commitOffset"],
                    row["cachedMsgCount"],
                    time_text(row["lastPullTimestamp"]),
                    time_text(row["lastConsumeTimestamp"]),
                )
                for row in _queues(info)
            ],
            indent=2,
        )
        rates = sorted(info.status_table.items())
        click.echo()
        print_table(
            ("topic", "pulled/s", "ok/s", "failed/s", "ms each"),
            [
                (
                    topic,
                    f"{s.pull_tps:.2f}",
                    f"{s.consume_ok_tps:.2f}",
                    f"{s.consume_failed_tps:.2f}",
                    f"{s.consume_rt:.2f}",
                )
                for topic, s in rates
            ],
            indent=2,
        )
        if info.jstack:
            click.echo(f"\n{info.jstack}")


def _queues(info: Any) -> list[dict[str, Any]]:
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
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="Of this topic.")
@click.option(
    "-s",
    "--time",
    "timestamp",
    type=reset_time,
    metavar="TIME",
    help="Where to go on: earliest, latest, now, ms, or ISO 8601.",
)
@click.option("-b", "--broker", metavar="BROKER", help="With --queue and --offset: the queue's broker.")
@click.option("-q", "--queue", "queue_id", type=click.IntRange(0), help="One queue only; needs --offset.")
@click.option("-o", "--offset", type=click.IntRange(0), help="Where to go on in --queue.")
@click.option("-f", "--force", type=bool, default=True, help="Also forward, past messages.  [true]")
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
    """Set a group back, or forward, to a time (or one queue to an offset). Connected consumers follow at once."""
    if (timestamp is None) == (offset is None):
        raise click.UsageError("Give either --time, or --offset with --queue and --broker.")
    if offset is not None:
        if queue_id is None or broker is None:
            raise click.UsageError("--offset needs --queue and --broker.")
        queue = MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
        await admin.examine_topic_route_info(topic)
        confirm(
            f"Let group {group} go on at {offset} in {broker}/{queue_id} of {topic}", yes=yes, as_json=as_json
        )
        _print_reset(await admin.reset_offset_by_queue(queue, group, offset), as_json)
        return
    await admin.check_group(group)
    assert timestamp is not None
    place = (
        "the end" if timestamp == END_OF_QUEUE else time_text(timestamp) if timestamp else "the first message"
    )
    confirm(f"Let group {group} go on at {place} of {topic}", yes=yes, as_json=as_json)
    _print_reset(await admin.reset_offset_by_timestamp(topic, group, timestamp, is_force=force), as_json)


@group.command("skip")
@group_argument
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="Of this topic.")
@click.option("-f", "--force", type=bool, default=True, hidden=True)
@yes_option
@admin_command
async def group_skip(admin: Admin, group: str, topic: str, force: bool, yes: bool, as_json: bool) -> None:
    """Let a group skip all that has piled up: it goes on at the end of every queue."""
    await admin.check_group(group)
    confirm(f"Let group {group} skip all that waits in {topic}", yes=yes, as_json=as_json)
    _print_reset(await admin.reset_offset_by_timestamp(topic, group, END_OF_QUEUE, is_force=force), as_json)


def _print_reset(table: dict[MessageQueue, int], as_json: bool) -> None:
    rows = [
        {"topic": queue.topic, "broker": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
        for queue, offset in sorted(table.items())
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("topic", "broker", "queue", "offset"),
            [(row["topic"], row["broker"], str(row["queueId"]), row["offset"]) for row in rows],
        )


@group.command("clone-offset")
@click.option("-s", "--source", required=True, metavar="GROUP", help="The group whose offsets are taken.")
@click.option("-d", "--target", required=True, metavar="GROUP", help="The group that gets them.")
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="Of this topic.")
@click.option(
    "-o", "--offline", type=bool, default=True, help="Also when SOURCE no longer subscribes.  [true]"
)
@yes_option
@admin_command
async def group_clone_offset(
    admin: Admin, source: str, target: str, topic: str, offline: bool, yes: bool, as_json: bool
) -> None:
    """Let one group begin where another one is."""
    await admin.check_group(source)
    confirm(
        f"Replace the offsets of group {target} in {topic} by those of {source}", yes=yes, as_json=as_json
    )
    await admin.clone_group_offset(source, target, topic, is_offline=offline)
    if as_json:
        print_json({"source": source, "target": target, "topic": topic})
    else:
        click.echo(f"{target} is where {source} is in {topic}")


# ---------------------------------------------------------------------- producers


@click.group()
def producer() -> None:
    """Producers that are connected."""


@producer.command("list")
@broker_option
@cluster_option
@admin_command
async def producer_list(admin: Admin, broker: str | None, cluster: str | None, as_json: bool) -> None:
    """Every producer that is connected, by group."""
    rows = []
    for name, address in await targets(admin, broker, cluster):
        table = await admin.brokers.get_all_producer_info(address)
        for group_name, clients in sorted(table.data.items()):
            rows += [{"broker": name, "group": group_name} | as_object(client) for client in clients]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("broker", "group", "client", "address", "language", "version", "last heard of"),
        [
            (
                row["broker"],
                row["group"],
                row["clientId"],
                row["remoteIp"],
                row["language"],
                str(row["version"]),
                time_text(row["lastUpdateTimestamp"]),
            )
            for row in rows
        ],
    )


@producer.command("connections")
@group_argument
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="A topic it sends to.")
@admin_command
async def producer_connections(admin: Admin, group: str, topic: str, as_json: bool) -> None:
    """Producers of a group that are connected to a topic's brokers."""
    found = await admin.examine_producer_connection_info(group, topic)
    clients = [
        {"clientId": c.client_id, "address": c.client_addr, "language": c.language, "version": c.version}
        for c in found.connection_set
    ]
    if as_json:
        print_json(clients)
    else:
        print_table(("client", "address", "language", "version"), [_client_row(client) for client in clients])
