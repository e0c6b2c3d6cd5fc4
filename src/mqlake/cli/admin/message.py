"""`mqlake admin message`: find messages by key, id or offset; show them, send one, hand one to a consumer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from mqlake.cli.admin.shared import admin_command, group_argument, topic_argument
from mqlake.cli.options import Whole, time_ms
from mqlake.cli.output import as_object, note, print_fields, print_json, time_text
from mqlake.cli.standard_streams import EXIT_NOT_FOUND
from mqlake.client.admin import Admin
from mqlake.client.api.broker_api import TIME_MAX
from mqlake.errors import ConfigError, MessageError, MqlakeError
from mqlake.message import Message, MessageExt, validate_topic
from mqlake.message.rendering import body_text, host_text, record_line, record_object
from mqlake.remoting.bodies.topic import MessageQueue

TEXT_SHOWN_MAX = 4096


body_file_option = click.option(
    "--body-file",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write the body to this file; `-` prints the body and nothing else.",
)


@click.group()
def message() -> None:
    """Find, show and send messages."""


def _print_found(messages: Sequence[MessageExt], what: str, as_json: bool) -> None:
    if as_json:
        print_json([record_object(each) for each in messages])
    else:
        for each in messages:
            click.echo(record_line(each))
    if not messages:
        note(f"no message {what}")
        sys.exit(EXIT_NOT_FOUND)


@message.command("by-key")
@topic_argument
@click.option("-k", "--key", required=True, help="One of the message's keys.")
@click.option(
    "-b", "--begin", type=time_ms, default="0", metavar="TIME", help="Stored at or after this time."
)
@click.option("-e", "--end", type=time_ms, metavar="TIME", help="Stored at or before this time.")
@click.option(
    "-m",
    "--max",
    "max_num",
    type=Whole(1, 10_000),
    default=64,
    show_default=True,
    help="Maximum number of messages.",
)
@admin_command
async def by_key(
    admin: Admin, topic: str, key: str, begin: int, end: int | None, max_num: int, as_json: bool
) -> None:
    """Find messages of a topic by key, oldest first. Exit status 1 if there is none."""
    found = await admin.query_message(topic, key, max_num, begin, TIME_MAX if end is None else end)
    _print_found(found, f"of {topic} has the key {key}", as_json)


@message.command("by-unique-key")
@topic_argument
@click.option("-i", "--id", "message_id", required=True, help="Id that the client gave the message.")
@admin_command
async def by_unique_key(admin: Admin, topic: str, message_id: str, as_json: bool) -> None:
    """Find messages of a topic by client id: several if one was sent or delivered again."""
    found = await admin.query_message_by_uniq_key(topic, message_id)
    if not found:
        raise MqlakeError(f"no message of {topic} has the id {message_id}")
    _print_found(found, f"of {topic} has the id {message_id}", as_json)


@message.command("by-id")
@click.option("-i", "--id", "message_id", required=True, help="Message id, given by a broker or a client.")
@click.option("-t", "--topic", metavar="TOPIC", help="Required for an id given by a client.")
@body_file_option
@admin_command
async def by_id(
    admin: Admin, message_id: str, topic: str | None, body_file: str | None, as_json: bool
) -> None:
    """Show one message in full; the same as `message view ID`."""
    await _view(admin, message_id, topic, body_file, as_json)


@message.command("view")
@click.argument("message_id", metavar="ID")
@click.option("-t", "--topic", metavar="TOPIC", help="Required for an id given by a client.")
@body_file_option
@admin_command
async def view(
    admin: Admin, message_id: str, topic: str | None, body_file: str | None, as_json: bool
) -> None:
    """Show one message in full."""
    await _view(admin, message_id, topic, body_file, as_json)


async def _view(
    admin: Admin, message_id: str, topic: str | None, body_file: str | None, as_json: bool
) -> None:
    if topic is not None:
        await admin.examine_topic_route_info(topic)
    _show(await admin.view_message(topic, message_id), body_file, as_json)


@message.command("by-offset")
@topic_argument
@click.option("-b", "--broker", required=True, metavar="BROKER", help="Broker of the queue, by name.")
@click.option("-i", "-q", "--queue", "queue_id", type=Whole(0), required=True, help="Queue id.")
@click.option("-o", "--offset", type=Whole(0), required=True, help="Offset of the message in the queue.")
@body_file_option
@admin_command
async def by_offset(
    admin: Admin,
    topic: str,
    broker: str,
    queue_id: int,
    offset: int,
    body_file: str | None,
    as_json: bool,
) -> None:
    """Show the message at an offset of a queue."""
    await admin.examine_topic_route_info(topic)
    queue = MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
    _show(await admin.message_at(queue, offset), body_file, as_json)


def _show(found: MessageExt, body_file: str | None, as_json: bool) -> None:
    if body_file == "-":
        sys.stdout.buffer.write(found.body)
        return
    if body_file is not None:
        with open(body_file, "wb") as file:
            file.write(found.body)
    if as_json:
        print_json(record_object(found))
        return
    print_fields(
        [
            ("topic", found.topic),
            ("queue", f"{found.queue_id} at offset {found.queue_offset}"),
            ("message id", found.msg_id),
            ("client's id", found.uniq_key or "-"),
            ("tags", found.tags or "-"),
            ("keys", found.keys or "-"),
            ("born", f"{time_text(found.born_timestamp)} at {host_text(found.born_host)}"),
            ("stored", f"{time_text(found.store_timestamp)} at {host_text(found.store_host)}"),
            ("reconsumed", f"{found.reconsume_times} times"),
            ("properties", ""),
        ]
    )
    print_fields(sorted(found.properties.items()), indent=2)
    click.echo(f"body        {len(found.body):,} bytes" + (f" → {body_file}" if body_file else ""))
    if body_file is None and found.body:
        click.echo()
        click.echo(_body(found.body))


def _body(body: bytes) -> str:
    """The whole body if it is text and short enough, or its beginning."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body_text(body)
    return text if len(text) <= TEXT_SHOWN_MAX and text.replace("\n", "").isprintable() else body_text(body)


@message.command("send")
@topic_argument
@click.option("-p", "--body", help="Body of the message; `-` reads it from stdin.  [-]")
@click.option("-k", "--keys", help="Keys, separated by spaces.")
@click.option("-c", "--tags", help="Tag.")
@click.option("-b", "--broker", metavar="BROKER", help="Send to a queue of this broker.")
@click.option("-i", "-q", "--queue", "queue_id", type=Whole(0), help="Send to this queue of --broker.")
@click.option(
    "--allow-empty-body", is_flag=True, help="Send a message without a body. RocketMQ's brokers refuse it."
)
@admin_command
async def send(
    admin: Admin,
    topic: str,
    body: str | None,
    keys: str | None,
    tags: str | None,
    broker: str | None,
    queue_id: int | None,
    allow_empty_body: bool,
    as_json: bool,
) -> None:
    """Send one test message, and show where it was stored. (`mqlake produce` sends many.)"""
    validate_topic(topic)
    if queue_id is not None and broker is None:
        raise ConfigError("--queue requires --broker: every broker has a queue with that id")
    data = sys.stdin.buffer.read() if body in (None, "-") else (body or "").encode()
    if not data and not allow_empty_body:
        raise MessageError(
            "the message has no body: set one with --body, or send it so with --allow-empty-body (mqlake's brokers "
            "take it, RocketMQ's refuse it)"
        )
    sent = Message(topic, data, tags=tags, keys=keys)
    queue = None
    if broker is not None:
        queue = MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id or 0)
    place, answer = await admin.send(sent, queue=queue)
    result = {
        "topic": topic,
        "broker": place.broker_name,
        "queueId": answer.queue_id,
        "queueOffset": answer.queue_offset,
        "msgId": answer.msg_id,
        "uniqKey": sent.uniq_key,
    }
    _print_pairs(result, as_json)


@message.command("consume")
@group_argument
@click.option("-d", "--client", "client_id", required=True, help="Client whose consumer gets the message.")
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="Topic of the message.")
@click.option("-i", "--id", "message_id", required=True, help="Message id, given by a broker or a client.")
@admin_command
async def consume(
    admin: Admin, group: str, client_id: str, topic: str, message_id: str, as_json: bool
) -> None:
    """Hand a stored message to one connected consumer, and show the result. Offsets do not change."""
    result = await admin.consume_message_directly(group, client_id, topic, message_id)
    shown = as_object(result)
    shown["consumeResult"] = result.consume_result.name if result.consume_result is not None else None
    _print_pairs(shown, as_json)


def _print_pairs(value: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        print_fields([(name, str(each)) for name, each in value.items()])
