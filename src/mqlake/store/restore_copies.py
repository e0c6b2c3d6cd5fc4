"""Puts back messages whose bytes left the commit log and were kept (see kept_copies.py). Only ever asked for.

    in place         the log ends where the copy began, so nothing has come since: the bytes go where they were, with
                     their physical and queue offsets; what is no record becomes a filler
    as new messages  anywhere else: at the end of the log and of their queues, in the order they had

A record that the log still has at its place, byte for byte, is left out. The copies stay until they are deleted; a
note beside each says that it was put back, so that it is not done twice.
"""

from __future__ import annotations

import dataclasses
import enum
import mmap
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping

from mqlake.base.durable import fsync_dir
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import StoreError
from mqlake.formats.names import offset_to_file_name
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH, decode_record, encode_blank
from mqlake.message import MessageTimeUp
from mqlake.store.check.verify import store_config
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.store_lock import AbortFile, StoreLock
from mqlake.store.kept_copies import KeptCopy, kept_copies, read_note, whole_records, write_note
from mqlake.store.log.filler import FILLER_SIZE_MIN, are_fillers, fence_off
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.queues.consume_queue_store import BATCH_CQ
from mqlake.store.read_only import ReadOnlyStore, queue_type_by_files

RecordSpan = tuple[int, int]
"""Position in the copy and size of a whole record, in bytes."""


class Way(enum.Enum):
    IN_PLACE = "in place"
    AS_NEW = "as new messages"
    NOTHING = "nothing to put back"


@dataclasses.dataclass(slots=True)
class PutBack:
    """The contents of a copy, and what becomes (or became) of them."""

    copy: KeptCopy
    way: Way
    messages: int
    """Whole ones that the log does not have at their place."""
    in_log: int
    """Whole ones that it has."""
    queues: dict[str, int]
    """Number of the messages that the log does not have, by queue ("topic/queue id")."""
    records: list[RecordSpan] = dataclasses.field(default_factory=list, repr=False)


def look_at_copies(
    path: str | os.PathLike[str], settings: Mapping[str, object] | None = None, names: tuple[str, ...] = ()
) -> list[PutBack]:
    """The copies under a store (those of `names`, or all) and what put_back() would do with them. Changes nothing.

    Raises what ReadOnlyStore raises, StoreError for a name that is no copy.
    """
    with ReadOnlyStore(path, settings) as store:
        copies = kept_copies(store.config.store_path_root_dir)
        by_name = {copy.name: copy for copy in copies}
        for name in names:
            if name.rstrip("/") not in by_name:
                known = ", ".join(by_name) or "there are none"
                raise StoreError(f"{name}: no copy has this name ({known})")
        wanted = {name.rstrip("/") for name in names}
        end = store.max_phy_offset
        found = []
        for copy in copies:
            if wanted and copy.name not in wanted:
                continue
            looked = _compare_with_log(store, copy, end)
            if looked.way is Way.IN_PLACE:
                end = _end_in_place(store.config, looked)
            found.append(looked)
        return found


def put_back(
    path: str | os.PathLike[str],
    settings: Mapping[str, object] | None = None,
    names: tuple[str, ...] = (),
    *,
    as_new: bool = False,
    again: bool = False,
    progress: Progress = no_progress,
) -> list[PutBack]:
    """Puts the messages of the copies back, of those that were not yet (`again`: of all). `as_new`: none in place.

    Opens the store for writing, so it recovers first. Raises what opening raises, and StoreError when a message is not
    taken; a copy is marked only when all its messages are on the disk.
    """
    config = store_config(os.fspath(path), settings)
    store = _open(config)  # recovers, and refuses a store that is in use
    store.shutdown()
    chosen = [
        looked
        for looked in look_at_copies(path, settings, names)
        if looked.way is not Way.NOTHING and (again or not looked.copy.put_back)
    ]
    for looked in chosen:
        if as_new:
            looked.way = Way.AS_NEW
    in_place = [looked for looked in chosen if looked.way is Way.IN_PLACE]
    if in_place:
        _put_in_place(config, in_place)
    store = _open(config)
    try:
        _put_as_new(store, [looked for looked in chosen if looked.way is Way.AS_NEW], progress)
        store.flush()
    finally:
        store.shutdown()
    for looked in chosen:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        note = {**read_note(looked.copy.path), "putBack": f"{looked.way.value}, {stamp}"}
        write_note(looked.copy.path, note)
    return chosen


def _open(config: MessageStoreConfig) -> DefaultMessageStore:
    queue_type_of = queue_type_by_files(config)
    store = DefaultMessageStore(config, is_batch_topic=lambda topic: queue_type_of(topic) == BATCH_CQ)
    store.load_and_start()
    return store


# ---------------------------------------------------------------------- looking


def _compare_with_log(store: ReadOnlyStore, copy: KeptCopy, end: int) -> PutBack:
    data = _bytes_of(copy)
    missing: list[RecordSpan] = []
    in_log = 0
    queues: Counter[str] = Counter()
    for scan in whole_records(data, copy.physical_offset):
        fillers = are_fillers(scan)
        for record, (position, size) in enumerate(
            zip(scan.position.tolist(), scan.size.tolist(), strict=True)
        ):
            if fillers[record]:
                continue
            there = store.commit_log_files.select(copy.physical_offset + position, size)
            if there is not None and there == data[position : position + size]:
                in_log += 1
                continue
            missing.append((position, size))
            topic = scan.topics[scan.topic_id[record]].decode("utf-8", "replace")
            queues[f"{topic}/{int(scan.queue_id[record])}"] += 1
    way = Way.AS_NEW if missing else Way.NOTHING
    if missing and copy.physical_offset == end and not in_log and _fits(store.config, copy, missing):
        way = Way.IN_PLACE
    return PutBack(copy, way, len(missing), in_log, dict(sorted(queues.items())), missing)


def _bytes_of(copy: KeptCopy) -> memoryview:
    """Mapped, as a copy may be as long as a file of the log."""
    with open(copy.path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if copy.size else b"")


def _pieces(records: list[RecordSpan]) -> Iterator[tuple[int, int]]:
    """The bytes between the records: [start, end) in the copy."""
    at = 0
    for position, size in records:
        if position > at:
            yield at, position
        at = position + size


def _fits(config: MessageStoreConfig, copy: KeptCopy, records: list[RecordSpan]) -> bool:
    room = config.mapped_file_size_commit_log - copy.physical_offset % config.mapped_file_size_commit_log
    last = records[-1][0] + records[-1][1]
    return last + END_FILE_MIN_BLANK_LENGTH <= room and all(
        end - start >= FILLER_SIZE_MIN for start, end in _pieces(records)
    )


def _end_in_place(config: MessageStoreConfig, looked: PutBack) -> int:
    """Physical offset at which the log ends then: at the next file's beginning when the copy ends with a blank."""
    position, size = looked.records[-1]
    start = looked.copy.physical_offset
    end = start + position + size
    with open(looked.copy.path, "rb") as file:
        file.seek(position + size)
        blank = file.read(END_FILE_MIN_BLANK_LENGTH)
    rest = -end % config.mapped_file_size_commit_log
    return end + rest if blank == encode_blank(rest) else end


# ---------------------------------------------------------------------- doing it


def _put_in_place(config: MessageStoreConfig, chosen: list[PutBack]) -> None:
    """While this is done the store counts as not closed cleanly, so what an interruption leaves is looked at."""
    with StoreLock(config.lock_path, abort_path=config.abort_path):
        AbortFile(config.abort_path).create()
        for looked in chosen:
            _write_in_place(config, looked)


def _write_in_place(config: MessageStoreConfig, looked: PutBack) -> None:
    file_size = config.mapped_file_size_commit_log
    start = looked.copy.physical_offset
    base = start - start % file_size
    path = os.path.join(config.commit_log_dir, offset_to_file_name(base))
    data = _bytes_of(looked.copy)
    first = looked.records[0][0]
    timestamp = decode_record(data, first, read_body=False).store_timestamp
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(fd, 0, file_size)
        for begin, end in _pieces(looked.records):
            at = start - base + begin
            for piece in fence_off(at, start - base + end, base, file_size, timestamp):
                os.pwrite(fd, piece, at)
                at += len(piece)
        for position, size in looked.records:
            os.pwrite(fd, data[position : position + size], start - base + position)
        end = start + looked.records[-1][0] + looked.records[-1][1]
        if _end_in_place(config, looked) > end:
            os.pwrite(fd, encode_blank(-end % file_size), end - base)
        os.fsync(fd)
    finally:
        os.close(fd)
    fsync_dir(config.commit_log_dir)


def _put_as_new(store: DefaultMessageStore, chosen: list[PutBack], progress: Progress) -> None:
    total, done = sum(looked.messages for looked in chosen), 0
    for looked in chosen:
        data = _bytes_of(looked.copy)
        for position, size in looked.records:
            message = decode_record(data[position : position + size], message_class=MessageTimeUp)
            assert isinstance(message, MessageTimeUp)
            result = store.put_message(message)
            if not result.is_ok:
                raise StoreError(
                    f"{looked.copy.path}: byte {position}: {result.status.name}: {result.reason}; "
                    f"{done} messages were put back before, and no copy was marked"
                )
            done += 1
            progress(done, total)
