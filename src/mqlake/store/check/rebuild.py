"""Makes consume queues and index again from the commit log.

    commit log ─▶ rebuild.tmp/new/consumequeue …       built and synced beside what is there
                  rebuild.tmp/new/… ◀──▶ DIR/…         then each directory changes places with the new one

The log itself is only read. Until the swap nothing that the store uses has changed; during the swap the abort file
is there, so that a start after a crash looks at everything. Each directory is replaced in one step (on file systems
that cannot exchange two names in two: then the next rebuild undoes what an interrupted one left).
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import shutil
import time
from collections.abc import Callable, Container, Mapping

from mqlake.base import json_config
from mqlake.base.durable import fsync_dir
from mqlake.base.findings import Findings
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import FormatError, StoreCorruptError
from mqlake.formats.columns import Scan, dispatch_columns
from mqlake.message import MessageSysFlag, parse_delay_levels
from mqlake.store.check.cross_check import Witnesses
from mqlake.store.check.verify import find_lost_end, known_until, load_queues, store_config
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.store_directory import check_is_store, refuse_light_queues
from mqlake.store.files.store_lock import AbortFile, StoreLock
from mqlake.store.index.index_service import IndexService
from mqlake.store.log.log_reader import HoleKind, LogReader, LogWalk, open_log, refuse_foreign
from mqlake.store.lost_end import newest_in
from mqlake.store.queues.consume_queue_store import BATCH_CQ, SIMPLE_CQ, ConsumeQueueStore
from mqlake.store.queues.leads_to import is_known
from mqlake.store.queues.queue_ends import RestorableQueues

TEMPORARY = "rebuild.tmp"
CHUNKS_BETWEEN_EVICTIONS = 64
AT_FDCWD = -100
RENAME_EXCHANGE = 2
Build = Callable[[MessageStoreConfig, str, set[str], bool, Progress], "RebuildReport | None"]
"""As build_derived()."""
DERIVED = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index")


@dataclasses.dataclass(slots=True)
class RebuildReport:
    """The result of a rebuild. Offsets are physical, in bytes."""

    path: str
    start_offset: int = 0
    end_offset: int = 0
    records: int = 0
    topics: int = 0
    queues: int = 0
    index_files: int = 0
    index_entries: int = 0
    deleted_topics: list[str] = dataclasses.field(default_factory=list)
    """Deleted topics of which the log still has records; they get no queues again."""
    contradictions: int = 0
    """Records that the queues before knew better: each is now where the record says."""
    contradicted: tuple[str, int, str] | None = None
    """File, position and text of the first of them."""
    seconds: float = 0.0


def rebuild_store(
    path: str | os.PathLike[str],
    settings: Mapping[str, object] | None = None,
    *,
    trust_log: bool = False,
    progress: Progress = no_progress,
    build: Build | None = None,
) -> RebuildReport:
    """Rebuilds the derived files of the store in directory `path`, which nobody may be writing. `build` makes them
    (build_derived() unless another is given); locking, and the swap of the directories, are the same for all.

    Raises StoreLockedError, StoreCorruptError (the log does not walk, or the queues that are there know better than it
    where a message belongs, unless `trust_log`: repair it first), NotAStoreError, ForeignFormatError,
    WrongFileSizeError, ConfigError, UnknownKeyError, OSError; nothing has changed then.
    """
    root = os.fspath(path)
    check_is_store(root, must_exist=True)
    refuse_light_queues(root)
    with StoreLock(os.path.join(root, "lock"), abort_path=os.path.join(root, "abort")):
        _undo_interrupted(root)  # first of all: the sizes of files are read from them
        return rebuild_locked(
            store_config(root, settings), trust_log=trust_log, progress=progress, build=build
        )


def rebuild_locked(
    config: MessageStoreConfig,
    *,
    repaired_to: str | None = None,
    trust_log: bool = False,
    progress: Progress = no_progress,
    build: Build | None = None,
) -> RebuildReport:
    """As rebuild_store() for who holds the lock. After a repair the directories that are replaced are moved to
    `repaired_to` instead of deleted, and the log may end before what they point to."""
    began = time.monotonic()
    temporary = os.path.join(config.store_path_root_dir, TEMPORARY)
    _undo_interrupted(config.store_path_root_dir)
    batch_topics = _batch_topics(config)
    try:
        new = os.path.join(temporary, "new")
        # after a crash the queues may be ahead of the log as well
        may_end_early = repaired_to is not None or AbortFile(config.abort_path).exists()
        build = build or build_derived
        while (report := build(config, new, batch_topics, may_end_early, progress)) is None:
            pass  # a topic turned out to have inner batches: once more, knowing it
        if report.contradicted is not None and not (trust_log or repaired_to):
            raise _knows_better(report)
        if not repaired_to:
            _refuse_lost_end(config, report.end_offset)
        old = repaired_to or os.path.join(temporary, "old")
        _swap(config, new, old)
    except BaseException:
        _undo_interrupted(config.store_path_root_dir)
        raise
    shutil.rmtree(temporary)
    report.seconds = time.monotonic() - began
    return report


def _refuse_lost_end(config: MessageStoreConfig, end: int) -> None:
    """Raises StoreCorruptError if the queues that are there prove that the log has lost its end: without them nobody
    would know which queue offsets were given out."""
    queues = load_queues(config, Findings())
    are_ahead = queues.max_physic_offset > end
    queues.close()
    if not are_ahead:
        return
    log = open_log(config)
    try:
        lost = find_lost_end(config, log, end, newest_in(LogReader(log), log.min_offset))
        if lost is not None:
            raise lost.error
    finally:
        log.close()


def _knows_better(report: RebuildReport) -> StoreCorruptError:
    assert report.contradicted is not None
    path, position, text = report.contradicted
    more = f", and {report.contradictions - 1} more" if report.contradictions > 1 else ""
    return StoreCorruptError(
        path,
        position,
        f"{text}{more}. The consume queues know better, and were not overwritten",
        hint="`mqlake store repair` puts the records right, `--trust-log` takes them as they are",
    )


def _batch_topics(config: MessageStoreConfig) -> set[str]:
    """Topics with queue.type=BatchCQ, from their directories and from topics.json."""
    topics = set()
    if os.path.isdir(config.batch_consume_queue_dir):
        topics.update(os.listdir(config.batch_consume_queue_dir))
    try:
        with open(os.path.join(config.config_dir, "topics.json"), encoding="utf-8") as file:
            table = json_config.loads(file.read())["topicConfigTable"]
        topics.update(
            name for name, topic in table.items() if topic.get("attributes", {}).get("queue.type") == BATCH_CQ
        )
    except (OSError, ValueError, FormatError, KeyError, TypeError, AttributeError):
        pass  # without the file, or with one that cannot be read, the records themselves tell
    return topics


def build_derived(
    config: MessageStoreConfig,
    directory: str,
    batch_topics: set[str],
    may_end_early: bool,
    progress: Progress,
) -> RebuildReport | None:
    """Builds everything under `directory`; None when `batch_topics` had to be added to too late."""
    if os.path.exists(directory):
        shutil.rmtree(directory)
    os.makedirs(directory)
    log = open_log(config)
    try:
        refuse_foreign(log)
    except BaseException:
        log.close()
        raise
    old_queues = load_queues(config, Findings())
    queues = new_queues(config, directory, old_queues, batch_topics)
    index = IndexService(beside(config, directory)) if config.message_index_enable else None
    walk = LogReader(log, force_prop_crc=config.writes_prop_crc).walk(
        is_known=functools.partial(is_known, old_queues),
        known_until=0 if may_end_early else known_until(old_queues, log),
        progress=progress,
    )
    witnesses = Witnesses(old_queues)
    report = RebuildReport(config.store_path_root_dir, log.min_offset)
    delay_levels = parse_delay_levels(config.message_delay_level)
    try:
        for number, chunk in enumerate(walk.chunks()):
            _refuse_holes(walk)
            found = topics_of_batches(chunk.scan) - batch_topics
            if found:
                batch_topics |= found
                if any(queues.queues(topic) for topic in found):
                    return None
            columns = dispatch_columns(chunk.mapped_file.array, chunk.scan, delay_levels=delay_levels)
            for wrong in witnesses.all_misplaced(chunk.mapped_file.array, chunk.scan, columns):
                report.contradictions += 1
                report.contradicted = report.contradicted or (
                    chunk.mapped_file.path,
                    int(chunk.scan.position[wrong.row]),
                    f"its {wrong.field} is wrong: {', '.join(wrong.witnesses)}",
                )
            queues.dispatch(chunk.scan, columns)
            if index is not None:
                index.dispatch(chunk.scan, columns)
                if number % CHUNKS_BETWEEN_EVICTIONS == 0:
                    for file in index.files:
                        file.mapped_file.evict(0, file.mapped_file.file_size)
            report.records += chunk.count
            report.index_entries += len(columns.key_hash)
        _refuse_holes(walk)
        report.end_offset = walk.end
        report.topics = len(queues.topics())
        report.deleted_topics = sorted(queues.left_out)
        report.queues = sum(1 for _ in queues)
        end_queues(queues)
        if index is not None:
            report.index_files = len(index.files)
            index.flush(StoreCheckpoint(config.checkpoint_path, read_only=True))
        for name in DERIVED:
            os.makedirs(os.path.join(directory, name), exist_ok=True)
        fsync_dirs(directory)
    finally:
        queues.close()
        old_queues.close()
        if index is not None:
            index.close()
        log.close()
    return report


def beside(config: MessageStoreConfig, directory: str) -> MessageStoreConfig:
    """The settings of a store in `directory` that has the log of another one."""
    return dataclasses.replace(
        config, store_path_root_dir=directory, store_path_commit_log=config.commit_log_dir
    )


def new_queues(
    config: MessageStoreConfig, directory: str, old: ConsumeQueueStore, batch_topics: Container[str]
) -> ConsumeQueueStore:
    """Queues under `directory`, to be filled from the log of `config`. Topics that were deleted do not come back;
    without any queue in `old` nobody knows which were."""
    queues = ConsumeQueueStore(
        beside(config, directory),
        queue_type_of=lambda topic: BATCH_CQ if topic in batch_topics else SIMPLE_CQ,
    )
    if old.topics():
        queues.may_create = RestorableQueues(config, old)
    return queues


def end_queues(queues: ConsumeQueueStore) -> None:
    """Fills what the log has lost with units that lead to the next message, and syncs. OSError."""
    for queue in queues.with_gaps():
        queue.bridge_gaps()
    queues.flush()


def topics_of_batches(scan: Scan) -> set[str]:
    """Topics that have inner batches in the scan."""
    ids = set(scan.topic_id[(scan.sys_flag & MessageSysFlag.INNER_BATCH_FLAG) != 0].tolist())
    return {scan.topics[number].decode("utf-8", "replace") for number in ids}


def _refuse_holes(walk: LogWalk) -> None:
    for hole in walk.holes:
        if hole.kind is HoleKind.CORRUPT:
            raise StoreCorruptError(
                hole.path,
                hole.position,
                f"{hole.size} bytes of the log are lost ({hole.reason})",
                hint="`mqlake store repair` saves the rest and rebuilds",
            )


def fsync_dirs(directory: str) -> None:
    for path, _, _ in os.walk(directory, topdown=False):
        fsync_dir(path)


# ---------------------------------------------------------------------- the swap


def _swap(config: MessageStoreConfig, new: str, old: str) -> None:
    """Puts the new directories in the place of those that are there, which go to `old`."""
    root = config.store_path_root_dir
    os.makedirs(old, exist_ok=True)
    abort = AbortFile(config.abort_path)
    was_clean = not abort.exists()
    if was_clean:
        abort.create()
    for name in DERIVED:
        place, made = os.path.join(root, name), os.path.join(new, name)
        if not os.listdir(made):
            if os.path.exists(place):
                os.rename(place, os.path.join(old, name))
        elif not os.path.exists(place):
            os.rename(made, place)
        elif _exchange(made, place):
            os.rename(made, os.path.join(old, name))
        else:
            os.rename(place, os.path.join(old, name))
            os.rename(made, place)
    for directory in (root, old, new):
        fsync_dir(directory)
    if was_clean:
        abort.delete()


def _exchange(one: str, other: str) -> bool:
    """Swaps two names at once; False when the system or the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return renameat2 is not None and not renameat2(
        AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE
    )


def _undo_interrupted(root: str) -> None:
    """Puts back what a swap that did not end has moved away and not replaced; drops everything temporary."""
    temporary = os.path.join(root, TEMPORARY)
    if not os.path.isdir(temporary):
        return
    for name in DERIVED:
        place, moved = os.path.join(root, name), os.path.join(temporary, "old", name)
        if os.path.exists(moved) and not os.path.exists(place):
            os.rename(moved, place)
    fsync_dir(root)
    shutil.rmtree(temporary)
