"""Checks a store, everything against everything, and changes nothing.

    LogReader ─ every record's sizes, magic, CRC, physical offset ─┬─▶ queue offsets, units, lost messages
                                                                 ├─▶ index entries, keys, chains
                                                                 └─▶ the checkpoint's times

The log is read once, thousands of records at a time; memory does not grow with it. Three things that look alike
are told apart: a torn tail (an interrupted write, dropped at the next start), stale bytes (older than the log's
end, harmless), and corruption. What a crash leaves and the next start puts right is a note and no damage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Mapping

from mqlake.base.clock import now_ms
from mqlake.base.findings import Finding, Findings, Severity
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import StoreCorruptError, StoreError, WrongFileSizeError
from mqlake.formats.checkpoint import CHECKPOINT_FILE_SIZE
from mqlake.formats.columns import dispatch_columns
from mqlake.message import parse_delay_levels
from mqlake.store.check.cross_check import WrongField
from mqlake.store.check.verify_index import IndexVerifier
from mqlake.store.check.verify_queues import LostMessage, QueueVerifier
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import detect_settings
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.files.store_directory import check_is_store, foreign_files
from mqlake.store.files.store_lock import AbortFile, StoreLock, lock_holder
from mqlake.store.index.index_service import IndexService
from mqlake.store.kept_copies import describe_kept
from mqlake.store.log.log_reader import Hole, HoleKind, LogReader, open_log, used_files
from mqlake.store.log.misnamed import copied_files, misnamed_files, misnamed_text
from mqlake.store.lost_end import HINT as HINT_LOST
from mqlake.store.lost_end import LostEnd, last_exit_of
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore
from mqlake.store.queues.leads_to import is_known
from mqlake.store.queues.lost_ends import QueueEnd
from mqlake.store.queues.queue_ends import DoubtfulEnds, RestorableQueues
from mqlake.store.read_only import ReadOnlyStore, queue_type_by_files
from mqlake.store.timer.timer_view import TimerView

CLOCK_SLACK_MS = 24 * 3600 * 1000


@dataclasses.dataclass(slots=True)
class VerifyReport:
    """The scope and the findings of a verification. Offsets are physical, in bytes."""

    path: str
    clean_exit: bool
    writer: int | None
    """Process id of a running writer (0 when it cannot be told), None when there is none."""
    min_offset: int = 0
    end_offset: int = 0
    files: int = 0
    records: int = 0
    record_bytes: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0
    keys_before_index: int = 0
    last_store_timestamp: int = 0
    holes: list[Hole] = dataclasses.field(default_factory=list)
    lost_count: int = 0
    """Messages that the consume queues know of and the log has lost."""
    lost: list[LostMessage] = dataclasses.field(default_factory=list)
    """The first thousand of them."""
    lost_queue_ends: list[QueueEnd] = dataclasses.field(default_factory=list)
    """The ends of the queues whose last message is among the lost ones."""
    lost_end: FoundLoss | None = None
    """Flushed messages are gone from the end of the log, and the store does not open."""
    wrong_fields: list[WrongField] = dataclasses.field(default_factory=list)
    """Wrong fields of which the right value is known."""
    findings: list[Finding] = dataclasses.field(default_factory=list)
    damage_count: int = 0
    """Findings that are damage, also those of which only a hundred are kept."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.damage_count == 0

    def of(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is severity]


def store_config(path: str, settings: Mapping[str, object] | None = None) -> MessageStoreConfig:
    """The configuration of an existing store: file sizes as its files have them, `settings` before that.

    Raises NotAStoreError, ForeignFormatError, ConfigError, UnknownKeyError.
    """
    check_is_store(path, must_exist=True)
    return MessageStoreConfig.from_mapping(
        {**detect_settings(path), **(settings or {}), "storePathRootDir": path}
    )


def new_report(config: MessageStoreConfig) -> VerifyReport:
    """The report of a store that nothing is known of but how it was closed, and by whom it is open."""
    writer = lock_holder(config.lock_path)
    clean = not AbortFile(config.abort_path).exists()
    if writer == os.getpid() and clean:
        writer = None  # the lock of a repair: a store that runs has its abort file
    return VerifyReport(config.store_path_root_dir, clean, writer)


def verify_store(
    path: str | os.PathLike[str],
    settings: Mapping[str, object] | None = None,
    *,
    holds_lock: bool = False,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Verifies the store in directory `path`, also beside a running writer. `holds_lock`: the caller holds its lock,
    so nobody writes.

    What is wrong with the contents is in the report. Raises only when there is nothing to report on:
    NotAStoreError, ForeignFormatError, WrongFileSizeError and StoreCorruptError (a missing file) of the commit
    log, ConfigError, UnknownKeyError, OSError.
    """
    began = time.monotonic()
    config = store_config(os.fspath(path), settings)
    report = new_report(config)
    if holds_lock:
        report.writer = None
    findings = Findings()
    log = open_log(config)
    try:
        _verify(config, log, report, findings, progress)
    finally:
        log.close()
    verify_timers(path, settings, findings, settled=report.clean_exit and report.writer is None)
    kept = describe_kept(config.store_path_root_dir)
    if kept:
        findings.note("kept copies", config.store_path_root_dir, 0, kept)
    report.findings = findings.kept
    report.damage_count = findings.damage_count
    report.seconds = time.monotonic() - began
    return report


def _verify(
    config: MessageStoreConfig,
    log: MappedFileQueue,
    report: VerifyReport,
    findings: Findings,
    progress: Progress,
) -> None:
    settled = report.clean_exit and report.writer is None
    report.min_offset = log.min_offset
    for path, right in misnamed_files(config.commit_log_dir, config.mapped_file_size_commit_log).items():
        text = misnamed_text(right)
        findings.damage("file name", path, 0, text)
    for path, right in copied_files(config.commit_log_dir, config.mapped_file_size_commit_log).items():
        text = f"its records are those of {os.path.basename(right)}, which has them itself: a copy lies in its place"
        findings.damage("file name", path, 0, text)
    for path in foreign_files(config.commit_log_dir):
        findings.damage(
            "foreign file", path, 0, "it is none of a commit log; RocketMQ's broker does not start with it"
        )
    queues = load_queues(config, findings)
    index = load_index(config, findings)
    try:
        queue_verifier = QueueVerifier(
            queues,
            findings,
            log_min=log.min_offset,
            settled=settled,
            root=config.store_path_root_dir,
            restorable=RestorableQueues(config, queues),
            index=index,
        )
        index_verifier = IndexVerifier(index.files, findings, log_min=log.min_offset, settled=settled)
        walk = LogReader(log, force_prop_crc=config.writes_prop_crc).walk(
            is_known=functools.partial(is_known, queues),
            known_until=known_until(queues, log) if settled else 0,
            progress=progress,
        )
        delay_levels = parse_delay_levels(config.message_delay_level)
        for chunk in walk.chunks():
            columns = dispatch_columns(chunk.mapped_file.array, chunk.scan, delay_levels=delay_levels)
            queue_verifier.check(chunk, columns, walk.holes)
            index_verifier.check(chunk, columns, walk.holes)
            report.records += chunk.count
            report.record_bytes += int(chunk.scan.size.sum())
            newest = int(chunk.scan.store_timestamp.max())  # not the last one's: clocks are set back
            report.last_store_timestamp = max(report.last_store_timestamp, newest)
        report.holes, report.end_offset = walk.holes, walk.end
        report.files = used_files(log)
        _report_holes(walk.holes, findings, settled=settled)
        queue_verifier.finish(walk.holes, walk.end)
        index_verifier.finish(walk.holes, walk.end)
        if report.writer is None:
            report.lost_end = lost = find_lost_end(config, log, walk.end, report.last_store_timestamp)
            if lost is not None:
                findings.damage("lost end", lost.path, lost.position, lost.text)
        verify_checkpoint(config, report, findings)
        report.queues = sum(1 for _ in queues)
        report.units = queue_verifier.units_checked
        report.lost, report.lost_count = queue_verifier.lost, queue_verifier.lost_count
        report.lost_queue_ends = queue_verifier.lost_ends
        report.wrong_fields = queue_verifier.wrong_fields
        report.index_files = len(index.files)
        report.index_entries = index_verifier.entries_checked
        report.keys_before_index = index_verifier.keys_before
    finally:
        queues.close()
        index.close()


@dataclasses.dataclass(frozen=True, slots=True)
class FoundLoss:
    """Messages are gone from the end of the log, which is at `position` of file `path`. `queue_ends`: where each queue
    ended that had some of them."""

    path: str
    position: int
    text: str
    queue_ends: list[QueueEnd]

    @property
    def error(self) -> StoreCorruptError:
        return StoreCorruptError(self.path, self.position, self.text, hint=HINT_LOST)


def find_lost_end(
    config: MessageStoreConfig, log: MappedFileQueue, end: int, newest: int
) -> FoundLoss | None:
    """The loss of a log that nobody writes, as recovery finds it. `end`: of its records; `newest`: their latest store
    time (ms)."""
    flushed_until = StoreCheckpoint(config.checkpoint_path, read_only=True).physic_msg_timestamp
    queues = load_queues(config, Findings())
    try:
        ends = DoubtfulEnds(queues, log, parse_delay_levels(config.message_delay_level), end)
        reached = ends.reached_at(end, queues)
        if not log.mapped_files and reached <= 0:
            return None  # begun anew
        lost = LostEnd(end, newest, reached, flushed_until)
        last_exit = last_exit_of(AbortFile(config.abort_path), StoreLock(config.lock_path))
        if not lost.is_proven(last_exit, now_ms()):
            return None
        file = log.find_mapped_file_by_offset(end) or next(reversed(log.mapped_files), None)
        path, base = (log.directory, end) if file is None else (file.path, file.file_from_offset)
        return FoundLoss(path, end - base, str(lost), ends.lost(end))
    finally:
        queues.close()


def verify_timers(
    path: str | os.PathLike[str], settings: Mapping[str, object] | None, findings: Findings, *, settled: bool
) -> None:
    """The timer wheel and its log, if there are messages for them."""
    with contextlib.suppress(StoreError), ReadOnlyStore(path, settings) as store, TimerView(store) as timers:
        timers.verify(findings, settled=settled)


def load_queues(config: MessageStoreConfig, findings: Findings) -> ConsumeQueueStore:
    """The consume queues; when one of them cannot be loaded that is a finding and there are none."""
    queues = ConsumeQueueStore(config, queue_type_of=queue_type_by_files(config), read_only=True)
    try:
        queues.load()
        queues.refresh()
        for queue in queues:
            queue.correct_min_offset(_first_offset(config))
    except StoreError as error:
        findings.damage("consume queue", *_place_of(error, config.consume_queue_dir), str(error))
        queues.close()
        return ConsumeQueueStore(config, read_only=True)
    return queues


def load_index(config: MessageStoreConfig, findings: Findings) -> IndexService:
    index = IndexService(config, read_only=True)
    try:
        index.load(True, None)
    except StoreError as error:
        findings.damage("index file", *_place_of(error, config.index_dir), str(error))
        index.close()
        return IndexService(config, read_only=True)
    return index


def _place_of(error: StoreError, directory: str) -> tuple[str, int]:
    path = str(getattr(error, "path", directory))
    return path, error.size if isinstance(error, WrongFileSizeError) else int(getattr(error, "offset", 0))


def _first_offset(config: MessageStoreConfig) -> int:
    return min((int(name) for name in os.listdir(config.commit_log_dir) if name.isdecimal()), default=0)


def known_until(queues: ConsumeQueueStore, log: MappedFileQueue) -> int:
    """Physical offset to which the queues reach; a queue that points outside the files says nothing."""
    if not log.mapped_files:
        return 0
    end = log.mapped_files[-1].file_from_offset + log.file_size
    return max((queue.max_physic_offset for queue in queues if queue.max_physic_offset <= end), default=0)


def _report_holes(holes: list[Hole], findings: Findings, *, settled: bool) -> None:
    for hole in holes:
        if hole.kind is HoleKind.CORRUPT:
            severity, after = Severity.DAMAGE, "up to where records go on" if hole.records_follow else ""
        elif hole.kind is HoleKind.TORN:
            severity = Severity.DAMAGE if settled else Severity.NOTE
            after = (
                "" if settled else "the next start drops it, or refuses to open when nothing can have torn it"
            )
        else:
            severity, after = Severity.NOTE, "older than the log's last record, not part of it"
        text = f"{hole.size} bytes{f' ({after})' if after else ''}: {hole.reason}"
        findings.add(Finding(severity, hole.kind.value, hole.path, hole.position, text))


def verify_checkpoint(config: MessageStoreConfig, report: VerifyReport, findings: Findings) -> None:
    path = config.checkpoint_path
    if not os.path.exists(path):
        if report.records and report.writer is None:
            findings.note("checkpoint", path, 0, "there is none: the next start reads the whole log")
        return
    size = os.path.getsize(path)
    if size != CHECKPOINT_FILE_SIZE:
        findings.damage("checkpoint", path, size, f"{size} bytes, {CHECKPOINT_FILE_SIZE} are right")
    checkpoint = StoreCheckpoint(path, read_only=True)
    latest = report.last_store_timestamp
    horizon = now_ms() + CLOCK_SLACK_MS
    for position, name, timestamp in (
        (0, "physicMsgTimestamp", checkpoint.physic_msg_timestamp),
        (8, "logicsMsgTimestamp", checkpoint.logics_msg_timestamp),
        (16, "indexMsgTimestamp", checkpoint.index_msg_timestamp),
    ):
        if timestamp < 0 or timestamp > max(horizon, latest):
            findings.damage("checkpoint", path, position, f"{name} is {timestamp}, which is no time")
        elif timestamp > latest and report.writer is None and report.files:
            text = (
                f"{name} is {timestamp}, the log's last message was stored at {latest}: "
                "messages that had been flushed are gone, or the log was cut"
            )
            # without a note of its writer: a transient store pool of RocketMQ's may have had them alone
            doubtful = report.lost_end is None and not report.clean_exit
            severity = Severity.NOTE if doubtful else Severity.DAMAGE
            findings.add(Finding(severity, "checkpoint", path, position, text))
