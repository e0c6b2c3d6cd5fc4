"""Writes the heads of a store's full log files.

    NAME.parquet.tmp → fsync → rename to NAME.parquet → fsync the directory

The log is only read; a broker, mqlake's or Java's, may be at work on it. Its file is synced first: heads must not
outlive, in a power cut, records of which they tell.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mqlake.base.durable import fsync_dir, make_dirs
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import ConfigError, StoreCorruptError, StoreLockedError
from mqlake.lake.heads.parquet import write_parquet
from mqlake.lake.heads.rows import HeadsOfFile
from mqlake.lake.heads.valid import is_full, name_of, open_valid, place_of
from mqlake.lake.log.splits import LogFile
from mqlake.lake.log.storage import Storage
from mqlake.store.heads import SUFFIX, TEMPORARY, delete_heads_before

logger = logging.getLogger(__name__)

POLL_S = 1.0
POLLS_A_RUN = 30
"""A run is made after so many looks, and at once when a log file was made or deleted: the one before is full then."""


@dataclass(slots=True)
class HeadsReport:
    """The result of a run. `written`, `kept`, `again` and `deleted` are numbers of files; those made again did not
    fit the log. `bytes` and `log_bytes`: of the files written and of their log."""

    path: str
    written: int = 0
    kept: int = 0
    again: int = 0
    deleted: int = 0
    records: int = 0
    bytes: int = 0
    log_bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    """Log files that get no heads, and why."""

    @property
    def changed(self) -> bool:
        return bool(self.written or self.again or self.deleted or self.damaged)


class HeadsWriter:
    """Keeps the heads of one store complete; `out`: another directory for them. Each run writes what is missing."""

    def __init__(self, root: str, out: str | None = None) -> None:
        """ConfigError for a place that is not local."""
        self._storage = Storage(root)
        self._in_store = out is None
        self._place = place_of(self._storage, out)
        for place in (self._storage, self._place):
            if not place.is_local:
                raise ConfigError(f"{place.root}: heads are written from local directories to local ones")
        self._damaged: set[int] = set()
        """Log files, by their offsets, that are not read again."""

    def run(self, progress: Progress = no_progress, *, again: bool = False) -> HeadsReport:
        """Writes the heads of full log files that have none, or none that fit; `again`: of all.

        Raises NotAStoreError, ForeignFormatError, StoreLockedError while another process does the same, OSError.
        """
        self._storage.check()
        make_dirs(self._place.root)
        with _locked(self._place.root):
            self._remove_temporary()
            return self._run(progress, again=again)

    def _run(self, progress: Progress, *, again: bool) -> HeadsReport:
        report = HeadsReport(self._place.root)
        out = None if self._in_store else self._place.root
        found = open_valid(self._storage, out, quiet=True)
        unfit = {os.path.basename(path) for path, _ in found.passed_over}
        if self._in_store and found.files:
            report.deleted = delete_heads_before(self._storage.root, found.begin)
        full = [(file, heads) for file, heads in found.files if is_full(file)]
        report.kept = 0 if again else sum(heads is not None for _, heads in full)
        missing = [
            file for file, heads in full if again or (heads is None and file.base_offset not in self._damaged)
        ]
        total = sum(file.file_size for file in missing)
        for number, file in enumerate(missing):
            progress(sum(each.file_size for each in missing[:number]), total)
            existed = (again and dict(full).get(file) is not None) or name_of(file) in unfit
            self._write(file, report, existed=existed)
        progress(total, total)
        return report

    def _write(self, file: LogFile, report: HeadsReport, *, existed: bool) -> None:
        try:
            records, size = write_heads(self._storage, file, self._place.root)
        except FileNotFoundError:
            if os.path.exists(file.file):
                raise
            return  # deleted since it was listed
        except StoreCorruptError as error:
            self._damaged.add(file.base_offset)
            report.damaged.append(str(error))
            return
        report.again += existed
        report.written += not existed
        report.records += records
        report.bytes += size
        report.log_bytes += file.file_size

    def _remove_temporary(self) -> None:
        """Removes what an interrupted run has left."""
        for name, _ in self._place.files(""):
            if name.endswith(TEMPORARY):
                os.unlink(self._place.path(name))

    def follow(self, stop: threading.Event, done: Callable[[HeadsReport], None]) -> None:
        """Until `stop` is set, looks each second for log files that have become full; `done` gets the reports of runs
        that changed something. Raises what run() raises."""
        known: object = None
        for poll in itertools.count():
            state = poll // POLLS_A_RUN, self._storage.files("commitlog")
            if state != known:
                known = state
                report = self.run()
                if report.changed:
                    done(report)
            if stop.wait(POLL_S):
                return


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """StoreLockedError when another process has the directory's lock, which leaves no file."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLockedError(f"{directory}: another process writes heads there") from None
        yield
    finally:
        os.close(fd)


def write_heads(storage: Storage, file: LogFile, directory: str) -> tuple[int, int]:
    """Writes the heads of one full log file into a local directory, in place of what is there. The number of records,
    and the bytes written.

    StoreCorruptError where a record does not pass its checks, FileNotFoundError when the log file is gone, OSError;
    nothing has changed then.
    """
    _sync(file.file)
    path = os.path.join(directory, name_of(file))
    temporary = path.removesuffix(SUFFIX) + TEMPORARY
    try:
        with open(temporary, "w+b") as opened:
            origin = write_parquet(opened, HeadsOfFile(storage, file))
            opened.flush()
            os.fsync(opened.fileno())
            size = os.fstat(opened.fileno()).st_size
        os.replace(temporary, path)
    except Exception as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path  # of a full disk the system does not say it
        raise
    fsync_dir(directory)
    return origin.records, size


def _sync(path: str) -> None:
    """Brings a log file to the disk. FileNotFoundError, OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EINVAL):  # nobody can have written to it
            raise
    finally:
        os.close(fd)
