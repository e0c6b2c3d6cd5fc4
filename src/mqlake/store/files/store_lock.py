"""The marker files of a store: `lock` keeps other writers out, `abort` tells whether the last exit was clean.

    lock    byte 0 is under an exclusive POSIX lock (what Java's FileChannel.tryLock takes) while a writer
            runs; the kernel drops the lock with the process. The text `lock` is for people.
    abort   made when the store starts, deleted at a clean shutdown. Its presence at the next start means:
            recover as after a crash. RocketMQ writes its process id and reads nothing; here more lines follow:

            4711
            bootId=0f1a...          whether the machine has been up since (see LastWriter)
            lockFile=64769:131077
            flushDiskType=SYNC_FLUSH

A POSIX lock has two traps: it does not keep out the own process, and closing *any* descriptor of the file
drops it. So the locks this process holds are kept in a table, asked before the file is opened.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import struct
import threading
from types import TracebackType

from mqlake.base.durable import fsync_dir, write_durably
from mqlake.errors import StoreLockedError

LOCK_TEXT = b"lock"
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"

# struct flock of Linux on 64-bit machines: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")

_held: set[tuple[int, int]] = set()
_held_guard = threading.Lock()


class StoreLock:
    """Exclusive right to write the store whose lock file is `path`. Held from `acquire` to `release`."""

    def __init__(self, path: str, *, abort_path: str = "") -> None:
        self.path = path
        self._abort_path = abort_path
        self._fd = -1
        self._identity = (0, 0)

    @property
    def is_held(self) -> bool:
        return self._fd >= 0

    @property
    def file_id(self) -> str:
        """Device and inode of the lock file; empty without one. A copy or a snapshot of the store has others."""
        identity = self._identity if self.is_held else _identity_of(self.path)
        return "" if identity is None else "{}:{}".format(*identity)

    def acquire(self) -> None:
        """Takes the lock. Raises StoreLockedError naming the holder when it can be told, OSError."""
        if self.is_held:
            return
        with _held_guard:
            if _identity_of(self.path) in _held:
                raise self._locked(os.getpid())
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            except (BlockingIOError, PermissionError):
                holder = _holder_of(fd) or AbortFile(self._abort_path).pid()
                os.close(fd)
                raise self._locked(holder) from None
            except BaseException:
                os.close(fd)
                raise
            self._fd = fd
            status = os.fstat(fd)
            self._identity = (status.st_dev, status.st_ino)
            _held.add(self._identity)
        try:
            if os.pread(fd, len(LOCK_TEXT) + 1, 0) != LOCK_TEXT:
                os.pwrite(fd, LOCK_TEXT, 0)
                os.fsync(fd)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Gives the lock up; nothing when it is not held. The file stays."""
        with _held_guard:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
                _held.discard(self._identity)

    def __enter__(self) -> StoreLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _locked(self, holder: int | None) -> StoreLockedError:
        by = f"process {holder}; stop it first" if holder else "another process; stop it first"
        if holder == os.getpid():
            by = f"this process ({holder})"
        return StoreLockedError(
            f"{os.path.dirname(self.path) or '.'} is in use: {self.path} is locked by {by}"
        )


def lock_holder(path: str) -> int | None:
    """Process id that holds the lock file `path`: 0 when it cannot be told, None when nobody does."""
    with _held_guard:
        if _identity_of(path) in _held:
            return os.getpid()
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return _holder_of(fd)
        finally:
            os.close(fd)


def _identity_of(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _holder_of(fd: int) -> int | None:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class LastWriter:
    """A writer's note about itself in the abort file, for the recovery after its death.

    While the boot id is the same, the page cache holds all that the writer wrote: a process that dies without the
    machine tears no pages. The same lock file shows that this is the directory it wrote to, and no copy or snapshot.
    Empty strings: not known, as after a RocketMQ.
    """

    boot_id: str = ""
    lock_file: str = ""
    flush_disk_type: str = ""
    """SYNC_FLUSH: consume queues were given flushed messages only."""

    @classmethod
    def now(cls, lock: StoreLock, flush_disk_type: str) -> LastWriter:
        """This process, which holds `lock`."""
        return cls(boot_id(), lock.file_id, flush_disk_type)

    def machine_stayed_up(self, lock: StoreLock) -> bool:
        """True if the machine has been up since the writer began; `lock` is that of the directory, held or not."""
        return bool(self.boot_id) and (self.boot_id, self.lock_file) == (boot_id(), lock.file_id)


_WRITER_KEYS = {"bootId": "boot_id", "lockFile": "lock_file", "flushDiskType": "flush_disk_type"}


def boot_id() -> str:
    """Linux's id of the time since the machine was started; empty when the system has none."""
    try:
        with open(BOOT_ID_PATH, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class AbortFile:
    def __init__(self, path: str) -> None:
        self.path = path

    def exists(self) -> bool:
        """True if the last exit was not clean (or a store runs now)."""
        return os.path.exists(self.path)

    def pid(self) -> int | None:
        """Process id in the file; None when there is no file or no number in it."""
        first = next(iter(self._lines()), b"")
        return int(first) if first.isdigit() else None

    def last_writer(self) -> LastWriter:
        """The writer's note in the file; empty fields for what it did not say."""
        found = {}
        for line in self._lines()[1:]:
            key, _, value = line.decode("ascii", "replace").partition("=")
            if key in _WRITER_KEYS:
                found[_WRITER_KEYS[key]] = value
        return LastWriter(**found)

    def _lines(self) -> list[bytes]:
        try:
            with open(self.path, "rb") as file:
                return file.read(4096).split()
        except OSError:
            return []

    def create(self, writer: LastWriter | None = None) -> None:
        """Makes the file, durably, with this process's id and what `writer` says. Raises OSError."""
        lines = [str(os.getpid())]
        if writer is not None:
            lines += [
                f"{key}={value}" for key, name in _WRITER_KEYS.items() if (value := getattr(writer, name))
            ]
        write_durably(self.path, "\n".join(lines).encode())

    def delete(self) -> None:
        """Removes the file, durably; call it when all else is on disk. Raises OSError."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return
        fsync_dir(os.path.dirname(self.path))
