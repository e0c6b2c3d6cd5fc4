"""Recovery of both kinds of queues; what each kind does beyond it is in the tests of its own."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.formats.batch_consume_queue import BCQ_DTYPE
from mqlake.formats.consume_queue import CQ_DTYPE, PRE_BLANK
from mqlake.store.files.file_pool import FilePool
from mqlake.store.queues import unit_queue
from mqlake.store.queues.batch_consume_queue import BatchConsumeQueue
from mqlake.store.queues.consume_queue import ConsumeQueue

UNITS_A_FILE = 1000
RECORD = 100
KINDS = [ConsumeQueue, BatchConsumeQueue]


def make(kind, directory):
    return kind("T", 0, f"{directory}/T/0", UNITS_A_FILE * kind.unit_size, FilePool(8))


def units_of(kind, start, stop):
    if kind is ConsumeQueue:
        return np.array([(n * RECORD, RECORD, n) for n in range(start, stop)], CQ_DTYPE)
    return np.array([(n * RECORD, RECORD, n, n, n, 1, -1, 0) for n in range(start, stop)], BCQ_DTYPE)


def write(queue, number, data):
    """Bytes as a crash leaves them, from unit `number` on, in files of the usual size."""
    queue.files.write(number * queue.unit_size, bytes(data))


def recovered(kind, directory, thorough):
    queue = make(kind, directory)
    queue.load()
    queue.recover(thorough=thorough)
    return queue


def state(queue):
    return (
        queue.min_offset_in_queue,
        queue.max_offset_in_queue,
        queue.max_physic_offset,
        [file.file_from_offset for file in queue.files.files],
    )


def disk(queue):
    return [queue.files.pool.pread(file, queue.files.file_size, 0) for file in queue.files.files]


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 204, 205, 999, 1000, 1001, 3500, 5000])
def test_the_end_is_found(tmp_path, kind, count, thorough):
    write(make(kind, tmp_path), 0, units_of(kind, 0, count))
    queue = recovered(kind, tmp_path, thorough)
    assert state(queue)[:3] == (0, count, count * RECORD)


@pytest.mark.parametrize("kind", KINDS)
def test_leftovers_behind_the_end_are_erased_after_a_crash(tmp_path, kind):
    queue = make(kind, tmp_path)
    write(queue, 0, units_of(kind, 0, 10))
    write(queue, 12, units_of(kind, 12, 20))
    write(queue, 700, units_of(kind, 700, 720))  # behind a hole
    queue = recovered(kind, tmp_path, True)
    assert queue.max_offset_in_queue == 10
    assert disk(queue) == [units_of(kind, 0, 10).tobytes().ljust(queue.files.file_size, b"\0")]


@st.composite
def contents(draw):
    """Runs of (kind of units, how many)."""
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from(["units", "units", "zeros", "blanks", "nonsense"]), st.integers(1, 400)
            ),
            max_size=6,
        )
    )


def lay_out(kind, runs):
    data, number = b"", 0
    for what, count in runs:
        size = count * kind.unit_size
        if what == "units":
            data += units_of(kind, number, number + count).tobytes()
        elif what == "blanks" and kind is ConsumeQueue:
            data += PRE_BLANK * count
        elif what == "nonsense":
            data += b"\xff" * size
        else:
            data += bytes(size)
        number += count
    return data


def end_of(kind, runs):
    """Where data ends: at the first unit of nothing; blanks at the very end stand for nothing either."""
    end = number = 0
    for what, count in runs:
        if what in ("zeros", "nonsense") or (what == "blanks" and kind is BatchConsumeQueue):
            break
        number += count
        end = number if what == "units" else end
    return end


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@given(runs=contents())
@settings(max_examples=40, deadline=None)
def test_small_queues_are_recovered_like_large_ones(tmp_path_factory, kind, thorough, runs):
    small, large = tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("large")
    write(make(kind, small), 0, lay_out(kind, runs))
    shutil.rmtree(large)
    shutil.copytree(small, large)
    first = recovered(kind, small, thorough)
    window, unit_queue.SEARCH_WINDOW = unit_queue.SEARCH_WINDOW, 4 * kind.unit_size
    try:
        second = recovered(kind, large, thorough)
    finally:
        unit_queue.SEARCH_WINDOW = window
    if thorough or all(what == "units" for what, _ in runs):
        assert state(first) == state(second)
        assert disk(first) == disk(second)
    if thorough:
        assert first.max_offset_in_queue == end_of(kind, runs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_cannot_be_read_is_an_error(tmp_path, kind, monkeypatch):
    write(make(kind, tmp_path), 0, units_of(kind, 0, 10))

    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(OSError, match="Input/output"):
        recovered(kind, tmp_path, True)


@pytest.mark.parametrize("kind", KINDS)
def test_both_ends_follow_the_log(tmp_path, kind):
    write(make(kind, tmp_path), 0, units_of(kind, 0, 2500))
    queue = recovered(kind, tmp_path, True)
    assert [queue.first_from(number * RECORD) for number in (0, 1300, 2499, 2500, 99_999)] == [
        0,
        1300,
        2499,
        2500,
        2500,
    ]
    for commit_log_min, first in ((0, 0), (1250, 1250), (10, 1250), (1250, 1250), (1251, 1251)):
        queue.correct_min_offset(commit_log_min * RECORD)
        assert queue.min_offset_in_queue == first
    assert queue.delete_expired_file(1252 * RECORD) == 1
    assert queue.min_offset_in_queue == 1252
    files = [number * UNITS_A_FILE * kind.unit_size for number in (1, 2)]
    assert state(queue) == (1252, 2500, 2500 * RECORD, files)
    queue.truncate_dirty_logic_files(2010 * RECORD - 1)  # in the middle of a record
    assert state(queue) == (1252, 2009, 2009 * RECORD, files)
    queue.truncate_dirty_logic_files(1100 * RECORD)  # before the beginning
    assert state(queue) == (1000, 1100, 1100 * RECORD, files[:1])
    queue.destroy()
    assert state(queue) == (0, 0, -1, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_sees_a_queue_that_was_cut_made_again_or_moved_on(tmp_path, kind):
    writer = make(kind, tmp_path)
    write(writer, 0, units_of(kind, 0, 500))
    reader = kind("T", 0, f"{tmp_path}/T/0", UNITS_A_FILE * kind.unit_size, FilePool(8, read_only=True))
    reader.load()
    reader.recover(thorough=False)

    def seen():
        reader.refresh()
        return state(reader)

    assert seen() == (0, 500, 500 * RECORD, [0])
    write(writer, 500, units_of(kind, 500, 900))
    assert seen() == (0, 900, 900 * RECORD, [0])
    for start, stop in ((900, 1100), (1100, 1200), (1200, 2100)):  # over the borders of files
        write(writer, start, units_of(kind, start, stop))
        files = [number * UNITS_A_FILE * kind.unit_size for number in range(-(-stop // UNITS_A_FILE))]
        assert seen() == (0, stop, stop * RECORD, files)
    writer = recovered(kind, tmp_path, False)
    writer.truncate_dirty_logic_files(100 * RECORD)
    assert seen() == (0, 100, 100 * RECORD, [0])
    write(writer, 100, units_of(kind, 100, 3500))
    writer = recovered(kind, tmp_path, False)
    writer.delete_expired_file(2500 * RECORD)  # with the file in which the reader was
    files = [number * UNITS_A_FILE * kind.unit_size for number in (2, 3)]
    assert seen()[1:] == (3500, 3500 * RECORD, files)
    assert reader.min_offset_in_queue >= 2000
    writer.destroy()
    assert seen() == (0, 0, -1, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_recovery_says_where_the_last_record_ends(tmp_path, kind):
    queue = make(kind, tmp_path)
    queue.load()
    assert queue.recover(thorough=True) == queue.recover(thorough=False) == queue.max_physic_offset == -1
    for count in (10, 2500):
        write(queue, 0, units_of(kind, 0, count))
        for thorough in (True, False):
            again = make(kind, tmp_path)
            again.load()
            assert again.recover(thorough=thorough) == again.max_physic_offset == count * RECORD


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("files", [1, 3])
def test_files_without_a_unit(tmp_path, kind, files, thorough):
    """As they are created, or as a cut leaves the first one of a queue whose beginning is gone."""
    queue = make(kind, tmp_path)
    for number in range(2, 2 + files):
        write(queue, number * UNITS_A_FILE, bytes(kind.unit_size))
    queue = recovered(kind, tmp_path, thorough)
    start = 2 * UNITS_A_FILE * kind.unit_size
    assert (queue.files.min_offset, queue.files.max_offset, queue.max_physic_offset) == (start, start, -1)
    assert [file.file_from_offset for file in queue.files.files] == [start]
    assert (queue.is_empty, queue.last_unit(), queue.ends_in_damage) == (True, None, False)


@pytest.mark.parametrize("blanks", [13, UNITS_A_FILE + 13, 5 * UNITS_A_FILE])
@pytest.mark.parametrize("thorough", [True, False])
def test_a_queue_that_begins_with_blanks(tmp_path, blanks, thorough):
    units = units_of(ConsumeQueue, blanks, blanks + 10)
    write(make(ConsumeQueue, tmp_path), 0, PRE_BLANK * blanks + units.tobytes())
    queue = recovered(ConsumeQueue, tmp_path, thorough)
    assert state(queue)[:3] == (blanks, blanks + 10, (blanks + 10) * RECORD)
    queue.correct_min_offset(0)
    assert queue.min_offset_in_queue == blanks
    queue.correct_min_offset(blanks * RECORD + 1)
    assert queue.min_offset_in_queue == blanks + 1


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [10, UNITS_A_FILE - 1, UNITS_A_FILE, 3500])
@pytest.mark.parametrize("after", [b"", b"\xff", b"\0\0\x01"])
def test_what_follows_the_end_is_known_to_be_damage_or_not(tmp_path, kind, count, after, thorough):
    """Zeros are a clean end, also when something lies after them; anything else is damage. There may be no room."""
    queue = make(kind, tmp_path)
    write(queue, 0, units_of(kind, 0, count))
    room = after and count % UNITS_A_FILE
    if room:
        write(queue, count, after.ljust(kind.unit_size, b"\0"))
        write(recovered(kind, tmp_path, False), count + 1, b"\xff") if count % UNITS_A_FILE == 10 else None
    queue = recovered(kind, tmp_path, thorough)
    assert queue.max_offset_in_queue == count
    assert queue.ends_in_damage == bool(room)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_expires_when_its_last_record_does(tmp_path, kind):
    write(make(kind, tmp_path), 0, units_of(kind, 0, 3 * UNITS_A_FILE))
    queue = recovered(kind, tmp_path, True)
    last = (UNITS_A_FILE - 1) * RECORD
    assert queue.delete_expired_file(last) == 0
    assert queue.min_offset_in_queue == UNITS_A_FILE - 1
    assert queue.delete_expired_file(last + 1) == 1
    assert state(queue)[:2] == (UNITS_A_FILE, 3 * UNITS_A_FILE)
    assert queue.delete_expired_file(3 * UNITS_A_FILE * RECORD) == 1  # never the last one
    assert state(queue)[:2] == (3 * UNITS_A_FILE, 3 * UNITS_A_FILE)


@pytest.mark.parametrize("kind", KINDS)
@given(limits=st.lists(st.tuples(st.booleans(), st.integers(0, 3 * UNITS_A_FILE * RECORD + 50)), max_size=5))
@settings(max_examples=40, deadline=None)
def test_both_ends_follow_the_log_to_the_byte(tmp_path_factory, kind, limits):
    """The oracle: units 0 to 2999, of which those stay that begin at the log's beginning or later and end at its end or
    before."""
    directory = tmp_path_factory.mktemp("queue")
    write(make(kind, directory), 0, units_of(kind, 0, 3 * UNITS_A_FILE))
    queue = recovered(kind, directory, True)
    first, end = 0, 3 * UNITS_A_FILE
    for is_end, limit in limits:
        if is_end:
            if limit // RECORD <= first:
                continue
            queue.truncate_dirty_logic_files(limit)
            end = min(end, limit // RECORD)
            assert not any(b"".join(disk(queue))[(end * kind.unit_size - queue.files.min_offset) :])
        else:
            queue.correct_min_offset(limit)
            first = max(first, min(-(-limit // RECORD), end))
        assert state(queue)[:3] == (first, end, end * RECORD)
    again = recovered(kind, directory, True)
    assert state(again)[1:] == state(queue)[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_is_dropped_and_taken_back(tmp_path, kind):
    write(make(kind, tmp_path), 0, units_of(kind, 0, 10))
    queue = recovered(kind, tmp_path, True)
    end = queue.files.max_offset
    queue.hide_last_unit()
    assert (queue.max_offset_in_queue, queue.max_physic_offset) == (9, 9 * RECORD)
    assert queue.files.flushed_where <= queue.files.max_offset
    assert disk(queue)[0].startswith(units_of(kind, 0, 10).tobytes()), "it stays on the disk"
    queue.unhide_until(end, 99 * RECORD)
    assert (queue.max_offset_in_queue, queue.max_physic_offset) == (10, 10 * RECORD)
    queue.unhide_until(end, 950)  # its record is cut: the log ends in its middle
    assert (queue.max_offset_in_queue, queue.max_physic_offset) == (10, 950)
    queue.hide_last_unit()
    queue.erase_rest()
    assert disk(queue)[0] == units_of(kind, 0, 9).tobytes().ljust(queue.files.file_size, b"\0")


@pytest.mark.parametrize("kind", KINDS)
def test_a_flush_takes_what_is_less_than_a_page_unless_told_otherwise(tmp_path, kind):
    queue = make(kind, tmp_path)
    write(queue, 0, units_of(kind, 0, 10))
    assert not queue.flush(1)
    assert queue.files.flushed_where == 0
    assert queue.flush()
    assert queue.files.flushed_where == queue.files.max_offset


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_starts_over_sees_what_one_sees_that_opens_now(tmp_path, kind):
    """Also of a file larger than what is looked at from its end, with a hole before that."""
    size = 10_000 * kind.unit_size
    writer = kind("T", 0, f"{tmp_path}/T/0", size, FilePool(8))
    write(writer, 0, units_of(kind, 0, 8000))
    readers = [kind("T", 0, f"{tmp_path}/T/0", size, FilePool(8, read_only=True)) for _ in range(2)]
    readers[0].load()
    readers[0].recover(thorough=False)
    end = writer.files.max_offset
    writer.files.pool.pwrite(writer.files.files[0], bytes(100 * kind.unit_size), 50 * kind.unit_size)
    writer.files.max_offset = end - kind.unit_size
    write(writer, 7999, units_of(kind, 9000, 9001))
    readers[0].refresh()
    readers[1].load()
    readers[1].recover(thorough=False)
    assert state(readers[0]) == state(readers[1])
    assert readers[0].files.max_offset == end
