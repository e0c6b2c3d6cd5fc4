"""System calls fail at other places than the plain append (strace injects the errors): for messages that are on their
way together, at the roll, in the queues and the index, at the start. The status says what happened; when the fault has
gone the store goes on, or after a restart everything that was acknowledged is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mqlake.store.files.store_lock import AbortFile, LastWriter
from mqlake.store.message_store import DefaultMessageStore
from tests.crash.workload import SMALL, check_store, reopen_and_check
from tests.waiting import PATIENCE_S

SYNC = {"flushDiskType": "SYNC_FLUSH"}
POOL = {"transientStorePoolEnable": True, "transientStorePoolSize": 3}
FIRST_LOG_FILE = "commitlog/00000000000000000000"
SECOND_LOG_FILE = "commitlog/00000000000000008192"
QUEUES = [f"consumequeue/T0/{queue_id}/00000000000000000000" for queue_id in range(3)]
FOREVER = 1_000_000


class Victim:
    """Runs tests.crash.victim with an error injected into one kind of system call on some files (none: any)."""

    def __init__(self, root: Path, settings: dict[str, object]) -> None:
        self.root = root
        self.settings = {**SMALL, **settings}

    def run(self, call: str, error: str, when: str, files: list[str], *steps: tuple[str, Any]) -> list[Any]:
        """What each step gave; `when` counts the calls of each thread."""
        command = ["strace", "-f", "-qq", "-o", "/dev/null", "--seccomp-bpf", "-e", f"trace={call}"]
        command += ["-e", f"inject={call}:error={error}:when={when}"]
        for file in files:
            command += ["-P", str(self.root / file)]
        job = json.dumps({"root": str(self.root), "settings": self.settings, "steps": steps})
        done = subprocess.run(
            [*command, sys.executable, "-m", "tests.crash.victim", job],
            text=True,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        _, *found = [json.loads(line) for line in done.stdout.splitlines()]
        return found

    def mended(self) -> DefaultMessageStore:
        """The store opened without faults and checked; its messages are counted in `stored`."""
        store, numbers, self.report = reopen_and_check(self.root, self.settings)
        self.stored = numbers.get(0, 0)
        return store

    @property
    def has_abort_file(self) -> bool:
        return (self.root / "abort").exists()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def assert_fenced(later: list[list[str]], reason: str) -> None:
    for status, why in later:
        assert status == "SERVICE_NOT_AVAILABLE"
        assert "fenced" in why
        assert reason in why


class TestFlush:
    def test_messages_on_their_way_share_the_failure(self, root: Path) -> None:
        victim = Victim(root, SYNC)
        first, together, batch = victim.run(
            "fdatasync", "EIO", "2", [FIRST_LOG_FILE], ("put", 1), ("put_together", 6), ("put_batch", 4)
        )
        assert first == [["PUT_OK", ""]]
        assert {status for status, _ in together} <= {"FLUSH_DISK_TIMEOUT", "SERVICE_NOT_AVAILABLE"}
        assert_fenced([batch], "flushing the commit log failed")
        with victim.mended():
            assert victim.stored >= 1

    def test_one_caller_is_told_and_none_succeeds_after_it(self, root: Path) -> None:
        """The kernel tells one caller about lost pages; the next must not take its silence for success."""
        victim = Victim(root, {})
        put, flushed, again, later, _ = victim.run(
            "fdatasync",
            "EIO",
            "1",
            [FIRST_LOG_FILE],
            ("put", 1),
            ("flush", None),
            ("flush", None),
            ("put", 1),
            ("shutdown", None),
        )
        assert put == [["PUT_OK", ""]]
        assert "Input/output error" in flushed
        assert "an earlier write to the disk failed" in again
        assert_fenced(later, "flushing the commit log failed")
        assert victim.has_abort_file
        # the kernel may have dropped pages: that the machine stays up proves nothing
        assert AbortFile(str(root / "abort")).last_writer() == LastWriter()

    def test_a_commit_from_the_pool(self, root: Path) -> None:
        victim = Victim(root, {**SYNC, **POOL})
        before, after, _ = victim.run(
            "pwrite64",
            "EIO",
            "7",
            [FIRST_LOG_FILE],
            ("put_until_refused", FOREVER),
            ("put", 3),
            ("shutdown", None),
        )
        assert [status for status, _ in before[:-1]] == ["PUT_OK"] * 2
        assert before[-1][0] == "FLUSH_DISK_TIMEOUT"
        assert "Input/output error" in before[-1][1]
        assert_fenced(after, "failed")
        with victim.mended():
            assert victim.stored >= 2


class TestRoll:
    @pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EIO"])
    @pytest.mark.parametrize("settings", [SYNC, {}], ids=["sync", "async"])
    def test_no_space(self, root: Path, settings: dict[str, object], error: str) -> None:
        """The put that needs the next file is refused, a smaller one may still fit, and when there is space again
        the log goes on: no signal, no fence, no loss, a clean shutdown."""
        victim = Victim(root, settings)
        # asked for ahead of need, and each time it is needed
        until, small, taken, dispatched, _ = victim.run(
            "fallocate",
            error,
            "1..4",
            [SECOND_LOG_FILE],
            ("put_until_refused", FOREVER),
            ("put_large", 1),
            ("put_until_taken", 50),
            ("dispatched", PATIENCE_S),
            ("shutdown", None),
        )
        status, reason = until[-1]
        assert status == "CREATE_MAPPED_FILE_FAILED"
        assert {"ENOSPC": "No space left", "EDQUOT": "quota", "EIO": "Input/output"}[error] in reason
        assert small[0] in ("PUT_OK", "CREATE_MAPPED_FILE_FAILED")
        assert taken[-1] == ["PUT_OK", ""]
        assert dispatched
        assert not victim.has_abort_file

    def test_a_device_gone_read_only(self, root: Path) -> None:
        victim = Victim(root, SYNC)
        until, again, _ = victim.run(
            "openat",
            "EROFS",
            "1+",
            [SECOND_LOG_FILE],
            ("put_until_refused", FOREVER),
            ("put", 2),
            ("shutdown", None),
        )
        assert until[-1][0] == "CREATE_MAPPED_FILE_FAILED"
        assert "Read-only file system" in until[-1][1]
        assert {status for status, _ in again} <= {"CREATE_MAPPED_FILE_FAILED", "PUT_OK"}
        with victim.mended():
            assert victim.stored >= len(until) - 1


class TestDerived:
    def test_a_queue_that_cannot_be_written_is_tried_again(self, root: Path) -> None:
        """The log has it all: the store takes no more until the queues have caught up, and then it does."""
        victim = Victim(root, {})
        until, reasons, taken, dispatched, _ = victim.run(
            "pwrite64",
            "ENOSPC",
            "1..3",
            QUEUES,
            ("put_until_refused", FOREVER),
            ("reasons", None),
            ("put_until_taken", 1000),
            ("dispatched", PATIENCE_S),
            ("shutdown", None),
        )
        assert until[-1][0] == "SERVICE_NOT_AVAILABLE"
        assert "writing a consume queue failed: [Errno 28] No space left" in until[-1][1]
        assert len(reasons) <= 1
        assert taken[-1] == ["PUT_OK", ""]
        assert dispatched
        assert not victim.has_abort_file
        with victim.mended() as store:
            assert check_store(store)[0] == len(until)

    def test_an_index_without_room_is_tried_again(self, root: Path) -> None:
        victim = Victim(root, {})
        # of the thread that dispatches, all allocations are the index's
        until, taken, dispatched, _ = victim.run(
            "fallocate",
            "ENOSPC",
            "2..4",
            [],
            ("put_until_refused", FOREVER),
            ("put_until_taken", 1000),
            ("dispatched", PATIENCE_S),
            ("shutdown", None),
        )
        assert until[-1][0] in ("SERVICE_NOT_AVAILABLE", "CREATE_MAPPED_FILE_FAILED")
        assert "No space left" in until[-1][1]
        assert taken[-1] == ["PUT_OK", ""]
        assert dispatched
        with victim.mended():
            assert victim.report.clean_exit

    def test_a_failed_flush_of_queues_is_not_believed_later(self, root: Path) -> None:
        victim = Victim(root, {"flushConsumeQueueLeastPages": 0})
        fenced, later, _ = victim.run(
            "fdatasync", "EIO", "1", QUEUES, ("wait_for_fence", FOREVER), ("put", 1), ("shutdown", None)
        )
        assert fenced
        assert_fenced(later, "flushing the consume queues failed")
        assert victim.has_abort_file
        with victim.mended():
            assert not victim.report.clean_exit


@pytest.mark.parametrize(("error", "file"), [("EACCES", "abort.tmp"), ("ENOSPC", "checkpoint.tmp")])
def test_a_store_that_cannot_start_gives_the_lock_back(root: Path, error: str, file: str) -> None:
    victim = Victim(root, SYNC)
    # opening fails, so the first step opens again
    again, put, _ = victim.run("openat", error, "1", [file], ("open", None), ("put", 1), ("shutdown", None))
    assert again == "open"
    assert put == [["PUT_OK", ""]]
