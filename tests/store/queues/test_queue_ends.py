"""Queues that end where they cannot have ended: the log makes their units again, and no queue offset is used twice."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from mqlake.base.findings import Severity
from mqlake.errors import StoreCorruptError
from mqlake.formats.record import decode_record
from mqlake.store.check.rebuild import rebuild_store
from mqlake.store.check.verify import verify_store
from mqlake.store.config import MessageStoreConfig
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.read_only import ReadOnlyStore
from tests.golden import unpack
from tests.store.check.test_cross_check import reachable
from tests.store.small_store import SETTINGS, fill, flip, log_file, message, pretend_crash

COUNT = 100
Place = tuple[str, int, int]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path / "store", count=COUNT)


def given_twice(root: Path) -> list[Place]:
    """Queue offsets that more than one record of the log has."""
    found: Counter[Place] = Counter()
    with ReadOnlyStore(root) as view:
        for chunk in view.scan():
            for at in chunk.scan.position.tolist():
                record = decode_record(chunk.mapped_file.view, at)
                found[record.topic, record.queue_id, record.queue_offset] += 1
    return [place for place, count in found.items() if count > 1]


def is_whole(root: Path, before: dict[Place, bytes], settings: dict[str, object] | None = None) -> None:
    assert not given_twice(root)
    after = reachable(root)
    assert {place: after.get(place) for place in before} == before
    report = verify_store(root, settings)
    assert report.ok, report.findings


@pytest.mark.parametrize("gone", ["Orders/1", "Orders"])
@pytest.mark.parametrize("crash", [False, True])
def test_files_that_are_gone(store: Path, gone: str, crash: bool) -> None:
    before = reachable(store)
    shutil.rmtree(store / "consumequeue" / gone)
    if crash:
        pretend_crash(store)
    fill(store, COUNT, 4)
    is_whole(store, before)


def test_the_last_file_is_gone(store: Path) -> None:
    before = reachable(store)
    sorted((store / "consumequeue/Orders/1").iterdir())[-1].unlink()
    fill(store, COUNT, 4)
    is_whole(store, before)


def test_a_store_of_java(tmp_path: Path) -> None:
    golden = unpack("clean", tmp_path)
    before = reachable(golden.root)
    open_store(golden.root, golden.config).shutdown()
    shutil.rmtree(golden.root / "consumequeue" / next(iter(before))[0])
    open_store(golden.root, golden.config).shutdown()
    assert reachable(golden.root) == before


def test_a_deleted_topic_does_not_come_back(store: Path) -> None:
    with open_store(store, SETTINGS) as opened:
        opened.consume_queues.delete_topic("Orders")
    with open_store(store, SETTINGS) as opened:
        assert opened.consume_queues.topics() == ["Payments"]


def test_nor_one_that_another_broker_deleted(store: Path) -> None:
    """It takes the queues' directories, and the topic out of topics.json."""
    (store / "config").mkdir(exist_ok=True)
    (store / "config/topics.json").write_text(json.dumps({"topicConfigTable": {"Payments": {}}}))
    shutil.rmtree(store / "consumequeue/Orders")
    shutil.rmtree(store / "consumequeue/Payments/1")
    found = {
        (finding.path.rpartition("consumequeue/")[2], finding.severity)
        for finding in verify_store(store).findings
        if finding.kind == "missing units"
    }
    assert found == {
        ("Orders/0", Severity.NOTE),
        ("Orders/1", Severity.NOTE),
        ("Payments/1", Severity.DAMAGE),
    }
    with open_store(store, SETTINGS) as opened:
        assert opened.consume_queues.topics() == ["Payments"]
        assert opened.max_offset_in_queue("Payments", 1) == COUNT // 4
    assert rebuild_store(store).deleted_topics == ["Orders"]
    with ReadOnlyStore(store) as view:
        assert view.consume_queues.topics() == ["Payments"]


# bytes of a unit, and a bit of each: offset, size
BITS = [(7, 0), (6, 2), (5, 3), (0, 7), (11, 0), (10, 1), (8, 6), (8, 7)]


@pytest.mark.parametrize(("byte", "bit"), BITS)
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_a_damaged_last_unit(tmp_path: Path, byte: int, bit: int, crash: bool, old: bool) -> None:
    """Of a queue that the last messages went to, or whose last message lies in an older file of the log."""
    root = fill(tmp_path / "store", count=30)
    if old:
        with open_store(root, SETTINGS) as store:
            assert all(store.put_message(message(4 * number)).is_ok for number in range(60))  # Orders/0
    before = reachable(root)
    queue_file = sorted((root / "consumequeue/Orders/1").iterdir())[-1]
    last = (len(queue_file.read_bytes().rstrip(b"\0")) - 1) // 20
    flip(queue_file, last * 20 + byte, bit)
    if crash:
        pretend_crash(root)
    with open_store(root, SETTINGS) as store:
        assert all(store.put_message(message(2)).is_ok for _ in range(2))  # Orders/1
    if old and not crash:  # nobody looks there, and nothing comes of it but that verify finds it
        assert not given_twice(root)
    else:
        is_whole(root, before)


@pytest.mark.parametrize(("byte", "bit"), [*BITS, (35, 0), (35, 5), (37, 0), (36, 7)])
@pytest.mark.parametrize("crash", [False, True])
def test_a_damaged_last_unit_of_inner_batches(tmp_path: Path, byte: int, bit: int, crash: bool) -> None:
    golden = unpack("innerbatch", tmp_path)
    before = reachable(golden.root)
    queue_file = sorted((golden.root / "batchconsumequeue/Inner/0").iterdir())[-1]
    last = (len(queue_file.read_bytes().rstrip(b"\0")) - 1) // 46
    flip(queue_file, last * 46 + byte, bit)
    if crash:
        pretend_crash(golden.root)
    config = MessageStoreConfig.from_mapping({**golden.config, "storePathRootDir": str(golden.root)})
    store = DefaultMessageStore(config, is_batch_topic=lambda topic: topic == "Inner")
    store.load()
    store.start()
    store.shutdown()
    assert reachable(golden.root) == before
    report = verify_store(golden.root, golden.config)
    assert report.ok, report.findings


def test_what_is_made_again_is_said_when_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A start that is refused makes nothing again, and does not say so."""
    root = fill(tmp_path / "store", count=30)
    queue_file = sorted((root / "consumequeue/Orders/1").iterdir())[-1]
    last = (len(queue_file.read_bytes().rstrip(b"\0")) - 1) // 20
    flip(queue_file, last * 20 + 6, 2)
    damaged = Path(shutil.copytree(root, tmp_path / "damaged"))
    flip(log_file(damaged), 5)  # the first record's magic, after a clean exit
    with pytest.raises(StoreCorruptError), open_store(damaged, SETTINGS):
        pass
    assert "it is rebuilt" not in caplog.text
    with open_store(root, SETTINGS):
        assert caplog.text.count(f"the unit at {last} cannot be right: it is rebuilt") == 1
