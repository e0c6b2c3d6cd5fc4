"""A record that says another queue than the unit which leads to it: no start invents a queue for it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from mqlake.errors import StoreCorruptError
from mqlake.store.check.repair import repair_store
from mqlake.store.message_store import open_store
from tests.store.small_store import SETTINGS, contents, fill, flip, message, pretend_crash, record_at

QUEUE_ID, QUEUE_OFFSET = 12, 20
ORDERS, IN_THE_LAST_FILE, LAST = 30, 110, 118
"""Numbers of records of queue Orders/1."""
COUNT = 120


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path / "store", count=COUNT)


def topics_file(root: Path, **queues: int) -> None:
    table = {topic: {"readQueueNums": number, "writeQueueNums": number} for topic, number in queues.items()}
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def damaged(root: Path, field: str, number: int = ORDERS) -> tuple[Path, int]:
    path, position, size = record_at(root, number)
    data = path.read_bytes()
    if field == "topic":
        at = 0 if number > COUNT else 1
        flip(path, data.index(b"Orders", position, position + size) + at, 1)
    elif field == "invented queue":
        flip(path, position + QUEUE_ID + 2, 5)
    elif field == "other queue":
        flip(path, position + QUEUE_ID + 3, 0)
    else:
        flip(path, position + QUEUE_OFFSET + 6, 3)
    return path, position


@pytest.mark.parametrize("field", ["topic", "invented queue"])
@pytest.mark.parametrize("table", [False, True])
def test_the_unit_contradicts_an_invented_queue(store: Path, field: str, table: bool) -> None:
    if table:
        topics_file(store, Orders=4, Payments=4)
    pretend_crash(store)
    before = contents(store)
    path, position = damaged(store, field)
    with pytest.raises(
        StoreCorruptError, match=r"of the record is wrong: .* of Orders/1 leads here"
    ) as error:
        open_store(store, SETTINGS)
    assert (error.value.path, error.value.offset) == (str(path), position)
    assert "store repair" in str(error.value)
    repair_store(store)
    after = contents(store)
    assert {name: after[name] for name in before if name.startswith(("commitlog", "consumequeue"))} == {
        name: data for name, data in before.items() if name.startswith(("commitlog", "consumequeue"))
    }


@pytest.mark.parametrize("field", ["topic", "invented queue", "other queue", "queue offset"])
def test_after_a_clean_exit_every_field_is_contradicted(store: Path, field: str) -> None:
    path, position = damaged(store, field, IN_THE_LAST_FILE)  # which is what the start reads
    with pytest.raises(StoreCorruptError, match="of the record is wrong") as error:
        open_store(store, SETTINGS)
    assert (error.value.path, error.value.offset) == (str(path), position)


@pytest.mark.parametrize("field", ["topic", "other queue", "queue offset"])
def test_a_later_message_of_its_queue_proves_where_it_belongs(store: Path, field: str) -> None:
    """Also against a queue that is there, whatever ended the last process: to open would leave it out."""
    with open_store(store, SETTINGS) as opened:
        for number in range(120, 180):
            msg = message(number)
            msg.topic = msg.topic.replace("Payments", "Mrders")  # a bit from the other one
            assert opened.put_message(msg).is_ok
    pretend_crash(store)
    before = contents(store)
    path, position = damaged(store, field, 150)
    with pytest.raises(StoreCorruptError, match="of the record is wrong") as error:
        open_store(store, SETTINGS)
    assert (error.value.path, error.value.offset) == (str(path), position)
    repair_store(store)
    assert contents(store)[str(path.relative_to(store))] == before[str(path.relative_to(store))]


def test_a_queue_that_may_be_right_is_named_in_a_warning(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is known of the end: after two power cuts a unit of messages that were lost may lead here."""
    pretend_crash(store)
    _, position = damaged(store, "other queue", LAST)
    with caplog.at_level(logging.WARNING), open_store(store, SETTINGS):
        pass
    (line,) = [text for text in caplog.messages if "of the record is wrong" in text]
    assert f"corrupt at byte {position}: QUEUEID" in line


def test_a_later_message_that_the_log_has_lost_proves_nothing(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its unit is there: a power cut took the one and left the other."""
    pretend_crash(store)
    path, position, _ = record_at(store, LAST)
    data = path.read_bytes()
    path.write_bytes(data[:position] + bytes(len(data) - position))
    damaged(store, "other queue", LAST - 4)
    with caplog.at_level(logging.WARNING), open_store(store, SETTINGS):
        pass
    assert len([text for text in caplog.messages if "of the record is wrong" in text]) == 1


def test_what_the_queues_do_not_know_yet_is_not_doubted(store: Path) -> None:
    """A topic whose first messages were not dispatched before the crash gets its queues as ever."""
    ends = {path: path.read_bytes() for path in (store / "consumequeue").glob("**/" + "0" * 20)}
    fill(store, 120, 30)
    for path, data in ends.items():
        path.write_bytes(data)
    pretend_crash(store)
    with open_store(store, SETTINGS) as opened:
        assert sum(queue.max_offset_in_queue for queue in opened.consume_queues) == 150
