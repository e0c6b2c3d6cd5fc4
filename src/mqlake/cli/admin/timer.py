"""`mqlake admin timer`: what waits on a broker, and its recall."""

from __future__ import annotations

from typing import Any

import click

from mqlake.cli.admin.shared import (
    admin_command,
    broker_option,
    cluster_option,
    listing_command,
    targets,
    topic_argument,
    topic_option,
)
from mqlake.cli.options import Whole
from mqlake.cli.output import note, print_fields, print_json, print_json_line, print_table, time_text
from mqlake.client.admin import Admin
from mqlake.formats.timer import TimerCheckpointData
from mqlake.message import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_OUT_MS,
    TIMER_TOPIC,
    MessageExt,
)

PULL_MAX = 32
STEP_MS = 1000
"""timerPrecisionMs of nearly all brokers."""


@click.group()
def timer() -> None:
    """Timer messages: how many wait, which, and recalling one."""


@timer.command("status")
@broker_option
@cluster_option
@admin_command
async def status(admin: Admin, broker: str | None, cluster: str | None, as_json: bool) -> None:
    """Show how far brokers are with their timers, and how many messages wait for each topic."""
    found = []
    for name, address in await targets(admin, broker, cluster):
        info = await admin.brokers.get_broker_runtime_info(address)
        check_point = TimerCheckpointData.decode(await admin.brokers.get_timer_check_point(address))
        counts = await admin.brokers.get_timer_metrics(address)
        found.append(
            {
                "broker": name,
                "deliveredUntil": check_point.last_read_time_ms,
                "queueOffset": check_point.last_timer_queue_offset,
                **{key: value for key, value in info.items() if key.startswith("timer")},
                "waiting": {topic: count for topic, count in sorted(counts.items()) if count},
            }
        )
    if as_json:
        print_json(found)
        return
    for each in found:
        waiting: Any = each.pop("waiting")
        each["deliveredUntil"] = time_text(int(str(each["deliveredUntil"])))
        print_fields([(key, str(value)) for key, value in each.items()])
        if waiting:
            print_table(("topic", "waiting"), list(waiting.items()), indent=2)


@timer.command("list")
@broker_option
@cluster_option
@topic_option
@click.option("--max", "count_max", type=Whole(1), default=1000, show_default=True, help="At most so many.")
@listing_command
async def list_(
    admin: Admin, broker: str | None, cluster: str | None, topic: str | None, count_max: int, as_json: bool
) -> None:
    """List messages that wait, in the order of storing: topic, id, and the time from which they are delivered.

    They are read from rmq_sys_wheel_timer, from its beginning on; `mqlake store timers` on the broker's machine lists
    them by due time, and is quicker.
    """
    if topic is not None:
        await admin.examine_topic_route_info(topic)
    left = count_max
    for name, address in await targets(admin, broker, cluster):
        until = TimerCheckpointData.decode(
            await admin.brokers.get_timer_check_point(address)
        ).last_read_time_ms
        offset = 0
        while left > 0:
            messages, place = await admin.brokers.pull_message(address, TIMER_TOPIC, 0, offset, PULL_MAX)
            if not messages and place.next_begin_offset <= offset:
                break
            offset = place.next_begin_offset
            for message in messages:
                shown = _pending(message, until, topic)
                if shown is None or left <= 0:
                    continue
                left -= 1
                if as_json:
                    print_json_line({"broker": name, **shown})
                else:
                    kind = "  recall" if shown["isRecall"] else ""
                    click.echo(f"{time_text(shown['due'])}  {shown['topic']}  {shown['uniqKey']}{kind}")
    if left == count_max and not as_json:
        note("no timer message waits")


def _pending(message: MessageExt, until: int, topic: str | None) -> dict[str, Any] | None:
    out, real_topic = (
        message.properties.get(PROPERTY_TIMER_OUT_MS, ""),
        message.properties.get(PROPERTY_REAL_TOPIC),
    )
    if not out.isdecimal() or int(out) < until or (topic is not None and real_topic != topic):
        return None
    return {
        "due": int(out) + STEP_MS,
        "topic": real_topic,
        "uniqKey": message.uniq_key or "",
        "isRecall": PROPERTY_TIMER_DEL_UNIQKEY in message.properties,
        "queueOffset": message.queue_offset,
    }


@timer.command("recall")
@topic_argument
@click.argument("handle")
@admin_command
async def recall(admin: Admin, topic: str, handle: str, as_json: bool) -> None:
    """Cancel a message that waits, by the recall handle that its sender got.

    The broker needs recallMessageEnable=true.
    """
    message_id = await admin.recall_message(topic, handle)
    if as_json:
        print_json({"msgId": message_id})
    else:
        click.echo(f"recalled {message_id}")
