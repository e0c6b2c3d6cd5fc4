"""The source in Spark: rows, options, damage, filters, errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import mqlake.spark
from mqlake.errors import NotAStoreError, UnknownKeyError
from mqlake.lake.arrow.schema import COLUMNS, CORRUPT_COLUMN
from tests.lake.log.test_splits import place
from tests.spark.stores import copy_store, decoded, flip_bit, log_files, row_of, seen

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("split_size", ["64m", "7000"])
@pytest.mark.parametrize("unpack", [True, False])
def test_row_for_row(spark: SparkSession, every_kind: Path, split_size: str, unpack: bool) -> None:
    frame = mqlake.spark.read_log(spark, str(every_kind), splitSize=split_size, unpack=unpack)
    assert frame.columns == list(COLUMNS)
    # timestamps come to Python in local time without a zone
    times = [F.unix_millis(name).alias(name) for name in ("bornTimestamp", "storeTimestamp")]
    found = frame.select(*[name for name in frame.columns if "Timestamp" not in name], *times).collect()
    expected = []
    for message in seen(every_kind) if unpack else decoded(every_kind):
        row = row_of(message, every_kind)
        row["bornTimestamp"], row["storeTimestamp"] = message.born_timestamp, message.store_timestamp
        expected.append(row)
    assert [row.asDict() for row in sorted(found, key=lambda row: row.physicalOffset)] == expected


def test_columns_by_option_and_by_schema(spark: SparkSession, every_kind: Path) -> None:
    by_option = spark.read.format("commitlog").option("columns", "topic,queueId").load(str(every_kind))
    by_schema = spark.read.format("commitlog").schema("topic string, queueId int").load(str(every_kind))
    assert by_option.schema == by_schema.schema
    assert sorted(by_option.collect()) == sorted(by_schema.collect())
    without_body = spark.read.format("commitlog").option("includeBody", False).load(str(every_kind))
    assert without_body.columns == [name for name in COLUMNS if name != "body"]


def test_several_stores_and_topics(spark: SparkSession, every_kind: Path, tmp_path: Path) -> None:
    other = copy_store(every_kind, tmp_path / "other")
    frame = mqlake.spark.read_log(
        spark, str(every_kind), str(other), topics="Topic-1,Batch", columns="topic,path"
    )
    topics = [message.topic for message in seen(every_kind)]
    assert {
        (row.topic, row.path): row["count"] for row in frame.groupBy("topic", "path").count().collect()
    } == {
        (topic, str(path)): topics.count(topic)
        for topic in ("Topic-1", "Batch")
        for path in (every_kind, other)
    }


def test_filters(spark: SparkSession, every_kind: Path) -> None:
    frame = mqlake.spark.read_log(
        spark, str(every_kind), splitSize="5k", columns="topic,physicalOffset,tags,bornTimestamp"
    )
    found = frame.where("topic = 'Topic-2' and physicalOffset < 20000 and tags = 'TagA'").collect()
    assert sorted(row.physicalOffset for row in found) == [
        m.physical_offset
        for m in seen(every_kind)
        if m.topic == "Topic-2" and m.physical_offset < 20000 and m.properties.get("TAGS") == "TagA"
    ]


@pytest.mark.parametrize(
    "pushed",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.xfail(strict=True, reason="PySpark up to 4.3 keeps the filters")
        ),
    ],
)
def test_the_filters_of_one_query_are_not_those_of_the_next(
    spark: SparkSession, every_kind: Path, pushed: bool
) -> None:
    """Once both pass, filters may be pushed down by default."""
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", str(pushed).lower())
    frame = mqlake.spark.read_log(session, str(every_kind), columns="topic,physicalOffset")
    one = frame.where("topic = 'Topic-2'")
    rows = len(seen(every_kind))
    assert 0 < one.count() < rows
    assert frame.count() == rows
    assert one.union(frame.where("topic <> 'Topic-2'")).count() == rows


def test_filters_are_not_pushed_down_by_default(spark: SparkSession) -> None:
    assert spark.newSession().conf.get("spark.sql.python.filterPushdown.enabled") == "false"


@pytest.fixture
def damaged(every_kind: Path, tmp_path: Path) -> tuple[Path, int, int]:
    """A store with a flipped bit in a body, the record's place in its file, its physical offset."""
    root = copy_store(every_kind, tmp_path / "damaged")
    position, _, offset = place(root, 1, 0)
    flip_bit(log_files(root)[1], position + 88)
    return root, position, offset


def test_damage_by_mode(spark: SparkSession, damaged: tuple[Path, int, int]) -> None:
    root, position, offset = damaged
    where = f"{log_files(root)[1]}: corrupt at byte {position}: "
    n = len(mqlake.spark.read_log(spark, str(root), verify="none", columns="size", unpack=False).collect())

    with pytest.raises(PySparkException) as raised:
        mqlake.spark.read_log(spark, str(root), columns="size", unpack=False).collect()
    assert where in str(raised.value)

    dropped = mqlake.spark.read_log(spark, str(root), mode="dropMalformed", columns="size", unpack=False)
    assert dropped.count() == n - 1

    permissive = mqlake.spark.read_log(
        spark, str(root), mode="permissive", columns="size,physicalOffset", unpack=False
    )
    assert permissive.columns == ["size", "physicalOffset", CORRUPT_COLUMN]
    rows = permissive.collect()
    (corrupt,) = [row for row in rows if row[CORRUPT_COLUMN] is not None]
    assert len(rows) == n
    assert (corrupt.size, corrupt.physicalOffset) == (None, offset)
    assert corrupt[CORRUPT_COLUMN].startswith(where)


def test_verify_log(spark: SparkSession, every_kind: Path, damaged: tuple[Path, int, int]) -> None:
    report = mqlake.spark.verify_log(spark, str(every_kind), split_size=20_000)
    assert (report.problems, report.records) == ([], len(decoded(every_kind)))
    elsewhere = f"file://{every_kind}"
    again = mqlake.spark.verify_log(
        spark, elsewhere, storageOptions={"auto_mkdir": False}, splitSize="20000", verify="full"
    )
    assert (again.ok, again.records, again.queues) == (True, report.records, report.queues)
    with pytest.raises(UnknownKeyError, match="did you mean 'storageOptions'"):
        mqlake.spark.verify_log(spark, elsewhere, storageOption="{}")
    broken = mqlake.spark.verify_log(spark, str(damaged[0]), str(every_kind), split_size=20_000)
    assert [finding.kind for finding in broken.stores[0].findings] == ["corruption", "queue offset"]
    assert broken.stores[1].ok
    assert broken.records == 2 * report.records - 1


def test_an_empty_store(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "checkpoint").touch()
    assert mqlake.spark.read_log(spark, str(tmp_path)).collect() == []


def test_errors_name_what_is_wrong(spark: SparkSession, every_kind: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match=str(tmp_path)):
        mqlake.spark.read_log(spark, str(tmp_path))
    with pytest.raises(UnknownKeyError, match="did you mean 'topics'"):
        mqlake.spark.read_log(spark, str(every_kind), topic="T")
    with pytest.raises(AnalysisException, match=f"NotAStoreError: {tmp_path}: not a RocketMQ store"):
        spark.read.format("commitlog").load(str(tmp_path))
    with pytest.raises(AnalysisException, match="unknown option 'split'; did you mean 'splitSize'"):
        spark.read.format("commitlog").option("split", "1m").load(str(every_kind))
    with pytest.raises(PySparkException, match="column 'queueId' is int, not string"):
        spark.read.format("commitlog").schema("queueId string").load(str(every_kind)).collect()
