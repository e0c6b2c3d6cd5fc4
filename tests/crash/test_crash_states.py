"""Every directory that a crash can leave of a small workload is opened: what was acknowledged is there, nothing is
invented, log, queues and index agree, and a recovery that crashes itself loses nothing that it has shown."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mqlake.base.clock import now_ms
from mqlake.store.config import MessageStoreConfig
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.read_only import ReadOnlyStore
from tests.crash.op_log import Crash, Mark, Name, Op, OpLog, Tree, Write, continued, crashes
from tests.crash.workload import BATCH, SMALL, Put, check_store, is_in_batch
from tests.interop.agreement import same_contents
from tests.interop.java_peer import JavaStore
from tests.waiting import PATIENCE_S

# background work is a step of the workload
QUIET = {
    **SMALL,
    "flushIntervalCommitLog": 600_000,
    "flushCommitLogThoroughInterval": 600_000,
    "commitIntervalCommitLog": 600_000,
    "flushIntervalConsumeQueue": 600_000,
}
MODES: dict[str, dict[str, object]] = {
    "sync": {"flushDiskType": "SYNC_FLUSH"},
    "async": {"flushDiskType": "ASYNC_FLUSH"},
}


@pytest.fixture
def tmp_path(memory: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sync is worth is decided here, whatever the disk below does."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


class Workload:
    """A store with the messages up to `number`, and what is done to it next."""

    def __init__(self, store: DefaultMessageStore, log: OpLog, number: int) -> None:
        self.store = store
        self.log = log
        self.number = number
        self.sync = store.config.is_sync_flush

    def put(self, count: int = 1) -> None:
        """Puts that are under way together."""
        waiting = []
        for _ in range(count):
            size = BATCH - self.number % BATCH if is_in_batch(self.number) else 1
            put = Put(0, self.number, size)
            self.number = put.end
            self.log.mark("begun", put.end)
            msg = put.message()
            waiting.append(
                self.store.async_put_messages(msg) if size > 1 else self.store.async_put_message(msg)
            )  # type: ignore[arg-type]
        assert all(future.result().is_ok for future in waiting)
        if self.sync:
            self.log.mark("acknowledged", self.number)
        assert self.store.wait_until_dispatched(PATIENCE_S)

    def two(self) -> None:
        self.put(2)

    def flush(self) -> None:
        self.store.flush()
        self.log.mark("acknowledged", self.number)
        assert self.store.wait_until_dispatched(PATIENCE_S)

    def checkpoint(self) -> None:
        """The queues to the disk, and then the checkpoint."""
        self.store._housekeeping._flush(thorough=True)


def filled(root: Path, number: int, *, age_ms: int = 0, before: int = 0) -> None:
    """A store with so many messages, that ended cleanly; with `age_ms` they are that old, and a second apart. Another
    writer put `before` messages before them, into queues of its own."""
    seconds = itertools.count(now_ms() - age_ms, 1000)
    store = DefaultMessageStore(config_of(root), clock_ms=seconds.__next__ if age_ms else now_ms)
    store.load()
    store.start()
    try:
        for writer, end in ((1, before), (0, number)):
            at = 0
            while at < end:
                size = BATCH - at % BATCH if is_in_batch(at) else 1
                msg = Put(writer, at, size).message()
                assert (store.put_messages(msg) if size > 1 else store.put_message(msg)).is_ok  # type: ignore[arg-type]
                at += size
        assert store.wait_until_dispatched(PATIENCE_S)
    finally:
        store.shutdown()


def recorded(root: Path, mode: str, start: int, steps: Sequence[str], *, page: int = 4096) -> OpLog:
    """What the steps do to a store that has `start` messages; `end` among them ends it cleanly."""
    filled(root, start)
    with OpLog(root, page=page) as log:
        store = open_store(root, {**QUIET, **MODES[mode]})
        try:
            workload = Workload(store, log, start)
            for step in steps:
                getattr(workload, step)()
        finally:
            store.shutdown()
            log.mark("acknowledged", workload.number)
    return log


def config_of(root: Path) -> MessageStoreConfig:
    return dataclasses.replace(MessageStoreConfig.from_mapping(QUIET), store_path_root_dir=str(root))


def opened(root: Path) -> tuple[DefaultMessageStore, int]:
    """The store as a recovery leaves it, with how many messages are in it; all of it was checked."""
    store = DefaultMessageStore(config_of(root))
    try:
        store.load()
        return store, check_store(store).get(0, 0)
    except BaseException:
        store.shutdown()
        raise


class Judge:
    """Opens what a crash may leave, every different directory once."""

    def __init__(self, directory: Path, *, limit: int = 1000, seed: object = 0) -> None:
        self.directory = directory
        self.limit = limit
        self.dice = random.Random(str(seed))
        self.choices = 0
        self.found: dict[bytes, int] = {}
        self.trees: list[Tree] = []

    def judge(self, crash: Crash, start: int) -> None:
        owed = max([start, *crash.marked("acknowledged"), *crash.marked("shown")])
        begun = max([start, *crash.marked("begun")])
        self.choices += min(crash.count, self.limit)
        for tree in crash.states(self.limit, self.dice):
            digest = tree.digest
            if digest not in self.found:
                self.found[digest] = self._open(tree)
                self.trees.append(tree)
            found = self.found[digest]
            assert owed <= found <= begun, f"{found} messages of {begun}, {owed} were acknowledged or shown"

    def _open(self, tree: Tree) -> int:
        root = self.directory / f"state-{len(self.found)}"
        tree.write(root)
        store, found = opened(root)
        store.shutdown()
        shutil.rmtree(root)
        return found


def every_state(directory: Path, log: OpLog, start: int, **options: Any) -> Judge:
    judge = Judge(directory, **options)
    for crash in crashes(Crash(log.start), log.ops):
        judge.judge(crash, start)
    return judge


# the next messages are: the very first | plain ones | a transaction's half | a batch | one that opens a new file
STARTS = [0, 5, 7, 11, 28]
STEPS = ["put", "two", "flush", "checkpoint"]
SOME: list[tuple[str, int, Sequence[str]]] = [
    ("sync", 0, ["put"]),
    ("sync", 5, ["put", "two", "checkpoint"]),
    ("sync", 7, ["put", "put"]),
    ("sync", 11, ["two"]),
    ("sync", 28, ["put", "put"]),
    ("async", 5, ["two", "flush", "put"]),
    ("async", 11, ["put", "put", "checkpoint"]),
    ("async", 28, ["put", "checkpoint", "put"]),
]


@pytest.mark.parametrize(
    ("mode", "start", "steps"),
    SOME,
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_every_state_of_a_small_workload(tmp_path: Path, mode: str, start: int, steps: Sequence[str]) -> None:
    log = recorded(tmp_path / "store", mode, start, steps)
    judge = every_state(tmp_path, log, start)
    assert len(judge.found) > 10


def is_like_none_before(mode: str, steps: Sequence[str]) -> bool:
    """Not when a step does nothing, so that fewer steps leave the same: a flush or checkpoint right after the same, and
    under SYNC_FLUSH any flush."""
    twice = any(
        first == second and first in ("flush", "checkpoint") for first, second in itertools.pairwise(steps)
    )
    return not twice and not (mode == "sync" and "flush" in steps)


@pytest.mark.parametrize("mode", MODES)
def test_steps_that_do_nothing_write_nothing(tmp_path: Path, mode: str) -> None:
    """is_like_none_before() leaves nothing out."""
    again = ["flush", "checkpoint"] if mode == "async" else ["flush", "checkpoint", "flush"]
    first = ["put", "flush", "checkpoint"] if mode == "async" else ["put", "checkpoint"]
    filled(tmp_path, 5)
    with OpLog(tmp_path) as log:
        store = open_store(tmp_path, {**QUIET, **MODES[mode]})
        try:
            workload = Workload(store, log, 5)
            for step in first:
                getattr(workload, step)()
            log.mark("again")
            for step in again:
                getattr(workload, step)()
            log.mark("done")
        finally:
            store.shutdown()
    marks = [
        number for number, op in enumerate(log.ops) if isinstance(op, Mark) and op.what in ("again", "done")
    ]
    between = log.ops[marks[0] : marks[1]]
    assert not [op for op in between if isinstance(op, Write | Name)]


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<steps> asks for it")
def test_every_state_of_every_small_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workloads = [
        (mode, start, steps)
        for mode in MODES
        for start in STARTS
        for length in range(1, int(os.environ["MQLAKE_CAMPAIGN"]) + 1)
        for steps in itertools.product(STEPS, repeat=length)
        if is_like_none_before(mode, steps)
    ]
    part, parts = map(int, os.environ.get("MQLAKE_CAMPAIGN_PART", "0/1").split("/"))
    workloads = workloads[part::parts]
    states = choices = 0
    for number, (mode, start, steps) in enumerate(workloads):
        directory = tmp_path / str(number)
        judge = every_state(
            directory, recorded(directory / "store", mode, start, steps), start, limit=1 << 20
        )
        states, choices = states + len(judge.found), choices + judge.choices
        shutil.rmtree(directory)
        with capsys.disabled():
            print(
                f"\r{number + 1} of {len(workloads)} workloads, {choices} choices, {states} states   ",
                end="",
                flush=True,
            )


@pytest.mark.parametrize("mode", MODES)
def test_states_of_a_larger_workload(tmp_path: Path, mode: str) -> None:
    """Sectors instead of pages, and some of the many states of each moment."""
    dice = random.Random(mode)
    steps = [dice.choice(["put", *STEPS]) for _ in range(12)]
    log = recorded(tmp_path / "store", mode, 20, steps, page=512)
    judge = every_state(tmp_path, log, 20, limit=6, seed=mode)
    assert len(judge.found) > 50


def recovered_and_recorded(root: Path, before: Tree, *, killed: bool) -> tuple[list[Op], int]:
    """What a recovery of the directory does, as if on `before`'s files, and how many messages it shows."""
    before.write(root)
    if killed:
        as_if_the_machine_stayed_up(root)
    with OpLog(root) as log:
        store, found = opened(root)
        log.mark("shown", found)
        store.shutdown()
    shutil.rmtree(root)
    return continued(before, log), found


def as_if_the_machine_stayed_up(root: Path) -> None:
    """The abort file names the lock file by its number, which a copy does not have."""
    lock, abort = root / "lock", root / "abort"
    if abort.exists() and lock.exists():
        status = lock.stat()
        lines = [line for line in abort.read_text().splitlines() if not line.startswith("lockFile=")]
        abort.write_text("\n".join([*lines, f"lockFile={status.st_dev}:{status.st_ino}"]))


@pytest.mark.parametrize(
    ("mode", "start", "steps"),
    SOME[1::2],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_a_recovery_that_crashes_itself(tmp_path: Path, mode: str, start: int, steps: Sequence[str]) -> None:
    """The power goes, and again while the store recovers, or right after."""
    log = recorded(tmp_path / "store", mode, start, steps)
    dice = random.Random(f"{mode}{start}")
    moments = list(map(Crash.copy, crashes(Crash(log.start), log.ops)))
    for number, crash in enumerate(dice.sample(moments, min(5, len(moments)))):
        tree = next(crash.states(1, dice))
        ops, _ = recovered_and_recorded(tmp_path / f"again-{number}", tree, killed=False)
        judge = Judge(tmp_path / str(number), limit=40, seed=number)
        begin = Crash(tree)
        begin.marks = list(crash.marks)
        for again in crashes(begin, ops):
            judge.judge(again, start)


@pytest.mark.parametrize(
    ("mode", "start", "steps"),
    SOME[::2],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_a_power_cut_after_the_recovery_from_a_kill(
    tmp_path: Path, mode: str, start: int, steps: Sequence[str]
) -> None:
    """What the recovery found in the page cache alone it has shown: from then on it is owed."""
    log = recorded(tmp_path / "store", mode, start, steps)
    for number, crash in enumerate(map(Crash.copy, crashes(Crash(log.start), log.ops))):
        ops, _ = recovered_and_recorded(tmp_path / f"killed-{number}", crash.everything(), killed=True)
        judge = Judge(tmp_path / str(number), limit=12, seed=number)
        for again in crashes(crash, ops):
            judge.judge(again, start)


@pytest.mark.parametrize("lost", ["all", "one", "a file", "a file of an idle queue"])
def test_a_power_cut_while_queues_are_made_again(
    tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages older than all that the checkpoint counts as flushed, in queues that are just made: a later recovery
    does not look at them again, so what shows them has to bring them to the disk, and what a crash leaves of them
    has to look as if it lacked something."""
    count = 122  # the last file of the log has the last message alone, of the first queue
    root = tmp_path / "store"
    if lost == "a file of an idle queue":  # none of its messages are near the log's end
        monkeypatch.setitem(QUIET, "mappedFileSizeConsumeQueue", 100)
        filled(root, count, age_ms=3_600_000, before=60)
        sorted((root / "consumequeue" / "T1" / "1").iterdir())[1].unlink()
    else:
        filled(root, count, age_ms=3_600_000)
    queues = sorted((root / "consumequeue" / "T0").iterdir())
    if lost == "all":
        shutil.rmtree(root / "consumequeue")
    elif lost == "one":
        shutil.rmtree(queues[1])
    elif lost == "a file":
        sorted(queues[1].iterdir())[1].unlink()
    # as of a store that has never ended cleanly
    (root / "abort").touch()
    Path(config_of(root).queue_ends_path).unlink()
    with OpLog(root) as log:
        store, found = opened(root)
        log.mark("shown", found)
        store.shutdown()
    assert found == count
    for names_by_directory in (False, True):
        judge = Judge(tmp_path, limit=6, seed=lost)
        for crash in crashes(Crash(log.start, names_by_directory=names_by_directory), log.ops):
            if not names_by_directory or crash.marked("shown"):
                judge.judge(crash, count)
        assert judge.found


def test_java_reads_the_same(java_store: JavaStore, tmp_path: Path) -> None:
    """Of some states: what mqlake's recovery leaves, and what it has found there."""
    dice = random.Random(5)
    for mode, start, steps in (SOME[3], SOME[7]):
        log = recorded(tmp_path / mode, mode, start, steps)
        moments = list(map(Crash.copy, crashes(Crash(log.start), log.ops)))
        for number, crash in enumerate(dice.sample(moments, 3)):
            root = tmp_path / f"{mode}-{number}"
            next(crash.states(1, dice)).write(root)
            open_store(root, QUIET).shutdown()
            theirs = java_store.read(root, SMALL)
            with ReadOnlyStore(root, QUIET) as view:
                same_contents(view, theirs)
