"""MappedFile: positions, size-last publishing, allocation, slices that outlive the file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from mqlake.errors import StoreClosedError, WrongFileSizeError
from mqlake.formats.record import encode_blank
from mqlake.store.files.mapped_file import OS_PAGE_SIZE, READY_BYTES, MappedFile, _order_keeper

SIZE = 16 * OS_PAGE_SIZE


@pytest.fixture
def mapped_file(tmp_path: Path) -> MappedFile:
    return MappedFile(str(tmp_path / "00000000000000065536"), SIZE)


def _open_descriptors() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]


def record(size: int, fill: int = 7) -> bytes:
    return size.to_bytes(4, "big") + bytes([fill]) * (size - 4)


class TestNewFile:
    def test_has_its_name_s_offset_and_really_allocated_space(self, mapped_file: MappedFile) -> None:
        assert mapped_file.file_from_offset == 65536
        assert os.stat(mapped_file.path).st_blocks * 512 >= SIZE

    def test_counts_toward_the_mapped_totals_until_closed(self, tmp_path: Path) -> None:
        files, memory = MappedFile.TOTAL_MAPPED_FILES, MappedFile.TOTAL_MAPPED_VIRTUAL_MEMORY
        file = MappedFile(str(tmp_path / "f"), SIZE)
        assert (
            files + 1,
            memory + SIZE,
        ) == (MappedFile.TOTAL_MAPPED_FILES, MappedFile.TOTAL_MAPPED_VIRTUAL_MEMORY)
        file.close()
        assert (files, memory) == (MappedFile.TOTAL_MAPPED_FILES, MappedFile.TOTAL_MAPPED_VIRTUAL_MEMORY)

    @pytest.mark.parametrize("size", [SIZE, SIZE - 1])
    def test_a_file_that_is_closed_or_refused_leaves_no_descriptor(self, tmp_path: Path, size: int) -> None:
        path = tmp_path / "00000000000000000000"
        path.write_bytes(bytes(size))

        def descriptors() -> int:
            return sum(os.readlink(f"/proc/self/fd/{fd}") == str(path) for fd in _open_descriptors())

        if size == SIZE:
            file = MappedFile(str(path), SIZE)
            assert descriptors() > 0
            file.close()
            file.close()
        else:
            with pytest.raises(WrongFileSizeError):
                MappedFile(str(path), SIZE)
        assert descriptors() == 0

    def test_an_empty_file_gets_its_space_unless_it_is_only_read(self, tmp_path: Path) -> None:
        """As it is left when the process dies that makes it."""
        path = tmp_path / "00000000000000000000"
        path.touch()
        with pytest.raises(WrongFileSizeError):
            MappedFile(str(path), SIZE, read_only=True)
        assert path.stat().st_size == 0
        MappedFile(str(path), SIZE).close()
        assert (path.stat().st_size, path.stat().st_blocks * 512) == (SIZE, SIZE)

    def test_a_file_that_is_only_read_has_to_be_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            MappedFile(str(tmp_path / "f"), SIZE, read_only=True)
        assert list(tmp_path.iterdir()) == []

    def test_an_existing_file_of_another_size_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "00000000000000000000"
        path.write_bytes(b"x" * 100)
        with pytest.raises(WrongFileSizeError, match="100 bytes, but mappedFileSizeCommitLog says"):
            MappedFile(str(path), SIZE)
        assert path.read_bytes() == b"x" * 100

    def test_a_full_disk_is_an_error_when_the_file_is_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_space(*_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", no_space)
        with pytest.raises(OSError, match="No space left"):
            MappedFile(str(tmp_path / "f"), SIZE)
        assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("kind", ["mmap", "without_mmap", "write_buffer"])
class TestAppend:
    def make(self, tmp_path: Path, kind: str) -> MappedFile:
        buffer = memoryview(bytearray(b"\xff" * SIZE)) if kind == "write_buffer" else None
        return MappedFile(str(tmp_path / "f"), SIZE, write_buffer=buffer, without_mmap=kind == "without_mmap")

    def test_where_compiled_code_may_write(self, tmp_path: Path, kind: str) -> None:
        file = self.make(tmp_path, kind)
        assert file.is_mapped is (kind == "mmap")
        target = file.target_array()
        assert (target is None) is (kind == "without_mmap")
        if target is not None:
            target[7] = 1
            assert file.array[7] == (kind == "mmap")

    def test_committing_waits_for_least_pages_unless_full(self, tmp_path: Path, kind: str) -> None:
        file = self.make(tmp_path, kind)
        waits = kind == "write_buffer"
        file.append_record(record(OS_PAGE_SIZE), 1)
        assert file.commit(2) == (0 if waits else OS_PAGE_SIZE)
        assert file.commit(1) == OS_PAGE_SIZE
        assert not waits or not file.is_able_to_commit(0)
        file.append_record(record(SIZE - OS_PAGE_SIZE), 2)
        assert file.commit(1000) == SIZE
        assert not waits or not file.is_able_to_commit(0)

    def test_positions_move_in_order(self, tmp_path: Path, kind: str) -> None:
        file = self.make(tmp_path, kind)
        assert file.append_record(record(100), 5) == 0
        assert file.append_record(record(50), 6) == 100
        assert (file.wrote_position, file.store_timestamp) == (150, 6)
        assert file.read_position == (0 if kind == "write_buffer" else 150)
        assert file.commit(0) == 150
        assert file.flush(0) == 150
        file.invariants()

    def test_four_zeros_follow_whatever_was_there(self, tmp_path: Path, kind: str) -> None:
        file = self.make(tmp_path, kind)
        stale = record(100, 9)
        os.pwrite(file._fd, stale * 3, 0)
        file.append_record(record(100), 1)
        file.commit(0)
        on_disk = Path(file.path).read_bytes()
        assert on_disk[:100] == record(100)
        assert on_disk[100:104] == b"\0\0\0\0"

    def test_a_blank_ends_the_file(self, tmp_path: Path, kind: str) -> None:
        file = self.make(tmp_path, kind)
        file.append_record(record(100), 5)
        file.append_blank(encode_blank(SIZE - 100))
        assert file.is_full and (file.wrote_position, file.store_timestamp) == (SIZE, 5)
        assert file.commit(0) == file.flush(0) == SIZE
        on_disk = Path(file.path).read_bytes()
        assert on_disk[:108] == record(100) + encode_blank(SIZE - 100)
        assert not any(on_disk[108:])

    def test_a_file_can_be_filled_to_the_last_byte(self, tmp_path: Path, kind: str) -> None:
        file = self.make(tmp_path, kind)
        file.append_record(record(SIZE), 1)
        file.commit(0)
        assert file.is_full
        assert Path(file.path).read_bytes() == record(SIZE)


def test_a_commit_beside_a_put_takes_nothing_of_the_next_record(tmp_path: Path) -> None:
    """The put has written the next record's size and not yet moved the position: that size is not the file's yet."""
    file = TestAppend().make(tmp_path, "write_buffer")
    file.append_record(record(100), 1)
    file.write_at(100, record(60))
    file.commit(0)
    assert Path(file.path).read_bytes()[:160] == record(100) + bytes(60)
    file.publish(100, record(60)[:4], 160, 2)
    file.commit(0)
    assert Path(file.path).read_bytes()[:164] == record(100) + record(60) + bytes(4)


class _Watched:
    """Stands for the map: what a reader would see before each write."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self.seen: list[tuple[bytes, bytes]] = []

    def __setitem__(self, place: slice, data: bytes) -> None:
        self.seen.append((bytes(self._view[0:4]), bytes(self._view[4:104])))
        self._view[place] = data


def test_on_a_processor_that_does_not_write_in_order_a_fence_is_before_the_size(
    mapped_file: MappedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ARM may show a reader a size before the record."""
    assert _order_keeper("x86_64") is None
    fence = _order_keeper("aarch64")
    assert fence is not None
    seen: list[bytes] = []

    def noting() -> None:
        fence()
        seen.append(bytes(mapped_file.view[:8]))

    monkeypatch.setattr("mqlake.store.files.mapped_file._keep_order", noting)
    mapped_file.append_record(record(100), 1)
    assert seen == [bytes(4) + record(100)[4:8]]


def test_the_size_is_written_last(mapped_file: MappedFile) -> None:
    """Seen through the map at every step: the size is zero until all else is there, four zero bytes included."""
    mapped_file.view[100:104] = b"left"  # by an earlier life of the file
    watched = _Watched(mapped_file.view)
    mapped_file._target = watched  # type: ignore[assignment]
    assert mapped_file.append_record(record(100), 7) == 0
    assert watched.seen == [
        (b"\0" * 4, b"\0" * 96 + b"left"),
        (b"\0" * 4, record(100)[4:] + b"\0" * 4),
    ]
    assert bytes(mapped_file.view[:104]) == record(100) + b"\0" * 4
    assert (mapped_file.wrote_position, mapped_file.committed_position) == (100, 100)
    assert mapped_file.store_timestamp == 7


def test_every_byte_goes_through_the_write_at_of_a_plug_in(tmp_path: Path) -> None:
    written: list[tuple[int, int]] = []

    class Own(MappedFile):
        def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
            written.append((position, len(data)))
            super().write_at(position, data)

    file = Own(str(tmp_path / "0"), SIZE)
    file.append_record(record(100), 1)
    file.append_record(record(50), 2)
    assert written == [(4, 100), (0, 4), (104, 50), (100, 4)]
    assert bytes(file.view[:154]) == record(100) + record(50) + b"\0" * 4
    file.close()


class TestFlush:
    def test_waits_for_least_pages_unless_full_or_thorough(self, mapped_file: MappedFile) -> None:
        mapped_file.append_record(record(OS_PAGE_SIZE + 10), 1)
        assert mapped_file.flush(4) == 0
        assert mapped_file.flush(1) == OS_PAGE_SIZE + 10
        mapped_file.append_record(record(SIZE - OS_PAGE_SIZE - 10), 2)
        assert mapped_file.flush(4) == SIZE

    def test_a_failed_flush_moves_nothing(
        self, mapped_file: MappedFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mapped_file.append_record(record(100), 1)

        def fail(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            mapped_file.flush(0)
        assert mapped_file.flushed_position == 0


class TestMemory:
    def test_a_slice_outlives_the_closed_and_deleted_file(self, mapped_file: MappedFile) -> None:
        mapped_file.append_record(record(100), 1)
        piece = mapped_file.select(0, 100)
        column = mapped_file.array[4:8]
        mapped_file.destroy()
        assert not os.path.exists(mapped_file.path)
        assert piece is not None
        assert bytes(piece) == record(100)
        assert column.tolist() == [7, 7, 7, 7]
        with pytest.raises(StoreClosedError):
            mapped_file.sync()

    def test_select_gives_nothing_that_was_not_written(self, mapped_file: MappedFile) -> None:
        mapped_file.append_record(record(100), 1)
        assert mapped_file.select(0, 101) is None
        assert mapped_file.select(-1, 4) is None

    @pytest.mark.parametrize(
        ("error", "resident"),
        [
            (BlockingIOError(errno.EAGAIN, "not in the page cache"), False),
            (OSError(errno.ENOTSUP, "?"), True),
        ],
    )
    def test_what_the_system_says_of_residence(
        self, mapped_file: MappedFile, monkeypatch: pytest.MonkeyPatch, error: OSError, resident: bool
    ) -> None:
        mapped_file.append_record(record(100), 1)
        assert mapped_file.is_resident(0)

        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(os, "preadv", fail)
        assert mapped_file.is_resident(0) is resident

    @pytest.mark.parametrize(
        ("sync_flush", "flush_pages", "flushes"), [(True, 3, 6), (True, 16, 1), (True, 0, 16), (False, 3, 0)]
    )
    def test_warming_touches_all_pages_and_changes_nothing(
        self,
        mapped_file: MappedFile,
        monkeypatch: pytest.MonkeyPatch,
        sync_flush: bool,
        flush_pages: int,
        flushes: int,
    ) -> None:
        synced: list[int] = []
        monkeypatch.setattr(os, "fdatasync", synced.append)
        mapped_file.array[::OS_PAGE_SIZE] = 1
        mapped_file.warm(sync_flush=sync_flush, flush_pages=flush_pages)
        assert not mapped_file.array.any()
        assert len(synced) == flushes

    def test_what_is_locked_in_memory_is_unlocked_again(self, mapped_file: MappedFile) -> None:
        def locked_kib() -> int:
            status = Path("/proc/self/status").read_text()
            return int(status.partition("VmLck:")[2].split()[0])

        before = locked_kib()
        if mapped_file.lock_in_memory():
            assert locked_kib() - before == SIZE // 1024
        mapped_file.unlock_in_memory()
        assert locked_kib() == before

    def test_a_sparse_file_gets_its_space_and_an_allocated_one_keeps_its_time(self, tmp_path: Path) -> None:
        path = tmp_path / "00000000000000000000"
        with path.open("wb") as file:
            file.truncate(SIZE)
        mapped = MappedFile(str(path), SIZE)
        assert os.stat(path).st_blocks == 0
        mapped.allocate()
        assert os.stat(path).st_blocks * 512 >= SIZE == os.stat(path).st_size
        os.utime(path, (1, 1))
        mapped.allocate()
        assert os.stat(path).st_mtime == 1

    def test_erase_and_last_data(self, mapped_file: MappedFile) -> None:
        mapped_file.view[5 * OS_PAGE_SIZE + 17] = 1
        assert mapped_file.last_data(0) == 5 * OS_PAGE_SIZE + 18
        assert mapped_file.last_data(6 * OS_PAGE_SIZE) == 6 * OS_PAGE_SIZE
        mapped_file.view[0] = 1
        mapped_file.erase(10)
        assert mapped_file.last_data(0) == 1
        assert np.count_nonzero(mapped_file.array) == 1


def resident_kib(path: str) -> int:
    """How much of a file's mapping is in this process's memory."""
    mapping = Path("/proc/self/smaps").read_text().split(path)[1]
    return int(mapping.partition("Rss:")[2].split()[0])


class TestPages:
    def test_a_copy_of_a_part_maps_nothing(self, mapped_file: MappedFile) -> None:
        mapped_file.view[OS_PAGE_SIZE - 2 : OS_PAGE_SIZE + 2] = b"abcd"
        mapped_file.evict(0, SIZE)
        buffer = np.full(16, 7, np.uint8)
        assert mapped_file.read_into(buffer, OS_PAGE_SIZE - 1, 4).tobytes() == b"bcd\0"
        assert buffer[4:].tolist() == [7] * 12
        assert len(mapped_file.read_into(buffer, SIZE - 5, 10)) == 5
        assert len(mapped_file.read_into(buffer, SIZE, 10)) == 0
        assert resident_kib(mapped_file.path) == 0

    def test_pages_are_there_before_they_are_written_and_go_when_they_are_evicted(
        self, mapped_file: MappedFile
    ) -> None:
        assert resident_kib(mapped_file.path) == 0
        linux = tuple(int(part) for part in os.uname().release.split(".")[:2])
        if mapped_file.prefault(OS_PAGE_SIZE + 1, 3 * OS_PAGE_SIZE) or linux >= (5, 14):
            assert resident_kib(mapped_file.path) == 8
            assert mapped_file.prefault(15 * OS_PAGE_SIZE, 100 * OS_PAGE_SIZE)  # no further than the file
            assert resident_kib(mapped_file.path) == 12
        assert mapped_file.prefault(SIZE, SIZE + 1)
        mapped_file.warm(sync_flush=False, flush_pages=16)
        assert resident_kib(mapped_file.path) == 64
        mapped_file.evict(OS_PAGE_SIZE + 5, 3 * OS_PAGE_SIZE + 5)  # the third is not over yet
        assert resident_kib(mapped_file.path) == 56
        mapped_file.evict(5 * OS_PAGE_SIZE, 5 * OS_PAGE_SIZE + 5)
        assert resident_kib(mapped_file.path) == 56

    def test_holes_are_no_data(self, tmp_path: Path) -> None:
        path = tmp_path / "00000000000000000000"
        with path.open("wb") as file:
            file.truncate(SIZE)
            os.pwrite(file.fileno(), b"x" * OS_PAGE_SIZE, 2 * OS_PAGE_SIZE)
        sparse = MappedFile(str(path), SIZE)
        assert sparse.data_extents(0) == [(2 * OS_PAGE_SIZE, 3 * OS_PAGE_SIZE)]
        assert sparse.data_extents(2 * OS_PAGE_SIZE + 5) == [(2 * OS_PAGE_SIZE + 5, 3 * OS_PAGE_SIZE)]
        assert sparse.data_extents(3 * OS_PAGE_SIZE) == sparse.data_extents(SIZE) == []
        assert sparse.last_data(0) == 3 * OS_PAGE_SIZE
        assert sparse.last_data(0, 2 * OS_PAGE_SIZE + 7) == 2 * OS_PAGE_SIZE + 7

    def test_allocated_zeros_after_a_hole_hide_no_data_before_it(self, tmp_path: Path) -> None:
        path = tmp_path / "00000000000000000000"
        with path.open("wb") as file:
            file.truncate(SIZE)
            os.pwrite(file.fileno(), b"x", OS_PAGE_SIZE)
            os.pwrite(file.fileno(), bytes(OS_PAGE_SIZE), 8 * OS_PAGE_SIZE)
        assert MappedFile(str(path), SIZE).last_data(0) == OS_PAGE_SIZE + 1

    def test_large_files_are_looked_through_from_their_end(self, tmp_path: Path) -> None:
        size = 3 << 20
        file = MappedFile(str(tmp_path / "00000000000000000000"), size)
        for at in (0, 1 << 20, (2 << 20) - 1, size - 1):
            file.view[at] = 1
            os.fdatasync(file._fd)
            assert file.last_data(0) == at + 1
        file.erase(1)
        assert file.last_data(0) == 1

    def test_looking_for_the_end_leaves_only_the_next_puts_zeros_in_the_page_cache(
        self, tmp_path: Path
    ) -> None:
        """There they would be taken for data, and read again by everybody who looks."""
        file = MappedFile(str(tmp_path / "00000000000000000000"), READY_BYTES + (4 << 20))
        further = READY_BYTES + OS_PAGE_SIZE
        untouched = file.data_extents(further)
        file.view[0] = 1
        os.fdatasync(file._fd)
        assert bytes(file.view[1:]) == bytes(len(file.view) - 1)
        assert not file.is_unwritten(further)
        assert file.last_data(0) == 1
        assert file.data_extents(further) == untouched
        assert file.is_unwritten(further) or untouched
        assert not file.is_unwritten(OS_PAGE_SIZE + 1)


def advised_random(path: str) -> bool:
    """True if the kernel was told that the file's mapping is read here and there (VmFlags `rr`)."""
    mappings = Path("/proc/self/smaps").read_text().split(path)[1]
    return "rr" in mappings.partition("VmFlags:")[2].partition("\n")[0].split()


def test_read_ahead_is_switched_off_and_on(mapped_file: MappedFile) -> None:
    assert not advised_random(mapped_file.path)
    mapped_file.set_read_ahead(False)
    assert advised_random(mapped_file.path)
    mapped_file.set_read_ahead(True)
    assert not advised_random(mapped_file.path)
    mapped_file.close()
    mapped_file.set_read_ahead(False)  # nothing to read any more


def test_a_commit_waits_for_so_many_pages_more(tmp_path: Path) -> None:
    file = TestAppend().make(tmp_path, "write_buffer")
    file.append_record(record(2 * OS_PAGE_SIZE + 10), 1)
    assert file.commit(3) == 0
    assert file.commit(2) == 2 * OS_PAGE_SIZE + 10
    file.append_record(record(2 * OS_PAGE_SIZE), 2)
    assert file.commit(3) == 2 * OS_PAGE_SIZE + 10
    assert file.commit(2) == 4 * OS_PAGE_SIZE + 10
    file.close()


def test_much_is_erased_to_the_last_byte(tmp_path: Path) -> None:
    size = (5 << 20) // 2
    file = MappedFile(str(tmp_path / "0"), size)
    file.view[:] = b"\7" * size
    file.erase(100)
    assert Path(file.path).read_bytes() == b"\7" * 100 + bytes(size - 100)
    file.close()


@pytest.mark.parametrize("left", [3, 4])
@pytest.mark.parametrize("buffered", [True, False])
def test_zeros_after_a_record_never_make_the_file_longer(tmp_path: Path, buffered: bool, left: int) -> None:
    buffer = memoryview(bytearray(b"\xff" * SIZE)) if buffered else None
    file = MappedFile(str(tmp_path / "f"), SIZE, write_buffer=buffer, without_mmap=True)
    file.append_record(record(SIZE - left), 1)
    file.commit(0)
    data = (tmp_path / "f").read_bytes()
    assert data[: SIZE - left] == record(SIZE - left) and data[SIZE - left :] == bytes(left)
    file.close()
    slave = MappedFile(str(tmp_path / "slave"), SIZE)
    slave.append_through_descriptor(memoryview(record(SIZE - left)), 1)
    assert (tmp_path / "slave").read_bytes() == data
    slave.close()


def test_the_name_of_a_new_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr("mqlake.store.files.mapped_file.fsync_dir", synced.append)
    for _ in range(2):
        MappedFile(str(tmp_path / "f"), SIZE).close()
    assert synced == [str(tmp_path)]


def test_a_block_that_the_system_takes_in_two_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slave = MappedFile(str(tmp_path / f"{0:020d}"), SIZE)
    slave.append_record(bytearray(record(100)), 1)
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: whole(fd, [parts[0][:10]], at))
    slave.append_through_descriptor(memoryview(record(200, 9)), 2)
    assert bytes(slave.view[:304]) == record(100) + record(200, 9) + bytes(4)
    assert (slave.wrote_position, slave.committed_position, slave.store_timestamp) == (300, 300, 2)
