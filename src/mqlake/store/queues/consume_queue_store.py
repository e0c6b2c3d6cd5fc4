"""ConsumeQueueStore: all consume queues of a store, and which offset each queue gives out next.

                           ┌─ order by (topic, queue) ─┐
    Scan + DispatchColumns ┤  one unit a record        ├─▶ a run of consecutive messages ─▶ one pwrite
                           └─ prepared, rolled back out┘   to each queue it concerns

A handful of records goes one by one, which costs less than ordering them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import StoreError
from mqlake.formats.batch_consume_queue import BCQ_DTYPE, INVALID_COMPACTED_OFFSET, BatchConsumeQueueUnit
from mqlake.formats.columns import DispatchColumns, Int64s, Scan, layout, units_by_queue
from mqlake.formats.consume_queue import CQ_DTYPE
from mqlake.message import UNSEEN_FLAG, is_system_topic
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.file_pool import FilePool
from mqlake.store.files.pooled_file_queue import remove_if_empty
from mqlake.store.queues.batch_consume_queue import BatchConsumeQueue
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.queues.consume_queue_ext import ConsumeQueueExt
from mqlake.store.queues.lost_ends import LostEnds, QueueEnd
from mqlake.store.queues.unit_queue import Units

logger = logging.getLogger(__name__)

Queue = ConsumeQueue | BatchConsumeQueue
QueueTypeOf = Callable[[str], str]

SIMPLE_CQ = "SimpleCQ"
BATCH_CQ = "BatchCQ"

FEW = 16
FILE_NAME_MAX = 255


def _always_simple(_topic: str) -> str:
    return SIMPLE_CQ


class PreparedUnits(NamedTuple):
    """Units of one scan's records, back to back, and what belongs to each; `runs` as in QueueUnits."""

    units: Units
    store_time: Int64s
    inner: Int64s | None
    """Three rows, when not each record is one message at its own place: queue offset, base, and number."""
    runs: list[list[int]]
    topics: list[bytes]
    last_timestamp: int


class ConsumeQueueStore:
    """The queues under consumequeue/ and batchconsumequeue/. `queue_type_of` says a topic's queue.type.

    `queue_offsets` is (topic, queue id) → the offset that the queue's next message gets; the commit log counts
    it up under its lock. `logics_msg_timestamp` is the store time (ms) of the newest record dispatched.
    """

    makes = "a consume queue"

    def __init__(
        self,
        config: MessageStoreConfig,
        *,
        queue_type_of: QueueTypeOf = _always_simple,
        read_only: bool = False,
    ) -> None:
        self.pool = FilePool(read_only=read_only)
        self.queue_offsets: dict[tuple[str, int], int] = {}
        self.lost_ends = LostEnds(config)
        self.logics_msg_timestamp = 0
        # set while the log is dispatched again: the (topic, queue id) that may be made, so that nothing deleted returns
        self.may_create: Container[tuple[str, int]] | None = None
        # topics of which records were dispatched meanwhile, and got no queue
        self.left_out: set[str] = set()
        self._config = config
        self._root = config.consume_queue_dir
        self._batch_root = config.batch_consume_queue_dir
        self._ext_root = config.consume_queue_ext_dir
        self._queue_type_of = queue_type_of
        self._table: dict[str, dict[int, Queue]] = {}
        # the same queues by the topic's bytes in a record
        self._by_wire_topic: dict[bytes, dict[int, Queue]] = {}
        self._dirty: set[Queue] = set()
        self._stops_at_gaps = False
        self.readable_from: Callable[[int], int] = lambda commit_log_min: commit_log_min
        """From where on messages can be read, also from an archive, given where the log begins."""
        # what dispatches and what deletes exclude each other
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[Queue]:
        for queues in list(self._table.values()):
            yield from list(queues.values())

    # ------------------------------------------------------------------ queues

    def topics(self) -> list[str]:
        return list(self._table)

    def queues(self, topic: str) -> dict[int, Queue]:
        """Queue id → queue of a topic; empty when there is none."""
        return dict(self._table.get(topic, {}))

    def get(self, topic: str, queue_id: int) -> Queue | None:
        queues = self._table.get(topic)
        return None if queues is None else queues.get(queue_id)

    def find_or_create(self, topic: str, queue_id: int) -> Queue:
        """The queue; its files are made when something is put into it."""
        queue = self.get(topic, queue_id)
        if queue is None:
            is_batch = self._queue_type_of(topic) == BATCH_CQ
            queue = self._add(topic, queue_id, BATCH_CQ if is_batch else SIMPLE_CQ)
        return queue

    def _add(self, topic: str, queue_id: int, queue_type: str) -> Queue:
        config, pool, place = self._config, self.pool, f"{topic}/{queue_id}"
        queue: Queue
        if queue_type == BATCH_CQ:
            directory = f"{self._batch_root}/{place}"
            size = config.mapper_file_size_batch_consume_queue
            queue = BatchConsumeQueue(topic, queue_id, directory, size, pool)
        else:
            ext = None
            if config.enable_consume_queue_ext:
                directory = f"{self._ext_root}/{place}"
                ext = ConsumeQueueExt(directory, config.mapped_file_size_consume_queue_ext, pool)
            directory = f"{self._root}/{place}"
            queue = ConsumeQueue(
                topic, queue_id, directory, config.mapped_file_size_consume_queue, pool, ext=ext
            )
            queue.stops_at_gaps = self._stops_at_gaps
            queue.lost_end = self.lost_ends.get((topic, queue_id), 0)
        self._table.setdefault(topic, {})[queue_id] = queue
        return queue

    # ------------------------------------------------------------------ loading and recovery

    def load(self) -> None:
        """Takes stock of the directories. Raises WrongFileSizeError, StoreCorruptError, and StoreError when a
        topic's queues are of another type than its queue.type. Read-only, types are taken as they are found,
        and the ends are searched, as no recovery follows."""
        self.lost_ends.load()
        for topic, queue_id, queue_type in self.on_disk():
            if not self.pool.read_only and self._queue_type_of(topic) != queue_type:
                raise StoreError(
                    f"the queues of topic {topic} on disk are {queue_type}, its queue.type is "
                    f"{self._queue_type_of(topic)}"
                )
            queue = self._add(topic, queue_id, queue_type)
            queue.load()
            if self.pool.read_only:
                queue.recover(thorough=False)

    def on_disk(self) -> Iterator[tuple[str, int, str]]:
        """(topic, queue id, queue type) of each directory of a queue. OSError."""
        for root, queue_type in ((self._root, SIMPLE_CQ), (self._batch_root, BATCH_CQ)):
            for topic in _directories(root):
                for name in _directories(f"{root}/{topic}"):
                    if name.removeprefix("-").isdecimal():
                        yield topic, int(name), queue_type

    def refresh(self) -> None:
        """Read-only beside a running writer: new queues, new files, new ends. A queue has its own refresh."""
        for topic, queue_id, queue_type in self.on_disk():
            if self.get(topic, queue_id) is None:
                self._add(topic, queue_id, queue_type)
        for queue in self:
            queue.refresh()

    def recover(
        self, *, thorough: bool = True, flushed_until: int = 0, progress: Progress = no_progress
    ) -> int:
        """Finds the end of every queue (`thorough` after a crash); returns `max_physic_offset`. OSError.

        After a crash, queues that were written to later than `flushed_until` (ms) count as not flushed: the
        page cache outlived the process, but not yet a power cut. `progress` is told (queues done, queues in all).
        """
        total = sum(len(queues) for queues in self._table.values())
        for done, queue in enumerate(self):
            queue.recover(thorough=thorough)
            if thorough and queue.files.modified_ms >= flushed_until:
                queue.files.count_as_unflushed()
                self._dirty.add(queue)
            if done % 1024 == 0:
                progress(done, total)
        return self.max_physic_offset

    def recover_queue_offsets(self, commit_log_min: int) -> None:
        """Fills `queue_offsets` from the ends of the queues, and corrects their beginnings."""
        self.queue_offsets.clear()
        self.queue_offsets.update(self.lost_ends)
        for queue in self:
            place = queue.topic, queue.queue_id
            self.queue_offsets[place] = max(queue.max_offset_in_queue, self.lost_ends.get(place, 0))
            queue.correct_min_offset(self._begin(queue, commit_log_min))

    def _begin(self, queue: Queue, commit_log_min: int) -> int:
        """The physical offset at which a queue may begin. What the store works on itself is always in the log."""
        if is_system_topic(queue.topic):
            return commit_log_min
        return self.readable_from(commit_log_min)

    def reach_back(self, commit_log_min: int) -> None:
        """More of the log can be read than was known: the queues begin where their files do, or later."""
        for queue in self:
            with self._lock:
                queue.begin_anew(self._begin(queue, commit_log_min))

    def accept_loss(self, ends: Iterable[QueueEnd]) -> None:
        """The log has lost the last messages of these queues: none of the queue offsets before `ends` is given again.
        OSError."""
        self.lost_ends.add(ends)
        for queue in self:
            if isinstance(queue, ConsumeQueue):
                queue.lost_end = self.lost_ends.get((queue.topic, queue.queue_id), 0)

    @property
    def max_physic_offset(self) -> int:
        """End of the newest record that is in any queue, -1 when all are empty."""
        return max((queue.max_physic_offset for queue in self), default=-1)

    def truncate_dirty(self, physical_offset: int) -> None:
        """Drops what points past the end of the commit log. OSError."""
        for queue in self:
            queue.truncate_dirty_logic_files(physical_offset)

    @property
    def has_gaps(self) -> bool:
        """True if messages were missing when later ones of their queue came."""
        return any(self.with_gaps())

    def stop_at_gaps(self, stop: bool) -> None:
        """Sets that queues which lack units get none after them, until cut_gaps() and the whole log."""
        self._stops_at_gaps = stop
        for queue in self:
            if isinstance(queue, ConsumeQueue):
                queue.stops_at_gaps = stop

    def cut_gaps(self) -> None:
        """Drops the units after gaps. Then every record of the commit log has to be dispatched again; what the log
        no longer has stays a gap."""
        for queue in self.with_gaps():
            queue.cut_gap()

    def with_gaps(self) -> list[Queue]:
        """The queues in which messages were missing when later ones came."""
        return [queue for queue in self if queue.first_gap is not None]

    # ------------------------------------------------------------------ dispatch

    def dispatch(self, scan: Scan, columns: DispatchColumns) -> None:
        """Appends a unit for every record of the scan that consumers may see and that its queue has not yet.

        OSError: some queues have theirs, the others have not moved; dispatching the same again completes it.
        """
        if len(scan) > FEW:
            self.put(self.prepare(scan, columns))
        elif len(scan):
            with self._lock:
                self._dispatch_few(scan, columns)
            self.logics_msg_timestamp = int(scan._wide[layout.STORE_TIMESTAMP, -1])

    def _dispatch_few(self, scan: Scan, columns: DispatchColumns) -> None:
        # one record's fields at once: reaching into twenty small arrays would cost more than all the rest
        tags_codes = columns.tags_code.tolist()
        for record, (wide, narrow) in enumerate(
            zip(scan._wide.T.tolist(), scan._narrow.T.tolist(), strict=True)
        ):
            if narrow[layout.SYS_FLAG] & UNSEEN_FLAG:
                continue
            queue = self._queue_of(scan.topics[narrow[layout.TOPIC_ID]], narrow[layout.QUEUE_ID])
            if queue is None:
                continue
            offset, size, tags_code = wide[layout.PHYSICAL_OFFSET], narrow[layout.SIZE], tags_codes[record]
            store_time = wide[layout.STORE_TIMESTAMP]
            if isinstance(queue, ConsumeQueue):
                queue.put_unit(wide[layout.QUEUE_OFFSET], offset, size, tags_code, store_time)
            else:
                base, number = int(columns.inner_base[record]), int(columns.inner_num[record])
                if base >= 0 and number > 0:
                    queue.put_unit(BatchConsumeQueueUnit(offset, size, tags_code, store_time, base, number))
            # after the put: a flush between the two would take the queue for flushed, and the checkpoint with it
            self._dirty.add(queue)

    @staticmethod
    def prepare(scan: Scan, columns: DispatchColumns) -> PreparedUnits:
        """The units of a scan that is not empty, queue by queue."""
        found, record, runs = units_by_queue(scan, columns, hidden=UNSEEN_FLAG)
        inner = None
        if not all(run[5] for run in runs) or (columns.inner_base != scan.queue_offset).any():
            inner = np.array((scan.queue_offset, columns.inner_base, columns.inner_num), np.int64)[:, record]
        return PreparedUnits(
            found.view(CQ_DTYPE),
            scan.store_timestamp.take(record),
            inner,
            runs,
            scan.topics,
            int(scan.store_timestamp[-1]),
        )

    def put(self, prepared: PreparedUnits) -> None:
        """As dispatch()."""
        with self._lock:
            for run in prepared.runs:
                self._put_run(prepared, run)
        self.logics_msg_timestamp = prepared.last_timestamp

    def _put_run(self, prepared: PreparedUnits, run: list[int]) -> None:
        topic_id, queue_id, start, end, first_queue_offset, without_batches, physic_end = run
        queue = self._queue_of(prepared.topics[topic_id], queue_id)
        if queue is None or physic_end <= queue.max_physic_offset:
            return
        units, store_time = prepared.units[start:end], prepared.store_time[start:end]
        if isinstance(queue, BatchConsumeQueue):
            if prepared.inner is None:
                base = first_queue_offset + np.arange(end - start)
                number = np.ones(end - start, np.int64)
            else:
                _, base, number = prepared.inner[:, start:end]
            queue.put_units(_batch_units(units, store_time, base, number))
        elif without_batches or prepared.inner is None:
            queue.put_units(first_queue_offset, units, store_time)
        else:  # inner batches in a queue that cannot count them: one unit each, at its own place
            for one, queue_offset in enumerate(prepared.inner[0, start:end].tolist()):
                queue.put_units(queue_offset, units[one : one + 1], store_time[one : one + 1])
        self._dirty.add(queue)

    def _queue_of(self, topic: bytes, queue_id: int) -> Queue | None:
        """The queue for a record; None for a topic that cannot be the name of a directory."""
        queues = self._by_wire_topic.get(topic)
        queue = None if queues is None else queues.get(queue_id)
        if queue is None:
            place = topic.decode("utf-8", "replace"), queue_id
            if self.may_create is not None and self.get(*place) is None and place not in self.may_create:
                self.left_out.add(place[0])
                return None
            if not _may_name_a_directory(topic):
                logger.error("records of topic %r get no consume queue", topic)
                return None
            queue = self.find_or_create(*place)
            self._by_wire_topic[topic] = self._table[place[0]]
        return queue

    # ------------------------------------------------------------------ life

    def flush(self, least_pages: int = 0) -> bool:
        """Brings queues to the disk in which that many pages wait; True when nothing is left. OSError."""
        done = True
        for queue in list(self._dirty):
            self._dirty.discard(queue)
            try:
                flushed = queue.flush(least_pages)
            except BaseException:
                self._dirty.add(queue)
                raise
            if not flushed:
                self._dirty.add(queue)
                done = False
        return done

    def delete_expired_file(self, commit_log_min: int) -> int:
        """Deletes the files that point only before the commit log's beginning, each queue's last excepted;
        returns how many. OSError."""
        deleted = 0
        for queue in self:
            with self._lock:  # for one queue at a time: dispatch goes on meanwhile
                deleted += queue.delete_expired_file(self._begin(queue, commit_log_min))
        return deleted

    def clean_expired(self, commit_log_min: int) -> int:
        """Deletes the queues that have no record in the commit log any more, system topics excepted; their
        offsets begin at 0 again. Returns how many. OSError."""
        deleted = 0
        for queue in self:
            with self._lock:
                expired = -1 < queue.max_physic_offset <= self._begin(queue, commit_log_min)
                following = self.queue_offsets.get((queue.topic, queue.queue_id))
                waiting = following is not None and following > queue.max_offset_in_queue
                if expired and not waiting and not is_system_topic(queue.topic):
                    logger.info("%s: nothing of it is in the commit log any more, deleted", queue)
                    self._remove(queue)
                    deleted += 1
        return deleted

    def delete_topic(self, topic: str) -> bool:
        """Deletes the topic's queues; True when it had any. OSError."""
        with self._lock:
            queues = self.queues(topic)
            for queue in queues.values():
                self._remove(queue)
            self.lost_ends.forget(topic)
            return bool(queues)

    def delete_ended(self, topic: str, ends: Mapping[int, int]) -> None:
        """Deletes those queues of a topic (queue id → offset of its next message) that are as long as `ends` says, or
        longer; not those that have begun again meanwhile. OSError."""
        with self._lock:
            for queue_id, end in ends.items():
                queue = self.get(topic, queue_id)
                if queue is not None and queue.max_offset_in_queue >= end:
                    self._remove(queue)

    def destroy(self) -> None:
        """Deletes all queues and forgets all offsets. OSError."""
        with self._lock:
            for queue in self:
                self._remove(queue)
            self.queue_offsets.clear()

    def _remove(self, queue: Queue) -> None:
        self._forget_ends()
        queue.destroy()
        self._dirty.discard(queue)
        self.queue_offsets.pop((queue.topic, queue.queue_id), None)
        queues = self._table[queue.topic]
        del queues[queue.queue_id]
        if not queues:
            del self._table[queue.topic]
            self._by_wire_topic = {wire: found for wire, found in self._by_wire_topic.items() if found}
            for root in (self._root, self._ext_root, self._batch_root):
                remove_if_empty(f"{root}/{queue.topic}")

    def _forget_ends(self) -> None:
        """Corrects what the last clean end recorded of where queues end (see queue_ends): some of them go."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._config.queue_ends_path)

    def close(self) -> None:
        """Flushes and gives up all descriptors. OSError."""
        if not self.pool.read_only:
            self.flush()
        self.pool.close()

    @property
    def total_size(self) -> int:
        """Bytes of all files, holes included."""
        return sum(queue.files.total_size for queue in self)


def _batch_units(units: Units, store_time: Int64s, base: Int64s, number: Int64s) -> Units:
    """Units of a batch consume queue; records with impossible counts get none."""
    result = np.zeros(len(units), BCQ_DTYPE)
    for name in ("offset", "size", "tags_code"):
        result[name] = units[name]
    result["store_time"] = store_time
    result["msg_base_offset"] = base
    result["batch_size"] = number
    result["compacted_offset"] = INVALID_COMPACTED_OFFSET
    return result[(base >= 0) & (number > 0)]


def _may_name_a_directory(topic: bytes) -> bool:
    return 0 < len(topic) <= FILE_NAME_MAX and topic not in (b".", b"..") and not {0, 0x2F} & set(topic)


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return []
