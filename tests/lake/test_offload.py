"""Files of a log in a bucket of a real S3 server, and read from there with those of the store as one log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

import mqlake.lake
from mqlake.cli.main import cli
from mqlake.errors import ConfigError, OffsetOutOfRangeError, StoreError, WrongFileSizeError
from mqlake.lake.log.storage import Storage
from mqlake.lake.options import LogOptions
from mqlake.lake.plan import plan_read
from mqlake.store.archive.offload import offload
from tests.lake.heads.logs import random_records, write_log
from tests.lake.s3 import BUCKET, S3Server, s3_server
from tests.lake.test_dataset import rows_of
from tests.spark.stores import copy_store, log_files

LISTINGS = 6
"""Requests of a query that are not for its rows, however long the log is."""
COLUMNS = ["topic", "queueId", "queueOffset", "physicalOffset", "body"]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/{request.node.name}"


def rows(path: Path, s3: S3Server, archive: str | None = None, **more: object) -> list[dict[str, object]]:
    log = mqlake.lake.scan(path, archive=archive, storage_options=s3.options)
    return rows_of(log.to_table(columns=COLUMNS, **more))


def test_one_log_from_two_places(every_kind: Path, tmp_path: Path, s3: S3Server, place: str) -> None:
    store = copy_store(every_kind, tmp_path / "store")
    whole, files = rows(store, s3), log_files(store)
    assert len(files) == 3
    report = offload(str(store), place, storage_options=s3.options)
    assert (report.copied, report.already_there) == (len(files) - 1, 0)
    for gone in files[:2]:  # as the retention does
        os.unlink(gone)
    assert len(rows(store, s3)) < len(whole)
    s3.requests.clear()
    assert rows(store, s3, place) == whole
    # one for each file that only the bucket has, and those that find out what is there
    assert s3.requests["GET"] <= 2 + LISTINGS and s3.total <= 2 + LISTINGS + 2
    wanted = (pc.field("topic") == "Topic-1") & (pc.field("queueId") == 1)
    assert rows(store, s3, place, filter=wanted) == [
        row for row in whole if (row["topic"], row["queueId"]) == ("Topic-1", 1)
    ]
    first = mqlake.lake.scan(store, archive=place, storage_options=s3.options, end=whole[5]["physicalOffset"])
    s3.requests.clear()
    assert first.count_rows() == 5 and s3.requests["GET"] <= 1 + LISTINGS


def test_again_copies_only_what_is_new(every_kind: Path, tmp_path: Path, s3: S3Server, place: str) -> None:
    store = copy_store(every_kind, tmp_path / "store")
    sealed = len(log_files(store)) - 1
    arguments = [
        "store",
        "offload",
        str(store),
        place,
        "--storage-option",
        f"endpoint_url={s3.endpoint}",
        "--json",
    ]

    def run(*more: str) -> dict[str, object]:
        done = CliRunner().invoke(cli, [*arguments, *more])
        assert done.exit_code == 0, done.output
        found: dict[str, object] = json.loads(done.stdout)
        return found

    assert run("--dry-run")["copied"] == sealed
    assert run()["copied"] == sealed
    s3.requests.clear()
    assert run()["copied"] == 0 and s3.total <= 8
    fs = fsspec.filesystem("s3", **s3.options)
    name = f"{place}/commitlog/{0:020d}"
    size = fs.info(name)["size"]
    fs.pipe(name, b"cut short")  # as a copy elsewhere may be after a crash
    with pytest.raises(WrongFileSizeError):
        rows(store, s3, place)
    assert run()["copied"] == 1 and fs.info(name, refresh=True)["size"] == size


def test_what_is_not_the_same_log_is_refused(
    every_kind: Path, tmp_path: Path, s3: S3Server, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqlake.store.archive.uploader.TAIL", 100)
    store = copy_store(every_kind, tmp_path / "store")
    offload(str(store), place, storage_options=s3.options)
    fs, newest = fsspec.filesystem("s3", **s3.options), Path(log_files(store)[-2]).name
    data = bytearray(fs.cat(f"{place}/commitlog/{newest}"))
    data[-1] ^= 1
    fs.pipe(f"{place}/commitlog/{newest}", bytes(data))
    with pytest.raises(StoreError, match="is of another log"):
        offload(str(store), place, storage_options=s3.options)
    data[-1] ^= 1
    data[0] ^= 1
    fs.pipe(f"{place}/commitlog/{newest}", bytes(data))
    assert offload(str(store), place, storage_options=s3.options).copied == 0
    with pytest.raises(StoreError, match="has other bytes than"):
        offload(str(store), place, storage_options=s3.options, recheck=True)
    with pytest.raises(ConfigError, match="such as s3://bucket/store"):
        offload(str(store), str(tmp_path))


def test_heads_come_along_and_say_what_to_read(
    tmp_path: Path, s3: S3Server, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a bucket everything was read for a key, a time, or a rare topic."""
    store = write_log(tmp_path / "store", random_records(1, 3000), 64 << 10)
    whole = mqlake.lake.scan(store, unpack=False).to_table(columns=[*COLUMNS, "uniqKey", "storeTimestamp"])
    arguments = ["store", "offload", str(store), place, "--storage-option", f"endpoint_url={s3.endpoint}"]
    files = log_files(store)
    done = CliRunner().invoke(cli, [*arguments, "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["heads"]["copied"] == len(files) - 1, done.output
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0 and "heads of 0 files" in done.output
    assert not (store / "heads").exists()
    for gone in files[:-1]:
        os.unlink(gone)
    moments = sorted(whole["storeTimestamp"].drop_null().to_pylist())
    questions = [
        pc.field("topic") == "t7",
        (pc.field("storeTimestamp") >= moments[800]) & (pc.field("storeTimestamp") < moments[803]),
        pc.field("physicalOffset") == whole["physicalOffset"][70].as_py(),
    ]
    log = mqlake.lake.scan(store, archive=place, storage_options=s3.options, unpack=False)
    for question in questions:
        s3.requests.clear()
        found = log.to_table(columns=COLUMNS, filter=question)
        assert rows_of(found) == rows_of(whole.filter(question).select(COLUMNS)) and found.num_rows < 80
        # heads, how the log ends that they are of, and what of it is read
        assert s3.requests["GET"] <= 3 * len(files) + found.num_rows + LISTINGS
    storage, archive = (Storage.at(where, s3.options) for where in (str(store), place))
    planned = plan_read(
        LogOptions(stores=(storage,), archive=archive, topics=frozenset({"t7"}), unpack=False)
    )
    assert planned.bytes_to_read < planned.bytes_of_log / 3
    fs, name = fsspec.filesystem("s3", **s3.options), f"{place}/heads/{files[0].name}.parquet"
    data = bytearray(fs.cat(name))
    data[100] ^= 1
    fs.pipe(name, bytes(data))
    caplog.clear()
    assert log.to_table(columns=COLUMNS, filter=questions[0]).equals(
        whole.filter(questions[0]).select(COLUMNS)
    )
    assert f"heads are passed over, and the log is read in their place: {name}" in caplog.text


@pytest.mark.parametrize("kind", ["missing", "empty", "other"])
def test_an_archive_that_has_nothing_is_said(every_kind: Path, tmp_path: Path, kind: str) -> None:
    """With a typing error in its place, the rows of the store alone were taken for all."""
    store, archive = copy_store(every_kind, tmp_path / "store"), tmp_path / "archive"
    if kind != "missing":
        (archive / ("commitlog" if kind == "empty" else "docs")).mkdir(parents=True)
    place, files = f"file://{archive}", log_files(store)
    assert mqlake.lake.scan(store, archive=place).count_rows() > 0  # nothing is missing yet
    os.unlink(files[0])
    begin = int(files[1].name)
    with pytest.raises(OffsetOutOfRangeError, match=f"0 to {begin} are not in the store, and the archive .*"):
        mqlake.lake.scan(store, archive=place).count_rows()
    left = mqlake.lake.scan(store)
    later = left.to_table(columns=["physicalOffset"])["physicalOffset"][3].as_py()
    assert mqlake.lake.scan(store, archive=place, start=later).count_rows() == left.count_rows() - 3


def test_a_hole_between_the_two_is_said(every_kind: Path, tmp_path: Path, s3: S3Server, place: str) -> None:
    store = copy_store(every_kind, tmp_path / "store")
    offload(str(store), place, storage_options=s3.options)
    files = log_files(store)
    for gone in files[:2]:
        os.unlink(gone)
    fsspec.filesystem("s3", **s3.options).rm(f"{place}/commitlog/{Path(files[1]).name}")
    with pytest.raises(OffsetOutOfRangeError, match="neither in the archive nor in the store"):
        rows(store, s3, place)
    os.unlink(files[2])
    fs = fsspec.filesystem("s3", **s3.options)
    fs.pipe(
        f"{place}/commitlog/{Path(files[2]).name}", (every_kind / "commitlog" / files[2].name).read_bytes()
    )
    with pytest.raises(
        OffsetOutOfRangeError, match="neither in the archive nor in the store"
    ):  # inside the archive
        rows(store, s3, place)
    with pytest.raises(ConfigError, match="of one store"):
        mqlake.lake.scan([store, every_kind], archive=place)
