from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.formats.batch_consume_queue import BCQ_DTYPE, BatchConsumeQueueUnit
from mqlake.store.files.file_pool import FilePool
from mqlake.store.queues.batch_consume_queue import BatchConsumeQueue
from mqlake.store.queues.consume_queue import CqUnit
from mqlake.store.results import BoundaryType

UNITS_A_FILE = 10
RECORD = 100
LOWER, UPPER = BoundaryType.LOWER, BoundaryType.UPPER


def make(directory, **pool):
    path = f"{directory}/batchconsumequeue/T/0"
    return BatchConsumeQueue("T", 0, path, UNITS_A_FILE * 46, FilePool(8, **pool))


def reopened(directory, *, thorough=True, **pool):
    queue = make(directory, **pool)
    queue.load()
    queue.recover(thorough=thorough)
    return queue


def batches(sizes, base=0, start=0):
    """Units of batches of these sizes, the first of which is the queue's batch `start`."""
    units = []
    for number, size in enumerate(sizes, start):
        units.append((number * RECORD, RECORD, 5, 1000 + number * 10, base, size, -1, 0))
        base += size
    return np.array(units, BCQ_DTYPE)


SIZES = [10, 1, 20, 3] * 8  # 272 messages in 32 batches, in four files


@pytest.fixture
def queue(tmp_path):
    queue = make(tmp_path)
    queue.put_units(batches(SIZES))
    return queue


def holder(offset):
    """The batch that holds a message."""
    base = 0
    for number, size in enumerate(SIZES):
        if base <= offset < base + size:
            return CqUnit(base, number * RECORD, RECORD, 5, size)
        base += size
    return None


def test_bytes(tmp_path, queue):
    one_by_one = make(tmp_path / "other")
    for unit in batches(SIZES):
        one_by_one.put_unit(BatchConsumeQueueUnit._make(unit.item()))
    for other in (queue, one_by_one):
        data = b"".join(other.files.read(file.file_from_offset, 460) for file in other.files.files)
        assert data == batches(SIZES).tobytes()
    assert [os.path.getsize(file.path) for file in queue.files.files] == [460] * 4


def test_every_message_is_found(queue):
    assert (queue.min_offset_in_queue, queue.max_offset_in_queue) == (0, 272)
    assert [queue.get(offset) for offset in range(-1, 273)] == [holder(offset) for offset in range(-1, 273)]


def test_get_range_begins_with_the_batch_of_the_message(queue):
    assert queue.get_range(5, 2)["msg_base_offset"].tolist() == [0, 10]
    assert queue.get_range(80, 100).tolist() == batches(SIZES)[10:20].tolist()  # the second file's
    assert len(queue.get_range(272, 5)) == 0


def test_roll_next_file_is_the_next_batch(queue):
    assert [queue.roll_next_file(offset) for offset in (0, 9, 10, 271, 500)] == [10, 10, 11, 272, 272]


def test_dispatching_again_changes_nothing(queue):
    queue.put_units(batches(SIZES))
    queue.put_units(batches(SIZES[:5]))
    assert queue.files.max_offset == 32 * 46
    queue.put_units(batches([*SIZES, 4]))
    assert queue.max_offset_in_queue == 276


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 31])
def test_recovery(tmp_path, count, thorough):
    queue = make(tmp_path)
    queue.put_units(batches(SIZES[:count]))
    again = reopened(tmp_path, thorough=thorough)
    assert again.max_offset_in_queue == sum(SIZES[:count])
    assert again.max_physic_offset == (count * RECORD if count else -1)
    again.put_units(batches(SIZES[count:], sum(SIZES[:count]), count))
    assert [again.get(offset) for offset in range(273)] == [holder(offset) for offset in range(273)]


@pytest.mark.parametrize("field", ["offset", "size", "msg_base_offset", "batch_size"])
def test_recovery_stops_at_a_bad_unit(tmp_path, field):
    units = batches(SIZES)
    units[25][field] = -1
    queue = make(tmp_path)
    queue.files.write(0, units.view(np.uint8).data)
    assert reopened(tmp_path).max_offset_in_queue == sum(SIZES[:25])


@pytest.mark.parametrize("cut", [0, 1, 9, 10, 11, 32])
def test_truncation(tmp_path, queue, cut):
    queue.truncate_dirty_logic_files(cut * RECORD)
    assert queue.max_offset_in_queue == sum(SIZES[:cut])
    assert queue.files.max_offset == cut * 46
    assert reopened(tmp_path).max_offset_in_queue == sum(SIZES[:cut])
    queue.put_units(batches(SIZES[cut:], sum(SIZES[:cut]), cut))
    assert queue.get(271) == holder(271)


def test_expiry(queue):
    assert queue.delete_expired_file(1150) == 1
    assert queue.min_offset_in_queue == sum(SIZES[:12])
    assert queue.get(sum(SIZES[:12]) - 1) is None
    assert queue.get(sum(SIZES[:12])) == holder(sum(SIZES[:12]))
    assert queue.delete_expired_file(99_999) == 2
    assert queue.min_offset_in_queue == queue.max_offset_in_queue == 272


def test_destroy(queue):
    queue.destroy()
    assert (queue.min_offset_in_queue, queue.max_offset_in_queue, queue.max_physic_offset) == (0, 0, -1)
    assert not os.path.exists(queue.files.directory)
    queue.put_units(batches([3]))
    assert queue.max_offset_in_queue == 3


def test_by_time(tmp_path):
    queue = make(tmp_path)
    units = batches([1] * 25)
    units["store_time"] = [100] * 12 + [200] * 8 + [300] * 5
    queue.put_units(units)

    def at(timestamp, boundary):
        return queue.get_offset_in_queue_by_time(timestamp, boundary, lambda *_: -1)

    found = [(at(time, LOWER), at(time, UPPER)) for time in (99, 100, 150, 200, 300, 301)]
    assert found == [(0, 0), (0, 11), (12, 11), (12, 19), (20, 24), (24, 24)]
    assert make(tmp_path / "empty").get_offset_in_queue_by_time(1, LOWER, lambda *_: -1) == 0


def test_a_reader_follows_the_writer(tmp_path):
    queue = make(tmp_path)
    reader = reopened(tmp_path, thorough=False, read_only=True)
    for count in (1, 10, 32):
        queue.put_units(batches(SIZES[:count]))
        reader.refresh()
        assert reader.max_offset_in_queue == sum(SIZES[:count])
        assert reader.get(0) == holder(0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=45), st.data())
@settings(max_examples=60, deadline=None)
def test_against_a_list(tmp_path_factory, sizes, data):
    queue = make(tmp_path_factory.mktemp("queue"))
    units = batches(sizes)
    split = data.draw(st.integers(0, len(sizes)))
    queue.put_units(units[:split])
    queue.put_units(units)
    offset = data.draw(st.integers(0, sum(sizes) - 1))
    unit = queue.get(offset)
    assert unit.queue_offset <= offset < unit.queue_offset + unit.batch_num
    expired = data.draw(st.integers(0, len(sizes)))
    queue.correct_min_offset(expired * RECORD)
    assert queue.min_offset_in_queue == sum(sizes[:expired])
