"""Commit log files of a class from outside: it is used for all of them, and one that loses bytes is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mqlake.errors import ConfigError
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_plugin import GROUP, mapped_file_class, try_mapped_file
from mqlake.store.message_store import open_store
from mqlake.store.read_only import ReadOnlyStore
from tests.plugin_package import install
from tests.store.small_store import SETTINGS, fill, message

PLUGIN = """
from mqlake.store.files.mapped_file import MappedFile
used = []

class Counting(MappedFile):
    __slots__ = ()

    def __init__(self, path, *args, **kwargs):
        used.append(path)
        super().__init__(path, *args, **kwargs)

class Other:
    pass

class WithoutItsLicence(MappedFile):
    def __init__(self, *args, **kwargs):
        raise RuntimeError("no licence")
"""


class LosesFlushes(MappedFile):
    def flush(self, least_pages: int) -> int:
        return self.flushed_position


class KeepsToItself(MappedFile):
    """Bytes that other processes do not see."""

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        pass


class CommitsNothing(MappedFile):
    def commit(self, least_pages: int) -> int:
        return self.wrote_position


class TooLong(MappedFile):
    def __init__(self, path: str, file_size: int, **options: object) -> None:
        super().__init__(path, file_size + 4096, **options)  # type: ignore[arg-type]


class Remains(MappedFile):
    def destroy(self) -> None:
        self.close()


class ShowsTooMuch(MappedFile):
    def select(self, position: int, size: int) -> memoryview | None:
        return self.view[position : position + size]


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    names = "\n".join(f"{name} = acme_files:{name}" for name in ("Counting", "Other", "WithoutItsLicence"))
    install(tmp_path, monkeypatch, "acme_files", PLUGIN, {GROUP: names})
    return "Counting"


def records_of(root: Path) -> int:
    with ReadOnlyStore(str(root)) as store:
        return sum(len(chunk.scan) for chunk in store.scan())


@pytest.mark.parametrize("pool", [False, True])
def test_all_files_of_the_log_are_made_and_opened_with_it(tmp_path: Path, counting: str, pool: bool) -> None:
    import acme_files  # type: ignore[import-not-found]

    root = tmp_path / "store"
    settings = {"transientStorePoolEnable": "true", "transientStorePoolSize": 8} if pool else {}
    fill(root, mappedFilePlugIn=counting, **settings)
    files = {str(path) for path in (root / "commitlog").iterdir()}
    assert len(files) > 2
    assert files <= set(acme_files.used)
    acme_files.used.clear()
    with open_store(root, {**SETTINGS, **settings, "mappedFilePlugIn": counting}) as store:
        assert {path for path in acme_files.used if "commitlog" in path} == files
        assert store.put_message(message(200)).is_ok
    assert not list(root.glob("mapped-file-trial-*"))
    assert records_of(root) == 201  # who reads needs no plug-in


@pytest.mark.usefixtures("counting")
def test_without_the_setting_no_package_is_looked_at(tmp_path: Path) -> None:
    assert mapped_file_class("") is MappedFile
    fill(tmp_path / "store", count=1)
    assert "acme_files" not in sys.modules


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Nothing", r"no installed package has an entry point 'Nothing' .* Counting, Other"),
        ("Other", r"Other \(acme_files:Other of acme_files 1.2\) is no subclass of mqlake.*MappedFile"),
        ("WithoutItsLicence", "WithoutItsLicence cannot be used: RuntimeError: no licence"),
    ],
)
@pytest.mark.usefixtures("counting")
def test_a_store_does_not_open_with_one_that_cannot_be_used(tmp_path: Path, name: str, why: str) -> None:
    root = tmp_path / "store"
    with pytest.raises(ConfigError, match=why):
        open_store(root, {**SETTINGS, "mappedFilePlugIn": name})
    assert not (root / "commitlog").exists() or not list((root / "commitlog").iterdir())
    fill(root, count=3)  # the lock is free
    assert records_of(root) == 3


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (LosesFlushes, "what flush\\(\\) returns should be 300, and is 0"),
        (KeepsToItself, "the bytes in the file"),
        (CommitsNothing, "the bytes in the file.*transient store pool: True|what flush"),
        (TooLong, "the size of a new file should be 65536, and is 69632"),
        (Remains, "whether a destroyed file is there should be False"),
        (ShowsTooMuch, "what select\\(\\) gives beyond the end should be None"),
    ],
)
def test_a_class_that_does_not_keep_bytes_is_named_with_what_it_does(
    tmp_path: Path, kind: type[MappedFile], what: str
) -> None:
    with pytest.raises(ConfigError, match=rf"mappedFilePlugIn: .*{kind.__name__} cannot be used: ({what})"):
        try_mapped_file(kind, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_mqlakes_own_class_passes_the_trial(tmp_path: Path) -> None:
    class Same(MappedFile):
        pass

    try_mapped_file(Same, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
