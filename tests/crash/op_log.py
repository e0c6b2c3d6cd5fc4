"""Every state that a crash can leave: the writes of a small workload as a log, and the directories it allows.

    with OpLog(root) as log: the workload            what the process did to the files under `root`, in its order
        Write file 7, page 0                         the page as it was found then (mapped pages are compared)
        Name  ("create", "consumequeue/T0/0/0…", 9)  create, size, mkdir, gone, replace
        Sync  file 7 | directory                     from here on the disk surely has them
        Mark  ("acknowledged", 3)                    what the workload was told

A disk owes what was synced. Of each page written since, it may have any version, each page for itself; of the changes
of names since, any prefix (a journal keeps their order). What is possible only grows until a sync, so the states
right before each sync, and those of the end, are all the states there are: `Crash` makes them.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mqlake.store.index.index_file as index_file
from mqlake.store.files.mapped_file import MappedFile
from tests.crash.power import Change, Disk, Inode

PAGE = 4096


@dataclasses.dataclass(frozen=True)
class Write:
    file: Inode
    page: int
    data: bytes


@dataclasses.dataclass(frozen=True)
class Name:
    change: Change


@dataclasses.dataclass(frozen=True)
class Sync:
    """`file`, of `size` bytes, is on the disk; or, without one, the names of the directory `path`."""

    file: Inode | None
    path: str
    size: int = 0


@dataclasses.dataclass(frozen=True)
class Mark:
    what: str
    value: Any


Op = Write | Name | Sync | Mark


class OpLog(Disk):
    """Records what this process does under `root`; paths in it are relative to `root`. `page`: what is written as a
    whole or not at all, in bytes."""

    def __init__(self, root: Path | str, *, page: int = PAGE) -> None:
        super().__init__(root)
        self.page = page
        self.ops: list[Op] = []
        self._seen: dict[Inode, bytes] = {}
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> OpLog:
        super().__enter__()
        self._seen = {inode: file.read() for inode, file in self._files.items()}
        self.start = Tree(
            {self._relative(path): node for path, node in self._base.items()}, dict(self._seen), self.page
        )
        for owner, name in ((MappedFile, "publish"), (index_file, "index_put_many"), (os, "pwrite")):
            self._watch(owner, name)
        return self

    def __exit__(self, *error: object) -> None:
        self._look()
        for undo in self._undo:
            undo()
        super().__exit__(*error)

    def mark(self, what: str, value: Any = None) -> None:
        with self._lock:
            self._look()
            self.ops.append(Mark(what, value))

    def _watch(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            self._look()
            result = real(*args, **options)
            self._look()
            return result

        setattr(owner, name, call)
        self._undo.append(lambda: setattr(owner, name, real))

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self.root)

    def _look(self) -> None:
        """Notes the pages that have changed since the last look."""
        with self._lock:
            for inode, file in list(self._files.items()):
                now, before = file.read(), self._seen.get(inode, b"")
                if now == before:
                    continue
                self._seen[inode] = now
                for at in range(0, len(now), self.page):
                    page = now[at : at + self.page]
                    if page != before[at : at + self.page].ljust(len(page), b"\0"):
                        self.ops.append(Write(inode, at // self.page, page))

    def _change(self, what: str, path: str, inode: Inode | None, more: Any = None) -> None:
        with self._lock:
            self._look()
            if what == "replace":
                more = self._relative(more)
            self.ops.append(Name((what, self._relative(path), inode, more)))

    def _sync(self, real: Callable[..., Any], fd: int) -> Any:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if not self._is_mine(path):
            return real(fd)
        with self._lock:
            is_directory = os.path.isdir(path)
            inode = None if is_directory else self._known(fd)
            self._look()
            result = real(fd)
            self.ops.append(Sync(inode, self._relative(path), 0 if inode is None else len(self._seen[inode])))
            return result

    def copy_as_killed(self, target: Path) -> None:
        """What the page cache has now."""
        with self._lock:
            self._look()
            tree = Crash(self.start)
            for op in self.ops:
                tree.add(op)
        tree.everything().write(target)


@dataclasses.dataclass
class Tree:
    """A directory: path → (file, its size), (None, 0) for a directory; and the contents of the files."""

    names: dict[str, tuple[Inode | None, int]]
    contents: dict[Inode, bytes]
    page: int = PAGE

    @property
    def digest(self) -> bytes:
        found = hashlib.sha256()
        for path, (inode, size) in sorted(self.names.items()):
            found.update(path.encode() + b"\0")
            found.update(b"" if inode is None else self._content(inode, size))
        return found.digest()

    def _content(self, inode: Inode, size: int) -> bytes:
        return self.contents.get(inode, b"")[:size].ljust(size, b"\0")

    def write(self, target: Path) -> None:
        for path, (inode, size) in sorted(self.names.items()):
            if inode is None:
                os.makedirs(target / path, exist_ok=True)
            else:
                (target / path).write_bytes(self._content(inode, size))


def continued(before: Tree, log: OpLog) -> list[Op]:
    """The operations of `log`, which began in a copy of `before`, as if on `before`'s own files."""
    same = {
        theirs: before.names[path][0] for path, (theirs, _) in log.start.names.items() if theirs is not None
    }

    def mine(inode: Inode | None) -> Inode | None:
        # a new file must not be taken for an old one whose number it was given
        return None if inode is None else same.get(inode) or (inode[0] + (1 << 40), inode[1])

    ops: list[Op] = []
    for op in log.ops:
        if isinstance(op, Name):
            what, path, inode, more = op.change
            op = Name((what, path, mine(inode), more))
        elif isinstance(op, Write):
            op = dataclasses.replace(op, file=mine(op.file) or op.file)
        elif isinstance(op, Sync):
            op = dataclasses.replace(op, file=mine(op.file))
        ops.append(op)
    return ops


class Crash:
    """What the disk may hold after the operations added so far. `names_by_directory`: a file's sync does not bring its
    name, as POSIX has it; ext4 and XFS bring it."""

    def __init__(self, start: Tree, *, names_by_directory: bool = False) -> None:
        self._names_by_directory = names_by_directory
        self._names = dict(start.names)
        self._changes: list[Change] = []
        self._page = start.page
        self._synced = dict(start.contents)
        # file → page → its versions since the last sync
        self._dirty: dict[Inode, dict[int, list[bytes]]] = {}
        # files whose size is set, and does not grow with what is written
        self._sized: set[Inode | None] = set()
        self.marks: list[Mark] = []

    def copy(self) -> Crash:
        return copy.deepcopy(self)

    def marked(self, what: str) -> list[Any]:
        return [mark.value for mark in self.marks if mark.what == what]

    def add(self, op: Op) -> None:
        if isinstance(op, Write):
            self._dirty.setdefault(op.file, {}).setdefault(op.page, []).append(op.data)
        elif isinstance(op, Name):
            self._changes.append(op.change)
            if op.change[0] == "size" and op.change[3]:
                self._sized.add(op.change[2])
        elif isinstance(op, Sync):
            self._sync(op)
        else:
            self.marks.append(op)

    def _sync(self, op: Sync) -> None:
        if op.file is not None:
            pages = self._dirty.pop(op.file, {})
            content = self._content(op.file, {page: versions[-1] for page, versions in pages.items()})
            self._synced[op.file] = content[: op.size]
            if self._names_by_directory:
                return
        for number in range(len(self._changes), 0, -1):
            what, path, inode, more = self._changes[number - 1]
            parents = [os.path.dirname(path) or "."]
            if what == "replace":
                parents.append(os.path.dirname(more) or ".")
            if inode == op.file if op.file is not None else op.path in parents and what != "size":
                for change in self._changes[:number]:
                    _redo(self._names, change)
                del self._changes[:number]
                return

    def _content(self, inode: Inode, pages: dict[int, bytes]) -> bytes:
        content = bytearray(self._synced.get(inode, b""))
        for page, data in pages.items():
            at = page * self._page
            if len(content) < at + len(data):
                content.extend(bytes(at + len(data) - len(content)))
            content[at : at + len(data)] = data
        return bytes(content)

    def everything(self) -> Tree:
        """All that was written: what a kill of the process leaves."""
        return self._tree(
            len(self._changes), {(f, p): v[-1] for f, of in self._dirty.items() for p, v in of.items()}
        )

    def _tree(self, changes: int, pages: dict[tuple[Inode, int], bytes]) -> Tree:
        names = dict(self._names)
        for change in self._changes[:changes]:
            _redo(names, change)
        chosen: dict[Inode, dict[int, bytes]] = {}
        for (file, page), data in pages.items():
            chosen.setdefault(file, {})[page] = data
        contents = {}
        for path, (inode, size) in names.items():
            if inode is not None:
                content = self._content(inode, chosen.get(inode, {}))
                synced = len(self._synced.get(inode, b""))
                size = max(size, synced if inode in self._sized else len(content))
                names[path], contents[inode] = (inode, size), content
        return Tree(names, contents, self._page)

    @property
    def count(self) -> int:
        """How many choices there are; different choices may come to the same directory."""
        return (len(self._changes) + 1) * math.prod(
            len(versions) + 1 for pages in self._dirty.values() for versions in pages.values()
        )

    def states(self, limit: int, dice: random.Random) -> Iterator[Tree]:
        """All of them, or `limit` at random."""
        pages = [(file, page) for file, of in self._dirty.items() for page in of]
        options: list[Sequence[bytes | None]] = [[None, *self._dirty[file][page]] for file, page in pages]
        changes = range(len(self._changes), -1, -1)
        if self.count <= limit:
            choices: Iterator[tuple[Any, ...]] = itertools.product(changes, *options)
        else:
            choices = (
                (dice.choice((len(self._changes), dice.choice(changes))), *map(dice.choice, options))
                for _ in range(limit)
            )
        for arrived, *chosen in choices:
            yield self._tree(
                arrived, {at: data for at, data in zip(pages, chosen, strict=True) if data is not None}
            )


def _redo(names: dict[str, tuple[Inode | None, int]], change: Change) -> None:
    what, path, inode, more = change
    if what == "create":
        names[path] = (inode, 0)
    elif what == "size":
        if path in names:
            names[path] = (inode, max(more, names[path][1]) if more else 0)
    elif what == "mkdir":
        names[path] = (None, 0)
    elif what == "gone":
        names.pop(path, None)
    elif path in names:
        names[more] = names.pop(path)


def crashes(begin: Crash, ops: Sequence[Op]) -> Iterator[Crash]:
    """The moments that matter from `begin` on, which moves along: right before each sync, and at the end."""
    crash = begin
    for op in ops:
        if isinstance(op, Sync):
            yield crash
        crash.add(op)
    yield crash
