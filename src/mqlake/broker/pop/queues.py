"""PopQueues: what the broker remembers of each (topic, group, queue) that is popped.

    committed ───────── pending ─────────▶ next offset
    consumerOffset.json  handed out; their checkpoints are being stored

A queue's offset is committed when the checkpoint is stored, in the order of the pops, not when messages are
acknowledged: from then on the checkpoint answers for them. A range that a filter rejected needs no checkpoint.

Everything here belongs to the event loop and is in memory only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from mqlake.broker.state.consumer_offset import ConsumerOffsetManager

POP_CLIENT = "pop"
"""In logs, in place of a client's address."""
IDLE_MS = 300_000


class PendingRange:
    """Offsets before `next_offset`, handed out together or passed over. `is_stored`: their checkpoint is on the
    log."""

    __slots__ = ("is_stored", "next_offset")

    def __init__(self, next_offset: int, *, is_stored: bool) -> None:
        self.next_offset = next_offset
        self.is_stored = is_stored


class PopQueue:
    """One queue of one group. `in_use`: a pop waits in it for the disk, and others leave it out."""

    __slots__ = ("group", "in_flight", "in_use", "pending", "queue_id", "topic", "used_at")

    def __init__(self, topic: str, group: str, queue_id: int) -> None:
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.pending: deque[PendingRange] = deque()
        self.in_use = False
        self.in_flight = 0
        self.used_at = 0


class PopQueues:
    def __init__(self, offsets: ConsumerOffsetManager, clock_ms: Callable[[], int]) -> None:
        self._offsets = offsets
        self._clock_ms = clock_ms
        self._queues: dict[tuple[str, str, int], PopQueue] = {}
        self.has_popped = False
        """True if offsets were committed since it was set to False last."""
        self.pending_count = 0
        """Stretches whose checkpoints are not stored yet."""

    def get(self, topic: str, group: str, queue_id: int) -> PopQueue:
        key = topic, group, queue_id
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = PopQueue(topic, group, queue_id)
        queue.used_at = self._clock_ms()
        return queue

    def find(self, topic: str, group: str, queue_id: int) -> PopQueue | None:
        return self._queues.get((topic, group, queue_id))

    # --- offsets

    def next_offset(self, queue: PopQueue) -> int:
        """The offset of the next message to hand out; -1 if the group has none yet."""
        committed = self._offsets.query_offset(queue.group, queue.topic, queue.queue_id)
        return max(committed, queue.pending[-1].next_offset) if queue.pending else committed

    def passed(self, queue: PopQueue, next_offset: int) -> None:
        """Offsets before `next_offset` need no checkpoint."""
        if queue.pending:
            self._append(queue, PendingRange(next_offset, is_stored=True))
        else:
            self.commit(queue, next_offset)

    def handed_out(self, queue: PopQueue, next_offset: int) -> PendingRange:
        """Offsets before `next_offset` are handed out; call stored() when their checkpoint is."""
        pending = PendingRange(next_offset, is_stored=False)
        self._append(queue, pending)
        return pending

    def _append(self, queue: PopQueue, handed_out: PendingRange) -> None:
        queue.pending.append(handed_out)
        self.pending_count += 1

    def stored(self, queue: PopQueue, handed_out: PendingRange) -> None:
        """The checkpoint of a range is stored, or all of its messages are acknowledged."""
        handed_out.is_stored = True
        pending = queue.pending
        reached = -1
        while pending and pending[0].is_stored:
            reached = pending.popleft().next_offset
            self.pending_count -= 1
        # what was reset meanwhile has no pending ranges, so this one does not count
        if reached >= 0:
            self.commit(queue, reached)

    def correct(self, queue: PopQueue, offset: int, next_offset: int) -> None:
        """The queue does not have `offset`: files were deleted, or it is another queue now."""
        if next_offset > offset:
            self.passed(queue, next_offset)
        else:
            self.reset(queue, next_offset)

    def reset(self, queue: PopQueue, offset: int) -> None:
        """Goes on at `offset`, whatever is pending."""
        self.pending_count -= len(queue.pending)
        queue.pending.clear()
        self.commit(queue, offset)

    def commit(self, queue: PopQueue, offset: int) -> None:
        self.has_popped = True
        self._offsets.commit_offset(POP_CLIENT, queue.group, queue.topic, queue.queue_id, offset)

    # --- changes from outside

    def forget(self, topic: str | None, group: str | None, queue_id: int | None) -> None:
        """A topic or group was deleted, or offsets were reset: what is pending must not move the new offset.
        None: any."""
        for key, queue in list(self._queues.items()):
            if (
                topic in (None, queue.topic)
                and group in (None, queue.group)
                and queue_id in (None, queue.queue_id)
            ):
                self.pending_count -= len(queue.pending)
                queue.pending.clear()
                queue.in_flight = 0
                del self._queues[key]

    def forget_idle(self) -> None:
        """Drops queues that have not been used for some minutes and remember nothing."""
        oldest = self._clock_ms() - IDLE_MS
        for key, queue in list(self._queues.items()):
            if queue.used_at < oldest and not (queue.in_use or queue.pending or queue.in_flight):
                del self._queues[key]

    # --- figures

    def in_flight(self, topic: str, group: str, queue_id: int) -> int:
        queue = self._queues.get((topic, group, queue_id))
        return 0 if queue is None else queue.in_flight

    def done(self, topic: str, group: str, queue_id: int, count: int = 1) -> None:
        """Messages are not in flight any more."""
        queue = self._queues.get((topic, group, queue_id))
        if queue is not None:
            queue.in_flight = max(queue.in_flight - count, 0)

    def __iter__(self) -> Iterator[PopQueue]:
        return iter(list(self._queues.values()))
