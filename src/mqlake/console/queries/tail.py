"""Messages as they arrive, and messages by the thousand: the live tail and the export, as streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson

from mqlake.base.rendering import size_text, time_text
from mqlake.client.admin import PULL_MESSAGES, Admin
from mqlake.console.ask import Ask
from mqlake.console.excerpts import has_text, whole_object
from mqlake.console.queries.messages import QUEUES_MAX, row_of
from mqlake.console.templates import path_to
from mqlake.errors import MqlakeError
from mqlake.remoting.bodies.topic import MessageQueue

PAUSE_S = 0.5
LOOK_AGAIN_S = 10.0
"""New queues are seen by then."""
PER_ROUND = 50
"""Messages that are shown of one round; of more, the newest of each queue."""
EXPORT_MAX = 1_000_000
EXPORT_DEFAULT = 10_000


async def tail(ask: Ask) -> dict[str, Any]:
    """A page that shows messages as they arrive; its stream is the same path with /events."""
    topic = ask.need("topic")
    await ask.admin.examine_topic_route_info(topic)
    query = {name: ask.text(name) for name in ("tag", "text")}
    return {"topic": topic, "query": query, "events": path_to("/topics/{}/tail/events", topic, **query)}


async def events(ask: Ask) -> AsyncIterator[bytes]:
    """Server-sent events: each message as JSON, `skipped` with how many were not shown, `trouble` with a sentence."""
    admin, topic = ask.admin, ask.need("topic")
    tag, text = ask.text("tag"), ask.raw_text("text").encode()
    positions = await _ends(admin, topic)
    loop = asyncio.get_running_loop()
    looked, skipped, quiet = loop.time(), 0, 0.0
    yield b": from here on\n\n"
    while True:
        try:
            if loop.time() - looked > LOOK_AGAIN_S:
                looked = loop.time()
                for queue, end in (await _ends(admin, topic)).items():
                    positions.setdefault(queue, end)
            async with ask.context.turns:
                shown, missed = await _round(admin, positions, tag, text)
        except MqlakeError as error:
            yield _event("trouble", " ".join(str(error).split()))
            shown, missed = [], 0
            await asyncio.sleep(LOOK_AGAIN_S)
        for row in shown:
            yield b"data: " + orjson.dumps(row) + b"\n\n"
        if missed:
            skipped += missed
            yield _event("skipped", str(skipped))
        quiet = 0.0 if shown else quiet + PAUSE_S
        if quiet >= LOOK_AGAIN_S:
            quiet = 0.0
            yield b": nothing new\n\n"
        await asyncio.sleep(PAUSE_S)


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()


async def _ends(admin: Admin, topic: str) -> dict[MessageQueue, int]:
    stats = await admin.examine_topic_stats(topic)
    return {queue: at.max_offset for queue, at in sorted(stats.offset_table.items())[:QUEUES_MAX]}


async def _round(
    admin: Admin, positions: dict[MessageQueue, int], tag: str, text: bytes
) -> tuple[list[dict[str, Any]], int]:
    """New messages, oldest first, and how many were passed over. `positions` moves on."""
    topic = next(iter(positions)).topic if positions else ""
    ends = await _ends(admin, topic) if topic else {}
    rows, missed = [], 0
    for queue, start in positions.items():
        end = ends.get(queue, start)
        first = max(start, end - PULL_MESSAGES)
        missed += first - start if first > start else 0
        positions[queue] = end
        for message in await admin.messages_in(queue, first, end):
            if (not tag or message.tags == tag) and (
                not text or has_text(message.body, message.sys_flag, text)
            ):
                row = row_of(message, queue.broker_name)
                row["time"] = time_text(message.store_timestamp)[:23]
                row["sizeText"] = size_text(message.store_size)
                row["href"] = (
                    path_to("/topics/{}/message", message.topic, broker=queue.broker_name)
                    + f"&queue={message.queue_id}&offset={message.queue_offset}"
                )
                rows.append(row)
    rows.sort(key=lambda row: row["storeTimestamp"])
    return rows[-PER_ROUND:], missed + max(0, len(rows) - PER_ROUND)


async def export(ask: Ask) -> AsyncIterator[bytes]:
    """The messages of a topic, queue after queue, a JSON object a line with the body in base64; at most `max`."""
    admin, topic = ask.admin, ask.need("topic")
    left = ask.number("max", EXPORT_DEFAULT, 1, EXPORT_MAX)
    begin, end = ask.time("from") or 0, ask.time("to")
    stats = await admin.examine_topic_stats(topic)

    async def lines() -> AsyncIterator[bytes]:
        nonlocal left
        for queue, at in sorted(stats.offset_table.items()):
            address = await admin.queue_address(queue)
            start = at.min_offset
            if begin:
                start = max(start, await admin.brokers.search_offset(address, queue, begin))
            while start < at.max_offset and left > 0:
                following = min(start + PULL_MESSAGES, at.max_offset, start + left)
                async with ask.context.turns:
                    found = await admin.messages_in(queue, start, following)
                chosen = [each for each in found if end is None or each.store_timestamp <= end]
                left -= len(chosen)
                for each in chosen:
                    yield orjson.dumps(whole_object(each) | {"broker": queue.broker_name}) + b"\n"
                if len(chosen) < len(found):
                    break
                start = following

    return lines()
