"""ScrubService: reads the whole log again and again, slowly, so that damage is found before a consumer comes to it.

    each file ── 1 MiB ─▶ are the records whole? ─▶ have bodies their CRCs? ─▶ does the consume queue lead to each?
               │                                └ no ─▶ DamageLog: log, metric
               └ pause: scrubBytesPerSecond; longer while the store has better to do

It only looks. It does not read the mapped files, as LogReader does: it reads a file through a descriptor of its
own, in pieces that it can wait between, and has the system forget what had to come from the disk. So it never takes
the place of pages that consumers need; pages that are in memory already stay. The first round begins at a random
file: a broker that is often started again comes round everywhere too. Only what is flushed and dispatched is looked
at, so a writer is never in the way.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Iterator

import numpy as np

from mqlake.base.service_thread import ServiceThread
from mqlake.errors import FormatError, StoreCorruptError
from mqlake.formats.columns import Bytes, Int64s, Scan, ScanStop, find_record, scan_records
from mqlake.formats.record import RecordKind, check_record, decode_record
from mqlake.message import UNSEEN_FLAG
from mqlake.store.config import MessageStoreConfig
from mqlake.store.damage import SCRUB, DamageLog
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.log_reader import ZEROS, scan_pieces
from mqlake.store.queues.by_queue import rows_by_queue
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore
from mqlake.store.queues.leads_to import leads_to

logger = logging.getLogger(__name__)

CHUNK = 1 << 20
LOST_CHUNK = 16 << 20
"""Read at once to find the next record after damage; twice as much as a record may have."""
FIRST_AFTER_S = 600.0
"""A broker that has just been started has better to do."""
LOOK_AGAIN_S = 1.0


class ScrubService(ServiceThread):
    """`end()` is the physical offset up to which the log is flushed and dispatched, `is_busy()` whether to pause."""

    def __init__(
        self,
        config: MessageStoreConfig,
        log: MappedFileQueue,
        consume_queues: ConsumeQueueStore,
        damage: DamageLog,
        end: Callable[[], int],
        is_busy: Callable[[], bool],
        *,
        first_after_s: float = FIRST_AFTER_S,
    ) -> None:
        super().__init__()
        self._config = config
        self._log = log
        self._consume_queues = consume_queues
        self._damage = damage
        self._end = end
        self._is_busy = is_busy
        self._first_after_s = first_after_s
        self.rounds = 0
        """Ended since the start."""
        self.offset = -1
        """The physical offset that it is at, -1 between rounds."""
        self.last_round_at = 0.0
        """When the last one ended, in seconds since 1970; 0 before."""
        self._found = 0

    def runtime_info(self) -> dict[str, str]:
        return {
            "scrubBytesPerSecond": str(self._config.scrub_bytes_per_second),
            "scrubOffset": str(self.offset),
            "scrubRounds": str(self.rounds),
            "scrubLastRoundTimestamp": str(int(self.last_round_at * 1000)),
        }

    def _run(self) -> None:
        wait_s, first = self._first_after_s, True
        while not self._stops_within(wait_s):
            wait_s = LOOK_AGAIN_S
            if not self._config.scrub_bytes_per_second:
                continue
            if self.rounds and time.time() - self.last_round_at < self._config.scrub_interval * 3600:
                continue
            try:
                self.run_round(from_any_file=first)
            except OSError as error:
                logger.error("the scrub cannot read the log: %s; the next round tries again", error)
                self.last_round_at = time.time()
                self.rounds += 1
            first = False

    def run_round(self, *, from_any_file: bool = False) -> None:
        """Looks at all files once, at the configured rate; returns early when the service is shut down. OSError."""
        began, before, total = time.monotonic(), self._damage.count, 0
        for size in self.chunks(from_any_file=from_any_file):
            total += size
            if self._pause(size):
                self.offset = -1
                return
        self.offset = -1
        self.rounds += 1
        self.last_round_at = time.time()
        logger.info(
            "scrub: %d MiB of the log read in %.0f s, %d damaged places found",
            total >> 20,
            time.monotonic() - began,
            self._damage.count - before,
        )

    def _pause(self, size: int) -> bool:
        """Waits as long as so many bytes may take; returns True if the service was shut down meanwhile."""
        rate = self._config.scrub_bytes_per_second
        if self._stops_within(size / rate if rate else LOOK_AGAIN_S):
            return True
        while self._is_busy() or not self._config.scrub_bytes_per_second:
            if self._stops_within(LOOK_AGAIN_S):
                return True
        return False

    # --- one round

    def chunks(self, *, from_any_file: bool = False) -> Iterator[int]:
        """Looks at the log; the size in bytes of each piece that was read."""
        files = list(self._log.mapped_files)
        first = random.randrange(len(files)) if from_any_file and files else 0
        for mapped_file in files[first:] + files[:first]:
            with contextlib.suppress(FileNotFoundError):  # it has been deleted since
                yield from self._scrub_file(mapped_file)

    def _scrub_file(self, mapped_file: MappedFile) -> Iterator[int]:
        base = mapped_file.file_from_offset
        limit = min(mapped_file.file_size, self._end() - base)
        if limit <= 0:
            return
        fd = os.open(mapped_file.path, os.O_RDONLY)

        def read(start: int, end: int) -> Bytes:
            self.offset = base + start
            return _read(fd, start, end - start)

        try:
            os.posix_fadvise(
                fd, 0, 0, os.POSIX_FADV_RANDOM
            )  # no reading ahead into what is not looked at yet
            position, lost = 0, False
            while position < limit:
                if lost:
                    end = min(position + LOST_CHUNK, limit)
                    data = read(position, end)
                    yield len(data)
                    at = find_record(data, 0, len(data), base + position)
                    if at < 0:
                        position = end if end == limit else position + len(data) // 2
                        continue
                    position += at
                pieces = scan_pieces(read, self._scan_at, position, limit, base, CHUNK, LOST_CHUNK)
                for at, data, scan in pieces:
                    yield len(data)
                    self._compare(mapped_file, scan, at)
                if scan.stop in (ScanStop.BLANK, ScanStop.LIMIT):
                    return
                position = at + scan.end
                position += self._damaged(mapped_file, data[scan.end :], position, scan.stop_reason or ZEROS)
                lost = True
        finally:
            os.close(fd)

    def _scan_at(self, data: Bytes, offset: int) -> Scan:
        return scan_records(data, 0, len(data), offset, force_prop_crc=self._config.writes_prop_crc)

    def _damaged(self, mapped_file: MappedFile, data: Bytes, position: int, reason: str) -> int:
        """Reports what lies at `position`; how many bytes of it are known not to be another record."""
        topic, queue_id, size, what = "", -1, 1, "no record is here"
        view = data.data
        physical_offset = mapped_file.file_from_offset + position
        check = check_record(view, 0, len(view), physical_offset, check_crc=False)
        if check.kind is RecordKind.MESSAGE:
            with contextlib.suppress(FormatError):
                message = decode_record(view, check_crc=False, read_body=False)
                topic, queue_id, size = message.topic, message.queue_id, check.size
                what = f"message {message.queue_offset} of {topic}-{queue_id} should be here"
        self._report(mapped_file, position, f"{what}: {reason}", topic, queue_id)
        return size

    def _report(
        self, mapped_file: MappedFile, position: int, reason: str, topic: str = "", queue_id: int = -1
    ) -> None:
        error = StoreCorruptError(
            mapped_file.path, position, reason, hint="`mqlake store verify` tells how far the damage goes"
        )
        self._damage.report(SCRUB, error, topic, queue_id, "found by the scrub")

    # --- the consume queues

    def _compare(self, mapped_file: MappedFile, scan: Scan, position: int) -> None:
        """Reports records that the consume queues do not lead to. Positions in the scan count from `position` of the
        file."""
        rows = np.flatnonzero((scan.sys_flag & UNSEEN_FLAG) == 0)
        for some in rows_by_queue(scan.topic_id, scan.queue_id, rows):
            topic = str(scan.topics[scan.topic_id[some[0]]], "utf-8", "replace")
            queues = self._consume_queues.queues(topic)
            if not queues:
                continue  # the topic was deleted
            queue_id = int(scan.queue_id[some[0]])
            queue = queues.get(queue_id)
            if queue is not None and not isinstance(queue, ConsumeQueue):
                continue
            for row in _not_in_queue(queue, scan, some).tolist():
                self._report(
                    mapped_file,
                    position + int(scan.position[row]),
                    f"by its record message {int(scan.queue_offset[row])} of {topic}-{queue_id} is here, but the "
                    f"consume queue does not lead to it",
                    topic,
                    queue_id,
                )


def _not_in_queue(queue: ConsumeQueue | None, scan: Scan, rows: Int64s) -> Int64s:
    """The rows, of one queue, that its units do not lead to; deleted units lead nowhere and need not."""
    while queue is not None:
        first = queue.min_offset_in_queue
        rows = rows[scan.queue_offset[rows] >= first]
        missing = rows[~leads_to(queue, scan, rows)]
        if queue.min_offset_in_queue == first:  # none were deleted meanwhile
            return missing
    return rows


def _read(fd: int, position: int, size: int) -> Bytes:
    """The bytes, which the system forgets again if it had to read them. OSError."""
    data = np.empty(size, np.uint8)
    view = data.data
    done = 0
    with contextlib.suppress(OSError):  # BlockingIOError: it is not in memory; or the system does not tell
        done = os.preadv(fd, [view], position, os.RWF_NOWAIT)
    cold = done
    while done < size:
        got = os.preadv(fd, [view[done:]], position + done)
        if not got:
            raise OSError(f"the file ends at {position + done}")
        done += got
    if cold < size:
        os.posix_fadvise(fd, position + cold, size - cold, os.POSIX_FADV_DONTNEED)
    return data
