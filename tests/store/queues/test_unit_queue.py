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
