from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.formats.consume_queue import CQ_DTYPE, PRE_BLANK, PRE_BLANK_SIZE, UNIT
from mqlake.formats.consume_queue_ext import undecorate
from mqlake.store.files.file_pool import FilePool
from mqlake.store.queues.consume_queue import ConsumeQueue, CqUnit
from mqlake.store.queues.consume_queue_ext import ConsumeQueueExt
from mqlake.store.results import BoundaryType

UNITS_A_FILE = 10
FILE_SIZE = UNITS_A_FILE * 20
RECORD = 100  # every record in these logs has this size, message n lies at n * RECORD
LOWER, UPPER = BoundaryType.LOWER, BoundaryType.UPPER


def make(directory, *, file_size=FILE_SIZE, ext_file_size=0, **options):
    pool = FilePool(8, **options)
    ext = ConsumeQueueExt(f"{directory}/consumequeue_ext/T/0", ext_file_size, pool) if ext_file_size else None
    return ConsumeQueue("T", 0, f"{directory}/consumequeue/T/0", file_size, pool, ext=ext)


def reopened(directory, *, thorough=True, **options):
    queue = make(directory, **options)
    queue.load()
    queue.recover(thorough=thorough)
    return queue


def units_of(numbers):
    return np.array([(n * RECORD, RECORD, n) for n in numbers], CQ_DTYPE)


def put(queue, start, stop):
    queue.put_units(start, units_of(range(start, stop)), np.zeros(stop - start, np.int64))


def content(queue):
    return [queue.get(n) for n in range(queue.min_offset_in_queue, queue.max_offset_in_queue)]


def expected(start, stop):
    return [CqUnit(n, n * RECORD, RECORD, n) for n in range(start, stop)]


def disk(queue):
    """File name → bytes."""
    found = {}
    for name in sorted(os.listdir(queue.files.directory)):
        with open(f"{queue.files.directory}/{name}", "rb") as file:
            found[int(name)] = file.read()
    return found


def raw(start, stop):
    return b"".join(UNIT.pack(n * RECORD, RECORD, n) for n in range(start, stop))


@pytest.fixture
def queue(tmp_path):
    return make(tmp_path)


# ---------------------------------------------------------------------------------------- writing


def test_units_lie_one_behind_the_other(queue):
    put(queue, 0, 3)
    queue.put_unit(3, 300, RECORD, 3, 0)
    put(queue, 4, 25)
    files = disk(queue)
    assert list(files) == [0, FILE_SIZE, 2 * FILE_SIZE]
    assert b"".join(files.values()) == raw(0, 25).ljust(3 * FILE_SIZE, b"\0")
    assert content(queue) == expected(0, 25)
    assert queue.max_physic_offset == 2500


def test_one_write_for_each_file(queue, monkeypatch):
    writes = []
    whole = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, at: writes.append((len(data), at)) or whole(fd, data, at)
    )
    put(queue, 0, 25)
    assert writes == [(200, 0), (200, 0), (100, 0)]


def test_a_queue_that_begins_in_the_middle_is_pre_blanked(queue):
    put(queue, 23, 25)
    assert disk(queue) == {2 * FILE_SIZE: (PRE_BLANK * 3 + raw(23, 25)).ljust(FILE_SIZE, b"\0")}
    assert (queue.min_offset_in_queue, queue.max_offset_in_queue) == (23, 25)
    assert queue.get(22) is None
    assert content(queue) == expected(23, 25)


def test_a_queue_that_begins_at_a_border_needs_no_blanks(queue):
    put(queue, 20, 22)
    assert disk(queue) == {2 * FILE_SIZE: raw(20, 22).ljust(FILE_SIZE, b"\0")}
    assert queue.min_offset_in_queue == 20


def test_dispatching_again_changes_nothing(queue):
    put(queue, 0, 25)
    before = disk(queue)
    put(queue, 0, 25)
    put(queue, 7, 13)
    queue.put_unit(24, 2400, RECORD, 24, 0)
    assert disk(queue) == before
    put(queue, 20, 30)  # some of it is new
    assert content(queue) == expected(0, 30)


def test_missing_units_leave_blanks(queue):
    put(queue, 0, 5)
    put(queue, 8, 9)
    assert disk(queue) == {0: (raw(0, 5) + PRE_BLANK * 3 + raw(8, 9)).ljust(FILE_SIZE, b"\0")}
    assert queue.first_gap == 5
    assert queue.get(8) == CqUnit(8, 800, RECORD, 8)
    assert queue.get(6).size == PRE_BLANK_SIZE


def test_missing_units_over_files(queue):
    put(queue, 0, 5)
    put(queue, 53, 55)
    assert disk(queue) == {
        0: raw(0, 5) + PRE_BLANK * 5,
        5 * FILE_SIZE: (PRE_BLANK * 3 + raw(53, 55)).ljust(FILE_SIZE, b"\0"),
    }
    assert queue.max_offset_in_queue == 55
    assert queue.get(30) is None
    put(queue, 55, 62)
    assert content(queue)[53:] == expected(53, 62)


def test_a_gap_is_filled_by_dispatching_everything_again(queue):
    put(queue, 0, 5)
    put(queue, 13, 20)
    queue.cut_gap()
    assert content(queue) == expected(0, 5)
    assert queue.first_gap is None
    put(queue, 0, 20)
    assert content(queue) == expected(0, 20)


@pytest.mark.parametrize("thorough", [False, True])
def test_a_file_that_is_gone_from_the_middle_is_a_gap(tmp_path, thorough):
    put(make(tmp_path), 0, 35)
    (tmp_path / "consumequeue/T/0" / f"{2 * FILE_SIZE:020d}").unlink()
    queue = reopened(tmp_path, thorough=thorough)
    assert queue.first_gap == 20
    queue.cut_gap()
    put(queue, 0, 35)
    assert content(queue) == expected(0, 35)


@pytest.mark.parametrize(("stop", "start"), [(5, 53), (10, 53), (5, 50)])
def test_a_file_that_never_was_is_none(tmp_path, stop, start):
    queue = make(tmp_path)
    put(queue, 0, stop)
    put(queue, start, 55)
    assert reopened(tmp_path).first_gap is None


def test_a_beginning_that_was_lost_is_a_gap_too(queue):
    put(queue, 13, 15)
    queue.cut_gap()
    assert queue.max_offset_in_queue == 0
    put(queue, 0, 15)
    assert disk(queue) == {0: raw(0, 10), FILE_SIZE: raw(10, 15).ljust(FILE_SIZE, b"\0")}


def test_a_topic_created_again_begins_at_zero(queue, caplog):
    put(queue, 0, 25)
    queue.put_unit(0, 9000, RECORD, 7, 0)
    assert f"topic {queue.topic}, queue {queue.queue_id} starts over" in caplog.text
    assert content(queue) == [CqUnit(0, 9000, RECORD, 7)]
    assert list(disk(queue)) == [0]


def test_newer_records_of_offsets_that_are_there_are_passed_over(queue):
    put(queue, 0, 5)
    queue.put_unit(3, 9000, RECORD, 7, 0)
    assert content(queue) == expected(0, 5)
    units = units_of([90, 91, 92])
    queue.put_units(3, units, np.zeros(3, np.int64))  # messages 3, 4 and 5
    assert content(queue) == [*expected(0, 5), CqUnit(5, 9200, RECORD, 92)]


def test_a_refused_write_moves_nothing(queue, monkeypatch):
    put(queue, 0, 8)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for start, stop in ((8, 9), (8, 15), (13, 14)):
        with pytest.raises(OSError, match="No space"):
            put(queue, start, stop)
        assert (queue.max_offset_in_queue, queue.max_physic_offset) == (8, 800)
    monkeypatch.undo()
    put(queue, 8, 15)
    assert content(queue) == expected(0, 15)


# ---------------------------------------------------------------------------------------- reading


def test_get_range_stays_in_one_file(queue):
    put(queue, 0, 25)
    assert queue.get_range(3, 4).tolist() == units_of([3, 4, 5, 6]).tolist()
    assert queue.get_range(8, 100).tolist() == units_of([8, 9]).tolist()
    assert queue.get_range(24, 100).tolist() == units_of([24]).tolist()
    assert len(queue.get_range(25, 1)) == len(queue.get_range(-1, 1)) == len(queue.get_range(0, 0)) == 0
    assert queue.get_range(3, 1).dtype == CQ_DTYPE


def pages(queue, start, stop, count=2):
    return b"".join(queue.get_range_bytes(n, count) for n in range(start, stop, count))


def test_who_reads_on_gets_what_was_read_ahead(queue, monkeypatch):
    put(queue, 0, 25)
    reads, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: reads.append(arguments) or pread(*arguments))
    assert pages(queue, 0, 10) == raw(0, 10)
    assert len(reads) == 2
    assert pages(queue, 10, 24) == raw(10, 24)
    assert queue.get_range_bytes(24, 2) == raw(24, 25)
    put(queue, 25, 28)
    assert queue.get_range_bytes(25, 32) == raw(25, 28)
    assert queue.get_range_bytes(8, 32) == raw(8, 10)
    assert len(reads) < 10


def test_what_was_read_ahead_is_forgotten_when_the_queue_changes(queue):
    put(queue, 0, 10)
    assert pages(queue, 0, 4) == raw(0, 4)
    queue.truncate_dirty_logic_files(5 * RECORD)
    queue.put_units(5, units_of([70, 71, 72]), np.zeros(3, np.int64))
    other = b"".join(UNIT.pack(n * RECORD, RECORD, n) for n in (4, 70, 71, 72))
    assert pages(queue, 4, 8) == other

    queue.put_unit(0, 9000, RECORD, 7, 0)  # a topic created again
    for n in range(1, 6):
        queue.put_unit(n, 9000 + n * RECORD, RECORD, 7, 0)
    assert pages(queue, 0, 2) == b"".join(UNIT.pack(9000 + n * RECORD, RECORD, 7) for n in (0, 1))
    assert pages(queue, 2, 6) == b"".join(UNIT.pack(9000 + n * RECORD, RECORD, 7) for n in range(2, 6))
    queue.destroy()
    assert queue.get_range_bytes(4, 1) == b""


def test_a_unit_is_one_message(queue):
    put(queue, 0, 1)
    assert queue.get(0).batch_num == 1


def test_get_outside_the_queue(queue):
    assert queue.get(0) is None
    put(queue, 0, 2)
    assert queue.get(2) is None
    assert queue.get(-1) is None


def test_roll_next_file(queue):
    assert [queue.roll_next_file(n) for n in (0, 9, 10, 25)] == [10, 10, 20, 30]


# ---------------------------------------------------------------------------------------- recovery


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("stop", [1, 9, 10, 11, 39, 40, 47])
def test_recovery_finds_the_end(tmp_path, queue, stop, thorough):
    put(queue, 0, stop)
    before = disk(queue)
    again = reopened(tmp_path, thorough=thorough)
    assert again.max_physic_offset == stop * RECORD
    assert content(again) == expected(0, stop)
    assert disk(again) == before
    put(again, stop, stop + 3)
    assert content(again) == expected(0, stop + 3)


@pytest.mark.parametrize("thorough", [True, False])
def test_recovery_of_large_files(tmp_path, thorough):
    size = 300_000 * 20
    queue = make(tmp_path, file_size=size)
    put(queue, 0, 123_457)
    again = reopened(tmp_path, thorough=thorough, file_size=size)
    assert again.max_offset_in_queue == 123_457
    with open(again.files.files[0].path, "r+b") as file:  # a copy without holes
        data = file.read()
        file.seek(0)
        file.write(data)
    again = reopened(tmp_path, thorough=thorough, file_size=size)
    assert again.max_offset_in_queue == 123_457
    assert again.max_physic_offset == 123_457 * RECORD


@pytest.mark.parametrize("thorough", [True, False])
def test_recovery_without_files_or_without_units(tmp_path, queue, thorough):
    again = reopened(tmp_path, thorough=thorough)
    assert (again.max_physic_offset, again.max_offset_in_queue) == (-1, 0)
    put(queue, 13, 14)
    os.truncate(queue.files.files[0].path, 0)
    os.truncate(queue.files.files[0].path, FILE_SIZE)
    again = reopened(tmp_path, thorough=thorough)
    assert (again.max_physic_offset, again.max_offset_in_queue) == (-1, 10)
    put(again, 13, 14)
    assert (again.min_offset_in_queue, content(again)) == (13, expected(13, 14))
    again = reopened(tmp_path, thorough=thorough)
    put(again, 14, 15)
    assert again.max_offset_in_queue == 15


def test_an_empty_queue_of_one_place_may_begin_at_another(tmp_path, queue):
    put(queue, 13, 14)
    os.truncate(queue.files.files[0].path, 0)
    os.truncate(queue.files.files[0].path, FILE_SIZE)
    again = reopened(tmp_path)
    put(again, 4, 6)
    assert disk(again) == {0: (PRE_BLANK * 4 + raw(4, 6)).ljust(FILE_SIZE, b"\0")}


def test_recovery_stops_at_a_lost_page_and_forgets_what_is_behind_it(tmp_path, queue):
    put(queue, 0, 29)
    with open(queue.files.files[1].path, "r+b") as file:
        file.seek(3 * 20)
        file.write(bytes(40))
    again = reopened(tmp_path)
    assert content(again) == expected(0, 13)
    assert disk(again) == {0: raw(0, 10), FILE_SIZE: raw(10, 13).ljust(FILE_SIZE, b"\0")}


def test_recovery_forgets_blanks_without_a_unit(tmp_path, queue):
    put(queue, 0, 5)
    with open(queue.files.files[0].path, "r+b") as file:
        file.seek(100)
        file.write(PRE_BLANK * 3)
    again = reopened(tmp_path)
    assert (again.max_offset_in_queue, again.max_physic_offset) == (5, 500)


def test_blanks_up_to_the_end_of_a_file_are_forgotten_up_to_the_last_unit(tmp_path, queue):
    put(queue, 0, 13)
    queue.files.write(13 * 20, PRE_BLANK * 7)
    assert queue.files.max_offset == 2 * FILE_SIZE
    assert content(reopened(tmp_path)) == expected(0, 13)


def test_recovery_of_nothing_but_blanks(tmp_path, queue):
    put(queue, 17, 18)
    with open(queue.files.files[0].path, "r+b") as file:
        file.seek(7 * 20)
        file.write(bytes(20))
    again = reopened(tmp_path)
    assert again.max_physic_offset == -1
    put(again, 17, 19)
    assert content(again) == expected(17, 19)


def test_the_last_three_files_are_looked_at(tmp_path, queue):
    put(queue, 0, 60)
    with open(queue.files.files[2].path, "r+b") as file:
        file.write(bytes(20))
    assert reopened(tmp_path).max_offset_in_queue == 60
    with open(queue.files.files[3].path, "r+b") as file:
        file.write(bytes(20))
    assert reopened(tmp_path).max_offset_in_queue == 30


# ---------------------------------------------------------------------------------------- the log's limits


@pytest.mark.parametrize("cut", [*range(26), 100])
def test_truncation(tmp_path, queue, cut):
    put(queue, 0, 25)
    queue.truncate_dirty_logic_files(cut * RECORD)
    left = min(cut, 25)
    assert content(queue) == expected(0, left)
    assert queue.max_physic_offset == (left * RECORD if left else -1)
    assert b"".join(disk(queue).values()).rstrip(b"\0") == raw(0, left).rstrip(b"\0") if left else True
    assert content(reopened(tmp_path)) == expected(0, left)
    put(queue, left, left + 2)
    assert content(queue) == expected(0, left + 2)


def test_truncation_takes_a_unit_whose_record_is_cut(queue):
    put(queue, 0, 25)
    queue.truncate_dirty_logic_files(1250)
    assert content(queue) == expected(0, 12)


def test_truncation_to_nothing_deletes_the_files(queue):
    put(queue, 13, 25)
    queue.truncate_dirty_logic_files(5)
    assert (queue.max_offset_in_queue, queue.min_offset_in_queue, queue.max_physic_offset) == (0, 0, -1)
    assert not os.path.exists(queue.files.directory)


@pytest.mark.parametrize("commit_log_min", [0, 1, 99, 100, 101, 950, 1000, 1300, 2399, 2400, 2401, 9999])
def test_the_smallest_offset_follows_the_log(queue, commit_log_min):
    put(queue, 0, 25)
    queue.correct_min_offset(commit_log_min)
    first = min(-(-commit_log_min // RECORD), 25)
    assert queue.min_offset_in_queue == first
    assert queue.get(first - 1) is None
    assert content(queue) == expected(first, 25)
    queue.correct_min_offset(0)  # it never goes back behind what is known
    queue.correct_min_offset(commit_log_min)
    assert queue.min_offset_in_queue == first


def test_the_smallest_offset_of_a_pre_blanked_queue(tmp_path, queue):
    put(queue, 13, 25)
    for thorough in (True, False):
        again = reopened(tmp_path, thorough=thorough)
        assert again.min_offset_in_queue == 13
        again.correct_min_offset(0)
        assert again.min_offset_in_queue == 13
        again.correct_min_offset(1450)
        assert again.min_offset_in_queue == 15


def test_the_smallest_offset_around_a_gap(queue):
    put(queue, 0, 5)
    put(queue, 57, 63)
    for commit_log_min, first in ((250, 3), (500, 57), (5800, 58)):
        queue.correct_min_offset(commit_log_min)
        assert queue.min_offset_in_queue == first


def test_expired_files_are_deleted(queue):
    put(queue, 0, 35)
    assert queue.delete_expired_file(900) == 0
    assert queue.min_offset_in_queue == 9
    assert queue.delete_expired_file(1850) == 1
    assert queue.min_offset_in_queue == 19
    assert queue.delete_expired_file(99_999) == 2
    assert list(disk(queue)) == [3 * FILE_SIZE]  # never the last
    assert queue.min_offset_in_queue == queue.max_offset_in_queue == 35
    put(queue, 35, 36)
    queue.correct_min_offset(3500)
    assert content(queue) == expected(35, 36)


def test_destroy(queue):
    put(queue, 13, 25)
    queue.destroy()
    assert not os.path.exists(queue.files.directory)
    assert (queue.min_offset_in_queue, queue.max_offset_in_queue, queue.max_physic_offset) == (0, 0, -1)
    put(queue, 0, 2)
    assert content(queue) == expected(0, 2)


# ---------------------------------------------------------------------------------------- by time


def by_time(queue, times, timestamp, boundary, commit_log_min=0):
    def store_time_of(physical_offset, size):
        assert size == RECORD
        return times[physical_offset // RECORD] if physical_offset >= commit_log_min else -1

    return queue.get_offset_in_queue_by_time(
        timestamp, boundary, store_time_of, commit_log_min=commit_log_min
    )


def test_by_time_with_equal_and_missing_timestamps(queue):
    times = [100, 100, 100, 300, 300]
    put(queue, 0, 5)
    found = {
        (timestamp, boundary): by_time(queue, times, timestamp, boundary)
        for timestamp in (99, 100, 200, 300, 301)
        for boundary in (LOWER, UPPER)
    }
    assert found == {
        (99, LOWER): 0,
        (99, UPPER): 0,
        (100, LOWER): 0,
        (100, UPPER): 2,
        (200, LOWER): 3,
        (200, UPPER): 2,
        (300, LOWER): 3,
        (300, UPPER): 4,
        (301, LOWER): 5,
        (301, UPPER): 4,
    }


def test_by_time_with_runs_of_equal_times(queue):
    """Every way to have ten messages earlier than, at and later than a time."""
    put(queue, 0, UNITS_A_FILE)
    for moment in (0, 20):
        for before in range(UNITS_A_FILE):
            for equal in range(1, UNITS_A_FILE + 1 - before):
                after = UNITS_A_FILE - before - equal
                times = [moment - 10] * before + [moment] * equal + [moment + 10] * after
                if moment or not before:  # there is no time before 0
                    assert by_time(queue, times, moment, LOWER) == before
                    assert by_time(queue, times, moment, UPPER) == before + equal - 1


def test_by_time_in_an_empty_queue(queue):
    assert by_time(queue, [], 5, LOWER) == by_time(queue, [], 5, UPPER) == 0


@given(
    steps=st.lists(st.integers(0, 2), min_size=1, max_size=35),
    timestamp=st.integers(-1, 75),
    begin=st.integers(0, 20),
)
@settings(max_examples=150, deadline=None)
def test_by_time_over_files(tmp_path_factory, steps, timestamp, begin):
    times = {begin + n: int(t) for n, t in enumerate(np.cumsum(steps) + 1)}
    queue = make(tmp_path_factory.mktemp("queue"))
    put(queue, begin, begin + len(steps))
    lower, upper = (by_time(queue, times, timestamp, boundary) for boundary in (LOWER, UPPER))
    not_older = [n for n, time in times.items() if time >= timestamp]
    not_newer = [n for n, time in times.items() if time <= timestamp]
    if timestamp in times.values():
        assert (times[lower], times[upper]) == (timestamp, timestamp)
        # equal times are told apart within the file in which the search ends
        assert lower == not_older[0] or lower % UNITS_A_FILE == 0
        assert upper == not_newer[-1] or upper % UNITS_A_FILE == UNITS_A_FILE - 1
    else:
        assert lower == (not_older[0] if not_older else begin + len(steps))
        assert upper == (not_newer[-1] if not_newer else begin)


def test_by_time_with_an_expired_beginning(queue):
    put(queue, 0, 8)
    queue.correct_min_offset(300)
    times = [0, 0, 0, 40, 50, 60, 70, 80]
    assert by_time(queue, times, 10, LOWER, 300) == 3
    assert by_time(queue, times, 10, UPPER, 300) == 3
    assert by_time(queue, times, 55, LOWER, 300) == 5
    assert by_time(queue, times, 55, UPPER, 300) == 4


# ---------------------------------------------------------------------------------------- beside a writer


def test_a_reader_follows_the_writer(tmp_path, queue):
    reader = reopened(tmp_path, thorough=False, read_only=True)
    assert content(reader) == []
    for stop in (1, 3, 10, 11, 34):
        put(queue, queue.max_offset_in_queue, stop)
        reader.refresh()
        assert content(reader) == expected(0, stop)
        assert reader.max_physic_offset == queue.max_physic_offset
    queue.delete_expired_file(1200)
    reader.refresh()
    assert reader.min_offset_in_queue == 10
    queue.truncate_dirty_logic_files(1500)
    reader.refresh()
    assert content(reader) == expected(10, 15)
    queue.destroy()
    reader.refresh()
    assert content(reader) == []
    put(queue, 0, 2)
    reader.refresh()
    assert content(reader) == expected(0, 2)


def test_a_reader_does_not_count_a_unit_that_is_being_written(tmp_path, queue, monkeypatch):
    put(queue, 0, 3)
    reader = reopened(tmp_path, thorough=False, read_only=True)
    put(queue, 3, 5)
    looks = iter([b"a", b"b"])
    whole = os.pread

    def changing(fd, size, position):
        data = whole(fd, size, position)
        return data[:-1] + next(looks, b"c") if (size, position) == (20, 80) else data

    monkeypatch.setattr(os, "pread", changing)
    reader.refresh()
    assert reader.max_offset_in_queue == 4


# ---------------------------------------------------------------------------------------- a model of it all


@st.composite
def operations(draw):
    steps = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["put", "put", "put", "again", "reopen", "crash", "truncate", "expire"]))
        steps.append((kind, draw(st.integers(0, 25)), draw(st.booleans())))
    return steps


EXT_FILE_SIZE = 100  # four units of 20 bytes


def ext_is_as_long_as_its_queue(queue, first, end, *, has_expired):
    """The extension has each message's unit, nothing after the last one's, and when messages have just expired no file
    that is not needed."""
    units = b"".join(queue.get_range_bytes(n, 1) for n in range(first, end))
    addresses = np.frombuffer(units, CQ_DTYPE)["tags_code"].tolist()
    assert addresses == sorted(set(addresses))
    assert [queue.ext.get(address).tags_code for address in addresses] == list(range(first, end))
    assert queue.ext.max_address == addresses[-1] + 20
    assert not has_expired or undecorate(queue.ext.min_address) + EXT_FILE_SIZE >= undecorate(addresses[0])


@pytest.mark.parametrize("ext_file_size", [0, EXT_FILE_SIZE], ids=["plain", "with extension"])
@given(begin=st.integers(0, 25), steps=operations())
@settings(max_examples=60, deadline=None)
def test_against_a_list(tmp_path_factory, ext_file_size, begin, steps):
    directory = tmp_path_factory.mktemp("queue")
    queue = make(directory, ext_file_size=ext_file_size)
    first, end, commit_log_min = begin, begin, 0  # the model: messages first … end - 1 are in the queue
    for kind, number, flag in steps:
        if kind == "put":
            put(queue, end, end + number + 1)
            end += number + 1
        elif kind == "again":
            start = max(first, end - number)
            if start < end:
                put(queue, start, end)
        elif kind in ("reopen", "crash"):
            assert queue.flush()
            assert queue.ext is None or queue.ext.files.flushed_where == queue.ext.files.max_offset
            queue = reopened(directory, thorough=kind == "crash", ext_file_size=ext_file_size)
            queue.correct_min_offset(commit_log_min)
        elif kind == "truncate" and end > first:
            cut = max(first + 1, end - number)
            queue.truncate_dirty_logic_files(cut * RECORD - (50 if flag and cut > first + 1 else 0))
            end = cut - (1 if flag and cut > first + 1 else 0)
        elif kind == "expire":
            commit_log_min = max(commit_log_min, (end - number) * RECORD)
            queue.delete_expired_file(commit_log_min)
        if end > begin:
            first = max(first, min(end, -(-commit_log_min // RECORD)))
            assert queue.max_offset_in_queue == end
            assert queue.min_offset_in_queue == first
            assert content(queue) == expected(first, end)
            if ext_file_size and first < end:
                ext_is_as_long_as_its_queue(queue, first, end, has_expired=kind == "expire")
            elif not ext_file_size:
                assert pages(queue, first, end, 1) == raw(first, end)
            assert queue.max_physic_offset == end * RECORD


@given(st.binary(max_size=FILE_SIZE * 2), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_survived(tmp_path_factory, damage, thorough):
    directory = tmp_path_factory.mktemp("queue")
    queue = make(directory)
    put(queue, 0, 15)
    for number, file in enumerate(queue.files.files):
        part = damage[number * FILE_SIZE : (number + 1) * FILE_SIZE]
        queue.files.pool.pwrite(file, part, 0) if part else None
    again = reopened(directory, thorough=thorough)
    again.correct_min_offset(500)
    for unit in again.get_range(0, 100).tolist():
        assert unit[0] >= 0
        assert unit[1] > 0
    again.truncate_dirty_logic_files(700)
    assert again.max_physic_offset <= 700
    by_time(again, {}, 5, LOWER) if again.is_empty else None


@settings(max_examples=60, deadline=None)
@given(present=st.sets(st.integers(1, 60), min_size=1))
def test_each_unit_of_a_gap_leads_to_the_message_after_it(
    tmp_path_factory: pytest.TempPathFactory, present: set[int]
) -> None:
    """Unit 0 and those of `present` are there, in files of seven units."""
    there = [0, *sorted(present)]
    queue = make(tmp_path_factory.mktemp("queue"), file_size=20 * 7)
    for number in there:
        put(queue, number, number + 1)
    had_gap = queue.first_gap is not None
    if had_gap:
        queue.bridge_gaps()
    assert queue.first_gap is None
    assert had_gap == (there != list(range(len(there))))
    for number in range(there[-1] + 1):
        unit = queue.get(number)
        if unit is None:  # a file that would hold no message at all is not made
            assert not {n // 7 for n in there} & {number // 7}
            continue
        assert unit.physical_offset == RECORD * next(n for n in there if n >= number)
    assert queue.max_offset_in_queue == there[-1] + 1
