"""offload: the sealed files of a store's log copied to another place, such as a bucket, and proven to be there.

    DIR/commitlog/00000000000000000000 ─▶ TARGET/commitlog/00000000000000000000 ─▶ read back, its SHA-256 compared
                  00000000001073741824 ─▶ …
                  00000000002147483648     the newest: the broker writes it, it stays

Nothing is deleted: the broker's retention does that. A file that is there already with its size is left alone. An
object store shows an object when it is whole; elsewhere a file that a crash cut short has another size, and is copied
again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import ConfigError, StoreError
from mqlake.lake.log.log_offsets import TAIL
from mqlake.lake.log.splits import LogFile, log_files
from mqlake.lake.log.storage import Storage

PIECE_BYTES = 16 << 20
"""Read, and uploaded, at once; parts of an upload are at least 5 MiB in S3."""


@dataclass(frozen=True)
class OffloadReport:
    """Files, and bytes of the log. `begin` to `end`: the physical offsets that the target now has, of this log."""

    target: str
    copied: int
    copied_bytes: int
    already_there: int
    begin: int
    end: int


def offload(
    directory: str,
    target: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    recheck: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> OffloadReport:
    """Copies what the target lacks, oldest first. `recheck` also reads and compares what is there already.

    Raises NotAStoreError and its like for the directory; ConfigError for a target that nothing opens, or that is the
    store itself; StoreError when the target has another log's files, or gives back other bytes than it was given.
    """
    store, place = Storage(directory), Storage(target.rstrip("/"), storage_options or {})
    if "://" not in target:
        raise ConfigError(
            f"{target!r} is no place to offload to: name one that fsspec opens, such as s3://bucket/store"
        )
    sealed = log_files(store)[:-1]
    there = dict(place.files("commitlog"))
    lacking = [file for file in sealed if there.get(_name(file)) != file.file_size]
    present = [file for file in sealed if file not in lacking]
    _check_same_log(store, place, present[-1:])
    work = [*present, *lacking] if recheck else lacking
    if not dry_run:
        total, done = sum(file.file_size for file in (*work, *lacking)), 0  # written, and read back

        def advance(size: int) -> None:
            nonlocal done
            done += size
            progress(done, total)

        for file in work:
            if file in lacking:
                _copy(store, place, file, advance)
            _compare(store, place, file, advance)
    return OffloadReport(
        place.root,
        len(lacking),
        sum(file.file_size for file in lacking),
        len(present),
        sealed[0].base_offset if sealed else 0,
        sealed[-1].end_offset if sealed else 0,
    )


def _name(file: LogFile) -> str:
    return f"{file.base_offset:020d}"


def _pieces(storage: Storage, path: str, size: int) -> Iterator[bytes]:
    for start in range(0, size, PIECE_BYTES):
        yield storage.read(path, start, min(start + PIECE_BYTES, size)).tobytes()


def _copy(store: Storage, place: Storage, file: LogFile, advance: Callable[[int], None]) -> None:
    fs, path = place.file_system(place.path("commitlog", _name(file)))
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    with fs.open(path, "wb", block_size=PIECE_BYTES) as copy:
        for piece in _pieces(store, file.file, file.file_size):
            copy.write(piece)
            advance(len(piece))


def _compare(store: Storage, place: Storage, file: LogFile, advance: Callable[[int], None]) -> None:
    path = place.path("commitlog", _name(file))
    ours, theirs = hashlib.sha256(), hashlib.sha256()
    for piece in _pieces(store, file.file, file.file_size):
        ours.update(piece)
    for piece in _pieces(place, path, file.file_size):
        theirs.update(piece)
        advance(len(piece))
    if ours.digest() != theirs.digest():
        raise StoreError(
            f"{path} has other bytes than {file.file}, which is kept: delete it there, and offload again"
        )


def _check_same_log(store: Storage, place: Storage, newest: list[LogFile]) -> None:
    """By the last bytes of the newest file that both have; with --recheck all are compared."""
    for file in newest:
        start, path = max(0, file.file_size - TAIL), place.path("commitlog", _name(file))
        ours = store.read(file.file, start, file.file_size)
        if ours.tobytes() != place.read(path, start, file.file_size).tobytes():
            raise StoreError(f"{path} is of another log than {file.file}: offload to a place of its own")
