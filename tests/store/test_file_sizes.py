from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.errors import StoreCorruptError
from mqlake.store.file_sizes import LOG_FILE_SIZE_MIN, detect_settings
from tests.store.small_store import SETTINGS, fill


def place(root: Path, name: str, size: int) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))


def test_a_store_opens_as_it_was_made(tmp_path: Path) -> None:
    fill(tmp_path)
    assert detect_settings(str(tmp_path)) == SETTINGS


def test_nothing_is_known_of_a_directory_without_files(tmp_path: Path) -> None:
    assert detect_settings(str(tmp_path)) == {}
    place(tmp_path, "commitlog/00000000000000000000", 0)  # made, and not yet allocated
    place(tmp_path, "commitlog/README", 5000)
    place(tmp_path, "consumequeue/T/README", 500)
    assert detect_settings(str(tmp_path)) == {}


def test_most_files_of_the_log_have_its_size(tmp_path: Path) -> None:
    for number, size in enumerate((4096, 4096, 100, 8192)):
        place(tmp_path, f"commitlog/{number * 4096:020d}", size)
    assert detect_settings(str(tmp_path)) == {"mappedFileSizeCommitLog": 4096}
    place(tmp_path, f"commitlog/{4 * 4096:020d}", 8192)  # two and two: the others were cut short
    assert detect_settings(str(tmp_path)) == {"mappedFileSizeCommitLog": 8192}


@pytest.mark.parametrize("size", [1, LOG_FILE_SIZE_MIN - 1])
def test_a_log_that_was_cut_short(tmp_path: Path, size: int) -> None:
    place(tmp_path, "commitlog/00000000000000000000", size)
    with pytest.raises(StoreCorruptError, match="cut short") as error:
        detect_settings(str(tmp_path))
    assert (error.value.path, error.value.offset) == (
        str(tmp_path / "commitlog" / "00000000000000000000"),
        size,
    )
    place(tmp_path, "commitlog/00000000000000000000", LOG_FILE_SIZE_MIN)
    assert detect_settings(str(tmp_path)) == {"mappedFileSizeCommitLog": LOG_FILE_SIZE_MIN}


def test_queues_have_whole_units(tmp_path: Path) -> None:
    place(tmp_path, "consumequeue/A/0/00000000000000000000", 199)  # cut short
    place(tmp_path, "consumequeue/B/0/00000000000000000000", 200)
    place(tmp_path, "batchconsumequeue/A/0/00000000000000000000", 460)
    place(tmp_path, "consumequeue_ext/A/0/00000000000000000000", 333)
    assert detect_settings(str(tmp_path)) == {
        "mappedFileSizeConsumeQueue": 200,
        "mapperFileSizeBatchConsumeQueue": 460,
        "mappedFileSizeConsumeQueueExt": 333,
        "enableConsumeQueueExt": True,
    }
