"""Truncates a log at a record's beginning: what a slave needs that is ahead of its master, or has other messages.

    commitlog  ...[record][record]│[record]...      │ OFFSET: what follows is copied to dropped/, then zeroed
                                  └─▶ dropped/OFFSET   `mqlake store dropped` lists it and puts it back

Consume queues and index are cut by the recovery that follows, as after a crash.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import ConfigError
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH, encode_blank
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import detect_settings
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.files.store_directory import check_is_store
from mqlake.store.files.store_lock import AbortFile, StoreLock
from mqlake.store.heads import delete_heads_of
from mqlake.store.kept_copies import keep
from mqlake.store.log.log_reader import LogReader
from mqlake.store.message_store import open_store


@dataclasses.dataclass(frozen=True, slots=True)
class Truncation:
    """The extent of a truncation at `offset`, planned or done: bytes up to `log_end`, and where the copies are."""

    offset: int
    log_end: int
    records: int
    copies: list[str]

    @property
    def size(self) -> int:
        return self.log_end - self.offset


def truncate(
    root: str,
    offset: int,
    settings: Mapping[str, object] | None = None,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
    why: str = "as asked for",
) -> Truncation:
    """Cuts the log of the store at `root` at physical offset `offset`, where a record begins; `dry_run`: only says
    what would go.

    Raises ConfigError for an offset outside of the log or inside a record, NotAStoreError, StoreLockedError,
    StoreCorruptError, OSError. The copies are durable before the log is changed.
    """
    config = dataclasses.replace(
        MessageStoreConfig.from_mapping({**detect_settings(root), **(settings or {})}),
        store_path_root_dir=root,
    )
    check_is_store(root, must_exist=True)
    lock = StoreLock(config.lock_path, abort_path=config.abort_path)
    lock.acquire()
    try:
        done = _cut(config, offset, why, dry_run=dry_run)
    finally:
        lock.release()
    if done.size and not dry_run:
        with open_store(root, settings, progress=progress):
            pass
    return done


def _cut(config: MessageStoreConfig, offset: int, why: str, *, dry_run: bool) -> Truncation:
    files = MappedFileQueue(config.commit_log_dir, config.mapped_file_size_commit_log, read_only=dry_run)
    files.load()
    try:
        LogReader(files).find_end()
        log_end = files.max_offset
        if not files.min_offset <= offset <= log_end:
            raise ConfigError(f"offset {offset} is not in the log, which has {files.min_offset} to {log_end}")
        if offset == log_end:
            return Truncation(offset, log_end, 0, [])
        _check_boundary(files, offset)
        parts = [
            (mapped_file, max(offset - mapped_file.file_from_offset, 0), mapped_file.wrote_position)
            for mapped_file in files.files_from(offset)
        ]
        records = sum(_count(files, file.file_from_offset + start) for file, start, _ in parts)
        copies = [] if dry_run else _keep(config.store_path_root_dir, parts, offset, why)
        if not dry_run:
            _erase(config, files, parts)
        return Truncation(offset, log_end, records, copies)
    finally:
        files.close()


def _check_boundary(files: MappedFileQueue, offset: int) -> None:
    base = offset - offset % files.file_size
    if _is_blank(files, offset, base + files.file_size - offset):
        return
    for chunk in LogReader(files, check_crc=False).scan(base, min(base + files.file_size, files.max_offset)):
        if chunk.start <= offset < chunk.end:
            starts = chunk.scan.position + chunk.mapped_file.file_from_offset
            if offset in starts:
                return
            before = int(starts[starts < offset].max()) if (starts < offset).any() else chunk.start
            raise ConfigError(
                f"offset {offset} is inside a record; the one that begins before it is at {before}"
            )
    raise ConfigError(f"no record begins at offset {offset}")


def _is_blank(files: MappedFileQueue, offset: int, left: int) -> bool:
    """True if the record there is the one that fills the rest of its file, of `left` bytes."""
    head = files.select(offset, END_FILE_MIN_BLANK_LENGTH) if left >= END_FILE_MIN_BLANK_LENGTH else None
    return head is not None and bytes(head) == encode_blank(left)


def _count(files: MappedFileQueue, start: int) -> int:
    end = min(start - start % files.file_size + files.file_size, files.max_offset)
    return sum(chunk.count for chunk in LogReader(files, check_crc=False).scan(start, end))


def _keep(root: str, parts: list[tuple[MappedFile, int, int]], offset: int, why: str) -> list[str]:
    copies = []
    for mapped_file, start, end in parts:
        if end > start:
            path, _ = keep(
                root,
                mapped_file.view[start:end],
                mapped_file.file_from_offset + start,
                f"truncated at offset {offset}, {why}",
            )
            copies.append(path)
    return copies


def _erase(
    config: MessageStoreConfig, files: MappedFileQueue, parts: list[tuple[MappedFile, int, int]]
) -> None:
    # the queues reach further than the log from here on: not a clean end, and nothing that a writer vouches for
    AbortFile(config.abort_path).create()
    # and what was flushed until when is no longer true of it
    for path in (config.queue_ends_path, config.checkpoint_path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    delete_heads_of(config.store_path_root_dir, [mapped_file.path for mapped_file, _, _ in parts])
    for mapped_file, start, _ in reversed(parts):
        if start == 0 and mapped_file is not files.mapped_files[0]:
            files.delete_file(mapped_file)
        else:
            mapped_file.erase(start)
