"""Spark's heads: the same rows as the source commitlog, most of them without a Python worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

import mqlake.spark
from mqlake.errors import NotAStoreError
from mqlake.lake.heads.schema import COLUMNS
from mqlake.lake.heads.writer import HeadsWriter
from tests.lake.heads.logs import Row, heads_of, random_records, write_all, write_log
from tests.spark.stores import copy_store, flip_bit


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
