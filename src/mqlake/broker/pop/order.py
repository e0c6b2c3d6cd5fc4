"""ConsumerOrderInfoManager: orderly pop, in consumerOrderInfo.json.

    {"table":{"T@G":{0:{"a":"attempt","cm":1,"i":60000,"l":…,"o":[7,1,2],"oc":{7:1},"ot":{8:…},"popTime":…}}}}

The messages of a queue that were handed out last block the queue until they are acknowledged or their time is over.
They have no checkpoints: the queue's offset stays at the first of them until they are acknowledged.

    a    attemptId of the request: the same one may get the same messages again
    o    offsets: the first, then the distances from it
    cm   bit i: message i is acknowledged
    oc   how often an offset was handed out before
    ot   when an offset becomes visible, if the consumer has changed it
    i    invisible time, ms; popTime: when they were handed out; l: when the entry was last used
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

from mqlake.broker.pop.order_journal import OrderJournal
from mqlake.broker.state.config_manager import ConfigManager
from mqlake.broker.state.consumer_offset import split_topic_at_group, topic_at_group
from mqlake.remoting.bodies.codec import JsonBody, json_name

logger = logging.getLogger(__name__)

UNUSED_MS = 24 * 3600 * 1000
MESSAGES_MAX = 64
"""Messages of one entry: as many as `cm` has bits."""
_BITS = (1 << MESSAGES_MAX) - 1


class OrderInfo(JsonBody):
    """The messages that were handed out of one queue."""

    pop_time: int = 0
    invisible_time: int | None = field(default=None, metadata=json_name("i"))
    offset_list: list[int] = field(default_factory=list, metadata=json_name("o"))
    offset_next_visible_time: dict[int, int] = field(default_factory=dict, metadata=json_name("ot"))
    offset_consumed_count: dict[int, int] = field(default_factory=dict, metadata=json_name("oc"))
    last_consume_timestamp: int = field(default=0, metadata=json_name("l"))
    commit_offset_bit: int = field(default=0, metadata=json_name("cm"))
    attempt_id: str | None = field(default=None, metadata=json_name("a"))

    @property
    def offsets(self) -> list[int]:
        """Queue offsets of its messages."""
        if not self.offset_list:
            return []
        first = self.offset_list[0]
        return [first, *(first + distance for distance in self.offset_list[1:])]

    def is_acknowledged(self, index: int) -> bool:
        return bool(self.commit_offset_bit & _BITS & 1 << index)

    def visible_at(self, offset: int) -> int:
        return self.offset_next_visible_time.get(offset, self.pop_time + (self.invisible_time or 0))

    def blocked_until(self) -> int:
        """When the last message that is not acknowledged becomes visible; 0 if all are acknowledged."""
        return max(
            (self.visible_at(offset) for i, offset in enumerate(self.offsets) if not self.is_acknowledged(i)),
            default=0,
        )

    def next_offset(self) -> int:
        """The first offset that is not acknowledged, or the one after the last."""
        offsets = self.offsets
        for i, offset in enumerate(offsets):
            if not self.is_acknowledged(i):
                return offset
        return offsets[-1] + 1


class OrderInfoWrapper(JsonBody):
    """`T@G` → queue id → what was handed out."""

    table: dict[str, dict[int, OrderInfo]] = field(default_factory=dict)


IGNORED = -2
"""The acknowledgement belongs to an earlier pop."""
NOT_POPPED = -1
"""The offset was not handed out."""


class ConsumerOrderInfoManager(ConfigManager):
    def __init__(self, path: str, clock_ms: Callable[[], int]) -> None:
        super().__init__(path)
        self.table: dict[str, dict[int, OrderInfo]] = {}
        self._clock_ms = clock_ms
        self._journal = OrderJournal(f"{path.removesuffix('.json')}.journal")
        self._ends: dict[int, int] = {}
        """For each copy of the table that is being written, the end of the journal at that time."""

    def used_since(self, since: int) -> Iterator[tuple[tuple[str, str, int], OrderInfo]]:
        """(Topic, group, queue) and its entry, of those with messages that were used from a time (ms) on."""
        for key, queues in self.table.items():
            parts = split_topic_at_group(key)
            for queue_id, info in queues.items():
                if parts is not None and info.offset_list and info.last_consume_timestamp >= since:
                    yield (*parts, queue_id), info

    def find(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        queues = self.table.get(topic_at_group(topic, group))
        return None if queues is None else queues.get(queue_id)

    def blocked_until(
        self, topic: str, group: str, queue_id: int, attempt_id: str | None, invisible_time: int = 0
    ) -> int:
        """When the queue can be popped again, in ms; 0 for now. `invisible_time` is for entries that have none."""
        info = self.find(topic, group, queue_id)
        if info is None or (attempt_id and attempt_id == info.attempt_id):
            return 0
        if (info.invisible_time or 0) <= 0:
            info.invisible_time = invisible_time
        until = info.blocked_until()
        return until if until > self._clock_ms() else 0

    def update(
        self,
        topic: str,
        group: str,
        queue_id: int,
        attempt_id: str | None,
        pop_time: int,
        invisible_time: int,
        offsets: Sequence[int],
    ) -> dict[int, int]:
        """Messages are handed out; how often each was before, for those that were."""
        before = self.find(topic, group, queue_id)
        counts: dict[int, int] = {}
        if before is not None:
            known = before.offset_consumed_count
            if attempt_id and attempt_id == before.attempt_id:
                counts = {offset: known[offset] for offset in offsets if offset in known}
            else:
                old = set(before.offsets)
                counts = {offset: known.get(offset, 0) + 1 for offset in offsets if offset in old}
        first = offsets[0]
        info = OrderInfo(
            pop_time=pop_time,
            invisible_time=invisible_time,
            offset_list=[first, *(offset - first for offset in offsets[1:])],
            offset_consumed_count=dict(counts),
            last_consume_timestamp=self._clock_ms(),
            attempt_id=attempt_id or None,
        )
        self.table.setdefault(topic_at_group(topic, group), {})[queue_id] = info
        self._changed(topic, group, queue_id, info)
        return counts

    def commit_and_next(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int) -> int:
        """Acknowledges a message; the queue's next offset, or IGNORED, or NOT_POPPED."""
        info = self.find(topic, group, queue_id)
        if info is None:
            return offset + 1
        if pop_time != info.pop_time:
            logger.warning("%s@%s-%d: %d was popped earlier, ignored", topic, group, queue_id, offset)
            return IGNORED
        try:
            index = info.offsets.index(offset)
        except ValueError:
            return NOT_POPPED
        bits = (info.commit_offset_bit & _BITS) | 1 << index
        info.commit_offset_bit = bits - (1 << MESSAGES_MAX) if bits >> (MESSAGES_MAX - 1) else bits  # a long
        info.last_consume_timestamp = self._clock_ms()
        self._changed(topic, group, queue_id, info)
        return info.next_offset()

    def update_next_visible_time(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, visible_at: int
    ) -> bool:
        """Changes when a message becomes visible; False if it belongs to no entry, or to another pop."""
        info = self.find(topic, group, queue_id)
        if info is None or pop_time != info.pop_time or offset not in info.offsets:
            return False
        info.offset_next_visible_time[offset] = visible_at
        self._changed(topic, group, queue_id, info)
        return True

    def clear_block(self, topic: str, group: str, queue_id: int | None = None) -> None:
        """The queue's offset was reset: what was handed out does not block it. None: all queues."""
        queues = self.table.get(topic_at_group(topic, group))
        if queues is None:
            return
        for one in list(queues) if queue_id is None else [queue_id]:
            if queues.pop(one, None) is not None:
                self._changed(topic, group, one, None)
        if not queues:
            del self.table[topic_at_group(topic, group)]

    def forget(self, topic: str | None, group: str | None, queue_id: int | None) -> None:
        """As PopQueues.forget()."""
        for key in list(self.table):
            parts = split_topic_at_group(key)
            if parts is None or (topic in (None, parts[0]) and group in (None, parts[1])):
                self.clear_block(*(parts or (key, "")), queue_id)

    def clean(self, queue_nums: Callable[[str], int], has_group: Callable[[str], bool]) -> None:
        """Drops entries of topics, queues (`queue_nums(topic)`) and groups that are gone, and unused ones."""
        oldest = self._clock_ms() - UNUSED_MS
        for key, queues in list(self.table.items()):
            parts = split_topic_at_group(key)
            count = queue_nums(parts[0]) if parts is not None and has_group(parts[1]) else 0
            for queue_id, info in list(queues.items()):
                if queue_id >= count or info.last_consume_timestamp < oldest:
                    del queues[queue_id]
                    self.dirty = True
            if not queues:
                del self.table[key]

    def _changed(self, topic: str, group: str, queue_id: int, info: OrderInfo | None) -> None:
        self.dirty = True
        value = None if info is None else info.to_value()
        self._journal.append((topic_at_group(topic, group), queue_id, value))

    # --- the file

    def load(self) -> None:
        super().load()
        for key, queue_id, value in self._journal.lines(self.path):
            self.dirty = True
            if value is None:
                queues = self.table.get(key, {})
                queues.pop(queue_id, None)
                if not queues:
                    self.table.pop(key, None)
                continue
            self.table.setdefault(key, {})[queue_id] = OrderInfo.from_value(value)

    def _next_copy(self) -> int:
        copy = super()._next_copy()
        self._ends[copy] = self._journal.end
        return copy

    def _write(self, copy: int, content: Callable[[], dict[str, Any]]) -> None:
        end = self._ends.pop(copy)
        super()._write(copy, content)
        self._journal.cut(end)

    def encode(self) -> dict[str, Any]:
        return OrderInfoWrapper(table=self.table).to_value()

    def decode(self, value: Any) -> None:
        self.table = OrderInfoWrapper.from_value(value).table
