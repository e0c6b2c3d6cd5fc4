"""Saves what a damaged store still holds. Only ever asked for; nothing repairs by itself.

    what is wrong in the log                          what is done
    ───────────────────────────────────────────────────────────────────────────────────────────────────────────
    damage, records follow in the same file           a filler in its place (see filler.py): all others stay
    damage up to the end of a file, others follow     a filler and a blank: the rest of the file is unused
    a torn tail, stale bytes, damage at the end       zeros: the log ends before it
    a file is missing between two others              a file with a filler and a blank
    a field that no CRC covers and others contradict  set to what they agree upon (see cross_check.py)
    a file is too short                               made as long as the others; then as above
    files under each other's names                    each gets the name that its records say

    consume queues, index                             made again from what the log holds then (see rebuild.py)
    a checkpoint ahead of the log                     set to the log's last message
    a queue's last messages are among the damage      its next one gets the offset after theirs (see lost_ends.py)
    flushed messages are gone from the log's end      only with accept_loss: queue offsets go on above what the queues
                                                      knew (see lost_ends.py)

Of every byte that is changed a copy goes to `repair-<time>/` first, with `repair.json` to say where it was. A
filler needs 92 bytes; where there is less room the next record is given up too, and named.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence

from mqlake.base.clock import now_ms
from mqlake.base.durable import fsync_dir
from mqlake.base.findings import Severity
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import StoreCorruptError, StoreLockedError, WrongFileSizeError
from mqlake.formats.checkpoint import CHECKPOINT_FILE_SIZE, Checkpoint
from mqlake.formats.names import file_name_to_offset, offset_to_file_name
from mqlake.formats.record import (
    END_FILE_MIN_BLANK_LENGTH,
    RECORD_SIZE_MIN,
    decode_record,
    store_timestamp,
)
from mqlake.store.check.cross_check import WrongField
from mqlake.store.check.rebuild import RebuildReport, rebuild_locked
from mqlake.store.check.verify import FoundLoss, VerifyReport, store_config, verify_store
from mqlake.store.check.verify_queues import LostMessage
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.store_directory import refuse_light_queues
from mqlake.store.files.store_lock import StoreLock, lock_holder
from mqlake.store.heads import delete_heads_of
from mqlake.store.kept_copies import REPAIR_LIST, REPAIR_PREFIX
from mqlake.store.log.filler import FILLER_SIZE, FILLER_SIZE_MIN, fence_off
from mqlake.store.log.log_reader import Hole, HoleKind, open_log, refuse_foreign
from mqlake.store.log.misnamed import MAGICS, RENAMED, misnamed_files
from mqlake.store.queues.lost_ends import LostEnds, QueueEnd

COPY_CHUNK = 1 << 20
NAMED = 10
"""Queues that an action names."""
DERIVED_KINDS = frozenset(
    {
        "consume queue",
        "index file",
        "queue unit",
        "missing units",
        "dangling units",
        "index entry",
        "index time",
        "index missing",
        "index header",
        "index chain",
    }
)

Stage = Callable[[str], Progress]
"""Told what begins; gives what is told how far it is."""


class ActionKind(enum.Enum):
    FILL = "fill"
    BLANK = "blank"
    CUT = "cut"
    SET_FIELD = "set field"
    MAKE_FILE = "make file"
    EXTEND_FILE = "extend file"
    RENAME = "rename"
    CHECKPOINT = "checkpoint"
    ACCEPT_LOSS = "accept loss"
    REBUILD = "rebuild"


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """Something to be done to `size` bytes at `offset` of the file `path`; `text` says what and why."""

    kind: ActionKind
    path: str
    offset: int
    size: int
    text: str
    value: int = 0
    """The store time (ms) that is written, of a filler or into the checkpoint."""
    data: bytes = b""
    """The bytes to write into a field."""
    queue_ends: Sequence[QueueEnd] = ()
    """Below which no queue offsets are given again."""
    target: str = ""
    """The new path of a file that is renamed."""


@dataclasses.dataclass(slots=True)
class RepairPlan:
    path: str
    actions: list[Action] = dataclasses.field(default_factory=list)
    lost_count: int = 0
    """Messages that are gone already, as far as the consume queues know of them."""
    lost: list[LostMessage] = dataclasses.field(default_factory=list)
    """The first thousand of them."""
    given_up: list[LostMessage] = dataclasses.field(default_factory=list)
    """Whole messages that a repair overwrites, because a filler needs their room."""
    lost_end: FoundLoss | None = None
    """Flushed messages are gone from the end of the log, which nobody has accepted yet: nothing is done."""
    unfinished: bool = False
    """Files have to be put right first; what else is to be done shows only then."""


@dataclasses.dataclass(slots=True)
class RepairReport:
    """`copies` is the directory with what was there before, None when nothing had to be done."""

    plan: RepairPlan
    copies: str | None = None
    rebuild: RebuildReport | None = None
    after: VerifyReport | None = None
    seconds: float = 0.0


def _no_stage(_what: str) -> Progress:
    return no_progress


def plan_repair(
    path: str | os.PathLike[str],
    settings: Mapping[str, object] | None = None,
    *,
    accept_loss: bool = False,
    stage: Stage = _no_stage,
) -> RepairPlan:
    """Plans repair_store(). Changes nothing.

    Raises NotAStoreError, ForeignFormatError, StoreLockedError, ConfigError, UnknownKeyError, OSError,
    WrongFileSizeError and StoreCorruptError for what no repair can put right.
    """
    config = store_config(os.fspath(path), settings)
    holder = lock_holder(config.lock_path)
    if holder is not None:
        raise StoreLockedError(f"{config.store_path_root_dir} is in use by process {holder or '?'}")
    return _plan(config, settings, stage, accept_loss=accept_loss)


def repair_store(
    path: str | os.PathLike[str],
    settings: Mapping[str, object] | None = None,
    *,
    accept_loss: bool = False,
    stage: Stage = _no_stage,
) -> RepairReport:
    """Repairs the store in directory `path`, which nobody may be writing, and verifies it again. `accept_loss`: also
    when flushed messages are gone from the end of the log; their queue offsets are not given again.

    Raises what plan_repair() raises, and StoreCorruptError for such a loss that is not accepted. An OSError on the way
    leaves copies of everything changed so far; a repair that was interrupted is done by another one.
    """
    began = time.monotonic()
    config = store_config(os.fspath(path), settings)
    with StoreLock(config.lock_path, abort_path=config.abort_path):
        plan = _plan(config, settings, stage, accept_loss=accept_loss, holds_lock=True)
        report = RepairReport(plan)
        if plan.actions:
            copies = _Copies(config.store_path_root_dir)
            report.copies = copies.directory
            done: list[Action] = []
            while plan.unfinished:
                _apply(config, plan.actions, copies)
                done += plan.actions
                plan = _plan(config, settings, stage, accept_loss=accept_loss, holds_lock=True)
            _refuse_loss(plan)
            _apply(config, [a for a in plan.actions if a.kind is not ActionKind.REBUILD], copies)
            plan.actions = done + plan.actions
            report.plan = plan
            if any(action.kind is ActionKind.REBUILD for action in plan.actions):
                progress = stage("rebuilding consume queues and index")
                report.rebuild = rebuild_locked(config, repaired_to=copies.directory, progress=progress)
        _refuse_loss(plan)
    if report.copies is not None:
        report.after = verify_store(
            config.store_path_root_dir, settings, progress=stage("verifying what came of it")
        )
    report.seconds = time.monotonic() - began
    return report


# ---------------------------------------------------------------------- the plan


def _refuse_loss(plan: RepairPlan) -> None:
    if plan.lost_end is not None:
        raise plan.lost_end.error


def _plan(
    config: MessageStoreConfig,
    settings: Mapping[str, object] | None,
    stage: Stage,
    *,
    accept_loss: bool,
    holds_lock: bool = False,
) -> RepairPlan:
    plan = RepairPlan(config.store_path_root_dir)
    plan.actions = _file_actions(config)
    if plan.actions:
        plan.unfinished = True
        return plan
    log = open_log(config)
    try:
        refuse_foreign(log)
    finally:
        log.close()
    root = config.store_path_root_dir
    report = verify_store(root, settings, holds_lock=holds_lock, progress=stage("verifying"))
    plan.lost, plan.lost_count = report.lost, report.lost_count
    lost_end = report.lost_end
    if lost_end is not None and not accept_loss:
        plan.lost_end = lost_end
        return plan
    if lost_end is not None:
        plan.actions.append(_accept_loss(config, lost_end.text, lost_end.queue_ends))
    covered_to = 0
    for hole in report.holes:
        if hole.end > covered_to:
            action, covered_to = _hole_action(config, hole, report, plan)
            plan.actions.append(action)
    if report.lost_queue_ends:
        text = "the last messages of queues are gone"
        plan.actions.append(_accept_loss(config, text, report.lost_queue_ends))
    plan.actions += map(_set_field, report.wrong_fields)
    damaged = {finding.kind for finding in report.of(Severity.DAMAGE)}
    if "checkpoint" in damaged:
        text = f"set its times to {report.last_store_timestamp} at most, when the last message was stored"
        path = config.checkpoint_path
        size = os.path.getsize(path)
        latest = report.last_store_timestamp
        plan.actions.append(Action(ActionKind.CHECKPOINT, path, 0, size, text, latest))
    lost_records = any(hole.kind is HoleKind.CORRUPT for hole in report.holes)
    if lost_records or damaged & DERIVED_KINDS or lost_end is not None:
        refuse_light_queues(config.store_path_root_dir)  # the log alone does not make them again
        text = "make consume queues and index anew from the log"
        plan.actions.append(Action(ActionKind.REBUILD, config.store_path_root_dir, 0, 0, text))
    return plan


def _set_field(wrong: WrongField) -> Action:
    position, size = wrong.position + wrong.offset, len(wrong.right)
    return Action(ActionKind.SET_FIELD, wrong.path, position, size, wrong.text, data=wrong.right)


def _accept_loss(config: MessageStoreConfig, what: str, queue_ends: Sequence[QueueEnd]) -> Action:
    path = LostEnds.path_of(config)
    size = os.path.getsize(path) if os.path.exists(path) else 0
    ends = ", ".join(f"{topic}/{queue_id} {end}" for topic, queue_id, end in sorted(queue_ends)[:NAMED])
    more = f" and {len(queue_ends) - NAMED} more" if len(queue_ends) > NAMED else ""
    text = f"{what}; queue offsets go on where the queues ended: {ends or 'none had them'}{more}"
    return Action(ActionKind.ACCEPT_LOSS, path, 0, size, text, queue_ends=queue_ends)


def _file_actions(config: MessageStoreConfig) -> list[Action]:
    """The steps before the log can be read at all: files that are missing or too short."""
    directory, file_size = config.commit_log_dir, config.mapped_file_size_commit_log
    names = [name for name in os.listdir(directory) if file_name_to_offset(name) is not None]
    offsets = sorted(int(name) for name in names)
    actions = [
        Action(
            ActionKind.RENAME,
            path,
            0,
            os.path.getsize(path),
            f"its records are those of {os.path.basename(right)}",
            target=right,
        )
        for path, right in sorted(misnamed_files(directory, file_size).items())
    ]
    if actions:
        return actions  # which files are missing shows when each has its name
    for number, offset in enumerate(offsets):
        timestamp = _first_timestamp_from(config, offset)
        path = os.path.join(directory, offset_to_file_name(offset))
        size = os.path.getsize(path)
        if size > file_size:
            raise WrongFileSizeError(path, size, file_size, key="mappedFileSizeCommitLog")
        expected = offsets[number - 1] + file_size if number else offset
        if offset < expected or (offset - expected) % file_size:
            raise StoreCorruptError(
                path, 0, f"its name does not fit the others and files of {file_size} bytes"
            )
        for missing in range(expected, offset, file_size):
            actions.append(
                Action(
                    ActionKind.MAKE_FILE,
                    os.path.join(directory, offset_to_file_name(missing)),
                    0,
                    file_size,
                    "the file is missing; one without messages takes its place",
                    timestamp,
                )
            )
        if size < file_size and (size or number < len(offsets) - 1):
            text = f"the file has only {size} bytes; zeros make up the {file_size - size} that are missing"
            actions.append(Action(ActionKind.EXTEND_FILE, path, size, file_size - size, text))
    return actions


def _hole_action(
    config: MessageStoreConfig, hole: Hole, report: VerifyReport, plan: RepairPlan
) -> tuple[Action, int]:
    """The action for a hole, and the physical offset to which that reaches."""
    if hole.start >= report.end_offset:
        text = f"cut off {hole.size} bytes ({hole.kind.value}: {hole.reason}); the log ends at {hole.start}"
        return Action(ActionKind.CUT, hole.path, hole.position, hole.size, text), hole.end
    base, end = hole.start - hole.position, hole.end
    with open(hole.path, "rb") as file:
        timestamp = _store_timestamp(file.fileno(), end - base)
        while end - hole.start < FILLER_SIZE_MIN:
            size = _give_up(file.fileno(), end - base, plan)
            if size == 0:
                break
            end += size
    if hole.records_follow and end - hole.start >= FILLER_SIZE_MIN:
        text = f"{end - hole.start} bytes become a filler ({hole.reason}); the records around it stay"
        return Action(ActionKind.FILL, hole.path, hole.position, end - hole.start, text, timestamp), end
    rest = base + config.mapped_file_size_commit_log - hole.start
    text = (
        f"the last {rest} bytes of the file become unused ({hole.reason}); the log goes on in the next file"
    )
    size = min(rest, FILLER_SIZE + END_FILE_MIN_BLANK_LENGTH)
    timestamp = _first_timestamp_from(config, hole.start + rest)
    return Action(ActionKind.BLANK, hole.path, hole.position, size, text, timestamp), hole.start + rest


def _give_up(fd: int, position: int, plan: RepairPlan) -> int:
    """Notes that the record at `position` is given up; its size, 0 when there is none (but a blank)."""
    size = int.from_bytes(os.pread(fd, 4, position), "big")
    record = os.pread(fd, size, position)
    if size < RECORD_SIZE_MIN or len(record) < size:
        return 0
    message = decode_record(record, check_crc=False, read_body=False)
    plan.given_up.append(
        LostMessage(message.topic, message.queue_id, message.queue_offset, message.physical_offset, size)
    )
    return size


# ---------------------------------------------------------------------- doing it


class _Copies:
    """The directory that keeps what is changed."""

    def __init__(self, root: str) -> None:
        self.root = root
        name = REPAIR_PREFIX + time.strftime("%Y%m%dT%H%M%S")
        self.directory = os.path.join(root, name)
        number = 1
        while os.path.exists(self.directory):
            number += 1
            self.directory = os.path.join(root, f"{name}-{number}")
        os.makedirs(self.directory)
        fsync_dir(root)
        self._kept: list[dict[str, object]] = []

    def keep(self, actions: list[Action]) -> None:
        """Copies the bytes that `actions` change, durably."""
        for action in actions:
            entry: dict[str, object] = {
                "action": action.kind.value,
                "file": os.path.relpath(action.path, self.root),
                "offset": action.offset,
                "size": action.size,
                "text": action.text,
            }
            if action.kind is ActionKind.RENAME:
                entry["renamedTo"] = os.path.relpath(action.target, self.root)
            elif os.path.isfile(action.path) and action.kind is not ActionKind.EXTEND_FILE:
                entry["copy"] = self._copy(action)
            self._kept.append(entry)
        with open(os.path.join(self.directory, REPAIR_LIST), "w", encoding="utf-8") as file:
            json.dump(self._kept, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        for path, _, _ in os.walk(self.directory):
            fsync_dir(path)

    def _copy(self, action: Action) -> str:
        relative = f"{os.path.relpath(action.path, self.root)}.{action.offset}"
        if relative.startswith(".."):  # a commit log outside the store's root
            relative = f"commitlog/{os.path.basename(action.path)}.{action.offset}"
        target = os.path.join(self.directory, relative)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(action.path, "rb") as source, open(target, "wb") as copy:
            source.seek(action.offset)
            left = action.size
            while left and (data := source.read(min(left, COPY_CHUNK))):
                copy.write(data)
                left -= len(data)
            copy.flush()
            os.fsync(copy.fileno())
        return relative


def _apply(config: MessageStoreConfig, actions: list[Action], copies: _Copies) -> None:
    copies.keep(actions)
    changed = [path for action in actions for path in (action.path, action.target) if path]
    delete_heads_of(config.store_path_root_dir, changed)
    _rename(config, [action for action in actions if action.kind is ActionKind.RENAME])
    for action in actions:
        if action.kind is ActionKind.ACCEPT_LOSS:
            ends = LostEnds(config)
            ends.load()
            ends.add(action.queue_ends)
        elif action.kind is not ActionKind.RENAME:
            _change(config.mapped_file_size_commit_log, action)


def _rename(config: MessageStoreConfig, actions: list[Action]) -> None:
    """In two steps, as the files may take each other's names; after the first one their names say what is left."""
    for action in actions:
        if action.path != action.target + RENAMED:
            os.rename(action.path, action.target + RENAMED)
    fsync_dir(config.commit_log_dir)
    for action in actions:
        os.rename(action.target + RENAMED, action.target)
    fsync_dir(config.commit_log_dir)


def _change(file_size: int, action: Action) -> None:
    fd = os.open(action.path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if action.kind in (ActionKind.MAKE_FILE, ActionKind.EXTEND_FILE):
            os.ftruncate(fd, file_size)
        if action.kind in (ActionKind.MAKE_FILE, ActionKind.BLANK, ActionKind.FILL):
            base = file_name_to_offset(os.path.basename(action.path)) or 0
            at = action.offset
            end = at + action.size if action.kind is ActionKind.FILL else file_size
            for piece in fence_off(at, end, base, file_size, action.value):
                os.pwrite(fd, piece, at)
                at += len(piece)
        elif action.kind is ActionKind.CUT:
            for at in range(action.offset, action.offset + action.size, COPY_CHUNK):
                os.pwrite(fd, bytes(min(COPY_CHUNK, action.offset + action.size - at)), at)
        elif action.kind is ActionKind.SET_FIELD:
            os.pwrite(fd, action.data, action.offset)
        elif action.kind is ActionKind.CHECKPOINT:
            _set_checkpoint(fd, action)
        os.fsync(fd)
    finally:
        os.close(fd)
    fsync_dir(os.path.dirname(action.path))


def _first_timestamp_from(config: MessageStoreConfig, offset: int) -> int:
    """Store time (ms) of the first record in the first file that begins at or after `offset` with a record."""
    directory = config.commit_log_dir
    for name in sorted(name for name in os.listdir(directory) if file_name_to_offset(name) is not None):
        if int(name) >= offset:
            with open(os.path.join(directory, name), "rb") as file:
                magic = file.read(8)[4:]
                if magic in MAGICS and (timestamp := _store_timestamp(file.fileno(), 0)) > 0:
                    return timestamp
    return now_ms()


def _store_timestamp(fd: int, position: int) -> int:
    """Store time (ms) of the record at `position`; 0 when none can be there."""
    head = os.pread(fd, 76, position)
    return store_timestamp(head) if len(head) == 76 else 0


def _set_checkpoint(fd: int, action: Action) -> None:
    found = StoreCheckpoint(action.path, read_only=True)
    latest = action.value
    fixed = Checkpoint(
        min(max(0, found.physic_msg_timestamp), latest),
        min(max(0, found.logics_msg_timestamp), latest),
        min(max(0, found.index_msg_timestamp), latest),
        found.master_flushed_offset,
        found.confirm_phy_offset,
    )
    os.ftruncate(fd, CHECKPOINT_FILE_SIZE)
    os.pwrite(fd, fixed.encode(), 0)
