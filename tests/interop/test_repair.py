"""A repaired store is one that Java reads across: every message that was saved, none that was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.store.check.repair import repair_store
from mqlake.store.check.verify import verify_store
from tests.golden import unpack
from tests.interop.java_peer import JavaStore
from tests.store.small_store import change, flip, log_file, pretend_crash, record_at


def damaged(tmp_path: Path, how: str) -> tuple[Path, dict[str, object], list[dict[str, object]]]:
    """A store that Java wrote, with damage in the middle of its log; its config, its records before."""
    golden = unpack("clean", tmp_path)
    root = golden.root
    if how == "a body bit":
        path, position, _ = record_at(root, 30)
        flip(path, position + 100)
    elif how == "a file's first record":
        change(log_file(root, 1), 0, b"\xff" * 40)
    elif how == "a file's end":
        path, position, _ = record_at(root, 50)
        change(path, position, b"\xff" * (16384 - position))
    elif how == "a file cut short":
        with log_file(root).open("r+b") as file:
            file.truncate(9000)
    else:
        for path, position, size in [record_at(root, number) for number in (3, 4, 40)]:
            change(path, position, bytes(size))
    return root, golden.config, golden.expected["records"]


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize(
    "how", ["a body bit", "a file's first record", "a file's end", "a file cut short", "several records"]
)
def test_java_reads_across(java_store: JavaStore, tmp_path: Path, how: str, crashed: bool) -> None:
    root, config, records = damaged(tmp_path, how)
    report = repair_store(root, config)
    assert report.after is not None and report.after.ok
    if crashed:
        pretend_crash(root)
    contents = java_store.read(root, config)
    fillers = [record for record in contents.records if record["sysFlag"] == 0xC]
    saved = [record for record in contents.records if record["sysFlag"] != 0xC]
    by_offset = {record["physicalOffset"]: record for record in records}
    assert fillers and len(saved) == report.after.records - len(fillers)
    for record in saved:
        before = by_offset[record["physicalOffset"]]
        assert (record["topic"], record["queueOffset"], record["bodyCrc"]) == (
            before["topic"],
            before["queueOffset"],
            before["bodyCrc"],
        )
    found = {m["physicalOffset"] for queue in contents.queues.values() for m in queue.messages}
    assert found == {record["physicalOffset"] for record in saved}
    assert verify_store(root, config).ok
