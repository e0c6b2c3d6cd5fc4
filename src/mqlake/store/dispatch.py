"""ReputMessageService: carries what was appended to everything derived from the log.

    commit log ──scan──▶ columns ──┬──▶ consume queues          (ConsumeQueueStore.dispatch)
    from reput_from_offset         ├──▶ index                   (IndexService.dispatch)
    up to the confirm offset       └──▶ message arriving listener

It works after the append, in batches of whatever has come since the last round. Between two rounds messages gather:
for GATHER_S, or for GATHER_ROUNDS times as long as the round took; for a moment after a handful; for RELAXED_S while
nobody waits for messages. Who begins to wait ends that pause. Under SYNC_FLUSH the confirm
offset is the flushed one: what is not on the disk is shown to nobody. Recovery runs the same dispatch over the
same scan, so there is one code path and it is exercised all the time.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from mqlake.formats.columns import (
    DispatchColumns,
    Scan,
    ScanStop,
    arrivals_by_queue,
    dispatch_columns,
)
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.log_reader import LogChunk, LogReader
from mqlake.store.running_flags import RunningFlags

logger = logging.getLogger(__name__)

GATHER_S = 0.002
LONE_GATHER_S, LONE = 0.0005, 4
"""After a round of so few messages, while somebody waits for them."""
GATHER_MAX_S = 0.01
# a round costs its writer as much as it costs us (one interpreter lock): at most every fifth moment is a round's
GATHER_ROUNDS = 4
RELAXED_S = 0.03
"""While nobody waits for messages: who asks for them hurries dispatch."""
SLAVE_RELAXED_S = 0.1
"""The same at a slave: whoever waits for its messages says so, and lag of this size is nobody's loss."""
FEW = 16
RETRY_FIRST_S = 0.05
RETRY_LAST_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """The messages that one dispatched batch brought to one queue: `count` records of `size` bytes together."""

    topic: str
    queue_id: int
    next_offset: int
    count: int
    size: int


MessageArrivingListener = Callable[[Arrival], None]
"""Called once a batch for each queue that got messages, after their dispatch, on the dispatch thread."""


class CommitLogDispatcher(Protocol):
    """Something derived from the log. dispatch() must do nothing for records it has had; OSError to be tried again.
    `makes`: what it writes, in words.

    It prepares and puts. prepare() reads nothing of what is there: any thread may call it, at any time."""

    makes: str

    def dispatch(self, scan: Scan, columns: DispatchColumns) -> None: ...

    def prepare(self, scan: Scan, columns: DispatchColumns) -> Any: ...

    def put(self, prepared: Any) -> None: ...


def columns_of(chunk: LogChunk, delay_levels: Mapping[int, int]) -> DispatchColumns:
    """Returns the columns that dispatchers need of a chunk's records besides the scan."""
    return dispatch_columns(chunk.array, chunk.scan, delay_levels=dict(delay_levels))


class ReputMessageService:
    """Dispatches on a thread of its own from `reput_from_offset` to `confirm_offset()`."""

    def __init__(
        self,
        log_files: MappedFileQueue,
        dispatchers: list[CommitLogDispatcher],
        delay_levels: Mapping[int, int],
        running_flags: RunningFlags,
        *,
        confirm_offset: Callable[[], int],
        on_damage: Callable[[str], None],
        listeners: list[MessageArrivingListener],
        is_slave: Callable[[], bool],
    ) -> None:
        self.reput_from_offset = 0
        self.listeners = listeners
        self._reader = LogReader(log_files, check_crc=False, one_at_a_time=True)
        self._dispatchers = dispatchers
        self._delay_levels = delay_levels
        self._running_flags = running_flags
        self._confirm_offset = confirm_offset
        self._on_damage = on_damage
        self._is_slave = is_slave
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._progress = threading.Condition()
        self.is_awaited: Callable[[], bool] = lambda: True
        """True if somebody waits for messages, as a held pull does; until then dispatch gathers for longer."""
        self.asleep = np.zeros(1, np.int64)
        """Not 0 while a put has to notify(), for compiled code."""
        self._sleeping = False
        self._relaxed = False
        self._stopped = False
        self._broken = False
        self._refusals = self._round_count = 0
        self._thread = threading.Thread(target=self._run, name="ReputMessageService", daemon=True)

    def start(self, from_offset: int) -> None:
        self.reput_from_offset = from_offset
        self._thread.start()

    def begin_at(self, offset: int) -> None:
        """The empty log of a slave begins at `offset`."""
        self.reput_from_offset = offset

    def notify(self) -> None:
        """There may be more to dispatch. Costs nothing while a round is in flight."""
        if self._sleeping:
            self._wake.set()

    def awaited(self) -> None:
        """From now on somebody waits for messages."""
        if self._relaxed:
            self._relaxed = False
            self._hurry.set()

    @property
    def dispatch_behind_bytes(self) -> int:
        return max(0, self._confirm_offset() - self.reput_from_offset)

    def wait_until_dispatched(self, offset: int | None = None, timeout_s: float | None = None) -> bool:
        """Blocks until everything before `offset` (None: what is confirmed now) is dispatched; False in time."""
        target = self._confirm_offset() if offset is None else offset
        return self._wait(target, timeout_s, or_until=lambda: self._stopped)

    def _wait(self, target: int, timeout_s: float | None, *, or_until: Callable[[], bool]) -> bool:
        self._hurry.set()
        self._wake.set()
        with self._progress:
            self._progress.wait_for(
                lambda: self.reput_from_offset >= target or self._broken or or_until(), timeout_s
            )
            return self.reput_from_offset >= target

    def shutdown(self, timeout_s: float) -> bool:
        """Dispatches what is left (for `timeout_s` at most), stops; True when nothing is left.

        A disk that refuses is tried once more; the next start makes from the log what it did not take.
        """
        refusals = self._refusals
        done = self._thread.is_alive() and self._wait(
            self._confirm_offset(), timeout_s, or_until=lambda: self._refusals > refusals
        )
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        return done

    def _run(self) -> None:
        while not self._stopped:
            before = self.reput_from_offset
            if before < self._confirm_offset() and not self._broken:
                began = time.thread_time()
                self._do_reput()
                # let a batch gather, unless somebody waits: a round a message would cost the writer more
                # than it costs us (and without progress a file is being rolled: its blank is not there yet)
                if self.reput_from_offset == before:
                    time.sleep(GATHER_S)
                elif not self._stopped:
                    self._relaxed = True  # first: who begins to wait meanwhile hurries the next round
                    self._relaxed = not self.is_awaited()
                    spent = time.thread_time() - began
                    least = LONE_GATHER_S if self._round_count <= LONE else GATHER_S
                    gathers = min(max(least, GATHER_ROUNDS * spent), GATHER_MAX_S)
                    relaxed = SLAVE_RELAXED_S if self._is_slave() else RELAXED_S
                    if self._hurry.wait(relaxed if self._relaxed else gathers):
                        self._hurry.clear()  # the next round, not all until there is nothing left
                continue
            self._hurry.clear()
            self._sleeping = True
            self.asleep[0] = 1
            if self.reput_from_offset >= self._confirm_offset() or self._broken:
                self._wake.wait()
            self._sleeping = False
            self.asleep[0] = 0
            self._wake.clear()

    def _do_reput(self) -> None:
        confirmed = self._confirm_offset()
        self._round_count = 0
        for chunk in self._reader.scan(self.reput_from_offset, confirmed):
            self._round_count += chunk.count
            if chunk.count and not self._dispatch(chunk):
                return
            if chunk.scan.stop == ScanStop.INVALID:
                self._broken = True
                self._on_damage(f"{chunk.mapped_file.path}: byte {chunk.scan.end}: {chunk.scan.stop_reason}")
            with self._progress:
                self.reput_from_offset = chunk.end
                self._progress.notify_all()
            if self._stopped:
                return

    def _dispatch(self, chunk: LogChunk) -> bool:
        """Dispatches, again and again while the disk refuses: nothing is lost, the log has it all."""
        delay = RETRY_FIRST_S
        columns = columns_of(chunk, self._delay_levels)
        while True:
            what = ""
            try:
                for dispatcher in self._dispatchers:
                    what = dispatcher.makes
                    dispatcher.dispatch(chunk.scan, columns)
            except OSError as error:
                if self._running_flags.make_logics_queue_error(str(error), what):
                    until = (
                        "is tried again" if self._is_slave() else "the store takes no messages until it works"
                    )
                    logger.error("dispatch failed, %s: %s", until, error)
                with self._progress:
                    self._refusals += 1
                    self._progress.notify_all()
                if self._stopped:
                    return False
                self._wake.wait(delay)
                self._wake.clear()  # who waits hurries one try, not all that follow
                delay = min(delay * 2, RETRY_LAST_S)
                continue
            if self._running_flags.is_logics_queue_error:
                self._running_flags.clear_logics_queue_error()
                logger.warning("dispatch works again, the store takes messages")
            if self.listeners:
                self._tell(chunk.scan)
            return True

    def _tell(self, scan: Scan) -> None:
        for arrival in _few_arrivals(scan) if len(scan) <= FEW else _arrivals(scan):
            for listener in self.listeners:
                try:
                    listener(arrival)
                except Exception:  # a listener's failure is its own: dispatch goes on
                    logger.exception("a message arriving listener failed")


def _few_arrivals(scan: Scan) -> Iterator[Arrival]:
    """As _arrivals(), for a handful of records: ordering them would cost more."""
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for topic, queue_id, offset, size in zip(
        scan.topic_id.tolist(),
        scan.queue_id.tolist(),
        scan.queue_offset.tolist(),
        scan.size.tolist(),
        strict=True,
    ):
        next_offset, count, total = found.get((topic, queue_id), (0, 0, 0))
        found[topic, queue_id] = max(next_offset, offset + 1), count + 1, total + size
    for (topic, queue_id), arrived in found.items():
        yield Arrival(scan.topics[topic].decode("utf-8", "replace"), queue_id & 0xFFFFFFFF, *arrived)


def _arrivals(scan: Scan) -> Iterator[Arrival]:
    """The arrivals of a scan's records, by queue."""
    for topic, queue_id, next_offset, count, size in arrivals_by_queue(scan):
        name = scan.topics[topic].decode("utf-8", "replace")
        yield Arrival(name, queue_id & 0xFFFFFFFF, next_offset, count, size)
