from __future__ import annotations

import os

import pytest

from mqlake.errors import StoreCorruptError, WrongFileSizeError
from mqlake.store.files.file_pool import FilePool
from mqlake.store.files.pooled_file_queue import UNFLUSHED_FILES_MAX, PooledFileQueue, remove_if_empty

SIZE = 100


@pytest.fixture
def queue(tmp_path):
    return make(tmp_path)


def make(tmp_path, **pool):
    return PooledFileQueue(f"{tmp_path}/T/0", SIZE, FilePool(8, **pool), size_key="someFileSize")


def names(queue):
    return sorted(int(name) for name in os.listdir(queue.directory))


def test_writes_go_over_the_borders_of_files(queue):
    data = bytes(range(1, 251))
    queue.write(0, data[:30])
    queue.write(30, data[30:])
    assert queue.max_offset == 250
    assert names(queue) == [0, 100, 200]
    assert b"".join(queue.read(at, 1000) for at in (0, 100, 200)) == data
    assert queue.read(95, 10) == data[95:100]
    assert queue.read(250, 10) == b""
    assert [os.path.getsize(file.path) for file in queue.files] == [SIZE] * 3


def test_the_first_file_is_the_one_that_holds_the_offset(queue):
    queue.write(540, b"x")
    assert names(queue) == [500]
    assert queue.read(540, 5) == b"x"
    assert queue.read(400, 5) == b""
    assert queue.file_at(499) is None
    assert queue.min_offset == 500


def test_files_may_be_missing_in_the_middle(queue):
    queue.write(0, b"a" * 100)
    queue.write(730, b"b")
    assert names(queue) == [0, 700]
    assert queue.read(50, 100) == b"a" * 50
    assert queue.read(300, 1) == b""
    assert queue.read(730, 9) == b"b"
    assert queue.next_file_start(50) == 700
    assert queue.next_file_start(700) == queue.max_offset


def test_load_takes_stock(tmp_path, queue):
    queue.write(0, b"a" * 150)
    (tmp_path / "T/0/somebody's notes").write_text("hello")
    again = make(tmp_path)
    again.load()
    assert [file.file_from_offset for file in again.files] == [0, 100]
    assert again.max_offset == 200  # until recovery says otherwise


def test_load_without_a_directory(tmp_path):
    queue = make(tmp_path)
    queue.load()
    assert queue.files == []
    assert queue.max_offset == 0


def test_load_deletes_an_empty_last_file(tmp_path, queue):
    queue.write(0, b"a")
    empty = tmp_path / "T/0/00000000000000000100"
    empty.touch()
    reader = make(tmp_path, read_only=True)
    reader.load()
    assert len(reader.files) == 1
    assert empty.exists()
    again = make(tmp_path)
    again.load()
    assert len(again.files) == 1
    assert not empty.exists()


@pytest.mark.parametrize("size", [1, 99, 101])
def test_load_refuses_another_size(tmp_path, queue, size):
    queue.write(0, b"a")
    os.truncate(queue.files[0].path, size)
    with pytest.raises(WrongFileSizeError, match="someFileSize"):
        make(tmp_path).load()


def test_load_refuses_a_name_that_cannot_be_right(tmp_path, queue):
    queue.write(0, b"a")
    os.rename(queue.files[0].path, tmp_path / "T/0/00000000000000000007")
    with pytest.raises(StoreCorruptError, match="someFileSize"):
        make(tmp_path).load()


def test_a_failed_write_moves_nothing(queue, monkeypatch):
    queue.write(0, b"a" * 90)
    whole = os.pwrite

    def full(fd, data, position):
        if position == 0:
            raise OSError(28, "No space left on device")
        return whole(fd, data, position)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        queue.write(90, b"b" * 20)
    assert queue.max_offset == 90
    monkeypatch.undo()
    queue.write(90, b"c" * 20)
    assert queue.read(90, 50) + queue.read(100, 50) == b"c" * 20


def test_flush_by_pages(tmp_path):
    queue = PooledFileQueue(f"{tmp_path}/T/0", 1 << 20, FilePool(8), size_key="k")
    synced = []
    queue.pool.fdatasync = lambda file: synced.append(file.file_from_offset)
    queue.write(0, b"a" * 5000)
    assert not queue.flush(2)
    assert synced == []
    assert queue.flush(1)
    assert (synced, queue.flushed_where) == ([0], 5000)
    assert queue.flush(0)
    assert synced == [0]  # nothing new, nothing done


def test_flush_completes_files_whatever_the_pages(queue):
    synced = []
    queue.pool.fdatasync = lambda file: synced.append(file.file_from_offset)
    queue.write(0, b"a" * 150)
    assert queue.flush(5)
    assert synced == [0, 100]
    queue.write(150, b"a")
    assert queue.flush(0)
    assert synced == [0, 100, 100]


def test_a_failed_flush_is_not_forgotten(queue):
    queue.write(0, b"a" * 150)

    def broken(_file):
        raise OSError(5, "Input/output error")

    queue.pool.fdatasync, real = broken, queue.pool.fdatasync
    with pytest.raises(OSError, match="Input/output"):
        queue.flush()
    assert queue.flushed_where == 0
    queue.pool.fdatasync = real
    with pytest.raises(OSError, match="an earlier flush failed: Input/output error"):
        queue.flush()
    assert queue.flushed_where == 0


def test_few_files_are_unflushed_at_any_time(queue):
    for start in range(0, 1500, 150):
        queue.write(start, b"a" * 150)
        assert len(queue.files) - queue.flushed_where // queue.file_size <= UNFLUSHED_FILES_MAX
    queue.write(1500, b"a" * 2000)
    assert len(queue.files) - queue.flushed_where // queue.file_size <= UNFLUSHED_FILES_MAX


def test_what_was_flushed_ahead_of_a_failed_write_is_not_counted(queue, monkeypatch):
    write = queue.pool.pwrite

    def full(file, data, position):
        if file.file_from_offset >= 900:
            raise OSError(28, "No space left on device")
        write(file, data, position)

    monkeypatch.setattr(queue.pool, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        queue.write(0, b"a" * 2000)
    assert queue.max_offset == queue.flushed_where == 0


def test_new_names_are_synced_once(queue, monkeypatch):
    synced = []
    monkeypatch.setattr("mqlake.store.files.pooled_file_queue.fsync_dir", synced.append)
    queue.write(0, b"a")
    queue.flush()
    root = os.path.dirname(os.path.dirname(queue.directory))
    assert synced == [root, os.path.dirname(queue.directory), queue.directory]
    queue.write(1, b"a")
    queue.flush()
    assert len(synced) == 3


def test_cut(queue):
    queue.write(0, b"a" * 350)
    queue.cut(150, erase=True)
    assert names(queue) == [0, 100]
    assert queue.max_offset == 150
    queue.max_offset = 200
    assert queue.read(150, 50) == bytes(50)


def test_cut_at_a_border_deletes_the_file_behind_it(queue):
    queue.write(0, b"a" * 350)
    queue.cut(200, erase=True)
    assert names(queue) == [0, 100]
    assert queue.max_offset == 200


def test_cut_to_nothing_keeps_the_first_place(queue):
    queue.write(500, b"a" * 250)
    queue.cut(500, erase=True)
    assert names(queue) == [500]
    assert queue.max_offset == 500


def test_a_reader_cuts_nothing_on_disk(tmp_path, queue):
    queue.write(0, b"a" * 350)
    reader = make(tmp_path, read_only=True)
    reader.load()
    reader.cut(120, erase=True)
    assert (reader.max_offset, len(reader.files)) == (120, 2)
    assert names(queue) == [0, 100, 200, 300]
    assert queue.read(150, 50) == b"a" * 50


def test_deleting(queue):
    queue.write(0, b"a" * 350)
    queue.delete_first(2)
    assert names(queue) == [200, 300]
    assert queue.read(100, 1) == b""
    assert queue.read(200, 1) == b"a"
    assert queue.total_size == 200
    queue.destroy()
    assert not os.path.exists(queue.directory)
    assert queue.max_offset == 0
    queue.write(0, b"new")
    assert queue.read(0, 9) == b"new"


def test_a_directory_with_something_in_it_stays(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").touch()
    remove_if_empty(f"{tmp_path}/a")
    remove_if_empty(f"{tmp_path}/not there")
    assert (tmp_path / "a").exists()
    (tmp_path / "a/file").unlink()
    remove_if_empty(f"{tmp_path}/a")
    assert not (tmp_path / "a").exists()


def test_a_file_deleted_under_a_reader_is_empty(queue):
    queue.write(0, b"a" * 100)
    queue.pool.forget(queue.files[0])
    os.unlink(queue.files[0].path)
    assert queue.read(0, 10) == b""


def test_refresh_sees_new_files_and_a_file_made_anew(tmp_path, queue):
    queue.write(0, b"a" * 50)
    reader = make(tmp_path, read_only=True)
    reader.load()
    reader.max_offset = 50
    assert reader.read(0, 1) == b"a"
    queue.write(50, b"b" * 100)
    reader.refresh()
    assert [file.file_from_offset for file in reader.files] == [0, 100]
    queue.destroy()
    queue.write(0, b"c")
    reader.refresh()
    assert reader.read(0, 1) == b"c"
