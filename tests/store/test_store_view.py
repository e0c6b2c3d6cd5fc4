"""StoreView: how much one pull brings."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import BadCrcError, MqlakeError
from mqlake.formats.batch import encode_messages
from mqlake.message import PROPERTY_INNER_NUM, PROPERTY_KEYS, Message, MessageExtBrokerInner, MessageSysFlag
from mqlake.store.config import MessageStoreConfig
from mqlake.store.filter import TagFilter
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.results import GetMessageStatus
from tests.store.small_store import change, flip, log_file
from tests.waiting import PATIENCE_S

INNER = MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DefaultMessageStore]:
    config = MessageStoreConfig.from_mapping({"mappedFileSizeCommitLog": 65536, "maxIndexNum": 100})
    config = dataclasses.replace(config, store_path_root_dir=str(tmp_path))
    with DefaultMessageStore(config, is_batch_topic=lambda topic: topic == "Batches") as store:
        store.load()
        store.start()
        yield store


def put_inner_batches(store: DefaultMessageStore, *counts: int) -> None:
    for count in counts:
        batch = MessageExtBrokerInner("Batches", encode_messages([Message("Batches", b"x")] * count))
        batch.sys_flag, batch.properties = INNER, {PROPERTY_INNER_NUM: str(count)}
        assert store.put_message(batch).is_ok
    assert store.wait_until_dispatched(PATIENCE_S)


@pytest.mark.parametrize(
    ("max_count", "bases", "messages"),
    [(1, [0], 2), (2, [0], 2), (4, [0], 2), (5, [0, 2], 5), (9, [0, 2, 5], 9), (0, [0], 2)],
)
def test_an_inner_batch_counts_as_all_its_messages(
    store: DefaultMessageStore, max_count: int, bases: list[int], messages: int
) -> None:
    put_inner_batches(store, 2, 3, 4)
    got = store.get_message("group", "Batches", 0, 0, max_count)
    assert got.status is GetMessageStatus.FOUND
    assert (got.queue_offsets, got.message_count, got.next_begin_offset) == (bases, messages, messages)


def test_whoever_asks_for_none_gets_one(store: DefaultMessageStore) -> None:
    for _ in range(3):
        assert store.put_message(MessageExtBrokerInner("T", b"x")).is_ok
    assert store.wait_until_dispatched(PATIENCE_S)
    got = store.get_message("group", "T", 0, 1, 0)
    assert (list(got.queue_offsets), got.next_begin_offset) == ([1], 2)


def test_a_message_with_two_keys_of_one_hash_counts_once(store: DefaultMessageStore) -> None:
    """Java's hash of AaAa is that of BBBB."""
    for body, keys in ((b"first", "BBBB"), (b"second", "AaAa BBBB"), (b"third", "AaAa")):
        message = MessageExtBrokerInner("T", body)
        message.properties = {PROPERTY_KEYS: keys}
        assert store.put_message(message).is_ok
    assert store.wait_until_dispatched(PATIENCE_S)
    found = [[m.body for m in store.query_message("T", "BBBB", count).messages()] for count in (1, 2, 3)]
    assert found == [[b"second"], [b"first", b"second"], [b"first", b"second"]]


class TestDamage:
    """One damaged message is missing, and said to be, and nothing else is."""

    COUNT, HIT = 33, 16

    def fill(self, store: DefaultMessageStore) -> list[int]:
        """Physical offsets of the messages; those of another queue lie between some of them."""
        places = []
        for number in range(self.COUNT):
            if number % 5 == 1:
                assert store.put_message(MessageExtBrokerInner("Other", b"x")).is_ok
            message = MessageExtBrokerInner("Topic", b"%d" % number, "t", f"key-{number} all")
            result = store.put_message(message)
            assert result.append_result is not None
            places.append(result.append_result.wrote_offset)
        assert store.wait_until_dispatched(PATIENCE_S)
        return places

    def pull_all(self, store: DefaultMessageStore, **options: Any) -> list[int]:
        """Queue offsets, as a consumer would read on."""
        found, offset = [], 0
        while offset < self.COUNT:
            got = store.get_message("group", "Topic", 0, offset, 10, **options)
            assert got.next_begin_offset > offset, got.status
            assert got.status in (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)
            found += [message.queue_offset for message in got.messages()]
            offset = got.next_begin_offset
        return found

    FLIPS = (
        *((position, 0) for position in (0, 2, 3, 4, 7, 12, 15, 20, 27, 28, 35)),
        *((39, bit) for bit in (4, 5)),  # the lengths of hosts
        *((position, 3) for position in (84, 87, 90, 97)),  # the lengths of body, topic and properties
        *((position, 3) for position in (91, 93, 95)),  # the topic
    )

    def test_a_flipped_bit(self, store: DefaultMessageStore, caplog: pytest.LogCaptureFixture) -> None:
        place = self.fill(store)[self.HIT]
        log = log_file(Path(store.config.store_path_root_dir))
        expected = [number for number in range(self.COUNT) if number != self.HIT]
        for position, bit in self.FLIPS:
            flip(log, place + position, bit)
            assert self.pull_all(store) == expected, position
            assert self.pull_all(store, message_filter=TagFilter("t")) == expected, position
            got = store.get_message("group", "Topic", 0, self.HIT, 1)
            assert (got.status.name, got.next_begin_offset) == ("NO_MATCHED_MESSAGE", self.HIT + 1)
            [(queue_offset, error)] = got.damaged
            assert (queue_offset, error.path, error.offset) == (self.HIT, str(log), place)
            flip(log, place + position, bit)
            assert self.pull_all(store) == list(range(self.COUNT)), position
        assert store.damage.counts() == [("pull", "Topic", 1)]
        [line] = [record.getMessage() for record in caplog.records if "corrupt" in record.getMessage()]
        assert line.startswith(
            f"{log}: corrupt at byte {place}: message {self.HIT} of Topic-0 should be here"
        )
        assert store.runtime_info()["damagedPlaces"] == "1"

    def test_a_unit_that_leads_elsewhere(
        self, store: DefaultMessageStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.fill(store)
        root = Path(store.config.store_path_root_dir)
        store.consume_queues.flush()
        path = root / "consumequeue" / "Topic" / "0" / f"{0:020d}"
        flip(path, 20 * self.HIT + 6, 2)
        assert self.pull_all(store) == list(range(self.COUNT)), "the message is found in the log"
        assert store.damage.count == 1
        [line] = [record.getMessage() for record in caplog.records if "corrupt" in record.getMessage()]
        assert line.startswith(
            f"{path}: corrupt at byte {20 * self.HIT}: the unit of message {self.HIT} of Topic-0"
        )

    def test_bodies_are_checked_when_asked(self, store: DefaultMessageStore) -> None:
        place = self.fill(store)[self.HIT]
        flip(log_file(Path(store.config.store_path_root_dir)), place + 88)
        everything = list(range(self.COUNT))
        with pytest.raises(BadCrcError):
            self.pull_all(store)
        assert store.damage.count == 0
        del everything[self.HIT]
        assert self.pull_all(store, check_crc=True) == everything
        store.config.change({"pullCheckCrc": "true"})
        assert self.pull_all(store) == everything
        assert store.damage.count == 1
        [(_, error)] = store.get_message("group", "Topic", 0, self.HIT, 1).damaged
        assert "body CRC" in str(error)
        found = [m.queue_offset for m in store.query_message("Topic", "all", 64).messages()]
        assert found == everything

    def test_queries_by_key(self, store: DefaultMessageStore) -> None:
        place = self.fill(store)[self.HIT]
        log = log_file(Path(store.config.store_path_root_dir))
        for position in (0, 3, 7, 35, 87):
            flip(log, place + position, 3)
            found = [message.queue_offset for message in store.query_message("Topic", "all", 64).messages()]
            assert found == [number for number in range(self.COUNT) if number != self.HIT]
            assert store.query_message("Topic", f"key-{self.HIT}", 1).buffers == []
            flip(log, place + position, 3)
        assert store.damage.counts() == [("query", "", 1)]

    def test_a_body_asked_for_by_its_place(self, store: DefaultMessageStore) -> None:
        place = self.fill(store)[self.HIT]
        flip(log_file(Path(store.config.store_path_root_dir)), place + 88)
        with pytest.raises(BadCrcError):
            store.look_message_by_offset(place)
        assert store.damage.counts() == [("query", "", 1)]
        with pytest.raises(MqlakeError):
            store.look_message_by_offset(place + 1)  # any client may ask for any place
        assert store.damage.count == 1

    def test_inner_batches(self, store: DefaultMessageStore) -> None:
        put_inner_batches(store, 2, 3, 4)
        place = store.get_message("group", "Batches", 0, 2, 1).last_place[0]
        log = log_file(Path(store.config.store_path_root_dir))
        for position in (4, 15, 27, 35, 87):
            flip(log, place + position)
            got = store.get_message("group", "Batches", 0, 0, 32)
            assert (got.queue_offsets, got.message_count, got.next_begin_offset) == ([0, 5], 6, 9)
            assert [queue_offset for queue_offset, _ in got.damaged] == [2]
            got = store.get_message("group", "Batches", 0, 3, 1)
            assert (got.status.name, got.next_begin_offset) == ("NO_MATCHED_MESSAGE", 5)
            flip(log, place + position)

    @given(st.data())
    def test_any_bytes(self, data: st.DataObject) -> None:
        """Whatever a record becomes: each of the others comes, in its order, and nothing in its place."""
        with tempfile.TemporaryDirectory() as directory:
            config = dataclasses.replace(
                MessageStoreConfig.from_mapping({"mappedFileSizeCommitLog": 65536, "maxIndexNum": 100}),
                store_path_root_dir=directory,
            )
            with DefaultMessageStore(config) as store:
                store.load()
                store.start()
                places = self.fill(store)
                hit = data.draw(st.integers(0, self.COUNT - 2))
                log = log_file(Path(directory))
                record = bytearray(log.read_bytes()[places[hit] : places[hit + 1]])
                for _ in range(data.draw(st.integers(1, 8))):
                    record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
                change(log, places[hit], bytes(record))
                found = self.pull_all(store, check_crc=True)
                others = [number for number in range(self.COUNT) if number != hit]
                assert [number for number in found if number != hit] == others
                assert found == sorted(found)
                got = store.get_message("g", "Topic", 0, hit, 1, check_crc=True)
                assert (hit in found) != bool(got.damaged)


@given(st.data())
def test_a_filter_by_tags_gives_what_a_plain_loop_gives(data: st.DataObject) -> None:
    """By compiled code or one by one: the same messages, each once, in their order."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {"mappedFileSizeCommitLog": 16384, "maxIndexNum": 100, "mappedFileSizeConsumeQueue": 400}
        config = dataclasses.replace(MessageStoreConfig.from_mapping(settings), store_path_root_dir=directory)
        with DefaultMessageStore(config) as store:
            store.load()
            store.start()
            tags = data.draw(st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=60))
            sizes = data.draw(st.lists(st.sampled_from([1, 300]), min_size=len(tags), max_size=len(tags)))
            for tag, size in zip(tags, sizes, strict=True):
                assert store.put_message(MessageExtBrokerInner("T", b"x" * size, tag)).is_ok
            assert store.wait_until_dispatched(PATIENCE_S)
            store.config.change(
                {"maxTransferBytesOnMessageInMemory": data.draw(st.sampled_from(["1", "900", "64k"]))}
            )
            wanted = data.draw(st.sampled_from(["a", "a || b", "nothing"]))
            found, offset = [], 0
            while offset < len(tags):
                count = data.draw(st.integers(1, 40))
                got = store.get_message("g", "T", 0, offset, count, TagFilter(wanted))
                assert got.message_count <= count and got.next_begin_offset > offset
                here = [message.queue_offset for message in got.messages()]
                assert here == list(got.queue_offsets)
                found += here
                offset = got.next_begin_offset
            assert found == [number for number, tag in enumerate(tags) if tag and tag in wanted.split(" || ")]
