"""PrefaultService: pages ahead of the writer are there, never behind the file's end, and it ends when told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mqlake.store.files import prefault
from mqlake.store.files.mapped_file import READY_BYTES, MappedFile
from mqlake.store.files.prefault import PrefaultService
from tests.waiting import PATIENCE_S

SIZE = 3 * READY_BYTES + 4096


class Watched(MappedFile):
    """Says when the service asks for pages."""

    asked: list[tuple[int, int]]
    idle: threading.Event
    works = True

    def prefault(self, start: int, end: int) -> bool:
        self.asked.append((start, end))
        return self.works and super().prefault(start, end)


@pytest.fixture
def mapped_file(tmp_path: Path) -> Watched:
    file = Watched(str(tmp_path / f"{0:020d}"), SIZE)
    file.asked = []
    return file


def served(mapped_file: Watched) -> None:
    """One wake, answered to its end."""
    service = PrefaultService()
    assert service._go_ahead(mapped_file)


def test_it_stays_a_few_mib_ahead(mapped_file: Watched) -> None:
    served(mapped_file)
    assert mapped_file.prefaulted_position == READY_BYTES
    assert mapped_file.wake_position == READY_BYTES - READY_BYTES // 2
    assert mapped_file.asked[0][0] == 0 and mapped_file.asked[-1][1] == READY_BYTES
    assert all(a[1] == b[0] for a, b in zip(mapped_file.asked, mapped_file.asked[1:], strict=False))
    mapped_file.close()


def test_it_goes_to_the_end_of_the_file_and_no_further(mapped_file: Watched) -> None:
    mapped_file.set_positions(SIZE - 10)
    served(mapped_file)
    assert mapped_file.prefaulted_position == SIZE == mapped_file.asked[-1][1]
    mapped_file.close()


def test_the_thread_answers_a_wake_and_ends(mapped_file: Watched) -> None:
    service = PrefaultService()
    service.start()
    done = threading.Event()
    ahead = service._go_ahead

    def go_ahead(file: MappedFile) -> bool:
        try:
            return ahead(file)
        finally:
            done.set()

    service._go_ahead = go_ahead  # type: ignore[method-assign]
    service.wake(mapped_file)
    assert done.wait(PATIENCE_S)
    service.shutdown()
    assert mapped_file.prefaulted_position == READY_BYTES and not service._thread.is_alive()
    mapped_file.close()


def test_where_the_kernel_does_not_know_the_advice_it_gives_up(
    mapped_file: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    mapped_file.works = False
    service = PrefaultService()
    service.start()
    with caplog.at_level("INFO", prefault.__name__):
        service.wake(mapped_file)
        service._thread.join(PATIENCE_S)
    assert not service._thread.is_alive() and "cannot be prefaulted" in caplog.text
    assert mapped_file.prefaulted_position == 0
    service.shutdown()
    mapped_file.close()
