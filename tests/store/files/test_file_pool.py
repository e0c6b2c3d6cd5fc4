from __future__ import annotations

import contextlib
import os
import resource
import threading

import pytest

from mqlake.store.files.file_pool import FilePool, PooledFile


def make(directory, count, size=4096):
    pool = FilePool(4)
    files = [PooledFile(str(directory), number * size) for number in range(count)]
    for file in files:
        pool.create(file, size)
    return pool, files


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def descriptors_below(directory):
    """How many of this process's descriptors are files below `directory`.

    Not all of the process's: what another test left behind closes its own at any moment.
    """
    targets = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(target.startswith(f"{directory}/") for target in targets)


def test_a_new_file_is_named_by_its_offset_and_takes_no_space(tmp_path):
    _, (file,) = make(tmp_path, 1)
    assert file.path == f"{tmp_path}/00000000000000000000"
    assert os.stat(file.path).st_size == 4096
    assert os.stat(file.path).st_blocks == 0


def test_more_files_than_descriptors(tmp_path):
    pool, files = make(tmp_path, 50)
    for number, file in enumerate(files):
        pool.pwrite(file, b"%d" % number, 7)
    assert len(pool) == 4
    assert descriptors_below(tmp_path) == 4
    assert [pool.pread(file, 3, 7).rstrip(b"\0") for file in files] == [b"%d" % n for n in range(50)]
    pool.close()
    assert descriptors_below(tmp_path) == 0


def test_files_in_turn_find_some_of_their_descriptors(tmp_path, monkeypatch):
    """Would the oldest descriptor go each time, none would be there when it is needed."""
    pool, files = make(tmp_path, 6)
    opened, system_open = [], os.open
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(arguments) or system_open(*arguments))
    for _ in range(20):
        for file in files:
            pool.pwrite(file, b"x", 0)
    assert len(opened) < 20 * len(files) * 2 // 3
    pool.close()


def test_descriptors_run_out_elsewhere(tmp_path):
    pool = FilePool(1000)
    files = [PooledFile(str(tmp_path), number) for number in range(60)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 20, hard))
    try:
        for file in files:
            pool.create(file, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(os.path.exists(file.path) for file in files)
    pool.close()


def test_a_file_made_anew_is_not_reached_through_an_old_descriptor(tmp_path):
    pool, (old,) = make(tmp_path, 1)
    pool.pwrite(old, b"old", 0)
    pool.delete(old)
    new = PooledFile(str(tmp_path), 0)
    pool.create(new, 4096)
    assert pool.pread(new, 3, 0) == b"\0\0\0"
    pool.pwrite(new, b"new", 0)
    assert (tmp_path / os.path.basename(new.path)).read_bytes()[:3] == b"new"


def test_deleting_what_is_gone_is_fine(tmp_path):
    pool, (file,) = make(tmp_path, 1)
    os.unlink(file.path)
    pool.delete(file)


def test_erase_zeroes_data_and_leaves_holes(tmp_path):
    pool, (file,) = make(tmp_path, 1, size=1 << 20)
    pool.pwrite(file, b"x" * 100, 0)
    pool.pwrite(file, b"y" * 5000, 500_000)
    used = os.stat(file.path).st_blocks
    pool.erase(file, 50)
    data = pool.pread(file, 1 << 20, 0)
    assert data == b"x" * 50 + bytes((1 << 20) - 50)
    os.sync()
    assert os.stat(file.path).st_blocks <= max(used, 8 * 4)


def test_erase_does_not_write_what_is_zero(tmp_path, monkeypatch):
    pool, (file,) = make(tmp_path, 1)
    pool.pwrite(file, b"x" * 10, 0)
    monkeypatch.setattr(os, "pwrite", lambda *_: pytest.fail("written"))
    pool.erase(file, 10)


def test_a_failed_creation_leaves_no_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    file = PooledFile(str(tmp_path), 0)
    with pytest.raises(OSError, match="No space"):
        FilePool(4).create(file, 10)
    assert not os.path.exists(file.path)


def test_short_writes_are_continued(tmp_path, monkeypatch):
    pool, (file,) = make(tmp_path, 1)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: whole(fd, data[:3], position))
    pool.pwrite(file, b"0123456789", 5)
    assert pool.pread(file, 10, 5) == b"0123456789"


def test_many_threads_share_a_small_pool(tmp_path):
    pool, files = make(tmp_path, 8)
    wrong = []

    def work(seed):
        for step in range(300):
            number = (seed + step) % len(files)
            pool.pwrite(files[number], bytes([number + 1]) * 16, seed * 16)
            if pool.pread(files[number], 16, seed * 16) != bytes([number + 1]) * 16:
                wrong.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(pool) <= 4
    pool.close()


def test_what_is_held_is_done_later(tmp_path):
    pool, (kept, gone) = make(tmp_path, 2)
    pool.pwrite(kept, b"1234", 0)
    pool.defer_changes()
    pool.erase(kept, 2)
    pool.delete(gone)
    assert pool.pread(kept, 4, 0) == b"1234"
    assert os.path.exists(gone.path)
    pool.apply_deferred()
    assert pool.pread(kept, 4, 0) == b"12\0\0"
    assert not os.path.exists(gone.path)
    pool.erase(kept, 0)
    assert pool.pread(kept, 4, 0) == bytes(4)


def test_a_write_that_fails_names_the_file(tmp_path):
    pool, (file,) = make(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError) as error:
            pool.pwrite(file, b"x", 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.filename == file.path
    pool.close()
