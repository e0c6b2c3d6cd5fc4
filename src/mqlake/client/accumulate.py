"""ProduceAccumulator: single sends that come at the same time travel as batches.

The first message leaves at once; what comes while it is under way leaves together when its answer is there. So
nothing waits when there is little to do, and batches grow with the load. Messages of a topic keep their order.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from mqlake.client.results import SendResult
from mqlake.errors import MqlakeError
from mqlake.message import Message
from mqlake.remoting.bodies.topic import MessageQueue

ITEM_OVERHEAD = 400
"""Bytes counted for a message's properties and lengths."""

SendBatch = Callable[[Sequence[Message], MessageQueue | None], Awaitable[SendResult]]
_Key = tuple[str, MessageQueue | None, bool]
_Item = tuple[Message, "asyncio.Future[SendResult]"]
_Waiting = deque[_Item]


class ProduceAccumulator:
    def __init__(self, send_batch: SendBatch, max_bytes: int) -> None:
        self._send_batch = send_batch
        self._max_bytes = max_bytes
        self._lanes: dict[_Key, _Waiting] = {}
        """Topic, chosen queue and WAIT → what waits; a lane exists as long as something is under way in it."""
        self._draining: set[asyncio.Task[None]] = set()

    async def send(self, message: Message, queue: MessageQueue | None) -> SendResult:
        """As Producer.send of a message that was checked."""
        key = (message.topic, queue, message.wait_store_msg_ok)
        result: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
            task = asyncio.ensure_future(self._drain(key, lane))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)
        lane.append((message, result))
        return await result

    async def _drain(self, key: _Key, lane: _Waiting) -> None:
        queue = key[1]
        try:
            while lane:
                taken = self._take(lane)
                try:
                    whole = await self._send_batch([message for message, _ in taken], queue)
                except MqlakeError as error:
                    for _, result in taken:
                        if not result.done():
                            result.set_exception(error)
                    continue
                for (_, result), part in zip(taken, split_result(whole, len(taken)), strict=True):
                    if not result.done():
                        result.set_result(part)
        finally:
            del self._lanes[key]
            for _, result in lane:
                result.cancel()

    def _take(self, lane: _Waiting) -> list[_Item]:
        taken: list[_Item] = []
        size = 0
        while lane:
            size += len(lane[0][0].body) + ITEM_OVERHEAD
            if taken and size > self._max_bytes:
                break
            taken.append(lane.popleft())
        return taken


def split_result(whole: SendResult, count: int) -> list[SendResult]:
    """What a batch of `count` messages came to, for each of them."""
    if count == 1:
        return [whole]
    ids = whole.msg_id.split(",")
    places = whole.offset_msg_id.split(",")
    if len(places) != count:  # stored as one record
        places = [whole.offset_msg_id] * count
    return [
        dataclasses.replace(
            whole, msg_id=ids[i], offset_msg_id=places[i], queue_offset=whole.queue_offset + i
        )
        for i in range(count)
    ]
