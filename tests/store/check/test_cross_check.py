"""A field of a record is flipped, or what leads to it: repair finds out who is right, and nothing healthy is lost.

The oracle knows the store as it was: each message at its queue offset, with the bytes it had.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqlake.base.findings import Severity
from mqlake.errors import StoreCorruptError
from mqlake.formats.batch_consume_queue import BCQ_STORE_UNIT_SIZE
from mqlake.message import MessageExtBrokerInner
from mqlake.store.check.rebuild import rebuild_store
from mqlake.store.check.repair import ActionKind, repair_store
from mqlake.store.check.verify import verify_store
from mqlake.store.message_store import open_store
from mqlake.store.read_only import ReadOnlyStore
from tests.golden import unpack
from tests.store.small_store import change, contents, flip, records

SETTINGS = {
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 20,
    "maxIndexNum": 80,
}
TOPICS = ("Orders", "Refund", "Orderz")
COUNT = 60
Place = tuple[str, int, int]


def make(root: Path) -> Path:
    """Topics one letter apart, queues of different lengths, tags that repeat and one that does not."""
    with open_store(root, SETTINGS) as store:
        for number in range(COUNT):
            tag = "Once" if number == 30 else ("Blue", "Yellow")[number % 2]
            sent = MessageExtBrokerInner(
                TOPICS[number % 3],
                b"message %03d" % number,
                tag,
                [f"key-{number}"],
                properties={"UNIQ_KEY": f"U{number:03}"},
            )
            sent.queue_id = 1 + number % 7 // 3
            assert store.put_message(sent).is_ok
    return root


def reachable(root: Path) -> dict[Place, bytes]:
    """Every record that consumers get, by topic, queue and queue offset."""
    found = {}
    with ReadOnlyStore(root) as view:
        for queue in view.consume_queues:
            offset, end = queue.min_offset_in_queue, queue.max_offset_in_queue
            while offset < end:
                result = view.get_message("g", queue.topic, queue.queue_id, offset, 32)
                for at, record in zip(result.queue_offsets, result.records(), strict=True):
                    found[queue.topic, queue.queue_id, at] = bytes(record)
                offset = max(offset + 1, result.next_begin_offset)
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("witnesses") / "store")


@pytest.fixture
def store(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "store"))


@pytest.fixture(scope="module")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores that Java wrote."""
    return {case: unpack(case, tmp_path_factory.mktemp(case)).root for case in ("clean", "innerbatch")}


# offset in the record, bits of it that are flipped one at a time
FIELDS = {"QUEUEID": (12, 32), "QUEUEOFFSET": (20, 64)}


@pytest.mark.parametrize("number", [0, 17, COUNT - 1])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("bit", [0, 1, 2, 16, -1])
def test_a_place_that_the_queue_knows_better(store: Path, number: int, field: str, bit: int) -> None:
    before = contents(store)
    path, position, _ = records(store)[number]
    at, width = FIELDS[field]
    bit %= width  # -1: the sign
    flip(path, position + at + (width - 1 - bit) // 8, bit % 8)
    report = verify_store(store)
    (wrong,) = report.wrong_fields
    assert (wrong.path, wrong.position, wrong.field) == (str(path), position, field)
    assert "unit" in wrong.text and [f.kind for f in report.of(Severity.DAMAGE)] == ["record"]
    repaired = repair_store(store)
    assert [action.kind for action in repaired.plan.actions] == [ActionKind.SET_FIELD]
    assert repaired.after is not None and repaired.after.ok
    after = contents(store)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("number", [0, 17, 31, COUNT - 1])
@pytest.mark.parametrize(("letter", "change_of"), [(0, 2), (5, 9), (3, 0x80)])
def test_a_letter_of_the_topic(store: Path, number: int, letter: int, change_of: int) -> None:
    """Also where it makes the name of another topic that is there, or no text."""
    place = reachable(store)
    path, position, size = records(store)[number]
    topic = TOPICS[number % 3].encode()
    at = path.read_bytes()[position : position + size].index(topic, 84)
    change(path, position + at + letter, lambda old: bytes([old[0] ^ change_of]))
    (wrong,) = verify_store(store).wrong_fields
    assert (wrong.position, wrong.offset) == (position, at)
    assert (wrong.field, wrong.right) == ("TOPIC", topic)
    assert any("index" in each for each in wrong.witnesses)
    repaired = repair_store(store)
    assert repaired.plan.actions[0].kind is ActionKind.SET_FIELD
    assert repaired.after is not None and repaired.after.ok
    assert reachable(store) == place


def test_a_message_that_says_it_is_prepared(store: Path) -> None:
    place = reachable(store)
    path, position, _ = records(store)[20]
    flip(path, position + 39, 2)
    (wrong,) = verify_store(store).wrong_fields
    assert wrong.field == "SYSFLAG"
    repair_store(store)
    assert reachable(store) == place


def test_a_tag_that_no_other_message_has(store: Path) -> None:
    place = reachable(store)
    path, position, size = records(store)[10]
    at = path.read_bytes()[position : position + size].index(b"TAGS\x01") + 5
    flip(path, position + at, 1)  # Blue -> @lue
    (wrong,) = verify_store(store).wrong_fields
    assert wrong.field == "properties"
    repair_store(store)
    assert reachable(store) == place


def test_a_store_time_out_of_the_order_of_the_log(store: Path) -> None:
    before = contents(store / "commitlog")
    path, position, _ = records(store)[17]
    flip(path, position + 56 + 2, 3)
    (wrong,) = verify_store(store).wrong_fields
    assert wrong.field == "STORETIMESTAMP"
    repair_store(store)
    assert contents(store / "commitlog") == before


def test_a_unit_that_the_record_knows_better(store: Path) -> None:
    """Neither its place, nor its size, nor its tags code make the record wrong."""
    place, log = reachable(store), contents(store / "commitlog")
    for at in (7, 11, 19):
        flip(store / "consumequeue/Orders/1" / f"{0:020}", 40 + at, 1)
    assert verify_store(store).wrong_fields == []
    repair_store(store)
    assert reachable(store) == place and contents(store / "commitlog") == log


def test_rebuild_does_not_overwrite_what_knows_better(store: Path) -> None:
    path, position, _ = records(store)[17]
    flip(path, position + 15, 1)
    before = contents(store)
    with pytest.raises(StoreCorruptError, match="repair"):
        rebuild_store(store)
    assert contents(store) == before
    rebuild_store(store, trust_log=True)
    assert verify_store(store).wrong_fields == []


def files_of(root: Path) -> Iterator[Path]:
    for kind in ("commitlog", "consumequeue", "batchconsumequeue", "index"):
        yield from sorted(path for path in (root / kind).rglob("*") if path.is_file())


def test_the_size_of_the_last_batch_is_not_believed_of_its_unit_alone(
    goldens: dict[str, Path], tmp_path: Path
):
    """No unit joins on to it, so a flip in the unit must not change the record."""
    root = tmp_path / "store"
    shutil.copytree(goldens["innerbatch"], root)
    before = reachable(root)
    queue = max(
        path for path in (root / "batchconsumequeue" / "Inner" / "0").iterdir() if any(path.read_bytes())
    )
    data = queue.read_bytes()
    last = max(
        at for at in range(0, len(data), BCQ_STORE_UNIT_SIZE) if any(data[at : at + BCQ_STORE_UNIT_SIZE])
    )
    flip(queue, last + 37, 0)
    repair_store(root)
    assert reachable(root) == before


@pytest.mark.parametrize("written_by", ["mqlake", "clean", "innerbatch"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_bit_anywhere(
    sound: Path,
    goldens: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    written_by: str,
    data: st.DataObject,
) -> None:
    original = goldens.get(written_by, sound)
    root = tmp_path_factory.mktemp("flip") / "store"
    shutil.copytree(original, root)
    try:
        place, all_records = reachable(root), records(root)
        path = data.draw(st.sampled_from(list(files_of(root))))
        used = [n for n, byte in enumerate(path.read_bytes()) if byte]
        at, bit = data.draw(st.sampled_from(used)), data.draw(st.integers(0, 7))
        flip(path, at, bit)
        # all of the record, in whose bytes a flip is: it may be lost, or not as it was
        hit = next(
            (n for n, (p, start, size) in enumerate(all_records) if p == path and start <= at < start + size),
            None,
        )
        try:
            report = repair_store(root)
        except StoreCorruptError as error:  # the log's last record: its loss has to be accepted
            assert "gone from the end of the log" in str(error) and hit == len(all_records) - 1
            report = repair_store(root, accept_loss=True)
        if report.after is not None:
            assert report.after.ok, report.after.findings
        found = reachable(root)
        lost = b"" if hit is None else offset_of(all_records[hit])
        damaged = {where for where, record in place.items() if record[28:36] == lost}
        for where, record in place.items():
            if where not in damaged:
                assert found.get(where) == record, (path, at, bit, where)
    finally:
        shutil.rmtree(root.parent)


def offset_of(record: tuple[Path, int, int]) -> bytes:
    return (int(record[0].name) + record[1]).to_bytes(8, "big")
