"""The flush services: when committed bytes go to the disk, and which puts are then answered.

    SYNC_FLUSH            GroupCommitService      a flush starts when the last has ended; all that arrived
                                                  meanwhile rides on it and is answered together
    ASYNC_FLUSH           FlushRealTimeService    every 500 ms when 4 pages are dirty, every 10 s in any case
    ... with the pool     CommitRealTimeService   every 200 ms from the write buffer to the file, then the above

A flush that fails is never answered as done. The kernel reports a write error once and may drop the dirty
pages after it, so a second fdatasync that succeeds proves nothing: the first failure fences the store
(`on_error`), what waits is answered FLUSH_DISK_TIMEOUT with the cause, and nothing is tried again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from mqlake.base.service_thread import ServiceThread
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.results import PutMessageFuture, PutMessageStatus, wake_all

logger = logging.getLogger(__name__)

OnFlushed = Callable[[], None]
OnError = Callable[[OSError], None]


class GroupCommitService(ServiceThread):
    """SYNC_FLUSH. put_request() hands in a future; it is finished when its bytes are on the disk.

    A flush that hangs does not hold its waiters: a watcher answers FLUSH_DISK_TIMEOUT at their deadline.
    """

    def __init__(
        self, config: MessageStoreConfig, files: MappedFileQueue, on_flushed: OnFlushed, on_error: OnError
    ) -> None:
        super().__init__()
        self._config = config
        self._files = files
        self._on_flushed = on_flushed
        self._on_error = on_error
        self._waiting: deque[PutMessageFuture] = deque()
        self._in_flight: list[PutMessageFuture] = []
        self._group_lock = threading.Lock()
        self._failed: OSError | None = None
        self.on_disk: Callable[[list[PutMessageFuture]], None] | None = None
        """Takes over the puts that are on the disk and wait for replicas, too; None: they are finished."""
        self._watcher = threading.Thread(target=self._watch, name="GroupCommitWatcher", daemon=True)
        self._flush_under_way = threading.Event()

    def start(self) -> None:
        super().start()
        self._watcher.start()

    def put_request(self, future: PutMessageFuture) -> None:
        self._waiting.append(future)
        if self._stopped:  # a put that came while the store shuts down
            self._commit_group()
        elif not self._wake.is_set():
            self._wake.set()

    def shutdown(self) -> None:
        super().shutdown()
        self._flush_under_way.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self._commit_group()

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait()
            self._wake.clear()
            self._commit_group()

    def _commit_group(self) -> None:
        with self._group_lock:
            self._commit_waiting()

    def _commit_waiting(self) -> None:
        group = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if self._failed is not None:
            self._answer(group, PutMessageStatus.FLUSH_DISK_TIMEOUT, f"flush failed: {self._failed}")
            return
        self._in_flight = group
        self._flush_under_way.set()
        target = max((future.next_offset for future in group), default=self._files.max_wrote_position)
        try:
            while self._files.flushed_where < target:
                # with a write buffer the bytes must reach the file before they can be flushed; who flushes as well
                # may have done this file, of which the next one is not committed yet
                is_committed = self._files.commit(0)
                if self._files.flush(0) and is_committed and self._files.flushed_where < target:
                    break
        except OSError as error:
            self._failed = error
            self._flush_under_way.clear()
            self._on_error(error)
            self._answer(group, PutMessageStatus.FLUSH_DISK_TIMEOUT, f"flush failed: {error}")
            return
        self._flush_under_way.clear()
        self._in_flight = []
        self._on_flushed()
        flushed = self._files.flushed_where
        on_disk = [f for f in group if f.next_offset <= flushed]
        if self.on_disk is not None and on_disk:
            self.on_disk(on_disk)
        else:
            self._answer(on_disk, PutMessageStatus.PUT_OK, "")
        self._answer(
            [f for f in group if f.next_offset > flushed],
            PutMessageStatus.FLUSH_DISK_TIMEOUT,
            f"flushed up to {flushed} only",
        )

    @staticmethod
    def _answer(group: list[PutMessageFuture], status: PutMessageStatus, reason: str) -> None:
        waiters = []
        for future in group:
            waiters += future.finish(status, reason)
        wake_all(waiters)

    def _watch(self) -> None:
        while True:
            self._flush_under_way.wait()
            if self._stopped:
                return
            # looked at often enough for a timeout in seconds, and only while a flush is in flight
            time.sleep(min(0.1, self._config.sync_flush_timeout / 1000 / 4))
            now = time.monotonic()
            late = [f for f in [*self._in_flight, *list(self._waiting)] if f.deadline < now]
            if late and self._flush_under_way.is_set():
                timeout = self._config.sync_flush_timeout
                self._answer(late, PutMessageStatus.FLUSH_DISK_TIMEOUT, f"no flush within {timeout} ms")


class _IntervalService(ServiceThread):
    """Rounds at an interval: those of enough pages, and after `thorough_ms` one of all there is."""

    interval_ms: int
    thorough_ms: int
    least_pages: int

    def __init__(self, on_error: OnError) -> None:
        super().__init__()
        self._on_error = on_error

    def _run(self) -> None:
        last_thorough = time.monotonic()
        while not self._stopped:
            self._wake.wait(self.interval_ms / 1000)
            self._wake.clear()
            least_pages = self.least_pages
            now = time.monotonic()
            if now - last_thorough >= self.thorough_ms / 1000:
                last_thorough, least_pages = now, 0
            try:
                self._round(least_pages)
            except OSError as error:
                self._on_error(error)
                return

    def _round(self, least_pages: int) -> None:
        raise NotImplementedError


class FlushRealTimeService(_IntervalService):
    """ASYNC_FLUSH: flushes in the background, by pages and by time."""

    def __init__(
        self, config: MessageStoreConfig, files: MappedFileQueue, on_flushed: OnFlushed, on_error: OnError
    ) -> None:
        super().__init__(on_error)
        self.interval_ms = config.flush_interval_commit_log
        self.thorough_ms = config.flush_commit_log_thorough_interval
        self.least_pages = config.flush_commit_log_least_pages
        self._files = files
        self._on_flushed = on_flushed

    def _round(self, least_pages: int) -> None:
        while not self._files.flush(least_pages):
            pass
        self._on_flushed()


class CommitRealTimeService(_IntervalService):
    """ASYNC_FLUSH with the transient store pool: moves bytes from the write buffer to the file."""

    def __init__(
        self, config: MessageStoreConfig, files: MappedFileQueue, on_committed: OnFlushed, on_error: OnError
    ) -> None:
        super().__init__(on_error)
        self.interval_ms = config.commit_interval_commit_log
        self.thorough_ms = config.commit_commit_log_thorough_interval
        self.least_pages = config.commit_commit_log_least_pages
        self._files = files
        self._on_committed = on_committed

    def _round(self, least_pages: int) -> None:
        before = self._files.committed_where
        while not self._files.commit(least_pages):
            pass
        if self._files.committed_where != before:
            self._on_committed()
