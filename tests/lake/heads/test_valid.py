"""Which heads are used: those that fit the log as it is. Of others, one warning, and the rows of the log."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import mqlake.lake
from mqlake.errors import UnfitHeadsError
from mqlake.lake.heads import valid as module
from mqlake.lake.heads.schema import Origin
from mqlake.lake.heads.valid import StoreHeads, open_valid, place_of
from mqlake.lake.log.storage import Storage
from mqlake.store import open_store
from tests.lake.heads.logs import heads_of, random_records, write_all, write_log
from tests.spark.stores import SETTINGS, copy_store, extremes, flip_bit, log_files

SIZE = 16 << 10


def look(root: Path) -> StoreHeads:
    return open_valid(Storage(str(root)))


def passed_over(root: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The reasons why heads are passed over; there is one warning, and the rows are right."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found = look(root)
    warned = [record for record in caplog.records if record.name == module.__name__]
    assert len(warned) == (1 if found.passed_over else 0)
    for path, _ in found.passed_over[:3]:
        assert path in warned[0].getMessage()
    assert mqlake.lake.scan_heads(root).to_table().to_pylist() == heads_of(root)
    return [why for _, why in found.passed_over]


def test_files_seam_and_gaps(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = look(store)
    assert [heads is not None for _, heads in found.files] == [True, True, False]
    assert (found.begin, found.tail, found.gaps, found.passed_over) == (0, 2 * SIZE, [], [])
    os.unlink(found.valid[0].path)
    found = look(store)
    assert (found.tail, found.gaps) == (2 * SIZE, [(0, SIZE)])
    assert passed_over(store, caplog) == []
    os.unlink(found.valid[0].path)
    found = look(store)
    assert (found.begin, found.tail, found.gaps) == (0, 0, [])
    assert passed_over(store, caplog) == []


def test_a_store_without_heads(every_kind: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert look(every_kind).valid == [] and passed_over(every_kind, caplog) == []


def test_heads_of_a_replaced_log_file(store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As after a restored backup, or a log that was cut off and written on."""
    other = write_log(tmp_path / "other", random_records(5, 200), SIZE)
    os.replace(log_files(other)[0], log_files(store)[0])
    [why] = passed_over(store, caplog)
    assert "at its end" in why
    assert look(store).gaps == [(0, SIZE)]


def test_heads_of_another_file(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = sorted((store / "heads").iterdir())
    shutil.copyfile(first, second)
    [why] = passed_over(store, caplog)
    assert "was made from 00000000000000000000, 0 to 16384, not from" in why


def test_heads_of_another_store(store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With files of the same names and sizes, and of other sizes."""
    for number, size in enumerate((SIZE, SIZE + 1024)):
        other = write_log(tmp_path / f"other-{number}", random_records(6, 200), size)
        shutil.copyfile(write_all(other)[0], sorted((store / "heads").iterdir())[0])
        assert len(passed_over(store, caplog)) == 1


def test_other_files_in_the_folder(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    (store / "heads" / "README").write_text("mine")
    (store / "heads" / "00000000000000000000.parquet.tmp").write_bytes(b"half")
    (store / "heads" / "00000000000000099999.parquet").write_bytes(b"of no file")
    assert passed_over(store, caplog) == []
    (store / "heads" / "00000000000000000000.parquet").write_bytes(b"")
    assert len(passed_over(store, caplog)) == 1


def test_all_are_warned_of_at_once(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    for path in (store / "heads").iterdir():
        flip_bit(path, path.stat().st_size - 20)
    assert len(passed_over(store, caplog)) == 2


def test_a_later_version(store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("mqlake.lake.heads.schema.FORMAT", 2)
        assert {"format 1" in why for why in passed_over(store, caplog)} == {True}


def test_a_log_file_that_is_not_full_any_more(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A log that was cut off."""
    os.unlink(log_files(store)[-1])
    with open(log_files(store)[-1], "r+b") as file:
        record = heads_of(store)[-1]
        file.seek(record["physicalOffset"] % SIZE)
        file.write(bytes(SIZE - record["physicalOffset"] % SIZE))
    (store / "abort").touch()
    assert passed_over(store, caplog) == ["the log file is not full"]


def test_deleted_between_listing_and_reading(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The log file, or its heads: neither is a reason to warn."""
    storage = Storage(str(store))
    real, files = module.open_heads, [file for file, _ in look(store).files]

    def deleting(gone: str) -> Any:
        def opened(place: Storage, name: str, size: int, storage: Storage, file: Any) -> Any:
            os.unlink(file.file if gone == "log" else place.path(name))
            return real(place, name, size, storage, file)

        return opened

    for gone in ("heads", "log"):
        copy = copy_store(store, store.parent / gone)
        with monkeypatch.context() as patch:
            patch.setattr(module, "open_heads", deleting(gone))
            found = look(copy)
        assert found.valid == [] and found.passed_over == []
    assert "heads are passed over" not in caplog.text
    assert len(open_valid(storage, files=files).valid) == 2


def test_a_store_that_is_written_meanwhile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "store"
    with open_store(root, SETTINGS) as opened:
        for number, message in enumerate(extremes("Grows")):
            opened.put_message(message)
            if number % 10 == 0:
                opened.flush()
                write_all(root)
                assert passed_over(root, caplog) == []
    assert len(look(root).valid) > 2


def test_an_origin_that_lies(store: Path) -> None:
    """Each of its fields is compared."""
    found = look(store)
    storage, (file, heads) = found.storage, found.files[0]
    assert heads is not None
    module.check_fits(heads.origin, storage, file)
    given = heads.origin.__dict__
    wrong = {"file": "0", "begin": -1, "end": 0, "last": 5, "last_size": 9, "tail": 1}
    for name, value in wrong.items():
        with pytest.raises(UnfitHeadsError):
            module.check_fits(Origin(**{**given, name: value}), storage, file)
    with pytest.raises(UnfitHeadsError):
        module.check_fits(Origin(**{**given, "last_size": 2**40}), storage, file)
    for text in (
        b"",
        b"[]",
        b"{}",
        b'{"format": 1}',
        heads.origin.to_json().replace(b'"end": ', b'"end": "1"+'),
    ):
        with pytest.raises(UnfitHeadsError):
            Origin.from_json(text)
    with pytest.raises(UnfitHeadsError):
        Origin.from_json(Origin(**{**given, "last": "5"}).to_json())
    assert Origin.from_json(heads.origin.to_json()) == heads.origin
    assert place_of(storage, "/x").root == "/x"
