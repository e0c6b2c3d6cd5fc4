"""With how many slots and entries an index was made is found in its files, whatever the two are."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import WrongFileSizeError
from mqlake.store.check.info import store_info
from mqlake.store.check.search import Query, search
from mqlake.store.check.verify import verify_store
from mqlake.store.file_sizes import detect_settings
from mqlake.store.index.index_file import IndexFile
from mqlake.store.index.index_sizes import any_sizes, index_sizes
from mqlake.store.message_store import open_store
from mqlake.store.read_only import ReadOnlyStore
from tests.golden import CASES, unpack
from tests.store.small_store import COUNT, SETTINGS, change, fill, message

_numbers = itertools.count()


def made(path: Path, slots: int, entries: int, keys: list[tuple[int, int]]) -> Path:
    """An index file with a key (hash, physical offset) after the other, as many as there is room for."""
    path.unlink(missing_ok=True)
    file = IndexFile(str(path), slots, entries)
    hashes = np.array([key for key, _ in keys], np.int32)
    offsets = np.array([offset for _, offset in keys], np.int64)
    file.put_keys(hashes, offsets, np.full(len(keys), 1_700_000_000_000))
    file.close()
    return path


@pytest.mark.parametrize("case", CASES)
def test_of_java(tmp_path: Path, case: str) -> None:
    golden = unpack(case, tmp_path)
    right = golden.config["maxHashSlotNum"], golden.config["maxIndexNum"]
    for path in (golden.root / "index").iterdir():
        is_empty = path.read_bytes()[36:40] == b"\0\0\0\1"
        assert index_sizes(str(path)) == (None if is_empty else right)
    found = detect_settings(str(golden.root))
    assert (found["maxHashSlotNum"], found["maxIndexNum"]) == right


@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 400),
    entries=st.integers(2, 500),
    hashes=st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=60),
    first=st.integers(0, 2**40),
    step=st.integers(1, 1 << 20),
)
def test_whatever_they_are(
    tmp_path_factory: pytest.TempPathFactory,
    slots: int,
    entries: int,
    hashes: list[int],
    first: int,
    step: int,
) -> None:
    # a name of its own for each: what is known of a file is kept by path, inode and length
    path = tmp_path_factory.getbasetemp() / f"{20240229120000000 + next(_numbers)}"
    made(path, slots, entries, [(key, first + number * step) for number, key in enumerate(hashes)])
    assert index_sizes(str(path)) == (slots, entries)
    path.unlink()


def test_an_empty_file_does_not_tell(tmp_path: Path) -> None:
    path = made(tmp_path / "20240229120000000", 20, 50, [])
    assert index_sizes(str(path)) is None and index_sizes(str(tmp_path / "none")) is None
    pair = any_sizes(path.stat().st_size)
    assert pair is not None and 40 + 4 * pair[0] + 20 * pair[1] == path.stat().st_size


@pytest.mark.parametrize(("slots", "entries"), [(20, 50), (7, 333), (100, 30)])
def test_a_store_with_another_ratio_is_read_as_it_is(tmp_path: Path, slots: int, entries: int) -> None:
    root = fill(tmp_path / "store", maxHashSlotNum=slots, maxIndexNum=entries)
    found = detect_settings(str(root))
    assert (found["maxHashSlotNum"], found["maxIndexNum"]) == (slots, entries)
    report = verify_store(root)
    assert report.ok and report.findings == [] and report.index_entries == 3 * COUNT
    assert sum(file.entries for file in store_info(root).index_files) == 3 * COUNT
    with ReadOnlyStore(root) as view:
        (hit,) = [
            found for _, found in search(view, view.commit_log_files, Query(topic="Orders", key="key-10"))
        ]
        assert hit.body == message(10).body


def test_a_damaged_header_of_the_newest_file(tmp_path: Path) -> None:
    root = fill(tmp_path / "store", maxHashSlotNum=20, maxIndexNum=50)
    newest = sorted((root / "index").iterdir())[-1]
    change(newest, 16, b"\xff" * 24)
    found = detect_settings(str(root))
    assert (found["maxHashSlotNum"], found["maxIndexNum"]) == (20, 50)


def test_opening_takes_the_sizes_of_what_is_there(tmp_path: Path) -> None:
    """As for whoever reads: a store made with other sizes is written on with them when nothing else is asked for."""
    root = fill(tmp_path / "store", maxHashSlotNum=20, maxIndexNum=50)
    with open_store(root) as store:
        assert store.put_message(message(COUNT)).is_ok
        assert store.config.max_index_num == 50 and store.config.mapped_file_size_commit_log == 16384
    report = verify_store(root)
    assert report.ok and report.records == COUNT + 1


def test_asking_for_other_sizes_names_those_that_fit(tmp_path: Path) -> None:
    root = fill(tmp_path / "store", maxHashSlotNum=20, maxIndexNum=50)
    with pytest.raises(WrongFileSizeError, match="maxHashSlotNum=20 and maxIndexNum=50"):
        open_store(root, {**SETTINGS, "maxHashSlotNum": 30, "maxIndexNum": 50})
    with pytest.raises(WrongFileSizeError, match="mappedFileSizeCommitLog=16384"):
        open_store(root, {**SETTINGS, "mappedFileSizeCommitLog": 8192})
