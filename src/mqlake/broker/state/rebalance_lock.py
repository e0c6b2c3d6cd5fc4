"""RebalanceLockManager: which client consumes a queue in order.

A queue of a group is locked by one client, which must lock it again within 60 s. No client is notified when a lock
expires: the next client to ask gets it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from mqlake.broker.state.clients import monotonic_ms
from mqlake.remoting.bodies.topic import MessageQueue

logger = logging.getLogger(__name__)

LOCK_MAX_LIVE_TIME_MS = 60_000


class _LockEntry:
    __slots__ = ("client_id", "last_update_timestamp")

    def __init__(self, client_id: str, now: int) -> None:
        self.client_id = client_id
        self.last_update_timestamp = now


class RebalanceLockManager:
    def __init__(
        self,
        clock_ms: Callable[[], int] = monotonic_ms,
        lock_max_live_time_ms: int = LOCK_MAX_LIVE_TIME_MS,
    ) -> None:
        self._clock_ms = clock_ms
        self._max_live = lock_max_live_time_ms
        self._table: dict[str, dict[MessageQueue, _LockEntry]] = {}

    def is_lock_all_expired(self, group: str) -> bool:
        """True if no client holds any queue of the group."""
        now = self._clock_ms()
        return all(self._is_expired(entry, now) for entry in self._table.get(group, {}).values())

    def try_lock_batch(self, group: str, mqs: Iterable[MessageQueue], client_id: str) -> set[MessageQueue]:
        """Locks queues for 60 s; returns those that the client holds now."""
        now = self._clock_ms()
        locked: set[MessageQueue] = set()
        for mq in mqs:
            entries = self._table.setdefault(group, {})
            entry = entries.get(mq)
            if entry is None:
                entry = entries[mq] = _LockEntry(client_id, now)
                logger.info("%s: %s locks %s", group, client_id, mq)
            elif entry.client_id != client_id:
                if not self._is_expired(entry, now):
                    continue
                logger.warning("%s: %s takes %s, which %s let expire", group, client_id, mq, entry.client_id)
                entry.client_id = client_id
            entry.last_update_timestamp = now
            locked.add(mq)
        return locked

    def unlock_batch(self, group: str, mqs: Iterable[MessageQueue], client_id: str) -> None:
        """Unlocks the queues that the client holds."""
        entries = self._table.get(group, {})
        for mq in mqs:
            entry = entries.get(mq)
            if entry is not None and entry.client_id == client_id:
                del entries[mq]
                logger.info("%s: %s unlocks %s", group, client_id, mq)
        if not entries:
            self._table.pop(group, None)

    def remove_expired(self) -> None:
        """Forgets expired locks, to save memory."""
        now = self._clock_ms()
        for group, entries in list(self._table.items()):
            for mq in [mq for mq, entry in entries.items() if self._is_expired(entry, now)]:
                del entries[mq]
            if not entries:
                del self._table[group]

    def _is_expired(self, entry: _LockEntry, now: int) -> bool:
        return now - entry.last_update_timestamp > self._max_live
