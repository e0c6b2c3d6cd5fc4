"""What the kernel refuses is never acknowledged: errors put into the system calls of a real writer by strace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mqlake.store.message_store import open_store
from tests.parts import needed
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.crash

SMALL: dict[str, object] = {
    "mappedFileSizeCommitLog": 8192,
    "mappedFileSizeConsumeQueue": 20 * 100,
    "maxHashSlotNum": 20,
    "maxIndexNum": 80,
    "maxMessageSize": 4096,
}
COUNT = 60
FIRST_FILE = "commitlog/00000000000000000000"
SECOND_FILE = "commitlog/00000000000000008192"

Answers = list[tuple[int, str, str]]


def puts_under(root: Path, inject: str, path: str, settings: dict[str, object]) -> tuple[Answers, list[str]]:
    """The child's answers while `inject` works on system calls that concern `path` (under the store's root)."""
    needed("strace")
    (root / "commitlog").mkdir(parents=True)
    call = inject.split(":")[0]
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(root / path), "-e", f"trace={call}"]
    command += ["-e", f"inject={inject}", sys.executable, "-m", "tests.crash.io_errors_child"]
    command += [str(root), str(COUNT), json.dumps({**SMALL, **settings})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    *answers, reasons = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == COUNT
    return [(number, status, reason) for number, status, reason in answers], reasons


def kept(root: Path, settings: dict[str, object]) -> set[int]:
    """The numbers that are in the store when it is opened without faults."""
    with open_store(root, {**SMALL, **settings}) as store:
        found: set[int] = set()
        at = 0
        while (result := store.get_message("g", "T", 0, at, 32)).buffers:
            found.update(int(m.body.split(b":")[0]) for m in result.messages())
            at = result.next_begin_offset
        return found


def acknowledged(answers: Answers) -> set[int]:
    return {number for number, status, _ in answers if status == "PUT_OK"}


@pytest.mark.parametrize(
    "settings",
    [
        {"flushDiskType": "SYNC_FLUSH"},
        {"flushDiskType": "SYNC_FLUSH", "writeWithoutMmap": True},
        {"flushDiskType": "SYNC_FLUSH", "transientStorePoolEnable": True},
    ],
    ids=["mmap", "without mmap", "pool"],
)
@pytest.mark.parametrize("when", ["4+", "4"], ids=["for good", "once, and never again"])
def test_a_flush_that_fails_acknowledges_nothing_and_fences(
    tmp_path: Path, settings: dict[str, object], when: str
) -> None:
    """fdatasync: EIO. The second variant is the false success: the kernel reports the lost pages only once."""
    root = tmp_path / "store"
    answers, reasons = puts_under(root, f"fdatasync:error=EIO:when={when}", FIRST_FILE, settings)
    statuses = [status for _, status, _ in answers]
    failed = statuses.index("FLUSH_DISK_TIMEOUT")
    assert failed > 0
    assert statuses[:failed] == ["PUT_OK"] * failed
    assert "Input/output error" in answers[failed][2]
    assert set(statuses[failed + 1 :]) == {"SERVICE_NOT_AVAILABLE"}
    assert all(
        "fenced" in reason and "Input/output error" in reason for _, _, reason in answers[failed + 1 :]
    )
    assert any("fenced" in reason for reason in reasons)
    assert (root / "abort").exists(), "a fenced store must be recovered at the next start"
    assert acknowledged(answers) <= kept(root, settings)


def test_a_failed_write_through_the_descriptor_fences(tmp_path: Path) -> None:
    """pwrite64: EIO, as from a device that has gone."""
    root = tmp_path / "store"
    settings: dict[str, object] = {"writeWithoutMmap": True}
    answers, reasons = puts_under(root, "pwrite64:error=EIO:when=9+", FIRST_FILE, settings)
    statuses = [status for _, status, _ in answers]
    failed = statuses.index("UNKNOWN_ERROR")
    assert statuses[:failed] == ["PUT_OK"] * failed
    assert failed > 0
    assert set(statuses[failed + 1 :]) == {"SERVICE_NOT_AVAILABLE"}
    assert "Input/output error" in reasons[0]
    assert acknowledged(answers) <= kept(root, settings)


def test_a_device_that_went_read_only_is_an_answer_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    root = tmp_path / "store"
    settings: dict[str, object] = {"writeWithoutMmap": True}
    answers, reasons = puts_under(root, "pwrite64:error=EROFS:when=9+", FIRST_FILE, settings)
    assert {status for _, status, _ in answers} == {"PUT_OK", "UNKNOWN_ERROR", "SERVICE_NOT_AVAILABLE"}
    assert "Read-only file system" in reasons[0]
    assert acknowledged(answers) <= kept(root, settings)


def test_no_space_for_the_next_file_refuses_what_does_not_fit_and_nothing_is_lost(tmp_path: Path) -> None:
    """fallocate: ENOSPC, for as long as the disk is full."""
    root = tmp_path / "store"
    answers, reasons = puts_under(root, "fallocate:error=ENOSPC", SECOND_FILE, {})
    refused = [(number, reason) for number, status, reason in answers if status != "PUT_OK"]
    assert refused
    assert {status for _, status, _ in answers} == {"PUT_OK", "CREATE_MAPPED_FILE_FAILED"}
    assert all("No space left on device" in reason for _, reason in refused)
    assert reasons == []
    assert kept(root, {}) == acknowledged(answers)


def test_messages_go_on_when_space_has_returned(tmp_path: Path) -> None:
    """Only the first tries to make the second file fail."""
    root = tmp_path / "store"
    answers, _ = puts_under(root, "fallocate:error=ENOSPC:when=1..2", SECOND_FILE, {})
    assert answers[-1][1] == "PUT_OK"
    assert kept(root, {}) == acknowledged(answers)


def test_a_background_flush_that_fails_fences_too(tmp_path: Path) -> None:
    """ASYNC_FLUSH: nobody waits for the flush, so its failure shows at the next put, or at the shutdown."""
    root = tmp_path / "store"
    settings: dict[str, object] = {"flushIntervalCommitLog": 1, "flushCommitLogLeastPages": 0}
    answers, _ = puts_under(root, "fdatasync:error=EIO", FIRST_FILE, settings)
    assert (root / "abort").exists()
    assert {status for _, status, _ in answers} <= {"PUT_OK", "SERVICE_NOT_AVAILABLE"}
    assert acknowledged(answers) <= kept(root, settings), "the process ended well: the page cache has it"
