"""AllocateMappedFileService: makes the next file, and the one after it, before they are needed.

    put thread                       service thread
    request(next, next_next) ──▶ queue ordered by offset ──▶ create, allocate, warm, mlock
    waits for `next` only  ◀────────────────────────────────┘        (next_next waits in the table)

A put that fills a file finds the following one ready. `next_next` that was never used is deleted at a
clean shutdown, as RocketMQ does.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading

from mqlake.base.throttled_log import ThrottledLog
from mqlake.formats.names import file_name_to_offset
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.memory import how_to_lock
from mqlake.store.files.transient_store_pool import TransientStorePool

logger = logging.getLogger(__name__)

WAIT_TIMEOUT_S = 5.0


class AllocateRequest:
    """One file to make. Ordered by the offset its name says, so that the earlier file is made first."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = file_name_to_offset(os.path.basename(path)) or 0
        self.made = threading.Event()
        self.mapped_file: MappedFile | None = None
        self.error: OSError | None = None

    def __lt__(self, other: AllocateRequest) -> bool:
        return self.offset < other.offset


class AllocateMappedFileService:
    """Makes files of `config.mapped_file_size_commit_log` bytes on a thread of its own."""

    def __init__(
        self,
        config: MessageStoreConfig,
        pool: TransientStorePool | None,
        mapped_file_type: type[MappedFile] = MappedFile,
    ) -> None:
        self._config = config
        self._mapped_file_type = mapped_file_type
        self._pool = pool
        self._requests: dict[str, AllocateRequest] = {}
        self._queue: list[AllocateRequest] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None
        # each put tries again, so on a full disk there may be thousands of failures a second
        self._trouble = ThrottledLog(logger)
        self._pool_trouble = ThrottledLog(logger, logging.WARNING)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="AllocateMappedFileService", daemon=True)
        self._thread.start()

    def put_request_and_return_mapped_file(self, next_path: str, next_next_path: str) -> MappedFile | None:
        """Asks for both files, waits for the first.

        None when the store pool is short (`fastFailIfNoBufferInStorePool`), the wait takes over 5 s or the
        service was shut down.
        OSError when the file cannot be made (a full disk); a later call tries again.
        """
        with self._changed:
            if self._stopped:
                return None
            room = self._room_in_pool()
            request = self._ask(next_path, room)
            if request is None:
                self._pool_trouble.failed(
                    f"the transient store pool is short, so {next_path} was not created"
                )
                return None
            if self._ask(next_next_path, room - 1) is None:
                self._pool_trouble.failed(
                    f"the transient store pool is short, so {next_next_path} is not created ahead"
                )
            else:
                self._pool_trouble.worked("the transient store pool has buffers again")
            self._changed.notify_all()
        if not request.made.wait(WAIT_TIMEOUT_S):
            self._trouble.failed(f"creating {next_path} takes longer than {WAIT_TIMEOUT_S:.0f} s")
            return None
        with self._changed:
            self._requests.pop(next_path, None)
            made = request.mapped_file
        if request.error is not None:
            raise request.error
        return made

    def _room_in_pool(self) -> int:
        if self._pool is None or not self._config.fast_fail_if_no_buffer_in_store_pool:
            return 2
        return self._pool.available_buffer_nums - len(self._queue)

    def _ask(self, path: str, room: int) -> AllocateRequest | None:
        request = self._requests.get(path)
        if request is None:
            if room <= 0:
                return None
            request = self._requests[path] = AllocateRequest(path)
            heapq.heappush(self._queue, request)
        return request

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                request = heapq.heappop(self._queue)
            try:
                request.mapped_file = self._make(request.path)
                self._trouble.worked("commit log files are created again")
            except OSError as error:
                request.error = error
                self._trouble.failed(f"cannot create {request.path}: {error.strerror or error}")
                with self._changed:
                    # a file made ahead that failed is asked for again when it is needed
                    self._requests.pop(request.path, None)
            request.made.set()

    def _make(self, path: str) -> MappedFile:
        config = self._config
        os.makedirs(os.path.dirname(path), exist_ok=True)
        buffer = self._pool.borrow() if self._pool is not None else None
        try:
            mapped_file = self._mapped_file_type(
                path,
                config.mapped_file_size_commit_log,
                write_buffer=buffer,
                without_mmap=config.write_without_mmap,
            )
        except OSError:
            if buffer is not None and self._pool is not None:
                self._pool.give_back(buffer)
            raise
        if config.warm_maped_file_enable:
            mapped_file.warm(
                sync_flush=config.is_sync_flush, flush_pages=config.flush_least_pages_when_warm_maped_file
            )
            if not mapped_file.lock_in_memory():
                logger.warning(
                    "warmMapedFileEnable: %s cannot be locked in memory and may be swapped out: %s",
                    path,
                    how_to_lock(config.mapped_file_size_commit_log),
                )
        return mapped_file

    def shutdown(self) -> None:
        """Stops the thread and deletes files that were made ahead and never used."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        with self._changed:
            for request in self._requests.values():
                made, request.mapped_file = request.mapped_file, None
                if made is not None:
                    made.destroy()
                request.made.set()
            self._requests = {}
            self._queue = []
