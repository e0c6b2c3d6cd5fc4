"""Checks the ends of consume queues against what else is known of them, before a start believes them.

    queue-ends.json    at a clean end: each queue's end, so that one whose files are gone is noticed; none of RocketMQ's
    the last unit      has to lead to a record of its size: a flipped one would make the queue pass over messages
    what lies after    an end with more data after it is no end: a unit was damaged there

What a file of RocketMQ's cannot tell is kept in one of our own, as a lower bound: a store that RocketMQ has written
since knows more, and a topic that it deleted is gone from topics.json.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Container

from mqlake.base.config_file import ConfigFile
from mqlake.base.durable import write_durably
from mqlake.errors import StoreCorruptError
from mqlake.formats.columns import dispatch_columns, scan_records
from mqlake.message import LMQ_PREFIX, is_system_topic
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.queues.batch_consume_queue import BatchConsumeQueue
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore, Queue
from mqlake.store.queues.lost_ends import Place, QueueEnd

logger = logging.getLogger(__name__)

QUEUES_MAX = 1 << 31
"""Queues of a topic whose entry does not say how many it has."""
DROPPED_MAX = 64
"""Units at the end of one queue that are looked at; with more of them it is the log that ends early."""


def read_ends(config: MessageStoreConfig) -> dict[Place, int]:
    """(topic, queue id) → the queue's end when the store last ended cleanly; empty when that is not known."""
    try:
        with open(config.queue_ends_path, encoding="utf-8") as file:
            table = json.load(file)["queues"]
        return {
            (topic, int(number)): int(end)
            for topic, queues in table.items()
            for number, end in queues.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning(
            "%s cannot be read (%s): queues that are gone are not noticed", config.queue_ends_path, error
        )
        return {}


def write_ends(config: MessageStoreConfig, queues: ConsumeQueueStore) -> None:
    """Keeps the ends that the queues have now. OSError."""
    table: dict[str, dict[str, int]] = {}
    for queue in queues:
        if not queue.is_empty:
            table.setdefault(queue.topic, {})[str(queue.queue_id)] = queue.max_offset_in_queue
    write_durably(config.queue_ends_path, json.dumps({"queues": table}).encode())


def topics_of_config(config: MessageStoreConfig) -> dict[str, int] | None:
    """The topics of config/topics.json and how many queues each has; None when there is no such file, or none that
    can be read."""
    path = os.path.join(config.config_dir, "topics.json")
    try:
        found = ConfigFile(path).load()
        if found is None:
            return None
        return {
            topic: max(int(its.get(nums, QUEUES_MAX)) for nums in ("readQueueNums", "writeQueueNums"))
            for topic, its in found["topicConfigTable"].items()
        }
    except (OSError, StoreCorruptError, KeyError, TypeError, ValueError, AttributeError):
        return None


class RestorableQueues(Container[Place]):
    """The missing queues that may be made when the log has messages of them: not those of deleted topics.

    A topic is there when one of its queues is, or when topics.json has it; without that file, when the store has
    ended cleanly with it. What nobody knows anything about may be made.
    """

    def __init__(self, config: MessageStoreConfig, queues: ConsumeQueueStore) -> None:
        self._queues = queues
        self._topics = topics_of_config(config)
        self._has_ends = os.path.exists(config.queue_ends_path)
        self.ends = read_ends(config)

    def __contains__(self, place: object) -> bool:
        assert isinstance(place, tuple)
        topic = place[0]
        if self._queues.queues(topic) or is_system_topic(topic):
            return True
        if self._topics is not None:
            return topic in self._topics
        return not self._has_ends or place in self.ends

    def lost(self) -> list[Place]:
        """The queues that ended further on, when the store last ended cleanly, than they do now."""
        lost = []
        for (topic, queue_id), end in self.ends.items():
            queue = self._queues.get(topic, queue_id)
            if (queue is None or queue.max_offset_in_queue < end) and (topic, queue_id) in self:
                lost.append((topic, queue_id))
        return lost


# ---------------------------------------------------------------------- the last unit


def last_unit_is_wrong(queue: Queue, commit_log: MappedFileQueue, delay_levels: dict[int, int]) -> bool:
    """True if the queue's last unit leads to something else than a record of its size.

    A record that says another place than the unit's is damaged itself: a damaged unit would not meet one.
    """
    unit = queue.last_unit()
    if unit is None or queue.topic.startswith(LMQ_PREFIX):
        return False
    offset, size = unit[:2]
    mapped_file = commit_log.find_mapped_file_by_offset(offset)
    if mapped_file is None:
        return True
    scan = scan_records(
        mapped_file.array,
        offset - mapped_file.file_from_offset,
        mapped_file.file_size,
        mapped_file.file_from_offset,
        max_records=1,
        check_crc=False,
    )
    if not len(scan) or int(scan.size[0]) != size:
        return True
    if not isinstance(queue, BatchConsumeQueue):
        return False
    if (scan.topics[0].decode("utf-8", "replace"), int(scan.queue_id[0])) != (queue.topic, queue.queue_id):
        return False
    columns = dispatch_columns(mapped_file.array, scan, delay_levels=delay_levels)
    return (int(columns.inner_base[0]), int(columns.inner_num[0])) != tuple(unit[4:6])


class DoubtfulEnds:
    """The queues whose last units cannot be right: they end before those, in memory, until recovery has read the log.

    What the log has of them is dispatched again from `again_from` on (a physical offset, None: from nowhere).
    """

    def __init__(
        self, queues: ConsumeQueueStore, commit_log: MappedFileQueue, delay_levels: dict[int, int], start: int
    ) -> None:
        """`start`: where the scan of the log would begin. A simple queue that ends before it needs no look: whatever
        its last unit says, nothing that is dispatched will be passed over for it."""
        self.again_from: int | None = None
        self.reached = queues.max_physic_offset
        self._dropped: list[tuple[Queue, int, list[int]]] = []
        self._ends: list[tuple[QueueEnd, int]] = []
        for queue in queues:
            looked_at = queue.max_physic_offset > start or isinstance(queue, BatchConsumeQueue)
            end, places = queue.files.max_offset, list[int]()
            known = QueueEnd(queue.topic, queue.queue_id, queue.max_offset_in_queue), queue.max_physic_offset
            while (
                looked_at
                and len(places) < DROPPED_MAX
                and last_unit_is_wrong(queue, commit_log, delay_levels)
            ):
                places.append(int(queue.last_unit()[0]))
                queue.hide_last_unit()
            if looked_at:
                self._ends.append(known)
            if places or queue.ends_in_damage:
                self._dropped.append((queue, end, places))
                before = max(0, queue.max_physic_offset)
                self.again_from = before if self.again_from is None else min(self.again_from, before)

    def warn(self) -> None:
        """Names the queues of which units are made again."""
        for queue, _, _ in self._dropped:
            logger.warning(
                "%s: the unit at %d cannot be right: it is rebuilt", queue, queue.max_offset_in_queue
            )

    def reached_at(self, log_end: int, queues: ConsumeQueueStore) -> int:
        """How far the queues reach as evidence of what the log has lost: a unit that is wrong by itself says
        nothing, one that leads exactly to the end of the log does."""
        if any(log_end in places for _, _, places in self._dropped):
            return self.reached
        return max((queue.max_physic_offset for queue in queues), default=-1)

    def lost(self, log_end: int) -> list[QueueEnd]:
        """Returns the ends of the queues that had messages from `log_end` on."""
        return [end for end, reached in self._ends if reached > log_end]

    def settle(self, log_end: int) -> None:
        """After the log was dispatched again: erases what has not come back, except what may lead to a damaged
        record, which keeps its queue offset. OSError."""
        for queue, end, places in self._dropped:
            if queue.files.max_offset < end and any(place < log_end for place in places):
                queue.unhide_until(end, log_end)
            queue.erase_rest()
