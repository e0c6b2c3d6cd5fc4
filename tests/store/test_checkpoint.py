import os
import struct

import pytest

from mqlake.errors import StoreClosedError
from mqlake.store.checkpoint import StoreCheckpoint


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "store" / "checkpoint")


def test_what_rocketmq_5_5_keeps_after_the_fields_stays(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(40) + bytes(range(1, 9)) + bytes(4096 - 48))
    checkpoint = StoreCheckpoint(str(path))
    checkpoint.physic_msg_timestamp = 5
    checkpoint.flush()
    checkpoint.close()
    assert path.read_bytes() == (5).to_bytes(8, "big") + bytes(32) + bytes(range(1, 9)) + bytes(4096 - 48)


def test_a_new_file_is_one_page_of_zeros(path):
    checkpoint = StoreCheckpoint(path)
    assert not os.path.exists(path)
    checkpoint.make()
    assert os.path.getsize(path) == 4096
    assert checkpoint.physic_msg_timestamp == checkpoint.confirm_phy_offset == 0
    assert checkpoint.min_timestamp == checkpoint.min_timestamp_index == 0
    checkpoint.close()


def test_what_is_flushed_is_found_again(path):
    checkpoint = StoreCheckpoint(path)
    checkpoint.physic_msg_timestamp = 10_000
    checkpoint.logics_msg_timestamp = 9_000
    checkpoint.index_msg_timestamp = 5_000
    checkpoint.master_flushed_offset = -1
    checkpoint.confirm_phy_offset = 2**40
    assert StoreCheckpoint(path, read_only=True).physic_msg_timestamp == 0
    checkpoint.flush()
    with open(path, "rb") as file:
        assert struct.unpack(">5q", file.read(40)) == (10_000, 9_000, 5_000, -1, 2**40)
        assert file.read() == bytes(4056)
    checkpoint.close()
    checkpoint.close()
    again = StoreCheckpoint(path)
    assert again.min_timestamp == 6_000
    assert again.min_timestamp_index == 5_000
    assert again.confirm_phy_offset == 2**40
    again.close()


def test_only_the_first_40_bytes_are_written(path):
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(b"\x7f" * 4096)
    checkpoint = StoreCheckpoint(path)
    checkpoint.flush()
    checkpoint.close()
    with open(path, "rb") as file:
        assert file.read() == b"\x7f" * 4096


@pytest.mark.parametrize("size", [0, 7, 39])
def test_a_short_file_reads_as_zeros_and_is_made_whole(path, size):
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(bytes(size))
    assert StoreCheckpoint(path, read_only=True).min_timestamp == 0
    assert os.path.getsize(path) == size
    checkpoint = StoreCheckpoint(path)
    assert os.path.getsize(path) == size
    checkpoint.make()
    checkpoint.close()
    assert os.path.getsize(path) == 4096


def test_read_only_makes_nothing_and_cannot_flush(path):
    checkpoint = StoreCheckpoint(path, read_only=True)
    assert checkpoint.min_timestamp == 0
    assert not os.path.exists(path)
    with pytest.raises(StoreClosedError):
        checkpoint.flush()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_failed_flush_is_an_error(path, monkeypatch, call):
    checkpoint = StoreCheckpoint(path)

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="Input/output error"):
        checkpoint.flush()
    monkeypatch.undo()
    checkpoint.flush()
    checkpoint.close()
