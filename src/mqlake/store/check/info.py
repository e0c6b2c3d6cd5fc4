"""The contents of a store directory, as a few dataclasses: files, ranges, queues, index, checkpoint, state."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from mqlake.formats.columns import ScanStop
from mqlake.store.archive.manifest import read_local
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.files.store_lock import lock_holder
from mqlake.store.index.index_service import IndexService
from mqlake.store.kept_copies import describe_kept
from mqlake.store.log.log_reader import LogReader, refuse_foreign
from mqlake.store.queues.batch_consume_queue import BatchConsumeQueue
from mqlake.store.queues.consume_queue_store import BATCH_CQ, SIMPLE_CQ, ConsumeQueueStore
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.timer.timer_recovery import timer_queue
from mqlake.store.timer.timer_view import TimerState, TimerView


@dataclasses.dataclass(frozen=True, slots=True)
class LogFileInfo:
    """Offsets are physical, `end_offset` is where the file's data ends; `disk_size` is what it takes on disk."""

    path: str
    size: int
    disk_size: int
    start_offset: int
    end_offset: int
    first_store_timestamp: int


@dataclasses.dataclass(frozen=True, slots=True)
class QueueInfo:
    """Messages [min_offset, max_offset) of the queue are in the log."""

    topic: str
    queue_id: int
    type: str
    min_offset: int
    max_offset: int
    files: int

    @property
    def count(self) -> int:
        return max(0, self.max_offset - self.min_offset)


@dataclasses.dataclass(frozen=True, slots=True)
class IndexFileInfo:
    path: str
    entries: int
    capacity: int
    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointInfo:
    physic_msg_timestamp: int
    logics_msg_timestamp: int
    index_msg_timestamp: int
    master_flushed_offset: int
    confirm_phy_offset: int


@dataclasses.dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """The state of the archive when the broker saw it last. Physical offsets; the time in ms."""

    begin: int
    end: int
    objects: int
    bytes: int
    saved_timestamp: int


@dataclasses.dataclass(frozen=True, slots=True)
class StoreInfo:
    """Times are in ms, sizes in bytes."""

    path: str
    clean_exit: bool
    writer: int | None
    """Process id of a running writer (0 when it cannot be told), None when there is none."""
    min_offset: int
    max_offset: int
    size: int
    disk_size: int
    file_size: int
    log_files: list[LogFileInfo]
    topics: int
    messages: int
    """In the queues; records of undecided and rolled back transactions are in none."""
    queues: list[QueueInfo]
    index_files: list[IndexFileInfo]
    checkpoint: CheckpointInfo | None
    timers: TimerState | None = None
    """None without messages in rmq_sys_wheel_timer."""
    archive: ArchiveInfo | None = None
    """None if the store was never archived by a broker."""
    kept_copies: str = ""
    """A sentence about copies of bytes that left the log and were not put back; empty when there are none."""


def store_info(path: str | os.PathLike[str], settings: Mapping[str, object] | None = None) -> StoreInfo:
    """Looks at the store in directory `path`, also beside a running writer.

    Raises what ReadOnlyStore raises, ForeignFormatError also for a log without any record in it.
    """
    with ReadOnlyStore(path, settings) as store:
        refuse_foreign(store.commit_log_files)
        config = store.config
        queues = _queues(store.consume_queues)
        size, disk_size = _usage(config.store_path_root_dir)
        return StoreInfo(
            path=config.store_path_root_dir,
            clean_exit=store.is_clean,
            writer=lock_holder(config.lock_path),
            min_offset=store.min_phy_offset,
            max_offset=store.max_phy_offset,
            size=size,
            disk_size=disk_size,
            file_size=config.mapped_file_size_commit_log,
            log_files=_log_files(store.commit_log_files),
            topics=len({queue.topic for queue in queues}),
            messages=sum(queue.count for queue in queues),
            queues=queues,
            index_files=_index_files(store.index),
            checkpoint=_checkpoint(config),
            timers=_timers(store),
            archive=_archive(config),
            kept_copies=describe_kept(config.store_path_root_dir),
        )


def _archive(config: MessageStoreConfig) -> ArchiveInfo | None:
    manifest = read_local(config.store_path_root_dir)
    if manifest is None:
        return None
    return ArchiveInfo(
        manifest.begin, manifest.end, len(manifest.objects), manifest.size, manifest.saved_at_ms
    )


def _timers(store: ReadOnlyStore) -> TimerState | None:
    if timer_queue(store) is None:
        return None
    with TimerView(store) as timers:
        return timers.state


def _log_files(log: MappedFileQueue) -> list[LogFileInfo]:
    found = []
    for mapped_file in log.mapped_files:
        status = os.stat(mapped_file.path)
        start = mapped_file.file_from_offset
        chunk = next(iter(LogReader(log, check_crc=False).scan(start, chunk_records=1)), None)
        has_record = chunk is not None and chunk.count and chunk.scan.stop != ScanStop.INVALID
        found.append(
            LogFileInfo(
                mapped_file.path,
                status.st_size,
                status.st_blocks * 512,
                start,
                start + mapped_file.read_position,
                int(chunk.scan.store_timestamp[0]) if chunk is not None and has_record else 0,
            )
        )
    return found


def _queues(queues: ConsumeQueueStore) -> list[QueueInfo]:
    found = [
        QueueInfo(
            queue.topic,
            queue.queue_id,
            BATCH_CQ if isinstance(queue, BatchConsumeQueue) else SIMPLE_CQ,
            queue.min_offset_in_queue,
            queue.max_offset_in_queue,
            len(queue.files.files),
        )
        for queue in queues
    ]
    return sorted(found, key=lambda queue: (queue.topic, queue.queue_id))


def _index_files(index: IndexService | None) -> list[IndexFileInfo]:
    found = []
    for file in index.files if index is not None else ():
        header = file.header
        found.append(
            IndexFileInfo(
                file.path,
                file.index_count - 1,
                file.index_num - 1,
                header.begin_timestamp,
                header.end_timestamp,
                header.begin_phy_offset,
                header.end_phy_offset,
            )
        )
    return found


def _checkpoint(config: MessageStoreConfig) -> CheckpointInfo | None:
    if not os.path.exists(config.checkpoint_path):
        return None
    checkpoint = StoreCheckpoint(config.checkpoint_path, read_only=True)
    return CheckpointInfo(
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_phy_offset,
    )


def _usage(root: str) -> tuple[int, int]:
    """Length and space on disk of all files together."""
    size = disk_size = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                status = os.stat(os.path.join(directory, name), follow_symlinks=False)
            except FileNotFoundError:  # gone while we looked
                continue
            size += status.st_size
            disk_size += status.st_blocks * 512
    return size, disk_size
