"""The source `metaq`: rows, options, cuts, damage; all against the readers of mqlake.metaq, a message at a time."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mqlake.errors import ConfigError, NotAStoreError, StoreCorruptError, UnknownKeyError
from mqlake.lake.arrow.schema import CORRUPT_COLUMN
from mqlake.lake.log.storage import Storage
from mqlake.metaq.formats.record import encode_record
from mqlake.metaq.store.columns import Damage, Records
from mqlake.metaq.store.inspect import open_data_directory, read_records
from mqlake.metaq.store.message_store import MessageStore
from mqlake.spark.metaq.options import COLUMNS, MetaqOptions
from mqlake.spark.metaq.segments import splits, walk
from tests.metaq.records import fill


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("metaq") / "data"
    root.mkdir()
    for topic, partition in (("orders", 0), ("orders", 1), ("a-topic", 0)):
        fill(root, topic, partition, 400)
    (root / "transactions").mkdir()
    return root


def expected(root: Path) -> list[dict[str, object]]:
    """The rows of a directory, without `checksum` and `path`."""
    return [
        {
            "topic": files.topic,
            "partition": files.partition,
            "offset": record.offset,
            "size": record.size,
            "id": record.message.id,
            "flag": record.message.flag,
            "attribute": record.message.attribute,
            "body": record.message.data,
        }
        for files in open_data_directory(str(root)).partitions
        for record in read_records(files)
    ]


def walked(root: Path, split_size: int | None = None, *, verify: bool = True) -> list[Records | Damage]:
    return [
        found
        for files in open_data_directory(str(root)).partitions
        for split in splits(Storage(str(root)), files, split_size)
        for found in walk(split, verify=verify, chunk_records=64)
    ]


def offsets(found: list[Records | Damage]) -> list[int]:
    return [offset for each in found if isinstance(each, Records) for offset in each.offset.tolist()]


# --- in Spark


@pytest.mark.spark
@pytest.mark.parametrize("split_size", ["64m", "20k"])
def test_row_for_row(spark: SparkSession, data: Path, split_size: str) -> None:
    frame = spark.read.format("metaq").option("splitSize", split_size).load(str(data))
    assert frame.columns == list(COLUMNS)
    rows = sorted((row.asDict() for row in frame.collect()), key=lambda row: (row["topic"], row["partition"]))
    checksums = [row.pop("checksum") for row in rows]
    assert {row.pop("path") for row in rows} == {str(data)}
    key = ("topic", "partition", "offset")
    assert sorted(rows, key=lambda row: [row[name] for name in key]) == expected(data)
    assert all(0 <= checksum < 1 << 31 for checksum in checksums)


@pytest.mark.spark
def test_topics_columns_and_filters(spark: SparkSession, data: Path) -> None:
    read = spark.read.format("metaq").option("includeBody", False)
    assert read.load(str(data)).columns == [name for name in COLUMNS if name != "body"]
    few = spark.read.format("metaq").schema("topic string, offset long").load(str(data))
    counts = {(row.topic, row["count"]) for row in few.groupBy("topic").count().collect()}
    assert counts == {("orders", 800), ("a-topic", 400)}
    orders = spark.read.format("metaq").option("topics", "orders").load(str(data))
    assert orders.where("partition = 1 and offset > 5000").count() == sum(
        row["topic"] == "orders" and row["partition"] == 1 and row["offset"] > 5000 for row in expected(data)
    )


@pytest.mark.spark
def test_damage_by_mode(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    root = tmp_path / "damaged"
    shutil.copytree(data, root)
    files = open_data_directory(str(root)).partition("orders", 1)
    record = [each for each in read_records(files) if each.size > 50][20]
    segment = files.segments[0]
    with open(segment.path, "r+b") as file:
        file.seek(record.offset + 40)
        byte = file.read(1)[0]
        file.seek(record.offset + 40)
        file.write(bytes([byte ^ 1]))
    where = f"{segment.path}: corrupt at byte {record.offset}: "
    read = spark.read.format("metaq").option("columns", "offset")
    with pytest.raises(PySparkException) as raised:
        read.load(str(root)).collect()
    assert where in str(raised.value)
    n = len(expected(data))
    assert read.option("mode", "dropMalformed").load(str(root)).count() == n - 1
    rows = read.option("mode", "permissive").load(str(root)).collect()
    (corrupt,) = [row for row in rows if row[CORRUPT_COLUMN] is not None]
    assert (len(rows), corrupt.offset) == (n, record.offset)
    assert corrupt[CORRUPT_COLUMN].startswith(where)


@pytest.mark.spark
def test_a_foreign_directory(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PySparkException, match="is not a MetaQ data directory"):
        spark.read.format("metaq").load(str(tmp_path))


# --- options


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ConfigError, "'path' .* is needed"),
        ({"path": "/d", "zookeeper": "h:1"}, ConfigError, "not both"),
        ({"path": "/d", "topic": "x"}, UnknownKeyError, "did you mean 'topics'"),
        ({"path": "/d", "columns": "offsets"}, UnknownKeyError, "did you mean 'offset'"),
        ({"path": "/d", "columns": "id,id"}, ConfigError, "each once"),
        ({"path": "/d", "verify": "full"}, ConfigError, "none or crc"),
        ({"path": "/d", "splitSize": "0"}, ConfigError, "splitSize"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        MetaqOptions.parse(options)


def test_options_are_not_case_sensitive() -> None:
    found = MetaqOptions.parse({"PATH": "/a, file:///b", "SplitSize": "1m", "mode": "PERMISSIVE"})
    assert ([each.root for each in found.storages], found.split_size) == (["/a", "/b"], 1 << 20)
    assert found.columns == (*COLUMNS, CORRUPT_COLUMN)


# --- cuts and damage, without Spark


@pytest.mark.parametrize("split_size", [1, 1000, 7777, None])
def test_however_it_is_cut_each_record_comes_once(data: Path, split_size: int | None) -> None:
    found = [  # not walked(): what is found keeps its file open, and these are a thousand splits
        offset
        for files in open_data_directory(str(data)).partitions
        for split in splits(Storage(str(data)), files, split_size)
        for offset in offsets(list(walk(split, chunk_records=64)))
    ]
    assert found == [row["offset"] for row in expected(data)]


def test_a_topic_that_is_not_there(data: Path) -> None:
    place = MetaqOptions.parse({"path": str(data), "topics": "orders,a-topik"}).place()
    with pytest.raises(ConfigError, match=r"^there is no topic 'a-topik'; did you mean 'a-topic'"):
        place.bounds()


def test_a_split_begins_where_the_offset_says(data: Path) -> None:
    files = open_data_directory(str(data)).partition("orders", 0)
    wanted = [record.offset for record in read_records(files)][250:]
    found = [each for split in splits(Storage(str(data)), files, 5000, wanted[0]) for each in walk(split)]
    assert offsets(found) == wanted


def test_no_cut_at_a_record_inside_a_body(tmp_path: Path) -> None:
    inner = b"".join(encode_record(b"inner", 7, 0) for _ in range(100))
    store = MessageStore(str(tmp_path), "t", 0)
    for n in range(3):
        store.append(encode_record(inner, n + 1, 0))
    store.close()
    assert offsets(walked(tmp_path, 300)) == [n * (20 + len(inner)) for n in range(3)]


@settings(max_examples=40, deadline=None)
@given(choose=st.data())
def test_whatever_is_damaged_the_other_records_come(
    choose: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("damage")
    records = [encode_record(b"%d" % n * choose.draw(st.integers(1, 30)), n + 1, 0) for n in range(30)]
    starts = [sum(map(len, records[:n])) for n in range(31)]
    broken = choose.draw(st.integers(0, 28))
    position = starts[broken] + choose.draw(st.sampled_from([0, 1, 3, 4, 20]))
    log = bytearray(b"".join(records))
    log[position] ^= choose.draw(st.integers(1, 255))
    (root / "t-0").mkdir()
    (root / "t-0" / "00000000000000000000.meta").write_bytes(log)
    for split_size in (None, 200):
        found = walked(root, split_size)
        assert set(starts[:30]) - set(offsets(found)) == {starts[broken]}
        (damage,) = [each for each in found if isinstance(each, Damage)]
        assert (damage.position, damage.until) == (starts[broken], starts[broken + 1])


def test_a_torn_end_is_no_damage(data: Path, tmp_path: Path) -> None:
    root = tmp_path / "torn"
    shutil.copytree(data, root)
    last = open_data_directory(str(root)).partition("orders", 0).segments[-1]
    for tail in (b"\0" * 5000, encode_record(b"x" * 100, 5, 0)[:50], b"\x00\x00\x00\x05garbage"):
        with open(last.path, "r+b") as file:
            file.truncate(last.size)
            file.seek(last.size)
            file.write(tail)
        found = walked(root)
        assert offsets(found) == [row["offset"] for row in expected(data)]
        assert not any(isinstance(each, Damage) for each in found)


def test_a_torn_end_inside_a_partition_is_damage(data: Path, tmp_path: Path) -> None:
    root = tmp_path / "torn"
    shutil.copytree(data, root)
    files = open_data_directory(str(root)).partition("orders", 0)
    with open(files.segments[0].path, "r+b") as file:
        file.truncate(files.segments[0].size - 3)
    (damage,) = [each for each in walked(root) if isinstance(each, Damage)]
    assert damage.reason == "the record says more bytes than there are"
    with pytest.raises(StoreCorruptError, match="the next begins at"):
        open_data_directory(str(root)).check_gaps()


def test_an_attribute_that_does_not_fit_is_damage(tmp_path: Path) -> None:
    wrong = [struct.pack(">i", 9) + b"short", struct.pack(">i", -1), b"abc"]
    store = MessageStore(str(tmp_path), "t", 0)
    for payload in wrong:
        store.append(encode_record(b"good", 1, 0))
        store.append(encode_record(payload, 2, 1))
    store.close()
    found = walked(tmp_path)
    assert len(offsets(found)) == 3
    assert [each.reason for each in found if isinstance(each, Damage)] == [
        f"an attribute of {size} bytes does not fit into the payload" for size in (9, -1, 0)
    ]


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        open_data_directory(str(tmp_path / "none"))
