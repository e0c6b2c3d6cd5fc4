"""Spark's heads: the same rows as the source commitlog, most of them without a Python worker."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

import mqlake.spark
from mqlake.errors import NotAStoreError
from mqlake.lake.heads.schema import COLUMNS
from mqlake.lake.heads.writer import HeadsWriter
from mqlake.message import MessageSysFlag
from mqlake.spark.log.heads import messages
from tests.lake.heads.logs import Row, heads_of, random_records, write_all, write_log
from tests.spark.stores import copy_store, flip_bit, log_files, write_inner_batches


def rows(spark: SparkSession, root: Path, **more: str) -> list[Row]:
    found = mqlake.spark.heads(spark, str(root), **more)
    assert found.columns == list(COLUMNS)
    milliseconds = [F.unix_millis(name).alias(name) for name in ("storeTimestamp", "bornTimestamp")]
    names = [name for name in COLUMNS if name not in ("storeTimestamp", "bornTimestamp")]
    return [row.asDict() for row in found.select(*names, *milliseconds).orderBy("physicalOffset").collect()]


def expected(root: Path) -> list[Row]:
    found = heads_of(root)
    for head in found:
        for name in ("storeTimestamp", "bornTimestamp"):
            head[name] = None if head[name] is None else round(head[name].timestamp() * 1000)
    return found


@pytest.mark.parametrize("missing", [[], [0], [1], [0, 1]])
def test_the_rows_of_the_log(
    spark: SparkSession, every_kind: Path, tmp_path: Path, missing: list[int]
) -> None:
    """Where heads are missing too, and where the path has letters that Spark takes for patterns."""
    root = copy_store(every_kind, tmp_path / "a store, {with} [all] kinds*")
    for number, path in enumerate(write_all(root)):
        if number in missing:
            os.unlink(path)
    assert rows(spark, root) == expected(root)


def test_texts_and_times_of_all_shapes(spark: SparkSession, tmp_path: Path) -> None:
    root = write_log(tmp_path / "s", random_records(9, 300), 20_000)
    assert len(write_all(root)) > 3
    assert rows(spark, root) == expected(root)


def test_the_schema_is_that_of_the_log(spark: SparkSession, every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "s")
    write_all(root)
    log = mqlake.spark.read_log(spark, str(root), columns=",".join(COLUMNS))
    heads = mqlake.spark.heads(spark, str(root))
    assert heads.schema == log.schema
    topics = {row["topic"]: row["count"] for row in heads.groupBy("topic").count().collect()}
    assert sum(topics.values()) == len(heads_of(root))
    assert heads.where("keys = 'key-1'").count() == 1


def test_damage_and_another_place(spark: SparkSession, every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "s")
    HeadsWriter(str(root), str(tmp_path / "out")).run()
    assert rows(spark, root, out=str(tmp_path / "out")) == expected(root)
    path = sorted((tmp_path / "out").iterdir())[0]
    flip_bit(path, path.stat().st_size - 50)
    assert rows(spark, root, out=str(tmp_path / "out")) == expected(root)
    flip_bit(path, path.stat().st_size - 50)
    flip_bit(path, 60)
    with pytest.raises(Exception, match=r"checksum|corrupt|CRC"):
        rows(spark, root, out=str(tmp_path / "out"))


def test_an_empty_store(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "s" / "commitlog").mkdir(parents=True)
    (tmp_path / "s" / "config").mkdir()
    assert rows(spark, tmp_path / "s") == []
    with pytest.raises(NotAStoreError):
        mqlake.spark.heads(spark, str(tmp_path / "nowhere"))


# ---------------------------------------------------------------------------------------- what consumers see

SEEN = ("topic", "queueId", "physicalOffset", "size", "storeTimestamp", "keys")


def same_as_the_log(spark: SparkSession, *roots: Path, **options: object) -> list[str]:
    """The files of heads that were read, when the rows are those of the log alone."""
    paths = [str(root) for root in roots]
    options = {"verify": "none", **options}
    found = messages(spark, *paths, columns=SEEN, **options)
    log = mqlake.spark.read_log(spark, *paths, **{**options, "columns": list(SEEN), "skipping": False})
    assert found.schema == log.schema
    assert Counter(found.collect()) == Counter(log.collect())
    return sorted(os.path.basename(path) for path in found.inputFiles())


def test_messages_are_those_of_the_log(spark: SparkSession, every_kind: Path, tmp_path: Path) -> None:
    """Records that wait, half and rolled back ones are none, unless their topics are asked for; a file with inner
    batches is read from the log, and so is one whose heads are damaged."""
    plain = write_log(tmp_path / "plain", random_records(9, 300), 20_000)
    files = [path.name for path in write_all(plain)]
    assert same_as_the_log(spark, plain) == files
    mixed = copy_store(every_kind, tmp_path / "mixed")
    assert same_as_the_log(spark, mixed) == []
    of_mixed = write_all(mixed)
    there = [path.name for path in of_mixed]
    batches = tmp_path / "batches"
    write_inner_batches(batches, 60)
    assert write_all(batches) and same_as_the_log(spark, batches) == []
    assert sorted(same_as_the_log(spark, mixed, plain)) == sorted([*there, *files])
    hidden = ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"]
    for topics in (["Topic-1"], [*hidden, "Topic-1"], [*hidden, "rmq_sys_wheel_timer"]):
        assert same_as_the_log(spark, mixed, topics=topics) == there
    flip_bit(of_mixed[0], of_mixed[0].stat().st_size - 50)
    assert same_as_the_log(spark, mixed) == there[1:]


def test_where_damage_is_left_out_heads_are_read_of_files_without_packed_bodies(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A body that cannot be unpacked is left out, which its head does not say."""
    records = random_records(6, 400)
    records[30] |= {"sys_flag": int(MessageSysFlag.COMPRESSED_FLAG), "body": bytes(900)}
    root = write_log(tmp_path / "store", records, 16 << 10)
    files = [path.name for path in write_all(root)]
    [packed] = [row["physicalOffset"] for row in heads_of(root) if row["sysFlag"] == 1]
    last, harmed = log_files(root)[-1], heads_of(root)[-6]["physicalOffset"]
    flip_bit(last, harmed - int(last.name) + 4)  # its magic
    without = f"{packed // (16 << 10) * (16 << 10):020}.parquet"
    assert same_as_the_log(spark, root, mode="dropMalformed") == [name for name in files if name != without]


@pytest.mark.parametrize(
    "option",
    [
        {"verify": "crc"},
        {"mode": "permissive"},
        {"unpack": False},
        {"startingOffsets": 20_000},
        {"endingTimestamp": 1},
        {"skipping": False},
    ],
)
def test_what_heads_do_not_say_is_read_from_the_log(
    spark: SparkSession, tmp_path: Path, option: dict[str, object]
) -> None:
    root = write_log(tmp_path / "s", random_records(9, 100), 20_000)
    write_all(root)
    found = messages(
        spark, str(root), columns=SEEN, **{"verify": "none", "startingOffsets": "earliest", **option}
    )
    assert found.inputFiles() == []
