"""ArchiveReader: the archived log, read as if it were here, through a cache on the disk that is bounded.

    object  ├────── chunk ──────┼────── chunk ──────┼──── …        a chunk: a mapped, sparse file of up to 64 MiB
            ├b┼b┼b┼b┼ ┼ ┼ ┼ ┼ ┼ ┤                                 of blocks of 1 MiB that have come, or not

The first read somewhere brings a block, so that it comes soon; who goes on there gets four, sixteen and then the
rest of the chunk, and the next chunk is brought while this one is read: one request each. All readers share the
chunks; the one that nobody has used for the longest time goes when there is no room. Slices of a chunk stay valid:
its memory goes with the last. The thread that has fetched blocks also compares their records with the CRCs, so that
compiled code may send them as it sends what is here.

An event loop never waits here: on its thread what has not come is NotCachedError, which says what some other thread is
to fetch().
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np

from mqlake.base.durable import make_dirs
from mqlake.errors import ArchiveUnavailableError, StoreClosedError
from mqlake.formats.columns import Bytes, find_record, walk_records
from mqlake.formats.record import RECORD_SIZE_MIN, store_timestamp
from mqlake.store.archive.manifest import ArchivedObject, Manifest
from mqlake.store.archive.target import Target

CHUNK_BYTES = 64 << 20
BLOCK_BYTES = 1 << 20
GROWTH = 4
"""How many times as many blocks the next request of a reader that goes on asks for."""
READERS = 8
"""Threads that may wait for what they read."""
REQUESTS = 4
"""At the same time; each has up to a chunk in memory."""
AHEAD = 2
"""Chunks that are brought ahead of a reader, at the same time."""
TRIES = 2
WAIT_S = 0.1
"""Before the second try; twice as long before each further one."""
CHUNKS_MIN = 4
"""The cache holds so many, whatever its bound: with fewer, readers would take them from one another."""


class NotCachedError(BlockingIOError):
    """The log's bytes [start, end) are in the archive and not here yet: fetch() them on a thread that may wait."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(f"physical offsets {start} to {end} have to be read from the archive")
        self.start, self.end = start, end


class CheckedRecords:
    """The records of a chunk that were compared with their CRCs, with the names that MappedFile gives what pulls ask
    for: positions [`begin`, `read_position`). Who keeps it does not keep the chunk: of one that was dropped
    `readable_array` is empty."""

    __slots__ = ("begin", "file_from_offset", "file_size", "read_position", "readable_array")

    def __init__(self, chunk: Chunk, begin: int) -> None:
        self.file_from_offset, self.file_size = chunk.file_from_offset, chunk.size
        self.begin = self.read_position = begin
        self.readable_array: Bytes = chunk.readable_array


class Chunk:
    """Bytes of one object, as far as they have come, with the names that MappedFile gives them. `file_from_offset`: the
    physical offset of the first."""

    def __init__(self, path: str, archived: ArchivedObject, start: int, end: int) -> None:
        self.archived = archived
        self.file_from_offset = start
        self.size = end - start
        self.cached_bytes = 0
        self.lock = threading.Lock()
        self.checked: CheckedRecords | None = None
        """The longest stretch of records after which the last blocks came."""
        self._path = path
        self._blocks = bytearray(-(-self.size // BLOCK_BYTES))
        self._last_request = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(self._fd, self.size)
            self._map = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self._fd)
            raise
        self.view = memoryview(self._map)
        self.readable_array: Bytes = np.frombuffer(self._map, np.uint8)

    @property
    def end(self) -> int:
        return self.file_from_offset + self.size

    def read_position(self, position: int) -> int:
        """The end of what has come from `position` on without a hole; `position` if it has not."""
        first = position // BLOCK_BYTES
        missing = self._blocks.find(0, first)
        if missing < 0:
            return self.size
        return position if missing == first else missing * BLOCK_BYTES

    def has(self, start: int, end: int) -> bool:
        return self.read_position(start) >= end

    def wanted(self, start: int, end: int) -> tuple[int, int]:
        """The bytes to ask for, so that [start, end) is here: more, the longer somebody has been reading on."""
        first, last = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        while self._blocks[first]:
            first += 1
        reads_on = first > 0 and self._blocks[first - 1]
        count = max(last - first, self._last_request * GROWTH if reads_on else 1)
        self._last_request = count
        there = self._blocks.find(1, first)
        until = min(len(self._blocks) if there < 0 else max(there, last), first + count)
        return first * BLOCK_BYTES, min(until * BLOCK_BYTES, self.size)

    def put(self, start: int, data: bytes) -> int:
        """Keeps bytes that begin with a block and end with one; how many are new. OSError."""
        view, position = memoryview(data), start
        while view:
            written = os.pwrite(self._fd, view, position)
            view, position = view[written:], position + written
        first, last = start // BLOCK_BYTES, -(-(start + len(data)) // BLOCK_BYTES)
        new = len(data) - sum(
            min(BLOCK_BYTES, self.size - block * BLOCK_BYTES)
            for block in range(first, last)
            if self._blocks[block]
        )
        self._blocks[first:last] = b"\1" * (last - first)
        return new

    def check(self, first: int) -> None:
        """Compares the records that have come with the bytes from position `first` on with their CRCs. One thread at a
        time; the others read on meanwhile."""
        checked, end = self.checked, self.read_position(first)
        is_later = checked is not None and checked.begin > first  # somebody reads what is before it
        if checked is None or is_later or self.read_position(checked.read_position) < first:
            begin = find_record(self.readable_array, first, end, self.file_from_offset)
            if begin < 0:
                return
            checked = CheckedRecords(self, begin)
        walk = walk_records(self.readable_array, checked.read_position, end, self.file_from_offset)
        checked.read_position = min(walk.end, end)
        self.checked = checked

    def drop(self) -> None:
        """Deletes the file; who has slices of it, or is just filling it, keeps it until then."""
        if self.checked is not None:
            self.checked.readable_array = _NO_BYTES
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def __del__(self) -> None:
        if getattr(self, "_map", None) is not None:
            os.close(self._fd)


_NO_BYTES: Bytes = np.empty(0, np.uint8)


class Window:
    """The bytes at hand around a place, which readers of records use as they use a MappedFile."""

    __slots__ = ("file_from_offset", "read_position", "readable_array", "view")

    def __init__(self, chunk: Chunk, read_position: int) -> None:
        self.view, self.readable_array = chunk.view, chunk.readable_array
        self.file_from_offset, self.read_position = chunk.file_from_offset, read_position


class ArchiveReader:
    """Reads what `manifest` says is in `target()`, with a cache in `directory` of `cache_bytes()` at most.

    `target` is called by threads that may wait: to open a place may take a while. What was in `directory` is deleted.
    """

    def __init__(self, target: Callable[[], Target], directory: str, cache_bytes: Callable[[], int]) -> None:
        self.manifest = Manifest(1)
        """Replaced, never changed."""
        self.requests = self.request_bytes = self.failures = 0
        """Counted since the start."""
        self.cached_bytes = 0
        self._target = target
        self._directory = directory
        self._cache_bytes = cache_bytes
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._lock = threading.Lock()
        self._is_ready = False
        self._closed = False
        self._ahead: dict[int, object] = {}
        self._pools: list[ThreadPoolExecutor] = []
        self._fetching = threading.BoundedSemaphore(REQUESTS)

    # ------------------------------------------------------------------ what there is

    @property
    def begin(self) -> int | None:
        """The physical offset from which on the archive has the log without a hole; None if it is empty."""
        manifest = self.manifest
        return manifest.begin if manifest.objects else None

    def covers(self, physical_offset: int) -> bool:
        return self.manifest.at(physical_offset) is not None

    def describe(self, physical_offset: int) -> tuple[str, int]:
        """The object that has a byte, and its position there."""
        found = self.manifest.at(physical_offset)
        assert found is not None
        return f"{self._target()}/{found.name}", physical_offset - found.start

    @property
    def pool(self) -> Executor:
        """Threads for who has to fetch()."""
        return self._pool(0)

    def _pool(self, number: int) -> ThreadPoolExecutor:
        with self._lock:
            if not self._pools:
                self._pools = [
                    ThreadPoolExecutor(READERS, "ArchiveReader"),
                    ThreadPoolExecutor(AHEAD, "ArchiveAhead"),
                ]
            return self._pools[number]

    # ------------------------------------------------------------------ reading

    def select(self, physical_offset: int, size: int) -> memoryview | None:
        """`size` bytes of the log; None if the archive does not have them all. On a thread of an event loop
        NotCachedError; on others ArchiveUnavailableError."""
        chunk = self._chunk(physical_offset, size) if size <= CHUNK_BYTES else None
        if chunk is None:
            return None
        position = physical_offset - chunk.file_from_offset
        if position + size <= chunk.size:
            return chunk.view[position : position + size]
        # the end of a chunk is in the middle of a record
        first = chunk.view[position : chunk.size]
        rest = self.select(chunk.end, size - len(first))
        return None if rest is None else memoryview(bytes(first) + bytes(rest))

    def window(self, physical_offset: int) -> Window | None:
        """Returns the bytes at hand around a record, so that compiled code can follow units into them. None, or
        raises, as select()."""
        chunk = self._chunk(physical_offset, RECORD_SIZE_MIN)
        if chunk is None:
            return None
        return Window(chunk, chunk.read_position(physical_offset - chunk.file_from_offset))

    def checked(self, physical_offset: int) -> CheckedRecords | None:
        """Records from one on that have come and have their CRCs, for who reads many; None if this one has not.
        Never waits, never raises."""
        archived = self.manifest.at(physical_offset)
        chunk = None if archived is None else self._cached(archived, physical_offset)
        found = None if chunk is None else chunk.checked
        if chunk is None or found is None:
            return None
        position = physical_offset - chunk.file_from_offset
        if not found.begin <= position < found.read_position:
            return None
        self._use(chunk.file_from_offset)
        self._bring_next(chunk, position)
        return found

    def store_time_near(self, physical_offset: int, size: int) -> int:
        """Store time (ms) of the record there, or one near it if the record has not come. Never waits, never raises."""
        found = self.manifest.at(physical_offset)
        if found is None:
            return -1
        chunk = self._chunks.get(self._start_of(found, physical_offset))
        position = 0 if chunk is None else physical_offset - chunk.file_from_offset
        if chunk is not None and position + size <= chunk.size and chunk.has(position, position + size):
            return store_timestamp(chunk.view[position : position + size])
        return found.first_time_ms

    def store_time(self, physical_offset: int, size: int, wanted: int) -> int:
        """Store time (ms) of the record there, to be compared with `wanted`: where all of an object is earlier or
        later, its first or last time, without a look. -1 if there is none; raises as select()."""
        found = self.manifest.at(physical_offset)
        if found is None:
            return -1
        if found.records and found.last_time_ms < wanted:
            return found.last_time_ms
        if found.records and found.first_time_ms > wanted:
            return found.first_time_ms
        record = self.select(physical_offset, size)
        return -1 if record is None or len(record) < RECORD_SIZE_MIN else store_timestamp(record)

    def _start_of(self, archived: ArchivedObject, physical_offset: int) -> int:
        return physical_offset - (physical_offset - archived.start) % CHUNK_BYTES

    def _chunk(self, physical_offset: int, size: int) -> Chunk | None:
        """The chunk of a byte, with `size` bytes from there on, as far as they are in it."""
        archived = self.manifest.at(physical_offset)
        if archived is None:
            return None
        start = self._start_of(archived, physical_offset)
        chunk, position = self._cached(archived, physical_offset), physical_offset - start
        if chunk is not None and chunk.has(position, min(position + size, chunk.size)):
            self._use(start)
            self._bring_next(chunk, position)
            return chunk
        if asyncio._get_running_loop() is not None:
            raise NotCachedError(physical_offset, physical_offset + size)
        return self._fetch(archived, start, position, size)

    def _cached(self, archived: ArchivedObject, physical_offset: int) -> Chunk | None:
        """The chunk of a byte as it is; None without one of this object."""
        chunk = self._chunks.get(self._start_of(archived, physical_offset))
        if chunk is None or chunk.archived is archived or chunk.archived.sha256 == archived.sha256:
            return chunk
        return None

    def _use(self, start: int) -> None:
        with contextlib.suppress(KeyError):  # it has just gone
            self._chunks.move_to_end(start)

    # ------------------------------------------------------------------ fetching

    def fetch(self, start: int, end: int) -> None:
        """Brings bytes of the log into the cache. ArchiveUnavailableError."""
        while start < end:
            chunk = self._chunk(start, end - start)
            if chunk is None:
                return
            start = chunk.end

    def _fetch(self, archived: ArchivedObject, start: int, position: int, size: int) -> Chunk:
        while True:
            chunk = self._make(archived, start)
            end = min(position + size, chunk.size)
            with chunk.lock:  # who wants the same waits for the same request
                if self._closed:
                    raise StoreClosedError("the archive's cache is closed")
                if self._chunks.get(start) is not chunk:
                    continue  # it went meanwhile
                if not chunk.has(position, end):
                    if position < BLOCK_BYTES and self._was_read_up_to(start):
                        position, end = 0, chunk.size  # faster than the request ahead of need
                    self._request(chunk, *chunk.wanted(position, end))
            return chunk

    def _was_read_up_to(self, start: int) -> bool:
        """True if the end of the chunk before this one is here: somebody reads on."""
        before = self.manifest.at(start - 1)
        chunk = None if before is None else self._chunks.get(self._start_of(before, start - 1))
        return chunk is not None and chunk.has(chunk.size - 1, chunk.size)

    def _make(self, archived: ArchivedObject, start: int) -> Chunk:
        with self._lock:
            if not self._is_ready:
                import shutil  # a broker without an archive does not need it

                shutil.rmtree(self._directory, ignore_errors=True)
                make_dirs(self._directory)
                self._is_ready = True
            chunk = self._chunks.get(start)
            if chunk is not None and chunk.archived.sha256 == archived.sha256:
                return chunk
            if chunk is not None:
                self._forget(start)
            path = os.path.join(self._directory, f"{start:020d}")
            chunk = Chunk(path, archived, start, min(start + CHUNK_BYTES, archived.end))
            self._chunks[start] = chunk
            return chunk

    def _request(self, chunk: Chunk, first: int, last: int) -> None:
        """Asks for positions of a chunk. ArchiveUnavailableError after some tries."""
        archived = chunk.archived
        base = chunk.file_from_offset - archived.start
        self._make_room(last - first, chunk)
        wait = WAIT_S
        for left in range(TRIES - 1, -1, -1):
            try:
                with self._fetching:
                    self.requests += 1
                    data = self._target().read(archived.name, base + first, base + last)
                break
            except FileNotFoundError:
                self.failures += 1
                raise ArchiveUnavailableError(
                    f"{archived.name} is not in the archive, although its manifest names it: see `mqlake store archive "
                    "verify`"
                ) from None
            except ArchiveUnavailableError:
                self.failures += 1
                if not left or self._closed:
                    raise
            time.sleep(wait)
            wait *= 2
        self.request_bytes += len(data)
        new = chunk.put(first, data)
        chunk.check(first)
        with self._lock:
            if self._chunks.get(chunk.file_from_offset) is chunk:
                chunk.cached_bytes += new
                self.cached_bytes += new

    def _make_room(self, size: int, keep: Chunk) -> None:
        bound = max(self._cache_bytes(), CHUNKS_MIN * min(CHUNK_BYTES, keep.size))
        with self._lock:
            for start in list(self._chunks):
                if self.cached_bytes + size <= bound:
                    break
                chunk = self._chunks[start]
                if chunk is not keep and not chunk.lock.locked():
                    self._forget(start)

    def _forget(self, start: int) -> None:
        chunk = self._chunks.pop(start)
        self.cached_bytes -= chunk.cached_bytes
        chunk.drop()

    def _bring_next(self, chunk: Chunk, position: int) -> None:
        """Has the chunks after this one brought whole, for who reads on: all of it has come, or he is far in it."""
        if position * 2 <= chunk.size and not chunk.has(0, chunk.size):
            return
        start = chunk.end
        for _ in range(AHEAD):
            archived = self.manifest.at(start)
            if archived is None or not archived.is_whole:
                return
            end = min(start + CHUNK_BYTES, archived.end)
            following = self._cached(archived, start)
            if following is None or not following.has(0, end - start):
                self._bring_soon(archived, start)
            start = end

    def _bring_soon(self, archived: ArchivedObject, start: int) -> None:
        if start in self._ahead or self._closed or len(self._ahead) >= AHEAD * 2:
            return
        if self._cache_bytes() < CHUNKS_MIN * min(CHUNK_BYTES, archived.size):
            return
        self._ahead[start] = True
        with contextlib.suppress(RuntimeError):  # it is being closed
            self._pool(1).submit(self._bring, archived, start)

    def _bring(self, archived: ArchivedObject, start: int) -> None:
        try:
            size = min(CHUNK_BYTES, archived.end - start)
            self._fetch(archived, start, 0, size)
        except (ArchiveUnavailableError, StoreClosedError, OSError):
            pass  # who needs it asks again, and hears why
        finally:
            self._ahead.pop(start, None)

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """Ends what is fetched; deletes the cache."""
        self._closed = True
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for start in list(self._chunks):
                self._forget(start)
            if self._is_ready:
                import shutil

                shutil.rmtree(self._directory, ignore_errors=True)
