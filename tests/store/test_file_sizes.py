from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqlake.errors import ConfigError, StoreCorruptError
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import LOG_FILE_SIZE_MIN, detect_settings, fit_to_files
from mqlake.store.message_store import DefaultMessageStore
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


def sizes(config: MessageStoreConfig) -> dict[str, object]:
    return {key: value for key, value in config.to_mapping().items() if key in SETTINGS}


def test_a_writer_takes_the_sizes_that_it_was_not_given(tmp_path: Path) -> None:
    """Each would otherwise be a failed start of its own."""
    fill(tmp_path)
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path))
    assert sizes(fit_to_files(config, ())) == SETTINGS
    assert fit_to_files(config.replaced(SETTINGS), SETTINGS) == config.replaced(SETTINGS)
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "commitlog").rename(elsewhere)
    there = config.replaced({"storePathCommitLog": str(elsewhere)})
    assert sizes(fit_to_files(there, ())) == SETTINGS


def test_a_directory_may_be_named_from_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mqlake serve --store data` did not find the log's files, and refused those of another size."""
    fill(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    config = MessageStoreConfig(store_path_root_dir="data")
    assert fit_to_files(config, ()) == config.replaced(SETTINGS)


def test_all_sizes_that_cannot_be_are_named_at_once(tmp_path: Path) -> None:
    fill(tmp_path)
    wrong = {"mappedFileSizeCommitLog": 8192, "mappedFileSizeConsumeQueue": 40, "maxHashSlotNum": 7}
    config = MessageStoreConfig.from_mapping({**wrong, "storePathRootDir": str(tmp_path)})
    with pytest.raises(ConfigError, match="leave these settings out") as error:
        fit_to_files(config, wrong)
    for key in wrong:
        assert f"{key}={SETTINGS[key]} and not {wrong[key]}" in str(error.value)


def test_the_only_file_of_a_killed_log_may_have_been_cut_short(tmp_path: Path) -> None:
    """Taking its length would make what is left of the log the log."""
    place(tmp_path, "commitlog/00000000000000000000", 4096)
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path))
    assert fit_to_files(config, ()).mapped_file_size_commit_log == 4096
    (tmp_path / "abort").touch()
    assert fit_to_files(config, ()) == config
    place(tmp_path, f"commitlog/{4096:020d}", 4096)
    assert fit_to_files(config, ()).mapped_file_size_commit_log == 4096


def test_a_closed_log_of_one_file_that_was_cut_short_does_not_open(tmp_path: Path) -> None:
    """Its length is taken for its size, and recovery still sees that messages are missing."""
    fill(tmp_path, count=40)
    (log,) = (tmp_path / "commitlog").iterdir()
    for size in (3001, 2048):
        os.truncate(log, size)
        fitted = fit_to_files(MessageStoreConfig(store_path_root_dir=str(tmp_path)), ())
        assert fitted.mapped_file_size_commit_log == size
        with pytest.raises(StoreCorruptError):
            DefaultMessageStore(fitted).load()


def test_an_index_file_of_the_right_length_says_nothing_against_its_settings(tmp_path: Path) -> None:
    """Many pairs of slots and entries make one length, and an empty file does not tell them apart."""
    place(tmp_path, "index/20240501120000000", 40 + 4 * 10 + 20 * 18)
    given = {"maxHashSlotNum": 10, "maxIndexNum": 18}
    config = MessageStoreConfig.from_mapping({**given, "storePathRootDir": str(tmp_path)})
    assert fit_to_files(config, given) == config and detect_settings(str(tmp_path)) != given
