import os

import pytest

from mqlake.base.durable import fsync_dir, write_durably


def test_content_is_replaced_whole(tmp_path):
    path = str(tmp_path / "file")
    write_durably(path, b"first")
    write_durably(path, b"second, longer")
    assert (tmp_path / "file").read_bytes() == b"second, longer"
    assert os.listdir(tmp_path) == ["file"]


def test_a_relative_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_durably("file", b"x")
    assert (tmp_path / "file").read_bytes() == b"x"


def test_an_error_keeps_the_old_content_and_leaves_nothing(tmp_path, monkeypatch):
    path = str(tmp_path / "file")
    write_durably(path, b"old")

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error") as error:
        write_durably(path, b"new")
    assert error.value.filename == path
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_fsync_dir_of_a_missing_directory(tmp_path):
    with pytest.raises(FileNotFoundError):
        fsync_dir(str(tmp_path / "missing"))
