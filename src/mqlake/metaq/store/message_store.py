"""MessageStore: one partition of a topic, a list of segments of which the last one grows.

    orders-0/   00000000000000000000.meta   00000000001073741900.meta   00000000002147483877.meta
                immutable                   immutable                   mutable ◀─ append
    offset      0                           1073741900                  2147483877     max_offset

A segment begins where the one before it ends; an offset in the partition is a segment's start plus a position in it.
When a segment reaches `max_segment_size` it is flushed and a new one begins.

The topic's unflushThreshold, when the store is opened, decides how it is flushed:
    above 0    an append is done when it is written; flushed after more than so many messages, or after the
               topic's interval
    else       group commit: an append is done when it is flushed, whatever its size
"""

from __future__ import annotations

import bisect
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from mqlake.base.clock import now_ms
from mqlake.base.durable import fsync_dir, make_dirs
from mqlake.errors import OffsetOutOfRangeError, StoreClosedError, StoreCorruptError, StoreFencedError
from mqlake.metaq.config.values import DeletePolicy
from mqlake.metaq.formats.names import segment_name, segment_offset, store_name
from mqlake.metaq.formats.record import Buffer
from mqlake.metaq.store.backup import backup_directory, keep_copy
from mqlake.metaq.store.delete import process_segment
from mqlake.metaq.store.group_commit import GroupCommitService
from mqlake.metaq.store.inspect import REPAIR_HINT
from mqlake.metaq.store.message_set import FileMessageSet, has_records

logger = logging.getLogger(__name__)

MAX_SEGMENT_SIZE = 1 << 30


class Location(NamedTuple):
    """The place of appended records: offset in the partition and length, in bytes."""

    offset: int
    length: int


AppendCallback = Callable[[Location | None, Exception | None], None]
"""Called with the location of the records, or with the error because of which they are not safe."""


class Segment(NamedTuple):
    start: int
    """Offset of its first byte in the partition."""
    message_set: FileMessageSet

    @property
    def end(self) -> int:
        """The offset up to which it can be read."""
        return self.start + self.message_set.high_water_mark


def segment_starts(directory: str) -> list[int]:
    """The offsets at which the segments of a partition begin. Nothing is opened or changed.

    StoreCorruptError for a gap between two, OSError.
    """
    names = os.listdir(directory)
    starts = sorted(start for name in names if (start := segment_offset(name)) is not None)
    for start, following in itertools.pairwise(starts):
        path = os.path.join(directory, segment_name(start))
        size = os.path.getsize(path)
        if start + size != following:
            raise StoreCorruptError(
                path,
                size,
                f"the segment ends at offset {start + size}, but the next one begins at {following}",
                hint=REPAIR_HINT,
            )
    return starts


class MessageStore:
    """Open from the constructor to `close`. Any thread may append; reads need no lock."""

    def __init__(
        self,
        data_path: str,
        topic: str,
        partition: int,
        *,
        max_segment_size: int = MAX_SEGMENT_SIZE,
        unflush_threshold: int = 1000,
        unflush_interval_ms: int = 10000,
        delete_policy: DeletePolicy | None = None,
        group_commit: GroupCommitService | None = None,
        offset_if_create: int = 0,
        fast_boot: bool = False,
    ) -> None:
        """Opens `data_path`/`topic`-`partition`, or creates it with `offset_if_create` as its first offset.

        Without a `group_commit` service each flush is done before `append` returns. Raises StoreCorruptError
        for a gap between segments, OSError.
        """
        self.topic = topic
        self.partition = partition
        self.name = store_name(topic, partition)
        self.directory = os.path.join(data_path, self.name)
        self.max_segment_size = max_segment_size
        self.uses_group_commit = unflush_threshold <= 0
        self.unflush_threshold = unflush_threshold
        self.unflush_interval_ms = unflush_interval_ms
        self.delete_policy = delete_policy
        self.truncated = 0
        """Bytes that recovery cut off."""
        self.kept = ""
        """The file that has them now, if they were not a torn tail but damage with records after it."""
        self._service = group_commit
        self._lock = threading.Condition(threading.Lock())
        self._closed = False
        self._failure: OSError | None = None
        self._unflushed = 0
        self._last_flush_ms = _now_ms()
        self._waiting: list[tuple[AppendCallback | None, Location]] = []
        self._flush_scheduled = False
        make_dirs(self.directory)
        self._segments = self._load(offset_if_create, fast_boot)
        self._starts = [segment.start for segment in self._segments]

    def _load(self, offset_if_create: int, fast_boot: bool) -> list[Segment]:
        starts = segment_starts(self.directory)
        segments = [Segment(start, self._open(start, mutable=False)) for start in starts[:-1]]
        last = starts[-1] if starts else offset_if_create
        path = self._path(last)

        def before_cut(fd: int, end: int, length: int) -> None:
            self.truncated = length - end
            if has_records(fd, end):
                backup = backup_directory(os.path.dirname(self.directory), time.localtime())
                self.kept = keep_copy(backup, path, end, length - end)

        mutable = FileMessageSet.open(path, mutable=True, fast_boot=fast_boot, before_cut=before_cut)
        if not starts:
            fsync_dir(self.directory)
        return [*segments, Segment(last, mutable)]

    def _path(self, start: int) -> str:
        return os.path.join(self.directory, segment_name(start))

    def _open(self, start: int, *, mutable: bool) -> FileMessageSet:
        return FileMessageSet.open(self._path(start), mutable=mutable)

    # --- what is there

    @property
    def segments(self) -> list[Segment]:
        """A snapshot."""
        return list(self._segments)

    @property
    def min_offset(self) -> int:
        return self._starts[0]

    @property
    def max_offset(self) -> int:
        """Messages can be read up to here."""
        return self._segments[-1].end

    @property
    def append_offset(self) -> int:
        """Offset of the next record."""
        last = self._segments[-1]
        return last.start + last.message_set.size

    @property
    def size(self) -> int:
        return sum(segment.message_set.size for segment in self._segments)

    @property
    def message_count(self) -> int:
        """Messages that this process has appended or recovered."""
        return sum(segment.message_set.message_count() for segment in self._segments)

    # --- writing

    def append(self, data: Buffer, callback: AppendCallback | None = None, count: int = 1) -> Location:
        """Appends `count` whole records; calls `callback` when they are as safe as the topic asks for.

        Raises StoreClosedError, StoreFencedError after a failed fsync, OSError if the file cannot be
        written: then nothing was appended and `callback` is not called.
        """
        with self._lock:
            self._check_usable()
            last = self._segments[-1]
            location = Location(last.start + last.message_set.append(data, count), len(data))
            self._unflushed += count
            if self.uses_group_commit:
                self._waiting.append((callback, location))
                wake = True
            else:
                wake = (
                    self._unflushed > self.unflush_threshold
                    or _now_ms() - self._last_flush_ms > self.unflush_interval_ms
                )
            wake = wake and not self._flush_scheduled
            self._flush_scheduled |= wake
            if last.message_set.size >= self.max_segment_size:
                self._roll()
        if not self.uses_group_commit and callback is not None:
            callback(location, None)
        if wake:
            if self._service is not None:
                self._service.submit(self._flush_waiting)
            else:
                self._flush_waiting()
        return location

    def flush(self) -> None:
        """Makes everything appended durable and readable.

        Raises StoreFencedError if this fails, or has failed before: then the state of what was appended since the
        last flush is unknown, and the store takes no more.
        """
        with self._lock:
            last = self._segments[-1].message_set
            unflushed = self._unflushed
            if self._failure is not None:
                raise self._fenced(self._failure)
        try:
            last.flush()
        except OSError as error:
            with self._lock:
                self._failure = self._failure or error
            logger.error("%s: flush failed, the store takes no more messages: %s", self.directory, error)
            raise self._fenced(error) from error
        with self._lock:
            self._unflushed = max(0, self._unflushed - unflushed)
            self._last_flush_ms = _now_ms()

    def _flush_waiting(self) -> None:
        """Flushes for all waiting appends, until there are no more."""
        first = True
        while True:
            with self._lock:
                batch, self._waiting = self._waiting, []
                if not batch and not first:
                    self._flush_scheduled = False
                    self._lock.notify_all()
                    return
            first = False
            failure: Exception | None = None
            try:
                self.flush()
            except StoreFencedError as error:
                failure = error
            if batch:
                self._deliver(batch, failure)

    def _deliver(
        self, batch: list[tuple[AppendCallback | None, Location]], failure: Exception | None
    ) -> None:
        def run() -> None:
            for callback, location in batch:
                if callback is None:
                    continue
                try:
                    callback(None if failure else location, failure)
                except Exception:
                    logger.exception("%s: a callback failed", self.directory)

        if self._service is not None:
            self._service.deliver(run)
        else:
            run()

    def _roll(self) -> None:
        """Begins a new segment. The old one is durable before the new one's name is."""
        last = self._segments[-1]
        try:
            last.message_set.freeze()
            start = last.start + last.message_set.size
            following = Segment(start, self._open(start, mutable=True))
            fsync_dir(self.directory)
        except OSError as error:
            self._failure = self._failure or error
            logger.error("%s: no new segment, the store takes no more messages: %s", self.directory, error)
            return
        self._segments = [*self._segments, following]
        self._starts = [*self._starts, start]
        self._unflushed = 0

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.directory} is closed")
        if self._failure is not None:
            raise self._fenced(self._failure)

    def _fenced(self, error: OSError) -> StoreFencedError:
        return StoreFencedError(f"{self.directory}: takes no more messages since an I/O error: {error}")

    # --- reading

    def find_segment(self, offset: int) -> Segment | None:
        """The segment that contains `offset`; None at or after the end of the readable bytes.

        Raises OffsetOutOfRangeError before the first segment.
        """
        segments, starts = self._segments, self._starts
        if offset < starts[0]:
            raise OffsetOutOfRangeError(f"{self.name}: offset {offset} is before the first, {starts[0]}")
        if offset >= segments[-1].end:
            return None
        return segments[bisect.bisect_right(starts, offset) - 1]

    def slice(self, offset: int, max_size: int) -> FileMessageSet | None:
        """At most `max_size` bytes of one segment from `offset` on; the last message may be cut off.

        None at or after the end; OffsetOutOfRangeError before the first offset.
        """
        segment = self.find_segment(offset)
        if segment is None:
            return None
        position = offset - segment.start
        return segment.message_set.slice(position, position + max_size)

    def nearest_offset(self, offset: int) -> int:
        """Returns the offset at which a consumer with a wrong one can continue: the start of its segment, else the
        nearer end."""
        try:
            segment = self.find_segment(offset)
        except OffsetOutOfRangeError:
            return self.min_offset
        return self.max_offset if segment is None else segment.start

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` readable bytes of one segment; empty outside the partition. OSError."""
        found = self.slice(offset, size) if offset >= self.min_offset else None
        return found.read(size) if found is not None else b""

    # --- deleting

    def run_delete_policy(self, at_ms: int | None = None) -> list[str]:
        """Deletes or archives the oldest segments that are due, never the last; returns their paths.

        Stops at the first that is not due: a gap would keep the store from opening. OSError.
        """
        policy = self.delete_policy
        if policy is None:
            return []
        at_ms = now_ms() if at_ms is None else at_ms
        gone = []
        while len(self._segments) > 1:
            path = self._segments[0].message_set.path
            if at_ms - os.stat(path).st_mtime_ns // 1_000_000 <= policy.max_reserved_ms:
                break
            process_segment(policy, path)
            with self._lock:
                self._segments = self._segments[1:]
                self._starts = self._starts[1:]
            gone.append(path)
            logger.info("%s: removed by the policy %s", path, policy.name)
        return gone

    # --- recovery of transactions

    def cut_off(self, offset: int) -> None:
        """Removes everything from `offset`, which is in the last segment, to the end. OSError."""
        with self._lock:
            last = self._segments[-1]
            if offset < last.start:
                raise OffsetOutOfRangeError(f"{self.name}: {offset} is not in the last segment")
            last.message_set.truncate(offset - last.start)

    # --- the end

    def close(self) -> None:
        """Takes no more messages, waits for flushes in flight, flushes the rest, closes the files. StoreFencedError."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            while self._flush_scheduled:
                self._lock.wait()
        try:
            if self._failure is None:
                self.flush()
        finally:
            for segment in self._segments:
                segment.message_set.mutable = False
                segment.message_set.close()


def _now_ms() -> float:
    return time.monotonic() * 1000
