"""Heads and the log after them as one dataset: the same rows as the log alone."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

import mqlake.lake
from mqlake.errors import ConfigError, NotAStoreError, UnknownKeyError
from mqlake.lake.heads.schema import COLUMNS
from mqlake.lake.heads.writer import HeadsWriter
from tests.lake.heads.logs import heads_of, random_records, write_all, write_log
from tests.spark.stores import copy_store


def test_the_same_as_the_log(store: Path) -> None:
    heads = mqlake.lake.scan_heads(store)
    log = mqlake.lake.scan(store, unpack=False, columns=COLUMNS)
    assert isinstance(heads, pyarrow.dataset.Dataset) and heads.schema.equals(log.schema)
    assert heads.to_table().equals(log.to_table()) and heads.count_rows() == log.count_rows()
    assert pickle.loads(pickle.dumps(heads)).count_rows() == heads.count_rows()
    assert str(store) in repr(heads)


@pytest.mark.parametrize("seed", range(4))
def test_random_questions(tmp_path: Path, seed: int) -> None:
    """Some of the files of heads are gone."""
    root = write_log(tmp_path / "s", random_records(seed, 300), 9_000)
    draw = random.Random(seed)
    for path in write_all(root):
        if draw.random() < 0.3:
            os.unlink(path)
    heads, rows = mqlake.lake.scan_heads(root), heads_of(root)
    for _ in range(25):
        filter = None
        for name in draw.sample(COLUMNS, draw.randrange(3)):
            value = draw.choice(rows)[name]
            field = pc.field(name)
            one = (
                field.is_null()
                if value is None
                else draw.choice((field == value, field >= value, field < value))
            )
            filter = one if filter is None else filter & one
        columns = draw.sample(COLUMNS, draw.randrange(1, 5))
        everything = mqlake.lake.scan(root, unpack=False, columns=COLUMNS, skipping=False)
        expected = everything.to_table(columns=columns, filter=filter)
        assert heads.to_table(columns=columns, filter=filter).equals(expected)


def test_query_engines(store: Path) -> None:
    heads, rows = mqlake.lake.scan_heads(store), heads_of(store)
    counted = duckdb.sql("select topic, queueId, count(*), sum(bodySize) from heads group by all").fetchall()
    assert sum(row[2] for row in counted) == len(rows)
    assert sum(row[3] for row in counted) == sum(row["bodySize"] for row in rows)
    found = duckdb.sql(
        "select physicalOffset from heads where keys = 'key-5 shared' or keys = 'key-4'"
    ).fetchall()
    assert [row[0] for row in found] == [
        r["physicalOffset"] for r in rows if r["keys"] in ("key-5 shared", "key-4")
    ]
    assert len(pl.scan_pyarrow_dataset(heads).filter(pl.col("queueId") == 1).collect()) == sum(
        row["queueId"] == 1 for row in rows
    )
    assert heads.to_table(columns={"twice": pc.field("size") * 2})["twice"].to_pylist() == [
        2 * row["size"] for row in rows
    ]


def test_several_stores_and_another_place(store: Path, tmp_path: Path, every_kind: Path) -> None:
    both = mqlake.lake.scan_heads([store, every_kind])
    assert both.count_rows() == 2 * len(heads_of(store))
    copy = copy_store(every_kind, tmp_path / "copy")
    HeadsWriter(str(copy), str(tmp_path / "out")).run()
    assert not (copy / "heads").exists()
    elsewhere = mqlake.lake.scan_heads(copy, heads=tmp_path / "out")
    assert elsewhere.to_table().to_pylist() == heads_of(copy)
    with pytest.raises(ConfigError, match="one store"):
        mqlake.lake.scan_heads([store, every_kind], heads=tmp_path)


def test_what_is_wrong_is_said(store: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        mqlake.lake.scan_heads(tmp_path / "nowhere")
    with pytest.raises(UnknownKeyError, match="body"):
        mqlake.lake.scan_heads(store).to_table(columns=["body"])
