from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import WrongFileSizeError
from mqlake.formats.index import IndexHeader, decode_entry, entry_position
from mqlake.store.index.index_file import IndexFile

SLOTS, ENTRIES = 7, 20
START = 1_700_000_000_000


@pytest.fixture
def file(tmp_path):
    file = IndexFile(f"{tmp_path}/20240301080000000", SLOTS, ENTRIES)
    file.begin()
    yield file
    file.close()


def put(file, *keys):
    """(hash, physical offset, seconds after the start) → entries put."""
    hashes, offsets, seconds = zip(*keys, strict=True)
    return file.put_keys(
        np.array(hashes, np.int32), np.array(offsets, np.int64), np.array(seconds, np.int64) * 1000 + START
    )


def test_a_new_file(file):
    assert file.header == IndexHeader(0, 0, 0, 0, 0, 1)
    assert not file.is_full
    assert file.is_sound
    assert file.entries_of(0) == 0
    assert file.select_phy_offset(5, 10, 0, 2**62) == []
    assert os.path.getsize(file.path) == 40 + SLOTS * 4 + ENTRIES * 20


def test_its_space_is_allocated(file):
    assert os.stat(file.path).st_blocks * 512 >= os.path.getsize(file.path)


def test_entries_and_header(file):
    assert put(file, (5, 100, 0), (12, 200, 3), (6, 200, 3)) == 3
    assert file.header == IndexHeader(START, START + 3000, 100, 200, 2, 4)
    entries = [decode_entry(file.mapped_file.view, entry_position(n, SLOTS)) for n in (1, 2, 3)]
    assert entries == [(5, 100, 0, 0), (12, 200, 3, 1), (6, 200, 3, 0)]  # 5 and 12 share a slot


def test_one_entry_less_than_its_number(file):
    assert put(file, *[(n, n, 0) for n in range(30)]) == ENTRIES - 1
    assert file.is_full
    assert put(file, (1, 1, 1)) == 0


def test_a_file_behind_another_begins_where_that_ended(file):
    file.begin(5000, START - 10_000)
    assert file.header == IndexHeader(START - 10_000, START - 10_000, 5000, 5000, 0, 1)
    put(file, (5, 6000, 2))
    # the first entry counts from the inherited time, the header then takes its own
    assert decode_entry(file.mapped_file.view, entry_position(1, SLOTS)).time_diff == 12
    assert file.header == IndexHeader(START + 2000, START + 2000, 6000, 6000, 1, 2)


def test_select_newest_first_within_the_time(file):
    put(file, *[(5, n, n) for n in range(10)])
    everything = 0, START + 10**9
    assert file.select_phy_offset(5, 100, *everything) == list(range(9, -1, -1))
    assert file.select_phy_offset(5, 3, *everything) == [9, 8, 7]
    assert file.select_phy_offset(5, 0, *everything) == []
    assert file.select_phy_offset(12, 9, *everything) == []  # the same slot, another hash
    assert file.select_phy_offset(5, 100, START + 3000, START + 5000) == [5, 4, 3]


def test_entries_of_the_newest_record(file):
    put(file, (1, 100, 0), (2, 200, 0), (3, 200, 0), (4, 200, 0))
    assert file.entries_of(200) == 3
    assert file.entries_of(100) == 0


def test_a_closed_file_answers_nothing(file):
    put(file, (1, 100, 0))
    file.close()
    assert file.select_phy_offset(1, 10, 0, 2**62) == []
    assert file.header == IndexHeader()


def test_flush_once(file, monkeypatch):
    put(file, (1, 100, 0))
    synced = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    file.flush()
    file.flush()
    assert len(synced) == 1
    assert not file.dirty


def test_a_failed_flush_is_not_forgotten(file, monkeypatch):
    put(file, (1, 100, 0))

    def broken(_fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="Input/output"):
        file.flush()
    assert file.dirty


def test_another_size_is_refused(file):
    file.close()
    with pytest.raises(WrongFileSizeError, match="maxHashSlotNum and maxIndexNum"):
        IndexFile(file.path, SLOTS + 1, ENTRIES)


def test_destroy(file):
    file.destroy()
    assert not os.path.exists(file.path)
    file.destroy()


@given(st.binary(min_size=600, max_size=600), st.integers(0, 2**31 - 1))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_survived(tmp_path_factory, damage, key_hash):
    path = f"{tmp_path_factory.mktemp('index')}/20240301080000000"
    size = 40 + SLOTS * 4 + ENTRIES * 20
    with open(path, "wb") as file:
        file.write(damage[:size].ljust(size, b"\0"))
    index = IndexFile(path, SLOTS, ENTRIES)
    assert len(index.select_phy_offset(key_hash, 50, 0, 2**62)) <= 50
    put(index, (key_hash, 1, 1))
    index.close()
