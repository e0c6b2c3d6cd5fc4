"""repair: everything that can be saved is there afterwards, what was changed is kept, and mqlake walks across."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from mqlake.errors import NotAStoreError, StoreCorruptError, StoreLockedError, WrongFileSizeError
from mqlake.formats.record import encode_record
from mqlake.message import MessageExtBrokerInner, crc32, host_bytes
from mqlake.store.check.repair import ActionKind, RepairReport, plan_repair, repair_store
from mqlake.store.check.verify import verify_store
from mqlake.store.message_store import open_store
from mqlake.store.read_only import ReadOnlyStore
from tests.store.check.test_verify import index_file
from tests.store.small_store import (
    COUNT,
    SETTINGS,
    change,
    contents,
    fill,
    flip,
    log_file,
    message,
    pretend_crash,
    record_at,
)
from tests.waiting import PATIENCE_S


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path / "store")


def bodies(root: Path) -> set[bytes]:
    """What consumers and key lookups give, which has to be the same."""
    with ReadOnlyStore(root) as view:
        by_queue = set()
        for queue in view.consume_queues:
            offset = queue.min_offset_in_queue
            while offset < queue.max_offset_in_queue:
                result = view.get_message("test", queue.topic, queue.queue_id, offset, 32)
                by_queue.update(found.body for found in result.messages())
                offset = max(offset + 1, result.next_begin_offset)
        by_key = {
            found.body
            for number in range(COUNT + 20)
            for found in view.query_message(message(number).topic, f"key-{number}", 8).messages()
        }
    assert by_queue == by_key
    return by_queue


def expected(*lost: int) -> set[bytes]:
    return {message(number).body for number in range(COUNT) if number not in lost}


def repaired(root: Path, *, accept_loss: bool = False) -> RepairReport:
    """Repairs after a dry run that changed nothing and said the same; the store is whole then and goes on."""
    before = contents(root)
    plan = plan_repair(root, accept_loss=accept_loss)
    assert contents(root) == before
    report = repair_store(root, accept_loss=accept_loss)
    if not plan.unfinished:
        assert plan.actions == report.plan.actions
    assert report.after is not None and report.after.ok, report.after.findings
    assert report.copies is not None
    _copies_are_right(Path(report.copies), before)
    assert repair_store(root).plan.actions == []
    return report


def _copies_are_right(copies: Path, before: dict[str, bytes]) -> None:
    for entry in json.loads((copies / "repair.json").read_text()):
        if "copy" in entry:
            start = entry["offset"]
            assert (copies / entry["copy"]).read_bytes() == before[entry["file"]][
                start : start + entry["size"]
            ]


def goes_on(root: Path) -> None:
    fill(root, COUNT, 20)
    report = verify_store(root)
    assert report.ok, report.findings


# ---------------------------------------------------------------------- the log


def test_nothing_to_repair(store: Path) -> None:
    before = contents(store)
    report = repair_store(store)
    assert report.plan.actions == [] and report.copies is None and contents(store) == before


def test_one_record(store: Path) -> None:
    path, position, size = record_at(store, 30)
    flip(path, position + 100)
    report = repaired(store)
    assert [action.kind for action in report.plan.actions] == [ActionKind.FILL, ActionKind.REBUILD]
    assert (report.plan.actions[0].offset, report.plan.actions[0].size) == (position, size)
    assert report.plan.lost_count == 1 and report.plan.given_up == []
    assert bodies(store) == expected(30)
    goes_on(store)


def test_the_first_record_of_a_file(store: Path) -> None:
    change(log_file(store, 1), 0, b"\xff" * 40)
    report = repaired(store)
    assert report.plan.actions[0].offset == 0 and report.plan.lost_count == 1
    assert len(bodies(store)) == COUNT - 1
    pretend_crash(store)
    goes_on(store)


def test_several_holes_in_several_files(store: Path) -> None:
    lost = (3, 4, 5, 20, 100, 150)
    places = [record_at(store, number) for number in lost]
    for path, position, size in places:
        change(path, position, bytes(size))
    report = repaired(store)
    assert [a.kind for a in report.plan.actions].count(ActionKind.FILL) == 4
    assert bodies(store) == expected(*lost)
    goes_on(store)


def test_the_end_of_a_file(store: Path) -> None:
    path, position, _ = record_at(store, 50)
    change(path, position, b"\xff" * (16384 - position))
    report = repaired(store)
    assert report.plan.actions[0].kind is ActionKind.BLANK
    found = bodies(store)
    assert len(found) == COUNT - report.plan.lost_count and message(49).body in found
    goes_on(store)


def test_only_the_blank_at_the_end_of_a_file(store: Path) -> None:
    data = log_file(store).read_bytes()
    at = data.rindex(struct.pack(">i", -875286124)) - 4
    change(log_file(store), at, bytes(8))
    repaired(store)
    assert bodies(store) == expected()


def test_a_torn_tail(store: Path) -> None:
    end = verify_store(store).end_offset % 16384
    change(log_file(store, -1), end, b"\0\0\1\0\xda\xa3\x20\xa7torn")
    pretend_crash(store)
    report = repaired(store)
    (action,) = report.plan.actions
    assert (action.kind, action.offset, action.size) == (ActionKind.CUT, end, 12)
    assert bodies(store) == expected()
    goes_on(store)


def test_the_last_record(store: Path) -> None:
    path, position, _ = record_at(store, COUNT - 1)
    flip(path, position + 100)
    report = repaired(store, accept_loss=True)
    assert [a.kind for a in report.plan.actions][:2] == [ActionKind.ACCEPT_LOSS, ActionKind.CUT]
    assert report.plan.lost_count == 1 and bodies(store) == expected(COUNT - 1)
    goes_on(store)


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (1, 2, 0)])
@pytest.mark.parametrize("interrupted", [False, True])
def test_files_under_each_others_names(store: Path, order: tuple[int, ...], interrupted: bool) -> None:
    before = contents(store)
    paths = [log_file(store, number) for number in range(3)]
    for path in paths:
        path.rename(path.with_suffix(".aside"))
    for path, number in zip(paths, order, strict=True):
        path.with_suffix(".aside").rename(paths[number])
    moved = [(paths[to], path) for path, to in zip(paths, order, strict=True) if path != paths[to]]
    damaged = [f.path for f in verify_store(store).findings if f.kind == "file name"]
    assert sorted(damaged) == sorted(str(path) for path, _ in moved)
    if interrupted:  # after the first of the two steps
        for path, right in moved:
            path.rename(f"{right}.renamed")
    report = repair_store(store)
    assert [a.kind for a in report.plan.actions] == [ActionKind.RENAME] * len(moved)
    assert report.after is not None and report.after.ok
    after = contents(store)
    assert {name: after[name] for name in before} == before
    copies = json.loads((Path(report.copies or "") / "repair.json").read_text())
    assert {entry["renamedTo"] for entry in copies} == {f"commitlog/{right.name}" for _, right in moved}
    goes_on(store)


def test_a_file_that_was_copied_over_another_keeps_its_name(store: Path) -> None:
    shutil.copy(log_file(store, 0), log_file(store, 1))
    report = repair_store(store)
    assert ActionKind.RENAME not in [a.kind for a in report.plan.actions]
    assert report.after is not None and report.after.ok


def test_a_missing_file(store: Path) -> None:
    log_file(store, 1).unlink()
    report = repaired(store)
    assert report.plan.actions[0].kind is ActionKind.MAKE_FILE
    found = bodies(store)
    assert 100 < len(found) < COUNT and found < expected()
    pretend_crash(store)
    goes_on(store)


@pytest.mark.parametrize("number", [0, 1])
def test_a_file_that_was_cut_short(store: Path, number: int) -> None:
    with log_file(store, number).open("r+b") as file:
        file.truncate(5000)
    report = repaired(store)
    assert report.plan.actions[0].kind is ActionKind.EXTEND_FILE
    found = bodies(store)
    assert 100 < len(found) < COUNT and found < expected()
    goes_on(store)


def test_the_offset_of_a_queues_last_message_is_not_given_again(tmp_path: Path) -> None:
    """The next message got the offset of the lost one, and groups that had read that one skipped it."""
    root = tmp_path / "store"
    with open_store(root, SETTINGS) as opened:
        for number in range(3):
            opened.put_message(MessageExtBrokerInner("Ended", b"%d" % number))
        last = opened.put_message(MessageExtBrokerInner("Ended", b"the last")).append_result
        for number in range(3):
            opened.put_message(MessageExtBrokerInner("Other", b"%d" % number))
    change(log_file(root, 0), last.wrote_offset + 8, bytes(20))
    report = repaired(root)
    assert [lost.queue_offset for lost in report.plan.lost] == [3]
    with open_store(root, SETTINGS) as opened:
        after = opened.put_message(MessageExtBrokerInner("Ended", b"after")).append_result
        assert after.logics_offset == 4
        assert opened.wait_until_dispatched(PATIENCE_S)
        found = opened.get_message("test", "Ended", 0, 4, 32)  # where a group goes on that has read all
        assert [message.body for message in found.messages()] == [b"after"]
    assert verify_store(root).ok


def test_a_hole_too_small_for_a_filler_takes_the_next_record(tmp_path: Path) -> None:
    """No writer leaves such a hole, but a log may hold one: 40 bytes of garbage between two records."""
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    log, host = bytearray(), host_bytes(("127.0.0.1", 1))
    for number in range(4):
        if number == 2:
            log += b"\xff" * 40
        body = b"body %d" % number
        log += encode_record(
            body, crc32(body), 0, 0, number, len(log), 0, 1, host, 1_700_000_000_000, host, 0, 0, b"T", b""
        )
    (root / "commitlog" / f"{0:020}").write_bytes(bytes(log).ljust(16384, b"\0"))
    report = repaired(root)
    assert report.plan.actions[0].kind is ActionKind.FILL
    assert [lost.queue_offset for lost in report.plan.given_up] == [2]
    with ReadOnlyStore(root) as view:
        found = [
            m.body for offset in range(4) for m in view.get_message("test", "T", 0, offset, 1).messages()
        ]
        assert found == [b"body 0", b"body 1", b"body 3"]


# ---------------------------------------------------------------------- what is derived


def test_wrong_units_and_entries(store: Path) -> None:
    flip(store / "consumequeue/Orders/1/00000000000000000000", 115)
    flip(index_file(store), 40 + 80 + 20 * 5)
    log = contents(store / "commitlog")
    report = repaired(store)
    assert [a.kind for a in report.plan.actions] == [ActionKind.REBUILD]
    assert contents(store / "commitlog") == log and bodies(store) == expected()
    assert (Path(report.copies or "") / "consumequeue").is_dir()


def test_a_checkpoint_ahead(store: Path) -> None:
    latest = verify_store(store).last_store_timestamp
    change(store / "checkpoint", 0, struct.pack(">q", latest + 3_600_000))
    report = repaired(store)
    assert [a.kind for a in report.plan.actions] == [ActionKind.CHECKPOINT]
    assert struct.unpack(">q", (store / "checkpoint").read_bytes()[:8]) == (latest,)


# ---------------------------------------------------------------------- refused


def test_beside_a_writer(store: Path) -> None:
    with open_store(store, SETTINGS):
        for mend in (plan_repair, repair_store):
            with pytest.raises(StoreLockedError):
                mend(store)


def test_no_store(tmp_path: Path) -> None:
    for mend in (plan_repair, repair_store):
        with pytest.raises(NotAStoreError):
            mend(tmp_path)
    assert contents(tmp_path) == {}


def test_a_file_that_is_too_long(store: Path) -> None:
    with log_file(store, 1).open("ab") as file:
        file.write(b"more")
    before = contents(store)
    with pytest.raises(WrongFileSizeError):
        repair_store(store)
    assert contents(store) == before


def test_a_file_name_that_fits_no_file(store: Path) -> None:
    shutil.copy(log_file(store), store / "commitlog" / f"{16384 * 9 + 1:020}")
    with pytest.raises(StoreCorruptError, match="name"):
        repair_store(store)
