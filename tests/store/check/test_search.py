"""search: every way to the candidates finds what a look at every message finds, in the log's order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.errors import MessageError, OffsetOutOfRangeError
from mqlake.formats.record import decode_record
from mqlake.message import MessageExt, tags_code
from mqlake.store.check.search import (
    Query,
    check_begins_record,
    file_at_time,
    find_by_id,
    records_of_log,
    records_of_queue,
    search,
)
from mqlake.store.log.log_reader import LogReader, first_timestamp
from mqlake.store.read_only import ReadOnlyStore
from tests.store.small_store import COUNT, fill, fill_batches


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("search") / "store")


@pytest.fixture
def store(root: Path) -> Iterator[ReadOnlyStore]:
    with ReadOnlyStore(root) as store:
        yield store


def everything(store: ReadOnlyStore) -> list[MessageExt]:
    return [decode_record(record) for record in records_of_log(LogReader(store.commit_log_files).walk())]


def offsets(found: Iterator[tuple[memoryview, MessageExt]]) -> list[int]:
    return [message.physical_offset for _, message in found]


def queries(messages: list[MessageExt]) -> Iterator[Query]:
    times = [0, messages[COUNT // 3].store_timestamp, messages[-1].store_timestamp + 1]
    for topic, key, tag, begin in itertools.product(
        (None, "Orders", "Nowhere"), (None, "key-77", "group-4", "none"), (None, "Tag1", "TagX"), times
    ):
        yield Query(topic=topic, key=key, tag=tag, begin=begin)
    yield Query(key=f"{41:032X}")
    yield Query(end=times[1])
    yield Query(topic="Payments", end=times[1])
    yield Query(topic="Payments", tag="Tag2", begin=times[1], end=times[1])


@pytest.mark.parametrize("scan", [False, True], ids=["by index and queues", "by scan"])
def test_every_way_finds_the_same(store: ReadOnlyStore, scan: bool) -> None:
    messages = everything(store)
    assert len(messages) == COUNT
    for query in queries(messages):
        expected = [message.physical_offset for message in messages if query.matches(message)]
        assert sorted(offsets(search(store, store.commit_log_files, query, scan=scan))) == expected, query


def test_what_the_index_does_not_cover_is_scanned(tmp_path: Path) -> None:
    root = fill(tmp_path / "store")
    files = sorted((root / "index").iterdir())
    assert len(files) > 2
    for path in (files[0], files[-1]):
        path.unlink()
    with ReadOnlyStore(root) as store:
        for number in (0, COUNT // 2, COUNT - 1):
            found = list(search(store, store.commit_log_files, Query(key=f"key-{number}")))
            assert [message.uniq_key for _, message in found] == [f"{number:032X}"]


def test_by_id(store: ReadOnlyStore) -> None:
    message = everything(store)[19]
    assert message.uniq_key is not None
    for text in (message.msg_id, message.msg_id.lower(), message.uniq_key):
        assert offsets(find_by_id(store, store.commit_log_files, text, None)) == [message.physical_offset]
    assert offsets(find_by_id(store, store.commit_log_files, "F" * 32, None)) == []
    with pytest.raises(MessageError):
        list(find_by_id(store, store.commit_log_files, "nonsense", None))


def test_a_queue_from_an_offset_on_and_by_tag(store: ReadOnlyStore) -> None:
    wanted = [m for m in everything(store) if (m.topic, m.queue_id) == ("Orders", 1)]
    found = [decode_record(record) for record in records_of_queue(store, "Orders", 1, 7)]
    assert [m.queue_offset for m in found] == [m.queue_offset for m in wanted[7:]]
    tagged = [decode_record(r) for r in records_of_queue(store, "Orders", 1, 0, code=tags_code("Tag1"))]
    assert [m.queue_offset for m in tagged] == [m.queue_offset for m in wanted if m.tags == "Tag1"]
    assert list(records_of_queue(store, "Nowhere", 0, 0)) == []


def test_messages_of_classic_batches(tmp_path: Path) -> None:
    with ReadOnlyStore(fill_batches(tmp_path / "store", 6, 5)) as store:
        found = [decode_record(record).body for record in records_of_queue(store, "Batches", 1, 3)]
    assert found == [b"1/3", b"1/4", *(f"{b}/{i}".encode() for b in (3, 5) for i in range(5))]


def test_where_a_time_begins(store: ReadOnlyStore) -> None:
    log = store.commit_log_files
    times = [first_timestamp(file) for file in log.mapped_files]
    assert file_at_time(log, 0) == log.min_offset
    assert file_at_time(log, times[0]) == log.min_offset
    newest = max((t, f.file_from_offset) for t, f in zip(times, log.mapped_files, strict=True) if t >= 0)
    assert file_at_time(log, newest[0] + 1) == newest[1]


def test_an_offset_where_no_record_begins_is_named(store: ReadOnlyStore) -> None:
    check_begins_record(store.commit_log_files, everything(store)[5].physical_offset)
    with pytest.raises(OffsetOutOfRangeError, match="no record begins there"):
        check_begins_record(store.commit_log_files, everything(store)[5].physical_offset + 1)
    with pytest.raises(OffsetOutOfRangeError, match="not in the log"):
        check_begins_record(store.commit_log_files, 1 << 40)
