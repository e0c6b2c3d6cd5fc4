"""A disk that can lose power: gives, at any moment, a directory as a power cut could leave it.

    Disk(root) in a `with` follows what this process does to files under `root` (by wrapping functions of `os`):

    contents   of each 512-byte sector, what the last fdatasync or fsync of the file found there, or anything newer
    names      creating, sizing, renaming and deleting are done in order, as a journal does them: a sync brings
               everything up to the last change of its file or directory, of the rest any prefix may have arrived

More can go wrong on real disks (a drive that lies about its cache); this is what a store has to live with.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import trying

SECTOR = 512

_really_open = os.open

Inode = tuple[int, int]


class _File:
    """One file, whatever its names: `synced` is what the disk surely has of it."""

    def __init__(self, fd: int, synced: bytes) -> None:
        # one of its own: it keeps the inode from being given to another file, and can be read
        self.fd = _really_open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        self.synced = synced

    def read(self) -> bytes:
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0)


# one change of names: (what, path, file, size or other path)
Change = tuple[str, str, Inode | None, Any]


class Disk:
    def __init__(self, root: Path | str, *, contents_are_safe: bool = True) -> None:
        """`contents_are_safe` False: what the files hold at first is in the page cache alone, as a process leaves it
        that is killed; their names and sizes are on the disk."""
        self.root = os.path.realpath(root)
        self._contents_are_safe = contents_are_safe
        self._lock = threading.RLock()
        self._files: dict[Inode, _File] = {}
        self._changes: list[Change] = []
        # so many of the changes have surely arrived
        self._arrived = 0
        self._base: dict[str, tuple[Inode | None, int]] = {}
        self._real: dict[str, Callable[..., Any]] = {}

    # ------------------------------------------------------------------ following

    def __enter__(self) -> Disk:
        self._take_stock()
        for name, wrapper in (
            ("open", self._open),
            ("posix_fallocate", self._sized),
            ("ftruncate", self._sized),
            ("mkdir", self._mkdir),
            ("rmdir", self._gone),
            ("unlink", self._gone),
            ("replace", self._replace),
            ("fsync", self._sync),
            ("fdatasync", self._sync),
        ):
            self._real[name] = real = getattr(os, name)
            setattr(os, name, _follow(wrapper, real))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)
        for file in self._files.values():
            os.close(file.fd)

    def _take_stock(self) -> None:
        """What is there now counts as safe, unless contents are not."""
        for directory, _, names in os.walk(self.root):
            self._base[directory] = (None, 0)
            for name in names:
                path = os.path.join(directory, name)
                fd = os.open(path, os.O_RDWR)
                inode = self._known(fd, safe=self._contents_are_safe)
                self._base[path] = (inode, os.fstat(fd).st_size)
                os.close(fd)

    def _is_mine(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + "/")

    def _known(self, fd: int, *, safe: bool = False) -> Inode:
        status = os.fstat(fd)
        inode = status.st_dev, status.st_ino
        if inode not in self._files:
            self._files[inode] = file = _File(fd, b"")
            if safe:
                file.synced = file.read()
        return inode

    def _change(self, what: str, path: str, inode: Inode | None, more: Any = None) -> None:
        self._changes.append((what, path, inode, more))

    def _open(self, real: Callable[..., int], path: Any, flags: int, *args: Any, **options: Any) -> int:
        full = os.path.abspath(path) if isinstance(path, str) else ""
        if not self._is_mine(full):
            return real(path, flags, *args, **options)
        with self._lock:
            existed = os.path.exists(full)
            fd = real(path, flags, *args, **options)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                writable = flags & (os.O_RDWR | os.O_WRONLY)
                if not existed:
                    self._change("create", full, self._known(fd))
                elif writable and flags & os.O_TRUNC:
                    self._change("size", full, self._known(fd), 0)
            return fd

    def _sized(self, real: Callable[..., Any], fd: int, *args: int) -> Any:
        with self._lock:
            result = real(fd, *args)
            path = os.readlink(f"/proc/self/fd/{fd}")
            if self._is_mine(path):
                self._change("size", path, self._known(fd), sum(args))
            return result

    def _mkdir(self, real: Callable[..., Any], path: str, *args: Any, **options: Any) -> Any:
        with self._lock:
            result = real(path, *args, **options)
            if self._is_mine(os.path.abspath(path)):
                self._change("mkdir", os.path.abspath(path), None)
            return result

    def _gone(self, real: Callable[..., Any], path: str) -> Any:
        with self._lock:
            result = real(path)
            if self._is_mine(os.path.abspath(path)):
                self._change("gone", os.path.abspath(path), None)
            return result

    def _replace(self, real: Callable[..., Any], source: str, target: str) -> Any:
        with self._lock:
            result = real(source, target)
            if self._is_mine(os.path.abspath(target)):
                self._change("replace", os.path.abspath(source), None, os.path.abspath(target))
            return result

    def _sync(self, real: Callable[..., Any], fd: int) -> Any:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if not self._is_mine(path):
            return real(fd)
        with self._lock:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                inode = self._known(fd)
                content = self._files[inode].read()
                result = real(fd)
                self._files[inode].synced = content
                self._arrive(lambda change: change[2] == inode)
            else:
                result = real(fd)
                self._arrive(
                    lambda change: (
                        os.path.dirname(change[1]) == path
                        or (change[0] == "replace" and os.path.dirname(change[3]) == path)
                    )
                )
            return result

    def _arrive(self, concerns: Callable[[Change], bool]) -> None:
        for number in range(len(self._changes), self._arrived, -1):
            if concerns(self._changes[number - 1]):
                self._arrived = number
                return

    # ------------------------------------------------------------------ the cut

    def cut(self, target: Path, dice: random.Random) -> None:
        """Makes `target` what the disk might hold if the power went now."""
        with self._lock:
            arrived = dice.randint(self._arrived, len(self._changes))
            tree = dict(self._base)
            for change in self._changes[:arrived]:
                _redo(tree, change)
            contents = {
                path: self._content(self._files[inode], size, dice)
                for path, (inode, size) in tree.items()
                if inode is not None
            }
        for path in sorted(path for path, (inode, _) in tree.items() if inode is None):
            os.makedirs(self._moved(path, target), exist_ok=True)
        for path, content in contents.items():
            Path(self._moved(path, target)).write_bytes(content)

    def _moved(self, path: str, target: Path) -> str:
        return os.path.join(target, os.path.relpath(path, self.root))

    @staticmethod
    def _content(file: _File, size: int, dice: random.Random) -> bytes:
        now = file.read()
        size = max(size, len(file.synced))
        old = bytearray(file.synced.ljust(size, b"\0")[:size])
        new = now.ljust(size, b"\0")[:size]
        if old != new:
            share = dice.choice((0.0, 0.1, 0.5, 0.9, 1.0))
            for at in range(0, size, SECTOR):
                if old[at : at + SECTOR] != new[at : at + SECTOR] and dice.random() < share:
                    old[at : at + SECTOR] = new[at : at + SECTOR]
        return bytes(old)


def _follow(wrapper: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        return wrapper(real, *args, **options)

    return call


def _redo(tree: dict[str, tuple[Inode | None, int]], change: Change) -> None:
    what, path, inode, more = change
    if what == "create":
        tree[path] = (inode, 0)
    elif what == "size":
        if path in tree:
            tree[path] = (inode, max(more, tree[path][1]) if more else 0)
    elif what == "mkdir":
        tree[path] = (None, 0)
    elif what == "gone":
        tree.pop(path, None)
    elif path in tree:
        tree[more] = tree.pop(path)


def copy_as_killed(root: Path, target: Path) -> None:
    """The directory as a kill of the process leaves it: the page cache is all there. Other threads may delete
    files meanwhile."""
    for _ in trying("a copy in which no file went"):
        try:
            shutil.copytree(root, target)
            return
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(target, ignore_errors=True)
