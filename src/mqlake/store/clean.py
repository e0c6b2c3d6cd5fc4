"""Cleaning: old commit log files go by time, by hour and by the disk; what pointed into them goes after.

Every round asks three questions, and any yes deletes from the oldest file on, never the last, at most
deleteFileBatchMax:

    is it the hour?      the local hour is one of deleteWhen
    is the disk short?   its use is above a ratio:

        0 ──── diskMaxUsedSpaceRatio ──── diskSpaceCleanForciblyRatio ──── diskSpaceWarningLevelRatio ──── 1
          fine          old files go               any file goes              and no message is taken

    was it asked for?    execute_delete_files_manually, good for 20 rounds

A file is old when fileReservedTime hours have passed since it was last written; one that a connected slave has not got
yet, fileHeldTimeForSlaves hours later, or when the disk is short. With deleteOnlyArchived no file goes, whatever the
disk, before the archive has it. Above the warning level the
flag DISK_FULL stops puts; it is cleared in every round that finds the use of both disks at or below it.
(RocketMQ 5.3.3 clears it only below the lower, forcible ratio, so a store can stay not writeable after space
has returned.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mqlake.base.clock import now_ms
from mqlake.base.disk import DiskSpace
from mqlake.base.service_thread import ServiceThread
from mqlake.base.throttled_log import ThrottledLog
from mqlake.store.config import MessageStoreConfig
from mqlake.store.running_flags import RunningFlags

logger = logging.getLogger(__name__)

MAX_MANUAL_DELETE_FILE_TIMES = 20
FIRST_ROUND_AFTER_MS = 60_000
ROUNDS_TO_WAIT = 30
HOUR_MS = 3_600_000

Clock = Callable[[], int]
DiskUsed = Callable[[str], float | None]


def disk_used_ratio(path: str) -> float | None:
    """Used share (0..1) of what a user may use of the disk that holds `path`; None when it cannot be told."""
    try:
        return DiskSpace.of(path).used_ratio
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class DiskThresholds:
    """The ratios (0..1), held within RocketMQ's bounds; all 1 without `diskCheckEnable`."""

    max_used: float
    clean_forcibly: float
    warning_level: float

    @classmethod
    def of(cls, config: MessageStoreConfig) -> DiskThresholds:
        if not config.disk_check_enable:
            return cls(1.0, 1.0, 1.0)
        return cls(
            max_used=_clamped(config.disk_max_used_space_ratio, 10, 95),
            clean_forcibly=_clamped(config.disk_space_clean_forcibly_ratio, 30, 85),
            warning_level=_clamped(config.disk_space_warning_level_ratio, 35, 90),
        )


def _clamped(percent: int, low: int, high: int) -> float:
    return min(max(percent, low), high) / 100


@dataclass(frozen=True, slots=True)
class DiskVerdict:
    """`full`: take no message. `clean_immediately`: delete whatever the age. `over`: delete what is old."""

    used: float
    full: bool
    clean_immediately: bool
    over: bool


def judge_disk(thresholds: DiskThresholds, *used: float | None) -> DiskVerdict:
    """The verdict over the disks of commit log and consume queues; the fuller counts, an unknown does not."""
    fullest = max((ratio for ratio in used if ratio is not None), default=0.0)
    clean_immediately = fullest > min(thresholds.clean_forcibly, thresholds.warning_level)
    return DiskVerdict(
        used=fullest,
        full=fullest > thresholds.warning_level,
        clean_immediately=clean_immediately,
        over=clean_immediately or fullest > thresholds.max_used,
    )


def is_time_to_delete(hours: frozenset[int], now_ms: int) -> bool:
    return time.localtime(now_ms / 1000).tm_hour in hours


class ExpiringFiles(Protocol):
    """The part of the commit log's MappedFileQueue that cleaning uses."""

    def delete_expired_file_by_time(
        self,
        expired_ms: int,
        *,
        interval_ms: int,
        clean_immediately: bool,
        batch_max: int,
        now_ms: Clock,
        is_needed: Callable[[int, int], bool],
        may_force: Callable[[int], bool],
        is_kept: Callable[[int], bool],
    ) -> int: ...

    @property
    def min_offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CleanRound:
    """The findings and deletions of one round."""

    time_up: bool
    manual: bool
    disk: DiskVerdict
    deleted: int


class CleanCommitLogService:
    """Deletes commit log files and watches the disk. `run_once` is one round."""

    def __init__(
        self,
        config: MessageStoreConfig,
        files: ExpiringFiles,
        flags: RunningFlags,
        *,
        clock: Clock = now_ms,
        disk_used: DiskUsed = disk_used_ratio,
        needed_from: Callable[[], int | None] = lambda: None,
        may_force: Callable[[int], bool] = lambda end: True,
        is_archived: Callable[[int], bool] = lambda end: True,
    ) -> None:
        """`needed_from()` gives the first offset that a connected slave has not got; None without slaves.
        `may_force(end)`: the log before `end` may go although it is not old; asked again in each round.
        `is_archived(end)`: the archive, if there is one, has the file that ends there."""
        self._is_archived = is_archived
        self._kept_for_archive = ThrottledLog(logger, logging.WARNING)
        self._config = config
        self._needed_from = needed_from
        self._may_force = may_force
        self._waited = 0
        """Rounds since the last file went, in which one was not free to go."""
        self._held_for_slave_log = ThrottledLog(logger, logging.WARNING)
        self._files = files
        self._flags = flags
        self._clock = clock
        self._disk_used = disk_used
        self._thresholds = DiskThresholds.of(config)
        self._manual_rounds = 0
        self._stuck = False
        """The disk has been too full for some rounds, and nothing could be done about it."""

    def execute_delete_files_manually(self) -> None:
        """Lets the next 20 rounds delete old files at any hour."""
        self._manual_rounds = MAX_MANUAL_DELETE_FILE_TIMES

    def check_disk(self) -> DiskVerdict:
        """Looks at the disks and sets or clears DISK_FULL."""
        config = self._config
        self._thresholds = DiskThresholds.of(config)  # they may have been changed meanwhile
        used = self._disk_used(config.commit_log_dir), self._disk_used(config.consume_queue_dir)
        verdict = judge_disk(self._thresholds, *used)
        if verdict.full:
            text = f"{verdict.used:.1%} used, more than {self._thresholds.warning_level:.0%}"
            if self._flags.make_disk_full(text):
                logger.error(
                    "the disk of %s is nearly full (%s): no message is taken", config.commit_log_dir, text
                )
        elif any(ratio is not None for ratio in used) and not self._flags.make_disk_ok():
            logger.info("space has returned (%.1f%% used): messages are taken again", verdict.used * 100)
        return verdict

    def run_once(self) -> CleanRound:
        """One round. Raises OSError when a file cannot be deleted."""
        config = self._config
        disk = self.check_disk()
        time_up = is_time_to_delete(config.delete_when_hours, self._clock())
        manual = self._manual_rounds > 0
        deleted = 0
        if time_up or disk.over or manual:
            if manual:
                self._manual_rounds -= 1
            needed = self._needed_from()
            deleted = self._files.delete_expired_file_by_time(
                config.file_reserved_time * HOUR_MS,
                interval_ms=config.delete_commit_log_files_interval,
                clean_immediately=disk.clean_immediately and config.clean_file_forcibly_enable,
                batch_max=config.delete_file_batch_max,
                now_ms=self._clock,
                is_needed=lambda end, overdue_ms: self._is_needed(needed, end, overdue_ms),
                may_force=lambda end: self._is_free(end, disk),
                is_kept=self._is_kept,
            )
            if deleted:
                self._waited = 0
            if needed is None or needed >= self._first_end:
                self._held_for_slave_log.worked("no commit log file is held for a slave any more")
            if deleted:
                logger.info("%d commit log files deleted (%s)", deleted, _why(time_up, disk, manual))
            if deleted and needed is not None and needed < self._files.min_offset:
                logger.warning(
                    "a slave that has the log up to offset %d lost its place: the log begins at %d now (%s)",
                    needed,
                    self._files.min_offset,
                    _why(time_up, disk, manual),
                )
        self._say_when_stuck(disk, disk.over and not deleted)
        return CleanRound(time_up=time_up, manual=manual, disk=disk, deleted=deleted)

    @property
    def _first_end(self) -> int:
        return self._files.min_offset + self._config.mapped_file_size_commit_log

    def _is_needed(self, needed: int | None, end: int, overdue_ms: int) -> bool:
        """True if the file that ends at `end` is held for a slave."""
        hold_ms = self._config.file_held_time_for_slaves * HOUR_MS
        if needed is None or end <= needed or not hold_ms:
            return False
        if overdue_ms >= hold_ms:
            return False
        self._held_for_slave_log.failed(
            f"an old commit log file is held for a slave that has the log up to offset {needed}: it goes in "
            f"{(hold_ms - overdue_ms) / HOUR_MS:.1f} hours, or when the disk is short (fileHeldTimeForSlaves)"
        )
        return True

    def _is_kept(self, end: int) -> bool:
        """True if the file that ends at `end` may not go, whatever the disk: it is the only copy."""
        if not self._config.delete_only_archived or self._is_archived(end):
            self._kept_for_archive.worked("old commit log files are in the archive again")
            return False
        self._kept_for_archive.failed(
            f"an old commit log file is kept, since the archive does not have it yet: it ends at {end} "
            "(deleteOnlyArchived)"
        )
        return True

    def _is_free(self, end: int, disk: DiskVerdict) -> bool:
        """True if the file that ends at `end` may go before its time. What waits for that has five minutes, and none
        when the disk is full."""
        if self._may_force(end) or disk.full:
            return True
        self._waited += 1
        return self._waited > ROUNDS_TO_WAIT

    def _say_when_stuck(self, disk: DiskVerdict, stuck: bool) -> None:
        """Once when it begins and once when it is over, not every round: that is every 10 s."""
        if stuck and not self._stuck:
            logger.warning("the disk is %.1f%% used, but no commit log file may go", disk.used * 100)
        elif self._stuck and not disk.over:
            logger.info("the disk is %.1f%% used, which is no longer too much", disk.used * 100)
        self._stuck = stuck


def _why(time_up: bool, disk: DiskVerdict, manual: bool) -> str:
    reasons = {
        "the hour has come": time_up,
        f"the disk is {disk.used:.1%} used": disk.over,
        "asked for": manual,
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds)


class CleanConsumeQueueService:
    """Deletes what points only before the commit log's first byte. `run_once` is one round.

    `min_offset` gives the commit log's first physical offset. Each of `delete_before` takes it and deletes
    the files of one kind (consume queues, index), returning how many.
    """

    def __init__(self, min_offset: Callable[[], int], *delete_before: Callable[[int], int]) -> None:
        self._min_offset = min_offset
        self._delete_before = delete_before
        self._last_physical_min_offset = 0

    def run_once(self) -> int:
        """Files deleted. Does nothing while the commit log begins where it began. Raises OSError."""
        min_offset = self._min_offset()
        if min_offset <= self._last_physical_min_offset:
            return 0
        deleted = sum(delete(min_offset) for delete in self._delete_before)
        # Noted after the work: what a failure left over is tried again in the next round.
        self._last_physical_min_offset = min_offset
        return deleted


class CleanService(ServiceThread):
    """The thread that runs both every cleanResourceInterval, deleting from a minute after its start on."""

    def __init__(
        self,
        config: MessageStoreConfig,
        commit_log: CleanCommitLogService,
        consume_queue: CleanConsumeQueueService,
    ) -> None:
        super().__init__()
        self._interval_s = config.clean_resource_interval / 1000
        self._first_after_s = max(FIRST_ROUND_AFTER_MS / 1000, self._interval_s)
        self._commit_log = commit_log
        self._consume_queue = consume_queue

    def start(self) -> None:
        """Looks at the disk at once, then starts the thread."""
        self._commit_log.check_disk()
        super().start()

    def run_once(self) -> None:
        """One round of both; what fails is logged and tried again in the next round."""
        for service in (self._commit_log, self._consume_queue):
            try:
                service.run_once()
            except OSError as error:
                logger.warning("%s: %s", type(service).__name__, error)

    def _run(self) -> None:
        """Between start and the first deletion the disk is watched all the same."""
        deadline = time.monotonic() + self._first_after_s
        while not self._stops_within(self._interval_s):
            if time.monotonic() >= deadline:
                self.run_once()
            else:
                self._commit_log.check_disk()
