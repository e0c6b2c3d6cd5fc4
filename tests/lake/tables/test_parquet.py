"""Parquet files of a table: read, and those that nobody knows; what is gone or damaged is said by name."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from mqlake.errors import TableError
from mqlake.lake.tables.parquet import scan_files, unknown_files

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
LATER = timedelta(minutes=1)


def written(path: Path, *numbers: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": numbers, "text": [str(n) for n in numbers]}, schema=SCHEMA), path)
    return str(path)


def test_rows_with_a_filter_and_some_columns(tmp_path: Path) -> None:
    paths = [written(tmp_path / name, *numbers) for name, numbers in (("a", (1, 2, 3)), ("b", (4, 5)))]
    found = pa.Table.from_batches(scan_files(paths, SCHEMA, SCHEMA, None))
    assert found.sort_by("n").to_pydict() == {"n": [1, 2, 3, 4, 5], "text": list("12345")}
    some = scan_files(
        [f"file://{paths[0]}", paths[1]], pa.schema([SCHEMA.field("text")]), SCHEMA, pc.field("n") > 2
    )
    assert sorted(row["text"] for batch in some for row in batch.to_pylist()) == list("345")
    assert list(scan_files([], SCHEMA, SCHEMA, None)) == []
    wider = SCHEMA.append(pa.field("new", pa.int32()))
    assert pa.Table.from_batches(scan_files(paths, wider, wider, None))["new"].null_count == 5


def test_files_that_are_gone_or_damaged(tmp_path: Path) -> None:
    path = written(tmp_path / "a", 1)
    with pytest.raises(TableError, match=r"a data file of the table is gone: .*none.* read the table again"):
        list(scan_files([str(tmp_path / "none")], SCHEMA, SCHEMA, None))
    Path(path).write_bytes(b"PAR1 no more")
    with pytest.raises(TableError, match="a data file of the table is damaged"):
        list(scan_files([path], SCHEMA, SCHEMA, None))


def test_files_that_nobody_knows(tmp_path: Path) -> None:
    """Old ones: a young one may be about to be committed."""
    known = written(tmp_path / "t" / "day=1" / "known.parquet", 1)
    strays = [written(tmp_path / "t" / name, 1) for name in ("a.parquet", "day=1/b.parquet")]
    now = datetime.now(UTC)
    sizes = [(path, os.path.getsize(path)) for path in strays]
    for root in (str(tmp_path / "t"), f"file://{tmp_path}/t"):
        for name in (known, f"file://{known}"):
            assert unknown_files([root], [name], now + LATER) == sizes
        assert unknown_files([root], [], now - LATER) == []
    hour_ago = (now - timedelta(hours=1)).timestamp()
    os.utime(strays[1], (hour_ago, hour_ago))
    assert unknown_files([str(tmp_path / "t"), str(tmp_path / "none")], [known], now - LATER) == sizes[1:]
    moment = datetime.fromtimestamp(os.stat(strays[1]).st_mtime, UTC)
    assert unknown_files([str(tmp_path / "t")], [known], moment) == [], "older, not as old"
