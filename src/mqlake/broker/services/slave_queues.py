"""StaleQueues: finds the queues of a slave whose topic was deleted and created again at the master.

    master   Orders-0  ▓▓▓▓▓▓▓▓   deleted, created   ░░           2 messages, its offsets begin at 0 again
    slave    Orders-0  ▓▓▓▓▓▓▓▓                      ▓▓▓▓▓▓▓▓     8 messages of the deleted topic

The table of topics shows nothing of it when both happen between two rounds, and dispatch begins such a queue again
only when its first new message comes. So after each change of the table the ends of the queues are compared (202). A
slave never has more of a queue than its master, but a master's queues may be a little later than its log: a queue
counts as stale when the master has, in the next round, still less than the slave had in the one before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mqlake.errors import ResponseError
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore

logger = logging.getLogger(__name__)

TOPICS_A_ROUND = 200
"""Topics that are compared in one round at most; the master serves one request for each."""

Ends = dict[int, int]
"""Queue id → offset of the next message."""


class StaleQueues:
    """`ask_ends(topic)` gives the ends of a topic's queues at the master."""

    def __init__(self, queues: ConsumeQueueStore, ask_ends: Callable[[str], Awaitable[Ends]]) -> None:
        self._queues = queues
        self._ask_ends = ask_ends
        self._pending: dict[str, Ends] = {}
        """Topics to compare, with the queues that were suspicious in the round before, and their ends here."""

    def table_changed(self) -> None:
        """The master's table of topics is another one than before."""
        for topic in self._queues.topics():
            self._pending.setdefault(topic, {})

    async def compare(self) -> None:
        """One round. MqlakeError, FormatError, OSError: it goes on there in the next one."""
        for topic in list(self._pending)[:TOPICS_A_ROUND]:
            here = {number: queue.max_offset_in_queue for number, queue in self._queues.queues(topic).items()}
            try:
                there = await self._ask_ends(topic)
            except ResponseError:  # gone meanwhile: the table will say so
                self._pending.pop(topic, None)
                continue
            suspected = self._pending.pop(topic, None)
            if suspected is None:  # compared by another round meanwhile
                continue
            stale = [number for number, end in suspected.items() if there.get(number, end) < end]
            if stale:
                logger.warning(
                    "topic %s was deleted and created again at the master: its queues %s here are of before, and go",
                    topic,
                    sorted(stale),
                )
                await asyncio.to_thread(
                    self._queues.delete_ended, topic, {number: suspected[number] for number in stale}
                )
            longer = {
                number: end
                for number, end in here.items()
                if number not in stale and there.get(number, end) < end
            }
            if longer:
                self._pending[topic] = longer  # at the end: others have their turn first
