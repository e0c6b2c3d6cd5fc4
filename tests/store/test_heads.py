"""Heads go with their log files, and with what changes these; the store itself minds them not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqlake.store.check.repair import repair_store
from mqlake.store.check.verify import verify_store
from mqlake.store.heads import delete_heads_before, delete_heads_of, heads_in, offset_of_heads
from mqlake.store.message_store import open_store
from tests.store.small_store import COUNT, SETTINGS, change, contents, fill, record_at

SIZE = 16384


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three log files, each with a file that stands for its heads."""
    root = fill(tmp_path / "store")
    (root / "heads").mkdir()
    for path in sorted((root / "commitlog").iterdir()):
        (root / "heads" / f"{path.name}.parquet").write_bytes(b"heads")
    assert len(heads_in(str(root))) > 2
    return root


def names(root: Path) -> list[int]:
    return [offset_of_heads(name) or 0 for name in heads_in(str(root))]


def test_names(store: Path) -> None:
    (store / "heads" / "other").touch()
    (store / "heads" / "x.parquet").touch()
    (store / "heads" / f"{0:020}.parquet.tmp").touch()
    assert names(store) == [SIZE * number for number in range(len(os.listdir(store / "commitlog")))]
    assert offset_of_heads("1.parquet.tmp") is None and heads_in(str(store / "nowhere")) == []


def test_deletion(store: Path) -> None:
    last = names(store)[-1]
    assert delete_heads_before(str(store), 0) == 0
    assert delete_heads_before(str(store), SIZE) == 1 and names(store)[0] == SIZE
    assert delete_heads_of(str(store), [f"/elsewhere/{last:020}", "other"]) == 1
    assert last not in names(store) and delete_heads_before(str(store / "nowhere"), SIZE) == 0


def test_cleaning_deletes_them_with_their_log_files(store: Path) -> None:
    """Without pyarrow: the store does not open them."""
    with open_store(store, SETTINGS) as opened:
        assert opened._clean_service._consume_queue.run_once() == 0
        files = opened.commit_log_files
        files.delete_file(files.mapped_files[0])
        opened._clean_service.run_once()
        assert names(store)[0] == files.min_offset == SIZE


def test_a_store_with_heads_is_whole(store: Path) -> None:
    heads = {name: data for name, data in contents(store).items() if name.startswith("heads")}
    with open_store(store, SETTINGS) as opened:
        assert opened.max_phy_offset > SIZE
    report = verify_store(store)
    assert report.ok and report.records == COUNT and not report.findings
    assert {name: data for name, data in contents(store).items() if name.startswith("heads")} == heads


def test_a_repair_deletes_those_of_the_files_that_it_changes(store: Path) -> None:
    path, position, _ = record_at(store, 30)
    change(path, position + 4, b"broken")
    before = names(store)
    assert repair_store(store).after is not None
    assert names(store) == [offset for offset in before if offset != int(path.name)]
