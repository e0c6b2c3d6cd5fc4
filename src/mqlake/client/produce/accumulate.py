"""ProduceAccumulator: single sends that come at the same time travel as batches.

Sends made in one turn of the event loop leave at its end. Sends made while a batch is in flight wait for the answer,
or until they fill a batch. So nothing waits under light load, and batches grow with the load.

    lane     topic, queue, WAIT. The queue is the next in turn, so that messages are spread over the queues as evenly
             as without batches, and then up to IN_FLIGHT_MAX of the lane's batches are in flight; or it is the
             caller's choice, and one is: what was sent before is stored before
    result   each message has its own: id, queue and offset
    refusal  of a batch for what is in it: each of its messages is sent alone, and only the one it is about fails
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from mqlake.client.results import SendResult
from mqlake.errors import MessageError, MqlakeError, SendError
from mqlake.message import Message
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import ResponseCode

ITEM_OVERHEAD = 400
"""Bytes counted for a message's properties and lengths."""
IN_FLIGHT_MAX = 8
"""Batches of a lane whose queue the producer has chosen: enough that the way to a distant broker is never idle."""

SendBatch = Callable[[Sequence[Message], MessageQueue, bool], Awaitable[SendResult]]
"""Sends a batch: (messages, their queue, True if the caller has chosen it). Another queue may replace one that the
caller has not chosen."""
_Key = tuple[MessageQueue, bool, bool]
_Item = tuple[Message, "asyncio.Future[SendResult]"]


class _Lane:
    def __init__(self, key: _Key) -> None:
        self.key = key
        self.queue, self.fixed, _ = key
        self.waiting: deque[_Item] = deque()
        self.size = 0
        """Bytes of what waits, as they are counted here."""
        self.in_flight = 0
        self.in_flight_max = 1 if self.fixed else IN_FLIGHT_MAX


class ProduceAccumulator:
    def __init__(self, send_batch: SendBatch, max_bytes: int) -> None:
        self._send_batch = send_batch
        self._max_bytes = max_bytes
        self._lanes: dict[_Key, _Lane] = {}
        """Lanes with queued messages or a batch in flight; idle lanes are removed."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, message: Message, queue: MessageQueue, *, fixed: bool) -> SendResult:
        """As Producer.send of a message that was checked. `fixed`: the queue is the caller's choice."""
        key = (queue, fixed, message.wait_store_msg_ok)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
        result: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        lane.waiting.append((message, result))
        lane.size += len(message.body) + ITEM_OVERHEAD
        self._begin(lane)
        return await result

    def _begin(self, lane: _Lane) -> None:
        """A batch more, unless the answer to one that is in flight is worth waiting for."""
        if not lane.waiting or lane.in_flight >= lane.in_flight_max:
            return
        if lane.in_flight and lane.size < lane.in_flight * self._max_bytes:
            return
        lane.in_flight += 1
        task = asyncio.ensure_future(self._send_some(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_some(self, lane: _Lane) -> None:
        taken: list[_Item] = []
        try:
            while taken := self._next_batch(lane):
                await self._deliver(taken, lane)
        finally:
            lane.in_flight -= 1
            for _, result in taken:  # of a client that was closed
                result.cancel()
            if not lane.in_flight:
                del self._lanes[lane.key]
                for _, result in lane.waiting:
                    result.cancel()

    async def _deliver(self, items: list[_Item], lane: _Lane) -> None:
        try:
            whole = await self._send_batch([message for message, _ in items], lane.queue, lane.fixed)
        except MqlakeError as error:
            if len(items) > 1 and _is_about_one(error):
                for item in items:
                    await self._deliver([item], lane)
                return
            for _, result in items:
                if not result.done():
                    result.set_exception(error)
            return
        for (_, result), part in zip(items, split_result(whole, len(items)), strict=True):
            if not result.done():
                result.set_result(part)

    def _next_batch(self, lane: _Lane) -> list[_Item]:
        taken: list[_Item] = []
        size = 0
        waiting = lane.waiting
        while waiting:
            more = len(waiting[0][0].body) + ITEM_OVERHEAD
            if taken and size + more > self._max_bytes:
                break
            size += more
            item = waiting.popleft()
            if not item[1].done():  # a send that is done has no waiter
                taken.append(item)
            else:
                size -= more
                lane.size -= more
        lane.size -= size
        return taken


def _is_about_one(error: MqlakeError) -> bool:
    """True if the batch was refused for something in it, and nothing of it is stored."""
    return isinstance(error, MessageError) or (
        isinstance(error, SendError) and error.code == ResponseCode.MESSAGE_ILLEGAL
    )


def split_result(whole: SendResult, count: int) -> list[SendResult]:
    """The result of a batch of `count` messages, for each of them."""
    if count == 1:
        return [whole]
    ids = whole.msg_id.split(",")
    if len(ids) != count:  # a program gave an id with a comma
        ids = [whole.msg_id] * count
    places = whole.offset_msg_id.split(",")
    if len(places) != count:  # stored as one record
        places = [whole.offset_msg_id] * count
    return [
        dataclasses.replace(
            whole, msg_id=ids[i], offset_msg_id=places[i], queue_offset=whole.queue_offset + i
        )
        for i in range(count)
    ]
