"""MappedFileQueue: loading, rolling, finding by offset, flushing over borders, deleting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqlake.errors import StoreCorruptError, WrongFileSizeError
from mqlake.store.files.mapped_file_queue import MappedFileQueue

SIZE = 4096


def record(size: int) -> bytes:
    return size.to_bytes(4, "big") + b"\7" * (size - 4)


def filled(path: Path, files: int) -> MappedFileQueue:
    queue = MappedFileQueue(str(path), SIZE)
    for number in range(files):
        mapped_file = queue.get_last_mapped_file()
        assert mapped_file is not None
        mapped_file.append_record(record(SIZE), number)
    return queue


def test_the_first_file_of_a_queue_knows_that_it_is(tmp_path: Path) -> None:
    queue = filled(tmp_path, 2)
    assert [each.first_create_in_queue for each in queue.mapped_files] == [True, False]
    queue.close()
    again = MappedFileQueue(str(tmp_path), SIZE)
    again.load()
    assert not any(each.first_create_in_queue for each in again.mapped_files)


class TestLoad:
    def test_files_come_in_the_order_of_their_offsets(self, tmp_path: Path) -> None:
        filled(tmp_path, 3).close()
        queue = MappedFileQueue(str(tmp_path), SIZE)
        queue.load()
        assert [f.file_from_offset for f in queue.mapped_files] == [0, SIZE, 2 * SIZE]
        assert all(f.is_full for f in queue.mapped_files)

    def test_another_size_names_file_and_key(self, tmp_path: Path) -> None:
        filled(tmp_path, 1).close()
        with pytest.raises(WrongFileSizeError, match="4096 bytes, but mappedFileSizeCommitLog says 8192"):
            MappedFileQueue(str(tmp_path), 8192).load()

    def test_a_gap_is_named(self, tmp_path: Path) -> None:
        filled(tmp_path, 3).close()
        (tmp_path / "00000000000000004096").unlink()
        with pytest.raises(StoreCorruptError, match="a file between them is missing"):
            MappedFileQueue(str(tmp_path), SIZE).load()

    @pytest.mark.parametrize("left", [b"", b"\0" * 1000])
    def test_what_an_interrupted_allocation_left_is_removed(self, tmp_path: Path, left: bytes) -> None:
        filled(tmp_path, 1).close()
        (tmp_path / "00000000000000004096").write_bytes(left)
        queue = MappedFileQueue(str(tmp_path), SIZE)
        queue.load()
        assert len(queue.mapped_files) == 1
        assert (tmp_path / "00000000000000004096").exists(), "recovery may still find the log damaged"
        queue.set_end(SIZE)
        assert not (tmp_path / "00000000000000004096").exists()

    def test_a_short_last_file_with_data_is_not_removed(self, tmp_path: Path) -> None:
        filled(tmp_path, 1).close()
        (tmp_path / "00000000000000004096").write_bytes(b"data")
        with pytest.raises(WrongFileSizeError):
            MappedFileQueue(str(tmp_path), SIZE).load()

    def test_foreign_names_and_directories_are_passed_over(self, tmp_path: Path) -> None:
        filled(tmp_path, 1).close()
        (tmp_path / "README").write_text("x")
        (tmp_path / "sub").mkdir()
        queue = MappedFileQueue(str(tmp_path), SIZE)
        queue.load()
        assert len(queue.mapped_files) == 1


class TestOffsets:
    def test_find_by_offset_also_when_the_first_files_are_gone(self, tmp_path: Path) -> None:
        queue = filled(tmp_path, 4)
        queue.delete_file(queue.mapped_files[0])
        found = queue.find_mapped_file_by_offset(2 * SIZE + 5)
        assert found is not None
        assert found.file_from_offset == 2 * SIZE
        assert queue.find_mapped_file_by_offset(5) is None
        assert queue.find_mapped_file_by_offset(4 * SIZE) is None
        first = queue.find_mapped_file_by_offset(5, first_if_not_found=True)
        assert first is queue.mapped_files[0]
        assert (queue.min_offset, queue.max_offset) == (SIZE, 4 * SIZE)

    def test_flush_goes_over_the_border_file_by_file(self, tmp_path: Path) -> None:
        queue = filled(tmp_path, 2)
        assert queue.flush(0) is False
        assert queue.flushed_where == SIZE
        queue.flush_all()
        assert queue.flushed_where == 2 * SIZE
        assert queue.store_timestamp == 1

    def test_set_end_cuts_and_deletes_what_follows(self, tmp_path: Path) -> None:
        queue = filled(tmp_path, 3)
        queue.set_end(SIZE + 100)
        assert [f.wrote_position for f in queue.mapped_files] == [SIZE, 100]
        assert sorted(os.listdir(tmp_path)) == ["00000000000000000000", "00000000000000004096"]
        assert queue.flushed_where == queue.max_offset == SIZE + 100

    def test_set_end_at_a_border_keeps_the_empty_file(self, tmp_path: Path) -> None:
        queue = filled(tmp_path, 3)
        queue.set_end(2 * SIZE)
        assert [f.wrote_position for f in queue.mapped_files] == [SIZE, SIZE, 0]


class TestCreate:
    def test_the_first_file_starts_at_the_border_before_start_offset(self, tmp_path: Path) -> None:
        queue = MappedFileQueue(str(tmp_path / "log"), SIZE)
        created = queue.get_last_mapped_file(start_offset=3 * SIZE + 17)
        assert created is not None
        assert created.file_from_offset == 3 * SIZE
        assert queue.flushed_where == 3 * SIZE

    def test_failure_is_told_and_the_next_try_may_work(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = MappedFileQueue(str(tmp_path), SIZE)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", lambda *a: (_ for _ in ()).throw(OSError(28, "No space")))
            assert queue.get_last_mapped_file() is None
            assert queue.create_error is not None
        assert queue.get_last_mapped_file() is not None


class TestDelete:
    def test_by_time_from_the_oldest_never_the_last(self, tmp_path: Path) -> None:
        queue = filled(tmp_path, 4)
        for mapped_file, modified in zip(queue.mapped_files, (10, 10, 1000, 10), strict=True):
            os.utime(mapped_file.path, (modified, modified))
        assert queue.delete_expired_file_by_time(5000, now_ms=lambda: 20_000) == 2
        assert queue.min_offset == 2 * SIZE
        assert queue.delete_expired_file_by_time(5000, clean_immediately=True, now_ms=lambda: 0) == 1
        assert queue.delete_expired_file_by_time(0, clean_immediately=True, now_ms=lambda: 0) == 0

    def test_a_batch_is_bounded(self, tmp_path: Path) -> None:
        queue = filled(tmp_path, 5)
        assert queue.delete_expired_file_by_time(0, clean_immediately=True, batch_max=2) == 2

    def test_destroy_removes_files_and_directory(self, tmp_path: Path) -> None:
        queue = filled(tmp_path / "log", 2)
        queue.destroy()
        assert not (tmp_path / "log").exists()


def test_refresh_follows_a_writer(tmp_path: Path) -> None:
    writer = filled(tmp_path, 1)
    reader = MappedFileQueue(str(tmp_path), SIZE, read_only=True)
    reader.load()
    assert not reader.refresh()
    writer.create_next()
    assert reader.refresh()
    assert len(reader.mapped_files) == 2
    writer.delete_file(writer.mapped_files[0])
    assert reader.refresh()
    assert [f.file_from_offset for f in reader.mapped_files] == [SIZE]
