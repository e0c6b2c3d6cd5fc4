from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from mqlake.metaq.config.values import DeletePolicy
from mqlake.metaq.store.delete import process_segment


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.meta"
    path.write_bytes(b"messages" * 1000)
    return path


def test_deleted(segment: Path) -> None:
    process_segment(DeletePolicy("delete", 0), str(segment))
    assert os.listdir(segment.parent) == []


def test_archived_under_another_name(segment: Path) -> None:
    process_segment(DeletePolicy("archive", 0), str(segment))
    assert os.listdir(segment.parent) == ["00000000000000000000.meta.arc"]


def test_archived_in_a_zip(segment: Path) -> None:
    process_segment(DeletePolicy("archive", 0, True), str(segment))
    assert os.listdir(segment.parent) == ["00000000000000000000.meta.zip"]
    with zipfile.ZipFile(f"{segment}.zip") as archive:
        assert archive.namelist() == ["00000000000000000000.meta"]
        assert archive.read("00000000000000000000.meta") == b"messages" * 1000


def test_what_cannot_be_archived_stays(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        process_segment(DeletePolicy("archive", 0, True), str(segment))
    assert os.listdir(segment.parent) == ["00000000000000000000.meta"]
