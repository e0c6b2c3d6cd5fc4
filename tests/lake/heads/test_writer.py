"""Heads are what an independent decoder finds, and whatever kills their writer leaves none that is wrong."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import mqlake.lake
from mqlake.errors import ConfigError, NotAStoreError, StoreLockedError
from mqlake.lake.heads import parquet, rows, writer
from mqlake.lake.heads.schema import COLUMNS, SCHEMA
from mqlake.lake.heads.valid import open_valid
from mqlake.lake.heads.writer import HeadsReport, HeadsWriter, write_heads
from mqlake.lake.log.splits import log_files as files_of
from mqlake.lake.log.storage import Storage
from mqlake.store import open_store
from tests.lake.heads.logs import heads_of, random_records, write_all, write_log
from tests.spark.stores import (
    SETTINGS,
    body_position,
    copy_store,
    decoded,
    extremes,
    flip_bit,
    log_files,
    write_inner_batches,
)
from tests.waiting import until


def read(root: Path) -> list[dict[str, Any]]:
    """The rows in the files of heads alone."""
    return [row for path in sorted((root / "heads").iterdir()) for row in pq.read_table(path).to_pylist()]


def full(root: Path) -> list[dict[str, Any]]:
    """What the decoder finds in the full files: those before the last."""
    last = int(log_files(root)[-1].name)
    return [head for head in heads_of(root) if head["physicalOffset"] < last]


def test_a_row_a_record(store: Path) -> None:
    assert read(store) == full(store) and len(read(store)) > 100
    assert pq.read_schema(next((store / "heads").iterdir())).equals(SCHEMA)


def test_stores_of_java(golden_store: Path) -> None:
    write_all(golden_store)
    assert mqlake.lake.scan_heads(golden_store).to_table().to_pylist() == heads_of(golden_store)


def test_inner_batches_are_one_record_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "mappedFileSizeCommitLog", 2048)
    write_inner_batches(tmp_path / "s")
    write_all(tmp_path / "s")
    assert read(tmp_path / "s") == full(tmp_path / "s") != []


def test_fields_at_their_limits(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", {**SETTINGS, "mappedFileSizeCommitLog": 64 << 10}) as opened:
        for message in extremes("Limits"):
            opened.put_message(message)
    write_all(tmp_path / "s")
    assert read(tmp_path / "s") == full(tmp_path / "s") != []


@pytest.mark.parametrize("seed", range(12))
def test_random_logs(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With row groups of a few records each."""
    monkeypatch.setattr(rows, "GROUP_BYTES", 3000)
    monkeypatch.setattr(rows, "walk", _in_small_chunks(rows.walk))
    root = write_log(tmp_path / "s", random_records(seed, 200), 20_000 + 64 * seed, first=0)
    paths = write_all(root)
    assert len(paths) == len(log_files(root)) - 1 > 1
    assert read(root) == full(root)
    assert pq.ParquetFile(paths[0]).num_row_groups > 2
    assert mqlake.lake.scan_heads(root).to_table().to_pylist() == heads_of(root)


def _in_small_chunks(walk: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **more: walk(*given, **{**more, "chunk_records": 5})


def test_what_parquet_offers(store: Path) -> None:
    file = pq.ParquetFile(next((store / "heads").iterdir()))
    group = file.metadata.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert list(columns) == list(COLUMNS)
    for name, column in columns.items():
        assert column.is_stats_set and column.has_column_index and column.has_offset_index, name
        assert column.compression == "ZSTD"


def test_bloom_filters(store: Path) -> None:
    import duckdb

    path = next(path for path in (store / "heads").iterdir() if path.name.startswith("0" * 20))
    known = next(row["keys"] for row in pq.read_table(path).to_pylist() if row["keys"])
    for name, key, excluded in (
        ("keys", known, False),
        ("keys", "nobody", True),
        ("uniqKey", "nobody", True),
    ):
        found = duckdb.sql(f"select * from parquet_bloom_probe('{path}', '{name}', '{key}')").fetchall()
        assert {row[-1] for row in found} == {excluded}, (name, key)


def test_written_kept_and_made_again(store: Path) -> None:
    there = {path: path.stat().st_ino for path in (store / "heads").iterdir()}
    again = HeadsWriter(str(store)).run()
    assert (again.written, again.kept, again.again, again.deleted, again.changed) == (0, 2, 0, 0, False)
    assert {path: path.stat().st_ino for path in (store / "heads").iterdir()} == there
    path = min(there)
    flip_bit(path, path.stat().st_size - 30)
    again = HeadsWriter(str(store)).run()
    assert (again.written, again.kept, again.again) == (0, 1, 1)
    again = HeadsWriter(str(store)).run(again=True)
    assert (again.written, again.kept, again.again) == (0, 0, 2) and read(store) == full(store)


def test_heads_of_deleted_files_go(store: Path, tmp_path: Path) -> None:
    HeadsWriter(str(store), str(tmp_path / "out")).run()
    os.unlink(log_files(store)[0])
    elsewhere = HeadsWriter(str(store), str(tmp_path / "out")).run()
    assert (elsewhere.deleted, elsewhere.kept) == (0, 1)
    assert len(list((tmp_path / "out").iterdir())) == 2  # an archive of the log may be read with them
    report = HeadsWriter(str(store)).run()
    assert (report.deleted, report.kept) == (1, 1)


def test_a_damaged_file_gets_none(every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    record = next(message for message in decoded(root)[9:] if len(message.body) > 9)
    flip_bit(log_files(root)[0], record.physical_offset + body_position(record))
    kept = HeadsWriter(str(root))
    report = kept.run()
    assert (report.written, len(report.damaged)) == (1, 1) and str(log_files(root)[0]) in report.damaged[0]
    assert [path.name for path in (root / "heads").iterdir()] == [log_files(root)[1].name + ".parquet"]
    assert kept.run().damaged == []  # it is said once


def test_a_place_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        HeadsWriter(str(tmp_path / "nowhere")).run()
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(ConfigError, match="local"):
        HeadsWriter("s3://bucket/store")


def test_an_empty_store_and_one_unfilled_file(tmp_path: Path) -> None:
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    (tmp_path / "empty" / "config").mkdir()
    report = HeadsWriter(str(tmp_path / "empty")).run()
    assert (report.written, report.kept, report.changed) == (0, 0, False)
    assert mqlake.lake.scan_heads(tmp_path / "empty").count_rows() == 0
    one = write_log(tmp_path / "one", random_records(1, 5), 1 << 20)
    assert HeadsWriter(str(one)).run().written == 0
    assert mqlake.lake.scan_heads(one).to_table().to_pylist() == heads_of(one)


def test_a_full_last_file_has_heads(every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    os.unlink(log_files(root)[-1])
    assert len(write_all(root)) == 2
    assert mqlake.lake.scan_heads(root).to_table().to_pylist() == heads_of(root)


def test_only_one_writes(store: Path) -> None:
    with writer._locked(str(store / "heads")), pytest.raises(StoreLockedError, match="another process"):
        HeadsWriter(str(store)).run()
    assert HeadsWriter(str(store)).run().kept == 2


def test_a_log_file_that_is_deleted_meanwhile(every_kind: Path, tmp_path: Path, monkeypatch: Any) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    real = writer.write_heads

    def deleted(storage: Storage, file: Any, directory: str) -> Any:
        os.unlink(file.file)
        return real(storage, file, directory)

    monkeypatch.setattr(writer, "write_heads", deleted)
    report = HeadsWriter(str(root)).run()
    assert (report.written, report.damaged, list((root / "heads").iterdir())) == (0, [], [])


def test_a_full_disk_leaves_what_was_there(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in (store / "heads").iterdir()}

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "seal", full_disk)
    with pytest.raises(OSError, match="No space left") as raised:
        HeadsWriter(str(store)).run(again=True)
    assert str(raised.value.filename).endswith(".parquet")
    assert {path: path.read_bytes() for path in (store / "heads").iterdir()} == before


class Killed(BaseException):
    pass


STEPS = (
    (writer.os, "fsync"),
    (writer.os, "replace"),
    (writer, "fsync_dir"),
    (writer, "write_parquet"),
    (parquet, "seal"),
    (pq.ParquetWriter, "write_table"),
    (pq.ParquetWriter, "add_key_value_metadata"),
)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[1])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_killed_at_any_step(
    every_kind: Path, tmp_path: Path, step: tuple[Any, str], when: str, number: int
) -> None:
    """Nothing wrong is believed, and the next run makes all of it."""
    root = copy_store(every_kind, tmp_path / "store")
    place, name = step
    real, calls = getattr(place, name), 0

    def killing(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and when == "before":
            raise Killed
        found = real(*given, **more)
        if calls == number:
            raise Killed
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, killing)
        try:
            HeadsWriter(str(root)).run()
        except Killed:
            pass
        else:
            assert calls < number
    assert not open_valid(Storage(str(root))).passed_over
    assert mqlake.lake.scan_heads(root).to_table().to_pylist() == heads_of(root)
    report = HeadsWriter(str(root)).run()
    assert report.written + report.kept == 2 and report.again == 0
    assert sorted(path.suffix for path in (root / "heads").iterdir()) == [".parquet", ".parquet"]
    assert read(root) == full(root)


def test_written_anew_while_the_old_one_is_there(store: Path) -> None:
    """A rename: no moment without heads."""
    storage = Storage(str(store))
    file = files_of(storage)[0]
    write_heads(storage, file, str(store / "heads"))
    assert len(open_valid(storage).valid) == 2


def test_follow(tmp_path: Path) -> None:
    root = tmp_path / "store"
    reports: list[HeadsReport] = []
    stop = threading.Event()
    with open_store(root, SETTINGS) as opened:
        following = threading.Thread(
            target=HeadsWriter(str(root)).follow, args=(stop, reports.append), daemon=True
        )
        following.start()
        for message in extremes("Follow"):
            opened.put_message(message)
        until(lambda: sum(report.written for report in reports) >= 3, "heads of full files")
        stop.set()
        following.join()
    assert not open_valid(Storage(str(root))).passed_over
    assert mqlake.lake.scan_heads(root).to_table().to_pylist() == heads_of(root)
