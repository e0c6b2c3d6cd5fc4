from __future__ import annotations

import dataclasses
import datetime
import errno
import os
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import WrongFileSizeError
from mqlake.formats.index import build_key, index_key_hash
from mqlake.message import MessageSysFlag
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.index.index_service import IndexService, file_name, file_time
from tests.store.log_of import LogOf, Record
from tests.waiting import PATIENCE_S

SLOTS, ENTRIES = 5, 8  # 7 keys a file
NOW = datetime.datetime(2024, 2, 29, 12, 0, 0, 123_000)
EVER = 0, 2**62
ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK_TYPE


def config_of(directory):
    return dataclasses.replace(
        MessageStoreConfig(store_path_root_dir=str(directory)), max_hash_slot_num=SLOTS, max_index_num=ENTRIES
    )


def make(directory, **options):
    return IndexService(config_of(directory), **{"clock": lambda: NOW, **options})


def loaded(directory, ok=True, checkpoint=None, **options):
    index = make(directory, **options)
    index.load(ok, checkpoint)
    return index


def record(number, keys="", uniq="", **fields):
    properties = {"KEYS": keys} if keys else {}
    if uniq:
        properties["UNIQ_KEY"] = uniq
    return Record(
        queue_offset=number,
        store_timestamp=1_700_000_000_000 + number * 1500,
        properties=properties,
        **fields,
    )


def log_of(count, keys=1):
    return LogOf([record(n, keys=" ".join(f"k{n}-{k}" for k in range(keys))) for n in range(count)])


def names(directory):
    return sorted(os.listdir(f"{directory}/index"))


def contents(directory):
    found = []
    for name in names(directory):
        with open(f"{directory}/index/{name}", "rb") as file:
            found.append(file.read())
    return found


class Model:
    """One record at a time, as the format's description reads."""

    SIZE = 40 + SLOTS * 4 + ENTRIES * 20

    def __init__(self):
        self.files = []

    def last(self):
        if not self.files or self.count() >= ENTRIES:
            header = bytes(40)
            if self.files:
                _, end_time, _, end_offset = struct.unpack_from(">qqqq", self.files[-1])
                header = struct.pack(">qqqqii", end_time, end_time, end_offset, end_offset, 0, 0)
            self.files.append(bytearray(header.ljust(self.SIZE, b"\0")))
            struct.pack_into(">i", self.files[-1], 36, 1)
        return self.files[-1]

    def count(self):
        return struct.unpack_from(">i", self.files[-1], 36)[0]

    def add(self, record):
        self.last()
        if record.sys_flag & 0xC == ROLLBACK:
            return
        uniq = record.properties.get("UNIQ_KEY")
        keys = ([uniq] if uniq else []) + [k for k in record.properties.get("KEYS", "").split(" ") if k]
        for key in keys:
            self.put(
                index_key_hash(build_key(record.topic, key)), record.physical_offset, record.store_timestamp
            )

    def put(self, code, offset, timestamp):
        file, count = self.last(), self.count()
        slot = 40 + code % SLOTS * 4
        (previous,) = struct.unpack_from(">i", file, slot)
        begin_time, _, begin_offset, _, used, _ = struct.unpack_from(">qqqqii", file)
        seconds = max(0, (timestamp - begin_time) // 1000) if begin_time > 0 else 0
        struct.pack_into(">iqii", file, 40 + SLOTS * 4 + count * 20, code, offset, seconds, previous)
        struct.pack_into(">i", file, slot, count)
        if count == 1:
            begin_time, begin_offset = timestamp, offset
        used += previous == 0
        struct.pack_into(">qqqqii", file, 0, begin_time, timestamp, begin_offset, offset, used, count + 1)


def modelled(records):
    model = Model()
    for each in records:
        model.add(each)
    return [bytes(file) for file in model.files]


# ---------------------------------------------------------------------------------------- writing


def test_keys_are_found(tmp_path):
    log = LogOf(
        [
            record(0, "order1 order2", "U0"),
            record(1, "order2", "U1"),
            record(2, uniq="U2", topic="S"),
            record(3),
        ]
    )
    index = loaded(tmp_path)
    index.dispatch(*log.dispatched())
    at = [each.physical_offset for each in log.records]
    assert index.query_offset("T", "order1", 10, *EVER) == [at[0]]
    assert index.query_offset("T", "order2", 10, *EVER) == [at[1], at[0]]
    assert index.query_offset("T", "U0", 10, *EVER) == [at[0]]
    assert index.query_offset("S", "U2", 10, *EVER) == [at[2]]
    assert index.query_offset("T", "U2", 10, *EVER) == []
    assert index.query_offset("test", "", 2**31 - 1, 10, 100) == []
    assert index.last_update_phyoffset == at[2]
    assert index.last_update_timestamp == log.records[2].store_timestamp


def test_an_empty_index(tmp_path):
    index = loaded(tmp_path)
    assert index.query_offset("test", "", 2**31 - 1, 10, 100) == []
    assert (index.last_update_timestamp, index.last_update_phyoffset, index.total_size) == (0, 0, 0)
    assert not os.path.exists(f"{tmp_path}/index")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "a", "a b", "a b c", "c  d", "Aa BB"]),
            st.booleans(),
            st.sampled_from([0, 0, 0, 4, 8, ROLLBACK]),
        ),
        min_size=1,
        max_size=40,
    ),
    st.lists(st.integers(1, 10), min_size=1),
)
@settings(max_examples=100, deadline=None)
def test_files_are_those_of_one_record_at_a_time(tmp_path_factory, choices, sizes):
    directory = tmp_path_factory.mktemp("store")
    log = LogOf(
        [
            record(n, keys, f"U{n}" if uniq else "", sys_flag=flag)
            for n, (keys, uniq, flag) in enumerate(choices)
        ]
    )
    index = loaded(directory)
    start, turn = 0, 0
    while start < len(log.records):
        stop = start + sizes[turn % len(sizes)]
        turn += 1
        index.dispatch(*log.dispatched(start, stop))
        index.dispatch(*log.dispatched(max(0, start - 3), stop))  # again, with some before it
        start = stop
    index.close()
    assert contents(directory) == modelled(log.records)


def test_a_record_that_got_some_of_its_keys_gets_the_rest(tmp_path, monkeypatch):
    log = LogOf([record(0, "a b c d e"), record(1, "f g h i j k l m n o")])
    index = loaded(tmp_path)
    fallocate, room = os.posix_fallocate, iter([1, 1])

    def full(fd, start, size):
        if not next(room, 0):
            raise OSError(28, "No space left on device")
        fallocate(fd, start, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        index.dispatch(*log.dispatched())
    assert len(index.files) == 2
    monkeypatch.undo()
    index.dispatch(*log.dispatched())
    index.close()
    assert contents(tmp_path) == modelled(log.records)


def test_files_are_named_by_time_in_order(tmp_path):
    times = iter([NOW, NOW, NOW - datetime.timedelta(hours=1), NOW + datetime.timedelta(seconds=1)])
    index = loaded(tmp_path, clock=lambda: next(times))
    os.makedirs(f"{tmp_path}/index")
    with open(f"{tmp_path}/index/20240229120000125", "wb"):
        pass  # somebody else's; never written over
    index.dispatch(*log_of(25).dispatched())
    made = [os.path.basename(file.path) for file in index.files]
    assert made == ["20240229120000123", "20240229120000124", "20240229120000126", "20240229120001123"]


def test_names_and_times():
    assert file_name(NOW) == "20240229120000123"
    assert file_time("20240229120000123") == NOW
    for name in ("2024022912000012", "20240229120000123.tmp", "20240230120000123", "x" * 17):
        assert file_time(name) is None


def test_room_is_looked_for_at_every_record(tmp_path):
    log = LogOf([record(0, "a b c d e f g"), record(1)])
    index = loaded(tmp_path)
    index.dispatch(*log.dispatched(0, 1))
    assert len(index.files) == 1
    index.dispatch(*log.dispatched())
    assert len(index.files) == 2
    index.close()
    assert contents(tmp_path) == modelled(log.records)


# ---------------------------------------------------------------------------------------- queries


def test_queries_over_files(tmp_path):
    log = LogOf([record(n, "same") for n in range(30)])
    index = loaded(tmp_path)
    index.dispatch(*log.dispatched())
    assert len(index.files) == 5
    newest_first = [each.physical_offset for each in reversed(log.records)]
    assert index.query_offset("T", "same", 64, *EVER) == newest_first
    assert index.query_offset("T", "same", 9, *EVER) == newest_first[:9]
    begin, end = log.records[10].store_timestamp, log.records[20].store_timestamp
    found = index.query_offset("T", "same", 64, begin, end)
    assert set(found) <= set(newest_first[29 - 21 : 29 - 9])
    assert set(found) >= set(newest_first[29 - 20 : 29 - 11])  # times are whole seconds


def test_equal_hashes_are_all_candidates(tmp_path):
    log = LogOf([record(0, "Aa"), record(1, "BB"), record(2, "C#")])  # the same hash three times
    index = loaded(tmp_path)
    index.dispatch(*log.dispatched())
    at = [each.physical_offset for each in log.records]
    for key in ("Aa", "BB", "C#"):
        assert index.query_offset("T", key, 10, *EVER) == at[::-1]


# ---------------------------------------------------------------------------------------- opening


@pytest.fixture
def checkpoint(tmp_path):
    checkpoint = StoreCheckpoint(f"{tmp_path}/checkpoint")
    yield checkpoint
    checkpoint.close()


def test_a_clean_exit_keeps_all(tmp_path, checkpoint):
    index = loaded(tmp_path)
    assert index.rebuild_from == 0  # there was none: whatever the log holds is not in it
    index.dispatch(*log_of(25).dispatched())
    index.flush(checkpoint)
    index.close()
    again = loaded(tmp_path, True, checkpoint)
    assert len(again.files) == 4
    assert again.rebuild_from is None
    assert checkpoint.index_msg_timestamp == again.files[2].header.end_timestamp


def test_a_crash_drops_what_was_not_known_to_be_flushed(tmp_path, checkpoint):
    log, index = log_of(25, keys=2), loaded(tmp_path)
    index.dispatch(*log.dispatched(0, 15))
    index.flush_full_files(checkpoint)
    index.dispatch(*log.dispatched(15))
    index.close()
    before = contents(tmp_path)
    again = loaded(tmp_path, False, checkpoint)
    assert len(again.files) == 4
    assert again.rebuild_from == again.files[-1].header.end_phy_offset
    start = next(n for n, each in enumerate(log.records) if each.physical_offset == again.rebuild_from)
    again.dispatch(*log.dispatched(start))
    again.close()
    assert contents(tmp_path) == before


def test_a_new_file_waits_for_the_room_of_a_dropped_one(tmp_path, checkpoint, monkeypatch):
    """A file that is being written out is closed beside the recovery, and its room is free after that."""
    log, index = log_of(25), loaded(tmp_path)
    index.dispatch(*log.dispatched())
    index.close()
    may_close, closed, close = threading.Event(), [], MappedFile.close

    def slow_close(file):
        if threading.current_thread().name == "IndexClosing":
            may_close.wait(PATIENCE_S)
            closed.append(file.path)
        close(file)

    def full_until_closed(self, name):
        if not may_close.is_set():
            may_close.set()
            raise OSError(errno.ENOSPC, "no room")
        assert closed
        return whole(self, name)

    monkeypatch.setattr(MappedFile, "close", slow_close)
    again, whole = loaded(tmp_path, False, checkpoint), IndexService._open
    assert again.files == [] and not any(tmp_path.glob("index/*")) and not closed
    monkeypatch.setattr(IndexService, "_open", full_until_closed)
    again.dispatch(*log.dispatched())
    assert again.files
    again.close()


def test_a_crash_before_the_first_file_was_full(tmp_path, checkpoint, caplog):
    log, index = log_of(5), loaded(tmp_path)
    index.dispatch(*log.dispatched(2))
    index.close()
    [file] = tmp_path.glob("index/*")
    again = loaded(tmp_path, False, checkpoint)
    assert again.files == []
    assert again.rebuild_from == log.records[2].physical_offset
    assert names(tmp_path) == []
    assert f"{file} may not be whole" in caplog.messages[-1]


def test_after_a_crash_a_file_of_the_time_that_was_flushed_last_may_not_be_flushed(tmp_path, checkpoint):
    records = log_of(2 * (ENTRIES - 1)).records
    log = LogOf([dataclasses.replace(r, store_timestamp=records[0].store_timestamp) for r in records])
    index = loaded(tmp_path)
    index.dispatch(*log.dispatched(0, ENTRIES - 1))
    index.flush(checkpoint)
    index.dispatch(*log.dispatched())
    assert [file.header.end_timestamp for file in index.files] == [checkpoint.index_msg_timestamp] * 2
    index.close()
    again = loaded(tmp_path, False, checkpoint)
    assert len(again.files) == 1
    assert again.rebuild_from == log.records[ENTRIES - 2].physical_offset


def test_after_a_crash_nothing_behind_a_dropped_file_is_kept(tmp_path, checkpoint):
    log, index = log_of(25), loaded(tmp_path)
    index.dispatch(*log.dispatched())
    index.flush(checkpoint)
    index.close()
    with open(f"{tmp_path}/index/{names(tmp_path)[1]}", "r+b") as file:
        file.seek(36)
        file.write(struct.pack(">i", ENTRIES + 5))  # nonsense
    again = loaded(tmp_path, False, checkpoint)
    assert len(again.files) == 1
    assert again.rebuild_from == log.records[6].physical_offset


def test_foreign_files_are_left_alone(tmp_path):
    os.makedirs(f"{tmp_path}/index")
    for name in ("notes", "20240299999999999"):
        with open(f"{tmp_path}/index/{name}", "w") as file:
            file.write("hello")
    index = loaded(tmp_path)
    assert index.files == []


def test_another_size_is_refused(tmp_path):
    index = loaded(tmp_path)
    index.dispatch(*log_of(1).dispatched())
    index.close()
    other = dataclasses.replace(config_of(tmp_path), max_index_num=9)
    with pytest.raises(WrongFileSizeError, match="maxIndexNum"):
        IndexService(other).load(True, None)


# ---------------------------------------------------------------------------------------- life


def test_only_full_files_move_the_checkpoint(tmp_path, checkpoint):
    log, index = log_of(20), loaded(tmp_path)
    index.dispatch(*log.dispatched(0, 5))
    index.flush_full_files(checkpoint)
    assert checkpoint.index_msg_timestamp == 0
    index.dispatch(*log.dispatched(5))
    index.flush_full_files(checkpoint)
    assert checkpoint.index_msg_timestamp == log.records[13].store_timestamp


def test_a_failed_flush_does_not_move_the_checkpoint(tmp_path, checkpoint, monkeypatch):
    index = loaded(tmp_path)
    index.dispatch(*log_of(9).dispatched())

    def broken(_fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="Input/output"):
        index.flush_full_files(checkpoint)
    assert checkpoint.index_msg_timestamp == 0


def test_expired_files_are_deleted(tmp_path):
    log, index = log_of(30), loaded(tmp_path)
    index.dispatch(*log.dispatched())
    ends = [file.header.end_phy_offset for file in index.files]
    assert index.delete_expired(ends[0]) == 0
    assert index.delete_expired(ends[0] + 1) == 1
    assert index.delete_expired(2**62) == 3
    assert len(names(tmp_path)) == len(index.files) == 1  # never the last


def test_destroy(tmp_path):
    index = loaded(tmp_path)
    index.dispatch(*log_of(10).dispatched())
    index.destroy()
    assert names(tmp_path) == []
    assert index.query_offset("T", "k1-0", 10, *EVER) == []


def test_a_reader_beside_a_writer(tmp_path):
    log, writer = log_of(30), loaded(tmp_path)
    reader = loaded(tmp_path, read_only=True)
    assert reader.rebuild_from is None
    for start in range(0, 30, 5):
        writer.dispatch(*log.dispatched(start, start + 5))
        reader.refresh()
        newest = log.records[start + 4].physical_offset
        assert reader.query_offset("T", f"k{start + 4}-0", 5, *EVER) == [newest]
        assert reader.last_update_phyoffset == newest
    writer.delete_expired(2**62)
    with open(f"{tmp_path}/index/20300101000000000", "wb"):
        pass  # a file that is only being made
    reader.refresh()
    assert len(reader.files) == 1
    reader.close()
    assert reader.files == []


def test_files_made_again_after_a_crash_do_not_pass_for_flushed_in_the_next(tmp_path, checkpoint):
    """They end at the same time as those they replace, which the checkpoint knew to be flushed."""
    log, index = log_of(25), loaded(tmp_path)
    index.dispatch(*log.dispatched())
    index.flush(checkpoint)
    index.close()
    with open(f"{tmp_path}/index/{names(tmp_path)[0]}", "r+b") as file:
        file.seek(36)
        file.write(struct.pack(">i", ENTRIES + 5))  # nonsense: it goes, and all behind it
    again = loaded(tmp_path, False, checkpoint)
    assert (again.files, checkpoint.index_msg_timestamp) == ([], 0)
    again.dispatch(*log.dispatched())
    again.close()
    after_the_next_crash = loaded(tmp_path, False, checkpoint)
    assert after_the_next_crash.files == []
    assert after_the_next_crash.rebuild_from == 0
