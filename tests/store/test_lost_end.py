"""Messages that are gone from the end of the log although they had been flushed: opening, verify, repair and rebuild
say the same, nothing goes on unless that is accepted, and no queue offset is given a second time."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake.base.clock import now_ms
from mqlake.errors import StoreCorruptError
from mqlake.formats.batch import encode_messages
from mqlake.message import Message, MessageExtBatch, MessageExtBrokerInner
from mqlake.store.check.rebuild import rebuild_store
from mqlake.store.check.repair import ActionKind, plan_repair, repair_store
from mqlake.store.check.verify import store_config, verify_store
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.files.store_lock import AbortFile, LastWriter, StoreLock
from mqlake.store.log.log_end import LastExit
from mqlake.store.log.log_reader import LogReader, open_log
from mqlake.store.lost_end import LostEnd, newest_in
from mqlake.store.message_store import DefaultMessageStore, open_store
from tests.store.small_store import (
    SETTINGS,
    change,
    contents,
    fill,
    fill_batches,
    log_file,
    message,
    pretend_crash,
)
from tests.waiting import until

COUNT = 150
PLACES = [(topic, queue_id) for topic in ("Orders", "Payments") for queue_id in (0, 1)]
UNKNOWN = LastExit(clean=False)
KNOWN = [
    LastExit(clean=True),
    LastExit(clean=False, machine_stayed_up=True),
    LastExit(clean=False, queued_only_flushed=True),
]


@pytest.mark.parametrize(
    ("reached", "flushed_until", "known", "unknown"),
    [
        (100, 50, False, False),
        (101, 50, True, False),
        (100, 51, True, False),
        (101, 51, True, True),
        (100, 61, False, False),  # the clock says 60: it was set back
        (101, 61, True, False),
    ],
)
def test_what_proves_a_loss(reached: int, flushed_until: int, known: bool, unknown: bool) -> None:
    lost = LostEnd(100, 50, reached, flushed_until)
    assert [lost.is_proven(last_exit, 60) for last_exit in KNOWN] == [known] * 3
    assert lost.is_proven(UNKNOWN, 60) is unknown


def test_says_what_it_saw() -> None:
    said = str(LostEnd(100, 1_700_000_000_000, 260, 1_700_000_000_001))
    assert "the consume queues reach to offset 260" in said
    assert "messages up to 2023-11-14 22:13:20.001+00:00 had been flushed" in said
    assert "and the log has none" in str(LostEnd(0, 0, 0, 1))
    assert f"messages up to {1 << 62} ms had been" in str(LostEnd(0, 5, 0, 1 << 62))


def test_the_newest_message_of_a_log_is_searched_from_its_beginning(tmp_path: Path) -> None:
    root = fill(tmp_path / "store", count=COUNT)
    log = open_log(store_config(str(root)))
    times = [int(chunk.scan.store_timestamp.max()) for chunk in LogReader(log).scan(0)]
    assert newest_in(LogReader(log), 0) == max(times) > 1
    log.close()
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    (tmp_path / "empty" / "checkpoint").touch()
    nothing = open_log(store_config(str(tmp_path / "empty")))
    assert newest_in(LogReader(nothing), 0) == 0


def killed(root: Path, flush: str = "SYNC_FLUSH") -> None:
    """What a process leaves that was killed while the machine stayed up."""
    with StoreLock(str(root / "lock")) as lock:
        AbortFile(str(root / "abort")).create(LastWriter.now(lock, flush))


def lose_the_last_file(root: Path) -> None:
    path = log_file(root, -1)
    assert any(path.read_bytes())
    path.write_bytes(bytes(path.stat().st_size))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = fill(tmp_path / "store", count=COUNT - 1)
    filled = now_ms()
    until(lambda: now_ms() > filled)  # what is lost is newer than what is left
    fill(root, COUNT - 1, 1)
    lose_the_last_file(root)
    return root


def open_here(root: Path, **options: bool) -> DefaultMessageStore:
    return open_store(root, SETTINGS, accept_loss=options.get("accept_loss", False))


def left(root: Path) -> int:
    return verify_store(root).records


@pytest.mark.parametrize("how", ["clean", "SYNC_FLUSH", "ASYNC_FLUSH", "unknown"])
def test_opening_verify_repair_and_rebuild_agree(store: Path, how: str) -> None:
    if how == "unknown":
        pretend_crash(store)
    elif how != "clean":
        killed(store, how)
    before = contents(store)
    path = str(log_file(store, -1))
    (damage,) = [finding for finding in verify_store(store).findings if finding.kind == "lost end"]
    assert (damage.path, damage.offset) == (path, 0)
    plan = plan_repair(store)
    assert plan.lost_end is not None and plan.actions == []
    tries: list[Callable[[], object]] = [lambda: open_here(store), lambda: repair_store(store)]
    if how != "clean":  # which has a hole there, that rebuild refuses as such
        tries.append(lambda: rebuild_store(store))
    for each in tries:
        with pytest.raises(StoreCorruptError, match="messages are gone from the end of the log") as error:
            each()
        assert (error.value.path, error.value.offset) == (path, 0)
        assert "--accept-loss" in str(error.value)
    assert contents(store) == before


def test_only_one_witness_is_not_enough_against_another_writer(store: Path) -> None:
    """RocketMQ's queues may be ahead after a power cut, its checkpoint with a transient store pool."""
    other = Path(shutil.copytree(store, store.with_name("other")))
    (store / "checkpoint").unlink()
    shutil.rmtree(other / "consumequeue")
    for root in (store, other):
        pretend_crash(root)
        assert verify_store(root).lost_end is None
        with open_here(root):
            pass


def test_a_time_to_come_and_one_of_an_earlier_file_are_no_evidence(tmp_path: Path) -> None:
    """A clock that was set back must not keep a whole store from opening."""
    root = fill(tmp_path / "store", count=COUNT)
    newest = verify_store(root).last_store_timestamp
    until(lambda: now_ms() > newest + 1)
    change(log_file(root), 56, (newest + 1).to_bytes(8, "big"))  # store time of the first record
    for flushed in (newest + 1, now_ms() + 86_400_000):
        checkpoint = StoreCheckpoint(str(root / "checkpoint"))
        checkpoint.physic_msg_timestamp = flushed
        checkpoint.flush()
        checkpoint.close()
        killed(root)
        assert verify_store(root).lost_end is None
        with open_here(root):
            pass


def goes_on_above(root: Path, count: int) -> None:
    """New messages get the queue offsets after those that were lost; who reads from the last one that is left gets
    each new message once, and so does a group that had read all that was lost."""
    ends = {place: len([n for n in range(COUNT) if place_of(n) == place]) for place in PLACES}
    with open_here(root) as opened:
        for number in range(COUNT, COUNT + 8):
            result = opened.put_message(message(number)).append_result
            assert result is not None
            assert result.logics_offset == ends[place_of(number)], "a queue offset was given a second time"
            ends[place_of(number)] += 1
        assert opened.wait_until_dispatched(60)
    report = verify_store(root)
    assert report.ok, [str(finding) for finding in report.findings]
    with open_here(root) as opened:
        for topic, queue_id in PLACES:
            numbers = [
                n for n in [*range(count), *range(COUNT, COUNT + 8)] if place_of(n) == (topic, queue_id)
            ]
            for offset in (0, ends[topic, queue_id] - 2):
                assert read(opened, topic, queue_id, offset) == [
                    message(n).body for n in (numbers if offset == 0 else numbers[-2:])
                ]


def place_of(number: int) -> tuple[str, int]:
    return message(number).topic, message(number).queue_id


def read(opened: DefaultMessageStore, topic: str, queue_id: int, offset: int) -> list[bytes]:
    found: list[bytes] = []
    while offset < opened.max_offset_in_queue(topic, queue_id):
        result = opened.get_message("g", topic, queue_id, offset, 32)
        assert result.next_begin_offset > offset
        found += [each.body for each in result.messages()]
        offset = result.next_begin_offset
    return found


@pytest.mark.parametrize("afterwards", ["at once", "killed again", "queues deleted", "rebuilt"])
@pytest.mark.parametrize("how", ["opened", "repaired"])
@pytest.mark.parametrize("exit_was", ["clean", "killed"])
def test_whoever_accepts_the_loss_goes_on_above_it(
    store: Path, exit_was: str, how: str, afterwards: str, caplog: pytest.LogCaptureFixture
) -> None:
    if exit_was == "killed":
        killed(store)
    count = left(store)
    assert 0 < count < COUNT
    if how == "opened":
        with caplog.at_level(logging.WARNING), open_here(store, accept_loss=True):
            pass
        assert "messages are gone from the end of the log" in caplog.text and "accepted" in caplog.text
    else:
        report = repair_store(store, accept_loss=True)
        assert report.plan.actions[0].kind is ActionKind.ACCEPT_LOSS
        assert "Orders/0 38" in report.plan.actions[0].text
        assert report.after is not None and report.after.ok and plan_repair(store).actions == []
    if afterwards == "killed again":
        killed(store)
    elif afterwards == "queues deleted":
        shutil.rmtree(store / "consumequeue")
        (store / "queue-ends.json").unlink(missing_ok=True)
    elif afterwards == "rebuilt":
        rebuild_store(store)
    goes_on_above(store, count)
    if afterwards == "rebuilt":
        rebuild_store(store)
        assert verify_store(store).ok


def test_a_log_of_which_nothing_is_left_is_not_begun_anew(store: Path) -> None:
    """A disk that is not mounted: its queues must not be deleted."""
    for path in (store / "commitlog").iterdir():
        path.unlink()
    before = contents(store)
    with pytest.raises(StoreCorruptError, match="no log; messages are gone"):
        open_here(store)
    assert contents(store) == before
    with open_here(store, accept_loss=True):
        pass
    goes_on_above(store, 0)


def test_who_deletes_log_queues_and_index_begins_anew(store: Path) -> None:
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(store / name)
    (store / "commitlog").mkdir()
    assert verify_store(store).lost_end is None
    with open_here(store) as opened:
        assert opened.put_message(message(0)).is_ok


def test_a_topic_that_is_made_again_begins_at_0(store: Path) -> None:
    with open_here(store, accept_loss=True) as opened:
        opened.consume_queues.delete_topic("Orders")
    with open_here(store) as opened:
        result = opened.put_message(MessageExtBrokerInner("Orders", b"first")).append_result
        assert result is not None and result.logics_offset == 0
        result = opened.put_message(MessageExtBrokerInner("Payments", b"another")).append_result
        assert result is not None and result.logics_offset == len(range(1, COUNT, 4))


def test_a_damaged_end_is_kept_when_it_is_accepted(tmp_path: Path) -> None:
    root = fill(tmp_path / "store", count=COUNT)
    path = log_file(root, -1)
    junk = b"junk" * 100
    path.write_bytes(junk + bytes(path.stat().st_size - len(junk)))
    with open_here(root, accept_loss=True):
        pass
    (copy,) = [each for each in (root / "dropped").iterdir() if not each.name.endswith(".json")]
    assert copy.read_bytes() == junk


def test_messages_of_batches_are_counted_one_by_one(tmp_path: Path) -> None:
    root = fill_batches(tmp_path / "store", batches=40, size=6)
    lose_the_last_file(root)
    killed(root)
    with open_here(root, accept_loss=True) as opened:
        blob = encode_messages([Message("", b"new")])
        result = opened.put_messages(MessageExtBatch("Batches", blob, queue_id=1)).append_result
        assert result is not None and result.logics_offset == 20 * 6
