"""The same store, read where fsspec finds it: in memory, which stands for any object store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyspark.sql import datasource as ds

from mqlake.errors import NotAStoreError, StoreCorruptError, WrongFileSizeError
from mqlake.lake.log import splits
from mqlake.lake.log.splits import splits_of_store
from mqlake.lake.log.storage import Storage
from tests.lake.arrow.test_unpack import rows
from tests.spark.stores import log_files, seen, time_of


def test_rows_and_filters(every_kind: Path, remote: Storage) -> None:
    found = rows(Path("/"), path=remote.root, topics="Topic-1")
    expected = [m.physical_offset for m in seen(every_kind) if m.topic == "Topic-1"]
    assert [row["physicalOffset"] for row in found] == expected
    assert {row["path"] for row in found} == {remote.root}


def test_no_store_there() -> None:
    with pytest.raises(NotAStoreError, match="memory://nowhere"):
        splits_of_store(Storage("memory://nowhere"))


def test_a_place_that_cannot_be_reached_is_named(remote: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of the file system's own library, such as botocore's, are no OSErrors."""

    class EndpointError(Exception):
        pass

    def away(*_: object, **__: object) -> None:
        raise EndpointError("Could not connect to the endpoint")

    for name, ask in {
        "ls": lambda: remote.directories(""),
        "exists": lambda: remote.exists("abort"),
        "cat_file": lambda: remote.read(remote.path("commitlog"), 0, 1),
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, name, away)
            with pytest.raises(
                ConnectionError, match=rf"^{remote.root} cannot be reached: Could not connect"
            ):
                ask()


class Requests:
    """What is asked of a remote store while one query is planned and read, and its rows."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, root: str, *filters: ds.Filter, **options: str
    ) -> None:
        self.count = self.bytes = 0
        with monkeypatch.context() as patch:
            for name in ("ls", "exists", "cat_file"):
                patch.setattr(MemoryFileSystem, name, self.counted(getattr(MemoryFileSystem, name)))
            found = rows(Path("/"), *filters, path=root, **options)
        self.offsets = [row["physicalOffset"] for row in found]

    def counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            answer = method(*arguments, **named)
            self.bytes += len(answer) if isinstance(answer, bytes) else 0
            return answer

        return called


HEADS = 1
"""The request that finds out that there are no heads."""


@pytest.mark.parametrize("split_size", ["64m", "4000"])
def test_skipping_takes_no_more_requests(
    every_kind: Path, remote: Storage, monkeypatch: pytest.MonkeyPatch, split_size: str
) -> None:
    root = remote.root
    monkeypatch.setattr(splits, "REMOTE_MARGIN", 1000)
    scan = Requests(monkeypatch, root, splitSize=split_size, skipping="false")
    topic = Requests(monkeypatch, root, ds.EqualTo(("topic",), "Topic-1"), splitSize=split_size)
    assert topic.count <= scan.count + HEADS and topic.bytes <= scan.bytes
    assert topic.offsets == [m.physical_offset for m in seen(every_kind) if m.topic == "Topic-1"]
    moment = time_of(seen(every_kind)[50].store_timestamp)
    times = Requests(monkeypatch, root, ds.LessThan(("storeTimestamp",), moment), splitSize=split_size)
    assert times.count <= scan.count + HEADS
    by_key = [ds.EqualTo(("topic",), "Topic-3"), ds.EqualTo(("keys",), "key-8 shared")]
    key = Requests(monkeypatch, root, *by_key, splitSize=split_size)
    assert key.offsets == [m.physical_offset for m in seen(every_kind) if m.keys == "key-8 shared"] != []
    assert key.count <= scan.count + HEADS + 1
    if split_size == "4000":
        assert key.bytes < scan.bytes * 0.8, "the index was used"


@pytest.mark.parametrize(
    ("text", "found"),
    [(b'{"a": [1]}', {"a": [1]}), (b"", {}), (b"[1]", {}), (b"{", {}), (b"\xff", {}), (None, {})],
)
def test_an_object_of_json(tmp_path: Path, text: bytes | None, found: dict[str, Any]) -> None:
    """What cannot be read says nothing: a query goes on without it."""
    for scheme, root in (("file", str(tmp_path)), ("memory", f"memory:/{tmp_path}")):
        fs, storage = fsspec.filesystem(scheme), Storage(root)
        for directory in ("", "config"):
            if text is not None:
                fs.makedirs(f"{root}/{directory}", exist_ok=True)
                fs.pipe_file(f"{root}/{directory}/x.json".replace("//x", "/x"), text)
            assert storage.json_object(directory, "x.json") == found


def test_a_bucket_that_is_not_there(remote: Storage) -> None:
    with pytest.raises(NotAStoreError, match="there is no 'nowhere' at memory://"):
        Storage("memory://nowhere/store").check()
    with pytest.raises(NotAStoreError, match="there is no directory commitlog in it"):
        Storage(f"{remote.root}/consumequeue").check()


def test_a_file_cut_short_and_a_file_missing(every_kind: Path, remote: Storage) -> None:
    fs = fsspec.filesystem("memory")
    path = f"{remote.root}/commitlog/{log_files(every_kind)[1].name}"
    fs.pipe_file(path, fs.cat_file(path)[:-5])
    with pytest.raises(WrongFileSizeError, match="16379 bytes"):
        splits_of_store(remote)
    fs.rm_file(path.removeprefix("memory:/"))
    with pytest.raises(StoreCorruptError, match="a file between them is missing"):
        splits_of_store(remote)
