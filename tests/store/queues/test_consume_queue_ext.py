from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.formats.consume_queue import CQ_DTYPE
from mqlake.formats.consume_queue_ext import MAX_ADDRESS, ConsumeQueueExtUnit, decorate, undecorate
from mqlake.store.files.file_pool import FilePool
from mqlake.store.queues.consume_queue import ConsumeQueue, CqUnit
from mqlake.store.queues.consume_queue_ext import ConsumeQueueExt

FILE_SIZE = 1000


def make(directory, file_size=FILE_SIZE):
    return ConsumeQueueExt(f"{directory}/consumequeue_ext/T/0", file_size, FilePool(8))


def reopened(directory, max_address=None, file_size=FILE_SIZE):
    ext = make(directory, file_size)
    ext.load()
    ext.recover(max_address)
    return ext


def unit(number, bits=12):
    return ConsumeQueueExtUnit(number, number * 10, bytes([number % 251]) * bits)


@pytest.fixture
def ext(tmp_path):
    return make(tmp_path)


def test_put_and_get(ext):
    addresses = [ext.put(unit(n)) for n in range(100)]
    assert [ext.get(address) for address in addresses] == [unit(n) for n in range(100)]
    assert all(address <= MAX_ADDRESS for address in addresses)
    # 31 units of 32 bytes fit a file of 1000: 4 bytes stay free
    assert [undecorate(address) for address in addresses[:32]] == [*range(0, 31 * 32, 32), 1000]
    with open(ext.files.files[0].path, "rb") as file:
        assert file.read()[31 * 32 :] == b"\xff\xff" + bytes(6)


def test_tags_codes_in_bulk(ext):
    addresses = [ext.put(unit(n, bits=n % 5)) for n in range(100)]
    beyond = decorate(ext.files.max_offset + 5)
    codes = np.array([7, *addresses, -1, beyond, *reversed(addresses)])
    assert ext.tags_codes(codes).tolist() == [7, *range(100), -1, beyond, *range(99, -1, -1)]


def test_units_without_a_bit_map_in_bulk(ext):
    one_by_one = make(f"{ext.files.directory}/other")
    expected = [one_by_one.put(ConsumeQueueExtUnit(n, n + 5)) for n in range(120)]
    numbers = np.arange(120)
    addresses = [*ext.put_many(numbers[:7], numbers[:7] + 5), *ext.put_many(numbers[7:], numbers[7:] + 5)]
    assert [int(address) for address in addresses] == expected
    assert [ext.get(int(address)) for address in addresses] == [
        ConsumeQueueExtUnit(n, n + 5) for n in range(120)
    ]
    for ours, theirs in zip(ext.files.files, one_by_one.files.files, strict=True):
        with open(ours.path, "rb") as a, open(theirs.path, "rb") as b:
            assert a.read() == b.read()


def test_no_address(ext):
    ext.put(unit(1))
    assert ext.get(0) is None
    assert ext.get(1) is None
    assert ext.get(MAX_ADDRESS + 1) is None
    assert ext.get(decorate(32)) is None
    assert ext.get(decorate(10**12)) is None


def test_units_that_are_too_large(tmp_path):
    ext = make(tmp_path, file_size=1 << 20)
    assert ext.put(ConsumeQueueExtUnit(1, 1, bytes(32767 - 20))) is not None
    assert ext.put(ConsumeQueueExtUnit(1, 1, bytes(32767 - 19))) is None
    small = make(tmp_path / "small", file_size=100)
    assert small.put(ConsumeQueueExtUnit(1, 1, bytes(100 - 4 - 20))) is not None
    assert small.put(ConsumeQueueExtUnit(1, 1, bytes(100 - 4 - 19))) is None


def test_large_units_are_read_whole(tmp_path):
    ext = make(tmp_path, file_size=1 << 20)
    addresses = [ext.put(unit(n, bits=n * 500)) for n in range(40)]
    assert [ext.get(address) for address in addresses] == [unit(n, bits=n * 500) for n in range(40)]


@given(st.lists(st.integers(0, 300), max_size=60))
@settings(max_examples=100, deadline=None)
def test_recovery_finds_the_end(tmp_path_factory, sizes):
    directory = tmp_path_factory.mktemp("ext")
    ext = make(directory)
    addresses = [ext.put(unit(n, bits)) for n, bits in enumerate(sizes)]
    again = reopened(directory)
    if ext.files.files:
        assert again.max_address == ext.max_address
    assert [again.get(address) for address in addresses] == [unit(n, bits) for n, bits in enumerate(sizes)]


def test_recovery_cuts_behind_the_newest_address(tmp_path, ext):
    addresses = [ext.put(unit(n)) for n in range(100)]
    again = reopened(tmp_path, addresses[40])
    assert again.max_address == addresses[41]
    assert again.get(addresses[40]) == unit(40)
    assert again.get(addresses[41]) is None
    assert len(again.files.files) == 2
    assert reopened(tmp_path).max_address == addresses[41]  # what was cut is gone for good


def test_recovery_stops_at_damage(tmp_path, ext):
    addresses = [ext.put(unit(n)) for n in range(10)]
    with open(ext.files.files[0].path, "r+b") as file:
        file.seek(32 * 6)
        file.write(b"\x7f\xff")
    again = reopened(tmp_path)
    assert again.max_address == addresses[6]
    assert again.get(addresses[5]) == unit(5)


def test_damage_is_no_unit(ext):
    address = ext.put(unit(1))
    with open(ext.files.files[0].path, "r+b") as file:
        file.seek(18)
        file.write(b"\x00\x63")
    assert ext.get(address) is None


def test_truncate_by_min_address(ext):
    addresses = [ext.put(unit(n)) for n in range(100)]
    ext.truncate_by_min_address(addresses[35])
    assert ext.min_address == addresses[31]
    assert ext.get(addresses[30]) is None
    assert ext.get(addresses[31]) == unit(31)
    ext.truncate_by_min_address(5)  # no address
    assert len(ext.files.files) == 3


def test_truncate_by_an_address_that_is_not_there(ext):
    address = ext.put(unit(1))
    ext.truncate_by_max_address(decorate(500))
    ext.truncate_by_max_address(None)
    ext.truncate_by_max_address(5)
    assert ext.get(address) == unit(1)


def test_empty(ext):
    assert ext.min_address == ext.max_address == decorate(0)
    ext.recover(None)
    ext.destroy()
    assert ext.flush()


# ---------------------------------------------------------------------------------------- under a consume queue


def queue_with_ext(directory):
    pool = FilePool(8)
    ext = ConsumeQueueExt(f"{directory}/consumequeue_ext/T/0", FILE_SIZE, pool)
    return ConsumeQueue("T", 0, f"{directory}/consumequeue/T/0", 200, pool, ext=ext)


def fill(queue, start, stop):
    units = np.array([(n * 100, 100, n + 7) for n in range(start, stop)], queue.dtype)
    queue.put_units(start, units, np.arange(start, stop) * 10)


def test_the_queue_keeps_addresses_and_shows_tags(tmp_path):
    queue = queue_with_ext(tmp_path)
    fill(queue, 0, 5)
    queue.put_unit(5, 500, 100, 12, 50)
    assert queue.get(5) == CqUnit(5, 500, 100, 12)
    kept = np.frombuffer(queue.get_range_bytes(0, 6), CQ_DTYPE)["tags_code"].tolist()
    assert kept == [decorate(20 * n) for n in range(6)]
    assert queue.get_range(0, 6)["tags_code"].tolist() == [*range(7, 13)]
    assert [queue.ext.get(address) for address in kept] == [
        ConsumeQueueExtUnit(n + 7, n * 10) for n in range(6)
    ]
    fill(queue, 0, 6)  # dispatched again: nothing grows
    assert undecorate(queue.ext.max_address) == 120
    assert queue.flush()


def test_without_its_files_the_address_stands(tmp_path):
    queue = queue_with_ext(tmp_path)
    fill(queue, 0, 1)
    queue.ext.destroy()
    assert queue.get(0) == CqUnit(0, 0, 100, decorate(0))


def test_recovery_and_truncation_take_the_extension_along(tmp_path):
    queue = queue_with_ext(tmp_path)
    fill(queue, 0, 25)
    queue.ext.put(unit(99))  # one that no unit of the queue points at
    again = queue_with_ext(tmp_path)
    again.load()
    again.recover(thorough=True)
    assert undecorate(again.ext.max_address) == 25 * 20
    again.truncate_dirty_logic_files(1100)
    assert undecorate(again.ext.max_address) == 11 * 20
    fill(again, 11, 13)
    assert again.get(12) == CqUnit(12, 1200, 100, 19)
    again.truncate_dirty_logic_files(0)
    assert again.max_offset_in_queue == 0


def test_expiry_takes_the_extension_along(tmp_path):
    queue = queue_with_ext(tmp_path)
    fill(queue, 0, 120)  # 49 units of 20 bytes in each file of the extension
    queue.correct_min_offset(60 * 100)
    assert undecorate(queue.ext.min_address) == FILE_SIZE
    assert queue.get(60) == CqUnit(60, 6000, 100, 67)


def test_a_topic_created_again_has_an_extension_of_its_own(tmp_path):
    queue = queue_with_ext(tmp_path)
    fill(queue, 0, 25)
    queue.put_unit(0, 9000, 100, 3, 30)
    assert queue.get(0) == CqUnit(0, 9000, 100, 3)
    assert undecorate(queue.ext.max_address) == 20
    queue.destroy()
    assert not os.path.exists(queue.ext.files.directory)
