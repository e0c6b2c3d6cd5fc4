"""Messages of a cluster: newest first, by time, tag, key, id and text in the body; one message and all about it."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from mqlake.client.admin import PULL_MESSAGES, Admin
from mqlake.client.api.broker_api import TIME_MAX, TOOLS_GROUP
from mqlake.console.ask import Ask
from mqlake.console.excerpts import excerpt, has_text, row, whole_object
from mqlake.console.payload import payload_views
from mqlake.errors import ConfigError, FormatError, MessageError, MqlakeError, ResponseError
from mqlake.formats.names import offset_to_file_name
from mqlake.formats.trace import Pub, SubAfter, SubBefore, Trace, decode_traces
from mqlake.message import MessageExt, MessageSysFlag
from mqlake.message.rendering import host_text
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import ResponseCode

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
QUEUES_MAX = 64
"""Queues of a topic that are read for one page."""
LOOKED_MAX = 20_000
LOOK_S = 3.0
"""A page shows what is found by then, and goes on from there if asked."""
PULLS_AT_ONCE = 4
BODIES_MAX = 16 << 20
"""Bytes of bodies as they are stored that a page keeps until it has searched them."""
TRACE_MAX = 1 << 20
"""Bytes of one message with traces that are read."""
TRACES_MAX = 200
DEFAULT_FILE_SIZE = 1 << 30


def row_of(message: MessageExt, broker: str) -> dict[str, Any]:
    """A message as a row of a list."""
    return {"broker": broker, **row(message), "reconsumeTimes": message.reconsume_times}


async def messages(ask: Ask) -> dict[str, Any]:
    """Messages of a topic, newest first; `to` and `skip` go on with older ones."""
    admin, topic, rows = ask.admin, ask.need("topic"), ask.rows()
    asked_for = {name: ask.text(name) for name in ("key", "tag", "text", "from", "to", "id", "queue")}
    answer: dict[str, Any] = {
        "topic": topic,
        "query": asked_for,
        "next": None,
        "lookedAt": 0,
        "complete": True,
    }
    begin, end = ask.time("from") or 0, ask.time("to")
    if ask.text("id"):
        return answer | {"messages": await _by_id(admin, topic, ask.text("id"))}
    if ask.text("key"):
        last = TIME_MAX if end is None else end
        found = await admin.query_message(topic, ask.text("key"), rows, begin, last)
        names = await _broker_names(admin)
        return answer | {"messages": [row_of(each, _name_of(each, names)) for each in reversed(found)]}
    stats = await admin.examine_topic_stats(topic)
    queues = sorted(queue for queue, at in stats.offset_table.items() if at.max_offset > at.min_offset)
    if ask.text("queue"):
        queues = [queue for queue in queues if f"{queue.broker_name}/{queue.queue_id}" == ask.text("queue")]
    answer["moreQueues"] = max(0, len(queues) - QUEUES_MAX)
    ends = {}
    for queue in queues[:QUEUES_MAX]:
        at = stats.offset_table[queue]
        ends[queue] = (at.min_offset, at.max_offset)
    tag, text, skip = ask.text("tag"), ask.raw_text("text").encode(), ask.number("skip", 0)
    backwards = _Backwards(admin, ends, end, min(PULL_MESSAGES, rows), with_bodies=bool(text))
    return answer | await _filtered(backwards, tag, text, begin, rows, skip)


async def _filtered(
    backwards: _Backwards, tag: str, text: bytes, begin: int, rows: int, skip: int
) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    limit, looked = time.monotonic() + LOOK_S, 0
    last_time, same = -1, 0
    async for seen in backwards.messages():
        if seen.time < begin:
            break
        if skip and looked < skip:
            looked, last_time, same = looked + 1, seen.time, same + 1
            continue
        if len(found) == rows or looked - skip >= LOOKED_MAX or (looked > skip and time.monotonic() > limit):
            following = {"to": last_time, "skip": same}
            return {"messages": found, "next": following, "lookedAt": looked, "complete": False}
        looked += 1
        same = same + 1 if seen.time == last_time else 1
        last_time = seen.time
        if (not tag or seen.row["tags"] == tag) and (not text or await backwards.has_text(seen, text)):
            found.append(seen.row)
    return {"messages": found, "next": None, "lookedAt": looked, "complete": True}


@dataclass(frozen=True, slots=True)
class _Seen:
    """A message that a page keeps: its row, and to search the text in it its body as stored."""

    row: dict[str, Any]
    sys_flag: int
    body: bytes | None

    @property
    def time(self) -> int:
        return int(self.row["storeTimestamp"])


class _Backwards:
    """The messages of queues from the newest on, a few of each queue at a time in memory."""

    def __init__(
        self,
        admin: Admin,
        ends: dict[MessageQueue, tuple[int, int]],
        to: int | None,
        chunk: int,
        *,
        with_bodies: bool,
    ) -> None:
        self._admin, self._ends, self._to, self._chunk = admin, ends, to, chunk
        self._room = BODIES_MAX if with_bodies else 0

    async def messages(self) -> AsyncIterator[_Seen]:
        turns = asyncio.Semaphore(PULLS_AT_ONCE)

        async def begin(queue: MessageQueue) -> list[_Seen]:
            async with turns:
                low, high = self._ends[queue]
                if self._to is not None:
                    address = await self._admin.queue_address(queue)
                    found = await self._admin.brokers.search_offset(address, queue, self._to + 1)
                    high = min(high, max(low, found))
                self._ends[queue] = (low, high)
                return await self._before(queue)

        queues = list(self._ends)
        buffers = dict(zip(queues, await asyncio.gather(*map(begin, queues)), strict=True))
        heap = [(-buffers[queue][-1].time, queue) for queue in queues if buffers[queue]]
        heapq.heapify(heap)
        while heap:
            _, queue = heapq.heappop(heap)
            seen = buffers[queue].pop()
            yield seen
            self._room += len(seen.body or b"")
            if not buffers[queue]:
                buffers[queue] = await self._before(queue)
            if buffers[queue]:
                heapq.heappush(heap, (-buffers[queue][-1].time, queue))

    async def has_text(self, seen: _Seen, text: bytes) -> bool:
        """A body for which there was no room is pulled again. In a thread: it may unpack to megabytes."""
        if seen.body is not None:
            body = seen.body
        else:
            place = {
                "topic": seen.row["topic"],
                "broker_name": seen.row["broker"],
                "queue_id": seen.row["queueId"],
            }
            body = (await self._admin.message_at(MessageQueue(**place), seen.row["queueOffset"])).body
        if not seen.sys_flag & MessageSysFlag.COMPRESSED_FLAG:
            return text in body
        return await asyncio.to_thread(has_text, body, seen.sys_flag, text)

    async def _before(self, queue: MessageQueue) -> list[_Seen]:
        """The next older messages of a queue, oldest first; none at its beginning."""
        while True:
            low, high = self._ends[queue]
            if high <= low:
                return []
            start = max(low, high - self._chunk)
            self._ends[queue] = (low, start)
            if found := await self._admin.messages_in(queue, start, high):
                return [self._kept(message, queue) for message in found]

    def _kept(self, message: MessageExt, queue: MessageQueue) -> _Seen:
        body = message.body if len(message.body) <= self._room else None
        self._room -= len(body or b"")
        return _Seen(row_of(message, queue.broker_name), message.sys_flag, body)


async def _by_id(admin: Admin, topic: str, message_id: str) -> list[dict[str, Any]]:
    try:
        found = [await admin.view_message(topic, message_id)]
    except (MessageError, ResponseError):
        found = []
    names = await _broker_names(admin)
    return [row_of(each, _name_of(each, names)) for each in found]


async def _broker_names(admin: Admin) -> dict[str, str]:
    """Address → name."""
    return {broker.address: broker.name for broker in await admin.list_brokers()}


def _name_of(message: MessageExt, names: dict[str, str]) -> str:
    return names.get(host_text(message.store_host), "")


# ---------------------------------------------------------------------- one message


async def message(ask: Ask) -> dict[str, Any]:
    """One message by its place: payload, properties, where it is stored, who has consumed it, and its trace."""
    admin, topic = ask.admin, ask.need("topic")
    queue, found = _queue_of(ask), await at_place(ask)
    place, consumers, traces = await asyncio.gather(
        _place(admin, found, queue.broker_name),
        _consumers(admin, queue, found.queue_offset),
        _traces(admin, found),
    )
    payload = payload_views(excerpt(found.body, found.sys_flag), topic, ask.context.bodies)
    return {
        "message": whole_object(found),
        "payload": payload,
        "place": place,
        "consumers": consumers,
        "trace": traces,
    }


def _queue_of(ask: Ask) -> MessageQueue:
    return MessageQueue(
        topic=ask.need("topic"), broker_name=ask.need("broker"), queue_id=ask.number("queue", 0)
    )


async def at_place(ask: Ask) -> MessageExt:
    """The message that `topic`, `broker`, `queue` and `offset` name. MessageError."""
    return await ask.admin.message_at(_queue_of(ask), ask.number("offset", 0))


async def _place(admin: Admin, found: MessageExt, broker: str) -> dict[str, Any]:
    """Returns the place of the message. `file` is a guess of 1 GiB files if the broker does not say how large they
    are."""
    size, directory, known = DEFAULT_FILE_SIZE, "", False
    try:
        config = await admin.brokers.get_broker_config(await admin.broker_address(broker))
        size = int(config.get("mappedFileSizeCommitLog", size))
        root = config.get("storePathRootDir", "")
        directory, known = config.get("storePathCommitLog") or f"{root}/commitlog", True
    except (MqlakeError, ValueError):
        pass
    return {
        "broker": broker,
        "address": host_text(found.store_host),
        "directory": directory,
        "file": offset_to_file_name(found.physical_offset // size * size),
        "fileKnown": known,
        "position": found.physical_offset % size,
        "physicalOffset": found.physical_offset,
        "size": found.store_size,
    }


async def _consumers(admin: Admin, queue: MessageQueue, offset: int) -> list[dict[str, Any]]:
    """Groups of the topic, and whether their offset is past the message."""
    rows = []
    for group in sorted(await admin.query_topic_consume_by_who(queue.topic))[:100]:
        stats = await admin.examine_consume_stats(group, queue.topic)
        at = stats.offset_table.get(queue)
        if at is not None:
            rows.append(
                {
                    "group": group,
                    "consumerOffset": at.consumer_offset,
                    "consumed": at.consumer_offset > offset,
                }
            )
    return rows


async def _traces(admin: Admin, found: MessageExt) -> list[dict[str, Any]]:
    """Returns what producers, brokers and consumers have written about the message, oldest first."""
    key = found.uniq_key or found.msg_id
    try:
        carriers = await admin.query_message(TRACE_TOPIC, key)
    except (ConfigError, ResponseError):  # nothing was traced yet
        return []
    traces: list[Trace] = []
    for carrier in carriers:
        text = excerpt(carrier.body, carrier.sys_flag, TRACE_MAX).body.decode("utf-8", "replace")
        try:
            traces += [each for each in decode_traces(text) if key in each.msg_id][: TRACES_MAX - len(traces)]
        except FormatError:
            continue
    return sorted(_spans(traces), key=lambda span: (span["begin"], span["end"]))


def _spans(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Each trace as a span of time: `kind`, `name`, `begin` and `end` in ms, `good`, and the text about it."""
    # looking at a message is a delivery, too
    begun = {
        each.request_id: each for each in traces if isinstance(each, SubBefore) and each.group != TOOLS_GROUP
    }
    ended = {each.request_id: each for each in traces if isinstance(each, SubAfter)}
    spans: list[dict[str, Any]] = []
    for each in traces:
        if isinstance(each, Pub):
            text = f"sent by {each.group} to {each.store_host}"
            spans.append(_span("send", each.group, each.timestamp, each.cost_time, each.success, text))
    for request_id, before in begun.items():
        after = ended.get(request_id)
        if after is None:
            text = f"delivered to {before.group}"
            spans.append(_span("deliver", before.group, before.timestamp, 0, True, text))
            continue
        text = f"consumed by {before.group}, try {before.retry_times + 1}: {'done' if after.success else 'failed'}"
        spans.append(_span("consume", before.group, before.timestamp, after.cost_time, after.success, text))
    return spans


def _span(kind: str, group: str, begin: int, took: int, good: bool, text: str) -> dict[str, Any]:
    name = f"{kind} {group}"
    return {
        "kind": kind,
        "name": name,
        "begin": begin,
        "end": begin + max(took, 0),
        "good": good,
        "text": text,
    }


async def find(ask: Ask) -> dict[str, Any]:
    """A message of any topic by an id that a broker gave, or of one topic by an id that its producer gave."""
    message_id, topic = ask.text("id"), ask.text("topic")
    answer: dict[str, Any] = {"id": message_id, "topic": topic, "message": None, "error": ""}
    if not message_id:
        return answer
    try:
        found = await ask.admin.view_message(topic or None, message_id)
    except (MessageError, ResponseError) as error:
        if isinstance(error, ResponseError) and error.code == ResponseCode.NO_PERMISSION:
            raise
        return answer | {"error": str(error)}
    return answer | {"message": row_of(found, _name_of(found, await _broker_names(ask.admin)))}
