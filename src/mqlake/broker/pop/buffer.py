"""PopBuffer: checkpoints that stay in memory for a while (enablePopBufferMerge).

    pop ──▶ here, until ─┬─ all messages are acknowledged: nothing is ever written
                         ├─ 10 s have passed, or 3 s are left ─▶ the checkpoint and what is acknowledged are stored
                         └─ the broker stops ──────────────────▶ the same

It saves most records when consumers are quick. The price: a broker that is killed forgets what is here, so these
messages are popped again at once, acknowledged or not.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable

from mqlake.base.background import BackgroundWork
from mqlake.broker.config import BrokerConfig
from mqlake.broker.pop.checkpoint import Acknowledgement, Checkpoint, CheckpointKey, ReviveLog
from mqlake.broker.pop.queues import PopQueue, PopQueues, Stretch
from mqlake.store.results import STORED

logger = logging.getLogger(__name__)

SCAN_S = 0.05
NOT_BUFFERED_MS = 1500
"""A checkpoint that is due so soon after popCkStayBufferTimeOut is stored at once."""
RETRY_MS = 100


class _Entry:
    __slots__ = ("checkpoint", "queue", "revive_queue_id", "stretch")

    def __init__(
        self, checkpoint: Checkpoint, revive_queue_id: int, queue: PopQueue, stretch: Stretch
    ) -> None:
        self.checkpoint = checkpoint
        self.revive_queue_id = revive_queue_id
        self.queue = queue
        self.stretch = stretch


class PopBuffer:
    def __init__(
        self,
        revive_log: ReviveLog,
        queues: PopQueues,
        config: Callable[[], BrokerConfig],
        clock_ms: Callable[[], int],
    ) -> None:
        self._revive_log = revive_log
        self._queues = queues
        self._config = config
        self._clock_ms = clock_ms
        self._entries: dict[CheckpointKey, _Entry] = {}
        self._by_time: list[tuple[int, int, CheckpointKey]] = []
        self._numbers = itertools.count()
        self._added = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: CheckpointKey) -> bool:
        return key in self._entries

    # --- life

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="PopBuffer")

    async def shutdown(self) -> None:
        """Stores everything, as far as the store takes it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for entry in list(self._entries.values()):
            self._store(entry)

    def clear(self) -> None:
        """Forgets everything: the broker is a slave now, and its master does the rest."""
        self._entries.clear()
        self._by_time.clear()

    # --- pops and acknowledgements

    def takes(self, checkpoint: Checkpoint, queue: PopQueue) -> bool:
        """True if the checkpoint may stay here."""
        config = self._config()
        return (
            config.enable_pop_buffer_merge
            and self._task is not None
            and checkpoint.revive_time - self._clock_ms()
            >= config.pop_ck_stay_buffer_time_out + NOT_BUFFERED_MS
            and len(self._entries) < config.pop_ck_max_buffer_size
            and len(queue.pending) < config.pop_ck_offset_max_queue_size
            and checkpoint.key not in self._entries
        )

    def add(self, checkpoint: Checkpoint, revive_queue_id: int, queue: PopQueue, stretch: Stretch) -> None:
        """Takes a checkpoint; its stretch counts as stored when it is, or when all is acknowledged."""
        config = self._config()
        at = min(
            self._clock_ms() + config.pop_ck_stay_buffer_time,
            checkpoint.revive_time - config.pop_ck_stay_buffer_time_out,
        )
        self._entries[checkpoint.key] = _Entry(checkpoint, revive_queue_id, queue, stretch)
        heapq.heappush(self._by_time, (at, next(self._numbers), checkpoint.key))
        self._added.set()

    def acknowledge(self, key: CheckpointKey, offset: int) -> bool:
        """True if the checkpoint is here; the message is acknowledged then."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        if entry.checkpoint.acknowledge(offset) and entry.checkpoint.is_done:
            del self._entries[key]
            self._queues.stored(entry.queue, entry.stretch)
        return True

    # --- time passes

    async def _run(self) -> None:
        work = BackgroundWork("pop checkpoints in memory", logger)
        while True:
            if not self._entries:  # a timer of the event loop would end the fast path's leases for nothing
                self._by_time.clear()
                self._added.clear()
                await self._added.wait()
            await asyncio.sleep(SCAN_S)
            async with work.round():
                self.store_due()

    def store_due(self) -> None:
        """Stores what has been here for long enough."""
        now = self._clock_ms()
        heap = self._by_time
        while heap and (heap[0][0] <= now or heap[0][2] not in self._entries):
            _, number, key = heapq.heappop(heap)
            entry = self._entries.get(key)
            if entry is not None and not self._store(entry):
                heapq.heappush(heap, (now + RETRY_MS, number, key))
                return

    def _store(self, entry: _Entry) -> bool:
        """Stores a checkpoint, and then its acknowledgements; False if the store does not take it now."""
        checkpoint = entry.checkpoint
        key, bits = checkpoint.key, checkpoint.bits
        done = set(checkpoint.distances) - {offset - key.start_offset for offset in checkpoint.open_offsets()}
        checkpoint.bits = 0
        future = self._revive_log.put_checkpoint(checkpoint, entry.revive_queue_id)
        checkpoint.bits = bits
        if future.done() and future.result().status not in STORED:
            return False
        if done:
            offsets = [key.start_offset + distance for distance in sorted(done)]
            future = self._revive_log.put_acknowledgement(
                Acknowledgement(key, offsets), entry.revive_queue_id, checkpoint.revive_time
            )
            if future.done() and future.result().status not in STORED:
                return False  # the checkpoint is stored twice then, which is found out when it is due
        del self._entries[key]
        self._queues.stored(entry.queue, entry.stretch)
        return True
