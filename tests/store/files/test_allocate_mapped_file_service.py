from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.store.config import FlushDiskType, MessageStoreConfig
from mqlake.store.files import allocate_mapped_file_service
from mqlake.store.files.allocate_mapped_file_service import AllocateMappedFileService, AllocateRequest
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.transient_store_pool import TransientStorePool
from tests.waiting import PATIENCE_S

SIZE = 4096

Services = list[AllocateMappedFileService]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:  # noqa: ARG001 - it goes after them
    """All are shut down before the directory goes."""
    started: Services = []
    yield started
    for service in started:
        service.shutdown()


def make(
    services: Services, pool: TransientStorePool | None = None, **settings: object
) -> AllocateMappedFileService:
    config = dataclasses.replace(MessageStoreConfig(mapped_file_size_commit_log=SIZE), **settings)  # type: ignore[arg-type]
    service = AllocateMappedFileService(config, pool)
    service.start()
    services.append(service)
    return service


def paths(tmp_path: Path, *numbers: int) -> list[str]:
    return [str(tmp_path / f"{number * SIZE:020d}") for number in numbers]


def ask(service: AllocateMappedFileService, tmp_path: Path, number: int) -> MappedFile | None:
    return service.put_request_and_return_mapped_file(*paths(tmp_path, number, number + 1))


def test_the_next_file_and_the_one_after_it_are_made(services: Services, tmp_path: Path) -> None:
    service = make(services)
    first = ask(service, tmp_path, 0)
    assert first is not None
    assert (first.file_from_offset, first.file_size, first.wrote_position) == (0, SIZE, 0)
    second = ask(service, tmp_path, 1)
    assert second is not None
    assert second.file_from_offset == SIZE
    assert {path.name for path in tmp_path.iterdir()} >= {f"{0:020d}", f"{SIZE:020d}"}


def test_space_is_really_allocated(services: Services, tmp_path: Path) -> None:
    made = ask(make(services), tmp_path, 0)
    assert made is not None
    assert Path(made.path).stat().st_blocks * 512 >= SIZE


def test_the_earlier_file_is_made_first() -> None:
    names = ["/x/00000000000000008192", "/x/00000000000000000000", "/x/00000000000000004096"]
    assert [request.offset for request in sorted(map(AllocateRequest, names))] == [0, 4096, 8192]


def test_what_was_made_ahead_and_not_used_is_deleted_in_the_end(services: Services, tmp_path: Path) -> None:
    service = make(services)
    assert ask(service, tmp_path, 0) is not None
    service.shutdown()
    assert [path.name for path in tmp_path.iterdir()] == [f"{0:020d}"]


def test_an_error_is_raised_and_the_next_request_tries_again(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    service = make(services)
    monkeypatch.setattr("os.posix_fallocate", full)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            ask(service, tmp_path, 0)
        assert not (tmp_path / f"{0:020d}").exists()
    service.shutdown()  # the file after it is tried as well, and may be there for a moment
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    service = make(services)
    assert ask(service, tmp_path, 0) is not None


def test_a_full_disk_is_logged_when_it_begins_and_when_it_ends(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    service = make(services)
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        for _ in range(50):
            with pytest.raises(OSError, match="No space left"):
                ask(service, tmp_path, 0)
    assert ask(service, tmp_path, 0) is not None
    service.shutdown()
    begin, end = [record.getMessage() for record in caplog.records]
    assert "cannot create" in begin and "No space left on device" in begin
    assert "commit log files are created again" in end


def test_a_file_that_takes_too_long_comes_later(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    made = AllocateMappedFileService._make

    def slowly(service: AllocateMappedFileService, path: str) -> MappedFile:
        assert gate.wait(PATIENCE_S)
        return made(service, path)

    monkeypatch.setattr(AllocateMappedFileService, "_make", slowly)
    monkeypatch.setattr(allocate_mapped_file_service, "WAIT_TIMEOUT_S", 0.01)
    service = make(services)
    assert ask(service, tmp_path, 0) is None
    gate.set()
    monkeypatch.setattr(allocate_mapped_file_service, "WAIT_TIMEOUT_S", 60)
    assert ask(service, tmp_path, 0) is not None


def test_shutdown_lets_those_go_who_wait(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that waits for its file while the store shuts down gets none, at once."""
    gate, entered = threading.Event(), threading.Event()
    made = AllocateMappedFileService._make

    def slowly(service: AllocateMappedFileService, path: str) -> MappedFile:
        entered.set()
        assert gate.wait(PATIENCE_S)
        return made(service, path)

    monkeypatch.setattr(AllocateMappedFileService, "_make", slowly)
    monkeypatch.setattr(allocate_mapped_file_service, "WAIT_TIMEOUT_S", 60)
    service = make(services)
    answers: list[MappedFile | None] = []
    threads = [
        threading.Thread(target=lambda n=number: answers.append(ask(service, tmp_path, n)))
        for number in (0, 5)
    ]
    for thread in threads:
        thread.start()
    assert entered.wait(PATIENCE_S)
    stopping = threading.Thread(target=service.shutdown)
    stopping.start()
    gate.set()
    for thread in [stopping, *threads]:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert None in answers
    assert ask(service, tmp_path, 9) is None


class TestPool:
    def test_files_are_given_buffers(self, services: Services, tmp_path: Path) -> None:
        pool = TransientStorePool(2, SIZE)
        made = ask(make(services, pool), tmp_path, 0)
        assert made is not None
        assert made.write_buffer is not None

    def test_without_a_buffer_left_a_file_is_written_directly(
        self, services: Services, tmp_path: Path
    ) -> None:
        service = make(services, TransientStorePool(1, SIZE))
        assert ask(service, tmp_path, 0) is not None
        second = ask(service, tmp_path, 1)
        assert second is not None
        assert second.write_buffer is None

    def test_fast_fail(self, services: Services, tmp_path: Path) -> None:
        pool = TransientStorePool(1, SIZE)
        service = make(services, pool, fast_fail_if_no_buffer_in_store_pool=True)
        assert ask(service, tmp_path, 0) is not None
        assert ask(service, tmp_path, 1) is None
        assert not (tmp_path / f"{SIZE:020d}").exists()

    def test_a_file_that_cannot_be_made_gives_its_buffer_back(
        self, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.posix_fallocate", full)
        pool = TransientStorePool(2, SIZE)
        service = make(services, pool)
        with pytest.raises(OSError, match="No space"):
            ask(service, tmp_path, 0)
        service.shutdown()  # it may be at the next one
        assert pool.available_buffer_nums == 2


def test_a_new_file_is_warmed_when_asked_for(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: list[tuple[bool, int]] = []
    locked: list[str] = []

    def warm(_file: MappedFile, *, sync_flush: bool, flush_pages: int) -> None:
        warmed.append((sync_flush, flush_pages))

    def lock(file: MappedFile) -> bool:
        locked.append(file.path)
        return False

    monkeypatch.setattr(MappedFile, "warm", warm)
    monkeypatch.setattr(MappedFile, "lock_in_memory", lock)
    service = make(
        services,
        warm_maped_file_enable=True,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        flush_least_pages_when_warm_maped_file=7,
    )
    made = ask(service, tmp_path, 0)
    assert made is not None
    assert warmed[0] == (True, 7)
    assert locked[0] == made.path
