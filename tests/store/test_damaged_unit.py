"""Messages whose consume queue units are damaged are found by the units beside them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.message import MessageExtBrokerInner
from mqlake.store import damaged_unit
from mqlake.store.damaged_unit import find_message
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.queues.consume_queue import ConsumeQueue
from tests.waiting import PATIENCE_S

COUNT = 40


@pytest.fixture
def store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[DefaultMessageStore]:
    """Two queues of a topic and another topic, in turns; the messages of queue 0 are numbered."""
    caplog.set_level(logging.ERROR)
    with open_store(tmp_path, {"mappedFileSizeCommitLog": 1 << 20}) as opened:
        for number in range(COUNT):
            for topic, queue_id in (("T", 1), ("T", 0), ("Other", 0)):
                message = MessageExtBrokerInner(topic, b"%d" % number)
                message.queue_id = queue_id
                assert opened.put_message(message).is_ok
        assert opened.wait_until_dispatched(PATIENCE_S)
        opened.consume_queues.flush()
        yield opened


def damage(store: DefaultMessageStore, first: int, count: int, data: bytes = b"\0") -> None:
    path = Path(store.config.store_path_root_dir) / "consumequeue" / "T" / "0" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(first * 20)
        file.write((data * 20 * count)[: 20 * count])


def bodies(store: DefaultMessageStore, page: int) -> list[int]:
    """As a consumer reads on, a page at a time."""
    found, offset = [], 0
    while offset < COUNT:
        got = store.get_message("g", "T", 0, offset, page)
        assert got.next_begin_offset > offset and got.damaged == []
        for message, queue_offset in zip(got.messages(), got.queue_offsets, strict=True):
            assert message.queue_offset == queue_offset
            found.append(int(message.body))
        offset = got.next_begin_offset
    return found


@pytest.mark.parametrize(
    ("first", "count"), [(0, 1), (0, 7), (17, 1), (12, 20), (COUNT - 1, 1), (30, 10), (0, COUNT)]
)
@pytest.mark.parametrize("data", [b"\0", b"\xff", b"garbage"])
@pytest.mark.parametrize("page", [1, 32])
def test_every_message_is_given_out(
    store: DefaultMessageStore, first: int, count: int, data: bytes, page: int
) -> None:
    damage(store, first, count, data)
    assert bodies(store, page) == list(range(COUNT))
    assert store.damage.counts() == [("pull", "T", count)]
    assert bodies(store, page) == list(range(COUNT))
    assert store.damage.counts() == [("pull", "T", count)], "each place is reported once"


def queue_of(store: DefaultMessageStore) -> ConsumeQueue:
    queue = store.consume_queues.get("T", 0)
    assert isinstance(queue, ConsumeQueue)
    return queue


def test_no_further_than_allowed(store: DefaultMessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three records of under 110 bytes lie between a message and the next of its queue."""
    damage(store, 10, 1)
    found = find_message(store.commit_log_files, queue_of(store), 10)
    assert found is not None and found.queue_offset == 10
    record = store.select_one_message_by_offset(found.physical_offset)
    assert record is not None and len(record) == found.size
    monkeypatch.setattr(damaged_unit, "SCAN_MAX", 100)
    assert find_message(store.commit_log_files, queue_of(store), 10) is None
    monkeypatch.setattr(damaged_unit, "SCAN_MAX", 500)
    assert find_message(store.commit_log_files, queue_of(store), 10) == found
    monkeypatch.setattr(damaged_unit, "UNITS_MAX", 4)
    damage(store, 5, 11)
    assert find_message(store.commit_log_files, queue_of(store), 10) is None
    assert find_message(store.commit_log_files, queue_of(store), 8) is None


def test_a_message_that_is_not_in_the_log(store: DefaultMessageStore) -> None:
    assert find_message(store.commit_log_files, queue_of(store), COUNT + 5) is None
