"""A crash of a store with a past: both recover from the middle of the log, and come to the same."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from mqlake.store.message_store import open_store as open_mqlake
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.recovery import RecoveryReport
from tests.clock import Clock
from tests.interop.agreement import (
    index_files,
    log_files,
    questions,
    queue_files,
    same_answers,
    same_contents,
)
from tests.interop.java_peer import JavaStore, Json, put
from tests.interop.mixes import SMALL
from tests.interop.mqlake_peer import Writer, contents, open_store
from tests.interop.mqlake_peer import put as mqlake_put

HOUR_MS = 3_600_000
# One index file, which is not full when the crash comes.
CONFIG = {**SMALL, "maxHashSlotNum": 250, "maxIndexNum": 1000}


def messages(first: int, last: int) -> list[Json]:
    return [
        put("T", seed=n, size=100 + n % 700, queue_id=n % 3, tags=f"t{n}", keys=f"k{n} all", bornTimestamp=n)
        for n in range(first, last)
    ]


def write_the_past(root: Path) -> None:
    """300 messages of an hour ago, a second apart."""
    clock = Clock(time.time_ns() // 1_000_000 - HOUR_MS)
    with open_store(root, CONFIG, clock_ms=clock) as store:
        for op in messages(0, 300):
            clock.now += 1000
            mqlake_put(store, [op])


def crash(java: JavaStore, root: Path, writer: str, ops: list[Json]) -> None:
    if writer == "java":
        java.write(root, CONFIG, ops, halt=True)
    else:
        with Writer() as process:
            process.open(root, CONFIG)
            process.put(root, ops)


@pytest.mark.parametrize("writer", ["mqlake", "java"])
def test_recovery_from_the_middle(java_store: JavaStore, tmp_path: Path, writer: str) -> None:
    root, copy = tmp_path / "store", tmp_path / "copy"
    write_the_past(root)
    crash(java_store, root, writer, messages(300, 360))
    shutil.copytree(root, copy)
    log, queues, index = log_files(root), queue_files(root), index_files(root)

    reports: list[RecoveryReport] = []
    with open_mqlake(root, CONFIG, on_recovered=reports.append) as store:
        asked = questions(contents(store))
        (report,) = reports
        assert (report.clean_exit, report.torn_bytes) == (False, 0)
        assert 0 < report.scanned_from < report.end_offset
    assert (log_files(root), queue_files(root), index_files(root)) == (log, queues, index)

    theirs = java_store.read(copy, CONFIG, asked)
    assert not theirs.info["lastExitOk"]
    assert (log_files(copy), queue_files(copy)) == (log, queues)
    answers = list(zip(asked, theirs.answers, strict=True))
    with ReadOnlyStore(root, CONFIG) as view:
        same_contents(view, theirs)
        same_answers(view, theirs, answers, full_index=False)
    # Java has lost the index file, and of the past its keys: mqlake has made them again.
    assert any(query["kind"] == "key" and not answer["physicalOffsets"] for query, answer in answers)
