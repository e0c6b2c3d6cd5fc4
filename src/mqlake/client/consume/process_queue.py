"""ProcessQueue: what was pulled from one queue and is not yet consumed.

    taken from the broker ─▶ waiting ─▶ being consumed ─▶ gone
                             └────── count, size ──────┘

The offset to commit is the first that is not gone: everything before it is done, and what follows it may come
again after a crash.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence

from mqlake.client.consume.undecodable import Delivery, delivered_message
from mqlake.client.records import MessageClientExt
from mqlake.errors import UndecodableMessageError
from mqlake.remoting.bodies.client import ProcessQueueInfo
from mqlake.remoting.bodies.topic import MessageQueue

LOCK_MAX_LIVE_S = 30.0
"""An orderly queue whose lock was not renewed for so long is not consumed; the broker keeps locks for 60 s."""


class ProcessQueue:
    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.dropped = False
        """No longer assigned to this consumer: pulling stops, and messages in flight no longer count."""
        self.void = False
        """Dropped because its offsets mean nothing any more: they are not to be committed."""
        self.size = 0
        """Bytes of the bodies."""
        self.room = asyncio.Event()
        """Set whenever messages have gone, or the queue was dropped."""
        self.arrived = asyncio.Event()
        """Set whenever messages have come, or the queue was dropped."""
        self.lock_changed = asyncio.Event()
        self.locked_at: float | None = None
        self.last_pull_at = self.last_consume_at = time.time()
        self._messages: dict[int, MessageClientExt] = {}
        """Not gone, by queue offset."""
        self._offsets: deque[int] = deque()
        """The keys of `_messages` and some that are gone, ascending."""
        self._next = 0
        """One more than the last offset that ever came."""
        self._waiting: deque[MessageClientExt] = deque()
        self.undecodable: dict[int, UndecodableMessageError] = {}
        """By queue offset, those among `_messages` that no listener is to see."""

    def __len__(self) -> int:
        return len(self._messages)

    def drop(self, *, void: bool = False) -> None:
        self.dropped = True
        self.void |= void
        self.room.set()
        self.arrived.set()
        self.lock_changed.set()

    # --- messages

    def put_messages(self, given: Sequence[Delivery]) -> None:
        """Messages in the order of their offsets, after all that came before."""
        for each in given:
            message = delivered_message(each)
            if isinstance(each, UndecodableMessageError):
                self.undecodable[message.queue_offset] = each
            self._messages[message.queue_offset] = message
            self._offsets.append(message.queue_offset)
            self._waiting.append(message)
            self.size += len(message.body)
        self._next = delivered_message(given[-1]).next_offset
        self.arrived.set()

    def take_messages(self, count: int) -> list[MessageClientExt]:
        """The next messages to consume, if there are any. One that cannot be decoded comes alone."""
        waiting = self._waiting
        if not self.undecodable:
            taken = [waiting.popleft() for _ in range(min(count, len(waiting)))]
        else:
            taken = []
            while waiting and len(taken) < count and not (taken and self._is_undecodable(waiting[0])):
                taken.append(waiting.popleft())
                if self._is_undecodable(taken[-1]):
                    break
        if not waiting:
            self.arrived.clear()
        self.last_consume_at = time.time()
        return taken

    def _is_undecodable(self, message: MessageClientExt) -> bool:
        return message.queue_offset in self.undecodable

    def contains(self, message: MessageClientExt) -> bool:
        return message.queue_offset in self._messages

    def remove_messages(self, messages: Iterable[MessageClientExt]) -> int:
        """These are done; the offset to commit now, -1 when nothing has ever come."""
        for message in messages:
            if self._messages.pop(message.queue_offset, None) is not None:
                self.size -= len(message.body)
                self.undecodable.pop(message.queue_offset, None)
        self.room.set()
        offsets = self._offsets
        while offsets and offsets[0] not in self._messages:
            offsets.popleft()
        if offsets:
            return offsets[0]
        return self._next or -1

    @property
    def max_span(self) -> int:
        """Offsets between the oldest message that is left and the newest."""
        return self._next - 1 - self._offsets[0] if self._offsets else 0

    # --- the lock of orderly consumers

    @property
    def locked(self) -> bool:
        return self.locked_at is not None and time.monotonic() - self.locked_at < LOCK_MAX_LIVE_S

    def set_locked(self, locked: bool) -> None:
        self.locked_at = time.monotonic() if locked else None
        if locked:
            self.lock_changed.set()
        else:
            self.lock_changed.clear()

    def info(self, commit_offset: int) -> ProcessQueueInfo:
        return ProcessQueueInfo(
            commit_offset=commit_offset,
            cached_msg_min_offset=self._offsets[0] if self._offsets else 0,
            cached_msg_max_offset=self._next - 1 if self._offsets else 0,
            cached_msg_count=len(self),
            cached_msg_size_in_mib=self.size >> 20,
            locked=self.locked,
            droped=self.dropped,
            last_pull_timestamp=int(self.last_pull_at * 1000),
            last_consume_timestamp=int(self.last_consume_at * 1000),
        )
