"""Uploader: brings an archive up to a log, one durable step after another.

    object ─▶ read back, its SHA-256 compared ─▶ units ─▶ manifest ─▶ the store's copy ─▶ what it replaces is deleted

What the manifest names is there, whatever step a crash comes after; what it does not name yet is made again, and
nothing else is uploaded twice: an object that has come whole before a crash is compared and taken. Only one log goes
to one place: the manifest's newest object has to have the same bytes as the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from mqlake.base.durable import make_dirs
from mqlake.errors import ArchiveUnavailableError, StoreClosedError, StoreError
from mqlake.message import parse_delay_levels
from mqlake.store.archive.config_copy import pack
from mqlake.store.archive.heads import put_heads
from mqlake.store.archive.manifest import (
    CONFIG,
    MANIFEST,
    UNITS,
    ArchivedObject,
    Manifest,
    SmallObject,
    encode,
    local_path,
    object_name,
    read_local,
    read_manifest,
    write_local,
)
from mqlake.store.archive.target import PIECE_BYTES, Target
from mqlake.store.archive.units import survey
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.heads import HEADS, heads_in, offset_of_heads

TAIL = 64 << 10
"""Bytes at the end of the newest object that are compared with the log."""


class Stopped(Exception):  # noqa: N818 - no error
    """The broker is shut down."""


class Brake:
    """Holds what is uploaded to `bytes_per_second()` (0: no limit). `wait(seconds)` returns True to stop."""

    def __init__(self, bytes_per_second: Callable[[], int], wait: Callable[[float], bool]) -> None:
        self._bytes_per_second = bytes_per_second
        self._wait = wait
        self._free_at = 0.0

    def __call__(self, size: int) -> None:
        """Waits until `size` more bytes may go. Stopped."""
        rate, now = self._bytes_per_second(), time.monotonic()
        begin = max(self._free_at, now) if rate else now
        self._free_at = begin + (size / rate if rate else 0.0)
        if self._wait(max(0.0, begin - now)):
            raise Stopped


def no_brake(size: int) -> None:
    """Nothing holds it, or is told of it."""


@dataclasses.dataclass(slots=True)
class Uploaded:
    """The result of one round: objects of the log, and bytes of them that were sent or only compared."""

    objects: int = 0
    sent_bytes: int = 0
    compared_bytes: int = 0


class Uploader:
    """From the store at `config.store_path_root_dir` to `target`. With `keeps_copy` the store has a copy of the
    manifest, which who only reads a store must not write. `on_manifest` is told of each new one, `advance` of bytes
    that were written or read back."""

    def __init__(
        self,
        config: MessageStoreConfig,
        target: Target,
        *,
        keeps_copy: bool = True,
        brake: Callable[[int], None] = no_brake,
        on_manifest: Callable[[Manifest], object] = lambda manifest: None,
        advance: Callable[[int], None] = no_brake,
    ) -> None:
        self.target = target
        self._config = config
        self._root = config.store_path_root_dir
        self._keeps_copy = keeps_copy
        self._brake = brake
        self._on_manifest = on_manifest
        self._advance = advance
        self._delay_levels = parse_delay_levels(config.message_delay_level)
        self.manifest = (read_local(self._root) if keeps_copy else None) or Manifest(
            config.mapped_file_size_commit_log
        )
        self._is_checked = False
        self._writer = secrets.token_hex(8)
        self._heads: set[str] = set()
        """Files of heads that are there."""

    # ------------------------------------------------------------------ the manifest

    def refresh(self, files: MappedFileQueue) -> Manifest:
        """Takes the archive's manifest, if it is newer than the one known here. An older one is an answer that an
        object store remembers. ArchiveUnavailableError; StoreError if it is of another log."""
        there = read_manifest(self.target)
        is_newer = there is not None and self._is_newer(there)
        if there is not None and (is_newer or not self._is_checked):
            self._check_same_log(files, there if is_newer else self.manifest)
        if there is not None and is_newer:
            self.manifest = there
            self._remember()
        self._is_checked = True
        return self.manifest

    def _is_newer(self, there: Manifest) -> bool:
        """Also one of the same sequence that somebody else has written at the same time."""
        ours = self.manifest
        return there.sequence > ours.sequence or (
            there.sequence == ours.sequence and there.writer != ours.writer
        )

    def _check_same_log(self, files: MappedFileQueue, manifest: Manifest) -> None:
        newest = manifest.objects[-1] if manifest.objects else None
        if newest is None:
            return
        if manifest.file_size != self._config.mapped_file_size_commit_log:
            raise StoreError(
                f"{self.target} has files of {manifest.file_size} bytes, this log's have "
                f"{self._config.mapped_file_size_commit_log}: it is of another log; name a place of its own"
            )
        if not files.mapped_files:
            return
        if newest.end > files.max_wrote_position:
            raise StoreError(
                f"{self.target} has the log up to {newest.end:,}, this one ends at {files.max_wrote_position:,}: it is "
                "of another log, or this one has lost its end; see `mqlake store restore`"
            )
        start = max(newest.start, newest.end - TAIL)
        ours = files.select(start, newest.end - start)
        if ours is None:
            return  # deleted here long ago
        theirs = self.target.read(newest.name, start - newest.start, newest.end - newest.start)
        if bytes(ours) != theirs:
            raise StoreError(
                f"{self.target}/{newest.name} is of another log than {self._root}: name a place of its own"
            )

    def commit(self, objects: Iterable[ArchivedObject], config: SmallObject | None = None) -> None:
        """Replaces the manifest, and the store's copy. ArchiveUnavailableError, OSError."""
        there = read_manifest(self.target)
        if there is not None and self._is_newer(there):
            raise StoreError(
                f"{self.target} is written by somebody else, too: only one broker may have it as its archive"
            )
        known = dataclasses.replace(self.manifest, settings=_sizes(self._config), writer=self._writer)
        following = known.following(objects, config)
        self.target.replace(MANIFEST, encode(following))
        self.manifest = following
        self._remember()

    def _remember(self) -> None:
        if self._keeps_copy:
            write_local(self._root, self.manifest)
        self._on_manifest(self.manifest)

    # ------------------------------------------------------------------ the log

    def upload(self, files: MappedFileQueue, until: Callable[[], int], *, with_part: bool = True) -> Uploaded:
        """Brings the archive up to the physical offset `until()`, which ends a record: whole files first, then
        (`with_part`) what there is of the next one. The brake's Stopped, ArchiveUnavailableError, StoreError,
        OSError."""
        # read before the log: none of the groups' offsets points past what is archived then
        config, end, done = pack(self._config.config_dir), until(), Uploaded()
        for mapped_file in self.lacking(files, end):
            base = mapped_file.file_from_offset
            self._add(self._put(mapped_file, base, base + files.file_size, done))
        if with_part:
            self._put_part(files, end, done)
        self._put_config(config)
        self._put_heads()
        return done

    def lacking(self, files: MappedFileQueue, until: int) -> list[MappedFile]:
        """The files that end at `until` or before and are not in the archive as a whole, oldest first."""
        size = files.file_size
        return [
            each
            for each in list(files.mapped_files)
            if each.file_from_offset + size <= until and not self.manifest.has_file(each.file_from_offset)
        ]

    def _put_part(self, files: MappedFileQueue, until: int, done: Uploaded) -> None:
        base = until - until % files.file_size
        mapped_file = files.find_mapped_file_by_offset(base)
        if mapped_file is None:
            return
        start = max(base, self.manifest.end)
        if until <= start:
            return
        # those that are no larger go up once more with it: so there are few, whatever the time between two
        for each in reversed(self.manifest.objects):
            if each.is_whole or each.end != start or each.size > until - start:
                break
            start = each.start
        self._add(self._put(mapped_file, start, until, done))

    def _add(self, new: ArchivedObject) -> None:
        """Names it in the manifest in place of what it replaces, which is deleted."""
        replaced = [each for each in self.manifest.objects if new.start <= each.start < new.end]
        self.commit([*(each for each in self.manifest.objects if each not in replaced), new])
        for each in replaced:
            if each.name != new.name:
                self.target.delete(each.name)

    def _put(self, mapped_file: MappedFile, start: int, end: int, done: Uploaded) -> ArchivedObject:
        base, size = mapped_file.file_from_offset, mapped_file.file_size
        name = object_name(start, end, size)
        if (
            self.target.size(name) == end - start
        ):  # it came whole before a crash, or before there was a manifest
            sha256 = _sha256(self._pieces(mapped_file, start - base, end - base))
        else:
            sha256 = self._send(mapped_file, start - base, end - base, name)
            done.sent_bytes += end - start
        self.compare(name, end - start, sha256, mapped_file.path)
        done.compared_bytes += end - start
        done.objects += 1
        array, is_whole = mapped_file.array, end - start == size
        if len(array) < end - base:
            raise StoreClosedError(f"{mapped_file.path} is closed")
        import tempfile  # which a broker without an archive does not need

        with tempfile.TemporaryFile(dir=self._scratch()) as units:
            found = survey(
                array,
                start - base,
                end - base,
                base,
                self._delay_levels,
                units.write if is_whole else None,
                lambda position: mapped_file.evict(start - base, position),
            )
            small = self.put_file(f"{UNITS}/{start:020d}", units) if is_whole else None
        return ArchivedObject(
            name,
            start,
            end,
            sha256,
            found.first_time_ms,
            found.last_time_ms,
            found.records,
            tuple(sorted(found.topics)),
            small,
        )

    def _scratch(self) -> str | None:
        """Returns the directory in which a file of units is made; a reader of a store makes it elsewhere."""
        if not self._keeps_copy:
            return None
        directory = os.path.dirname(local_path(self._root))
        make_dirs(directory)
        return directory

    def _send(self, mapped_file: MappedFile, start: int, end: int, name: str) -> str:
        digest = hashlib.sha256()

        def pieces() -> Iterator[memoryview]:
            for piece in self._pieces(mapped_file, start, end):
                self._brake(len(piece))
                digest.update(piece)
                yield piece
                self._advance(len(piece))

        self.target.write(name, pieces())
        return digest.hexdigest()

    @staticmethod
    def _pieces(mapped_file: MappedFile, start: int, end: int) -> Iterator[memoryview]:
        """StoreClosedError if the file is closed meanwhile."""
        for position in range(start, end, PIECE_BYTES):
            until = min(position + PIECE_BYTES, end)
            piece = mapped_file.select(position, until - position)
            if piece is None or len(piece) < until - position:
                raise StoreClosedError(f"{mapped_file.path} is closed")
            yield piece
            mapped_file.evict(position, until)

    def sha256_of(self, mapped_file: MappedFile, archived: ArchivedObject) -> str:
        """Returns the checksum of the log's own bytes of an object."""
        base = mapped_file.file_from_offset
        return _sha256(self._pieces(mapped_file, archived.start - base, archived.end - base))

    def compare(self, name: str, size: int, sha256: str, ours: str) -> None:
        """Reads an object back. StoreError if it has other bytes."""

        def pieces() -> Iterator[bytes]:
            for piece in self.target.pieces(name, size):
                yield piece
                self._advance(len(piece))

        if _sha256(pieces()) != sha256:
            raise StoreError(
                f"{self.target}/{name} has other bytes than {ours}, which is kept: delete it there, and archive it "
                "again"
            )

    # ------------------------------------------------------------------ beside the log

    def put_file(self, name: str, file: IO[bytes]) -> SmallObject:
        """Writes what is in a file. ArchiveUnavailableError."""
        digest, size = hashlib.sha256(), file.tell()

        def pieces() -> Iterator[bytes]:
            file.seek(0)
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                yield piece

        self.target.write(name, pieces())
        if self.target.size(name) != size:
            raise ArchiveUnavailableError(f"{self.target}/{name} is not there as it was written")
        return SmallObject(name, size, digest.hexdigest())

    def _put_heads(self) -> None:
        """Uploads the heads that the store has of archived files."""
        if not self._keeps_copy:
            return  # who only reads a store brings also those that it lacks (lake.heads.offload)
        names = [
            name
            for name in heads_in(self._root)
            if name not in self._heads and self.manifest.has_file(offset_of_heads(name) or 0)
        ]
        there = self.target.sizes(HEADS) if names else {}
        for name in names:
            path = os.path.join(self._root, HEADS, name)
            with contextlib.suppress(FileNotFoundError):  # deleted with its log file
                if there.get(f"{HEADS}/{name}") != os.path.getsize(path):
                    put_heads(self.target, path)
                self._heads.add(name)

    def _put_config(self, data: bytes) -> None:
        before, digest = self.manifest.config, hashlib.sha256(data).hexdigest()
        if before is not None and before.sha256 == digest:
            return
        name = f"{CONFIG}/{self.manifest.sequence + 1:012d}"
        self.target.replace(name, data)
        self.commit(self.manifest.objects, SmallObject(name, len(data), digest))
        if before is not None and before.name != name:
            self.target.delete(before.name)


def _sizes(config: MessageStoreConfig) -> dict[str, str]:
    """Returns the settings that a store with files of these sizes is opened with."""
    return {
        "mappedFileSizeCommitLog": str(config.mapped_file_size_commit_log),
        "mappedFileSizeConsumeQueue": str(config.mapped_file_size_consume_queue),
        "mapperFileSizeBatchConsumeQueue": str(config.mapper_file_size_batch_consume_queue),
        "mappedFileSizeConsumeQueueExt": str(config.mapped_file_size_consume_queue_ext),
        "enableConsumeQueueExt": str(config.enable_consume_queue_ext).lower(),
        "maxHashSlotNum": str(config.max_hash_slot_num),
        "maxIndexNum": str(config.max_index_num),
    }


def _sha256(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
