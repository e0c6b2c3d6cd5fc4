"""IndexService: finds messages by key, through index files in the order they were made.

    key ─hash─▶ index/20240229120000000 ◀ index/20240301080000000 ◀─ newest first
                      full, flushed             being written

Only hashes are kept, so what is found are candidates: the caller compares the keys of the records.

The order of entries is the order of the commit log, and `end_phy_offset` of the newest file says how far it
has come: what was dispatched before is passed over, a record that got only some of its keys gets the rest.

After a crash a file that was not known to be flushed cannot be trusted and is deleted, as RocketMQ does; unlike
there, `rebuild_from` then says from where the commit log has to be dispatched to the index again.
"""

from __future__ import annotations

import datetime
import logging
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mqlake.formats.columns import DispatchColumns, Int32s, Int64s, Scan
from mqlake.formats.index import build_key, index_key_hash
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.index.index_file import IndexFile

logger = logging.getLogger(__name__)

NAME_LENGTH = 17
ONE_MS = datetime.timedelta(milliseconds=1)


def file_name(time: datetime.datetime) -> str:
    """yyyyMMddHHmmssSSS"""
    return time.strftime("%Y%m%d%H%M%S%f")[:NAME_LENGTH]


def file_time(name: str) -> datetime.datetime | None:
    """The time that a name says, None when it is no index file's."""
    try:
        return datetime.datetime.strptime(name, "%Y%m%d%H%M%S%f") if len(name) == NAME_LENGTH else None
    except ValueError:
        return None


def _close_all(files: list[IndexFile]) -> None:
    for file in files:
        file.close()


class IndexKeys(NamedTuple):
    """Keys of the records of one scan, in order: the hash of each, and its record's place and time (ms)."""

    key_hash: Int32s
    physical_offset: Int64s
    store_timestamp: Int64s
    last_physical_offset: int
    """Physical offset of the last record, which may have none."""


class IndexService:
    """The files under index/. `rebuild_from` (set by `load`) is the physical offset from which records must be
    dispatched again, None when nothing is missing. `clock` gives the local time, which new files are named by."""

    makes = "the index"

    def __init__(
        self,
        config: MessageStoreConfig,
        *,
        read_only: bool = False,
        clock: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        self.rebuild_from: int | None = None
        self._dir = config.index_dir
        self._hash_slot_num = config.max_hash_slot_num
        self._index_num = config.max_index_num
        self._read_only = read_only
        self._clock = clock
        self._files_lock = threading.Lock()
        # closes deleted files
        self._closing: threading.Thread | None = None
        # replaced, never changed: readers take it as it is
        self.files: list[IndexFile] = []

    # ------------------------------------------------------------------ loading

    def load(self, last_exit_ok: bool, checkpoint: StoreCheckpoint | None) -> None:
        """Opens the files; deletes the first that cannot be right, or after a crash the first that the checkpoint
        does not know to be flushed, and all after it. Raises WrongFileSizeError, OSError."""
        for name in self._names():
            self.files = [*self.files, self._open(name)]
        if self._read_only:
            return
        if not self.files:
            self.rebuild_from = 0
        else:
            flushed = len(self.files)
            if not last_exit_ok:
                assert checkpoint is not None
                flushed = self._flushed_files(checkpoint.index_msg_timestamp)
            self._keep_first(
                next((n for n, file in enumerate(self.files[:flushed]) if not file.is_sound), flushed)
            )
            if not last_exit_ok and self.rebuild_from is None:
                # a file after these may have gone with its directory entry, or in a recovery that crashed itself
                self.rebuild_from = self.files[-1].end_phy_offset
        if self.rebuild_from is not None and checkpoint is not None:
            self._tell_flushed(checkpoint)

    def _flushed_files(self, timestamp: int) -> int:
        """The checkpoint's time is the end of the newest file that was flushed. Of later files nothing is known,
        also when their time is the same (a new file begins with the end of the one before) or an earlier one."""
        return next((n for n, file in enumerate(self.files, 1) if self._ends_at(file, timestamp)), 0)

    def _keep_first(self, kept: int) -> None:
        """The first so many files; what was in the others is to be made again."""
        if kept == len(self.files):
            return
        dropped, self.files = self.files[kept:], self.files[:kept]
        if self.files:
            self.rebuild_from = self.files[-1].end_phy_offset
        else:
            first = dropped[0]
            self.rebuild_from = max(0, first.header.begin_phy_offset) if first.is_sound else 0
        for file in dropped:
            logger.warning("%s may not be whole: it is made again from the log", file.path)
            file.unlink()
        # a file that is being written out is closed when that is done, which takes as long as a recovery
        self._closing = threading.Thread(target=_close_all, args=(dropped,), name="IndexClosing", daemon=True)
        self._closing.start()

    def _tell_flushed(self, checkpoint: StoreCheckpoint) -> None:
        """Takes the checkpoint's word back for files that are gone: those made again in their place end at the
        same time, and would pass for flushed."""
        flushed = self.files[-1].header.end_timestamp if self.files else 0
        if checkpoint.index_msg_timestamp != flushed:
            checkpoint.index_msg_timestamp = flushed
            checkpoint.flush()

    @staticmethod
    def _ends_at(file: IndexFile, timestamp: int) -> bool:
        return file.is_full and file.header.end_timestamp == timestamp

    def refresh(self) -> None:
        """Read-only beside a running writer: takes note of files that have come and gone."""
        known = {os.path.basename(file.path): file for file in self.files}
        names = self._names()
        self.files = [known.pop(name) if name in known else self._open(name) for name in names]
        for file in known.values():
            file.close()

    def _names(self) -> list[str]:
        """Files of the index, oldest first; one that is only being made does not count for a reader."""
        try:
            names = os.listdir(self._dir)
        except FileNotFoundError:
            return []
        found = sorted(name for name in names if file_time(name) is not None)
        if self._read_only:
            found = [name for name in found if os.path.getsize(os.path.join(self._dir, name))]
        return found

    def _open(self, name: str) -> IndexFile:
        path = os.path.join(self._dir, name)
        return IndexFile(path, self._hash_slot_num, self._index_num, read_only=self._read_only)

    # ------------------------------------------------------------------ writing

    def dispatch(self, scan: Scan, columns: DispatchColumns) -> None:
        """Adds the keys of the scan's records, except what is there already.

        OSError (no room for a new file): what was added stays, dispatching the same again completes it.
        """
        if len(scan):
            self.put(self.prepare(scan, columns))

    @staticmethod
    def prepare(scan: Scan, columns: DispatchColumns) -> IndexKeys:
        """The keys of a scan that is not empty."""
        offsets, timestamps = (
            column.take(columns.key_record) for column in (scan.physical_offset, scan.store_timestamp)
        )
        return IndexKeys(columns.key_hash, offsets, timestamps, int(scan.physical_offset[-1]))

    def put(self, prepared: IndexKeys) -> None:
        """As dispatch()."""
        hashes, offsets, timestamps, last_offset = prepared
        file = self.files[-1] if self.files else self._file_to_write()
        done_until = file.end_phy_offset
        start = 0
        if len(offsets) and offsets[0] <= done_until:
            start = int(np.searchsorted(offsets, done_until))
            if start < len(offsets) and offsets[start] == done_until:
                start += self._entries_of(done_until)
        while start < len(offsets):
            file = self._file_to_write()
            start += file.put_keys(hashes[start:], offsets[start:], timestamps[start:])
        if last_offset > file.end_phy_offset:
            self._file_to_write()  # RocketMQ looks for room at every record, with keys or without

    def _entries_of(self, physical_offset: int) -> int:
        """How many keys of the record that was indexed last are there; they may be spread over files."""
        found = 0
        for file in reversed(self.files):
            here = file.entries_of(physical_offset)
            found += here
            if here < file.index_count - 1:
                break
        return found

    def _file_to_write(self) -> IndexFile:
        """The newest file, or a new one when there is none or it is full."""
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            return last
        os.makedirs(self._dir, exist_ok=True)
        try:
            file = self._open(self._new_name())
        except OSError:
            if self._closing is None:
                raise
            self._wait_until_closed()  # there may be room now
            file = self._open(self._new_name())
        if last is None:
            file.begin()
        else:
            header = last.header
            file.begin(header.end_phy_offset, header.end_timestamp)
        with self._files_lock:
            self.files = [*self.files, file]
        return file

    def _wait_until_closed(self) -> None:
        if self._closing is not None:
            self._closing.join()
            self._closing = None

    def _new_name(self) -> str:
        """Returns a name of this moment, or of the first later one that sorts after the newest file and is free."""
        time = self._clock()
        newest = file_time(os.path.basename(self.files[-1].path)) if self.files else None
        if newest is not None:  # of the same millisecond, or the clock was set back
            time = max(time, newest + ONE_MS)
        while os.path.exists(os.path.join(self._dir, file_name(time))):
            time += ONE_MS
        return file_name(time)

    # ------------------------------------------------------------------ reading

    @property
    def last_update_timestamp(self) -> int:
        """Store time (ms) of the newest message in the index, 0 when it is empty."""
        return self.files[-1].header.end_timestamp if self.files else 0

    @property
    def last_update_phyoffset(self) -> int:
        return self.files[-1].end_phy_offset if self.files else 0

    def query_offset(self, topic: str, key: str, max_num: int, begin: int, end: int) -> list[int]:
        """Physical offsets of up to `max_num` messages stored in [begin, end] (ms) that may have the key,
        newest first. Times are kept in seconds, and other keys may have the same hash."""
        key_hash = index_key_hash(build_key(topic, key))
        found: list[int] = []
        for file in reversed(self.files):
            header = file.header
            if header.is_time_matched(begin, end):
                found += file.select_phy_offset(key_hash, max_num - len(found), begin, end)
            if header.begin_timestamp < begin or len(found) >= max_num:
                break
        return found

    # ------------------------------------------------------------------ life

    def flush(self, checkpoint: StoreCheckpoint) -> None:
        """Brings all files to the disk. OSError."""
        self.flush_full_files(checkpoint)
        for file in self.files:
            file.flush()

    def flush_full_files(self, checkpoint: StoreCheckpoint) -> None:
        """Brings the files that are complete to the disk and says so in the checkpoint (without flushing it):
        those survive a crash. OSError."""
        for file in self.files:
            if file.is_full:
                file.flush()
                timestamp = file.header.end_timestamp
                checkpoint.index_msg_timestamp = max(checkpoint.index_msg_timestamp, timestamp)

    def delete_expired(self, commit_log_min: int) -> int:
        """Deletes the oldest files whose newest record is not in the commit log any more, never the last;
        returns how many. OSError."""
        with self._files_lock:
            count = 0
            for file in self.files[:-1]:
                if file.end_phy_offset >= commit_log_min:
                    break
                count += 1
            gone, self.files = self.files[:count], self.files[count:]
        for file in gone:
            file.destroy()
        return count

    @property
    def total_size(self) -> int:
        return sum(file.mapped_file.file_size for file in self.files)

    def destroy(self, checkpoint: StoreCheckpoint | None = None) -> None:
        """Deletes all files, and takes back what the checkpoint says of them. OSError."""
        gone, self.files = self.files, []
        if checkpoint is not None:
            self._tell_flushed(checkpoint)
        for file in gone:
            file.destroy()

    def close(self) -> None:
        self._wait_until_closed()
        _close_all(self.files)
        self.files = []
