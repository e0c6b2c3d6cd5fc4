"""verify finds whatever differs between heads and log, in a row or in a byte."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mqlake.lake.heads import compare as module
from mqlake.lake.heads import rows
from mqlake.lake.heads.compare import compare_heads
from mqlake.lake.heads.schema import ORIGIN_KEY
from mqlake.lake.heads.seal import check_ends, seal
from tests.lake.heads.logs import write_all
from tests.spark.stores import copy_store, flip_bit, log_files


def differences(root: Path) -> list[str]:
    return [each.text for each in compare_heads(str(root)).differences]


def test_heads_that_are_right(store: Path) -> None:
    found = compare_heads(str(store))
    assert (found.files, found.differences, found.left_over) == (2, [], []) and found.records > 100


def test_a_flipped_byte_anywhere(store: Path) -> None:
    path = sorted((store / "heads").iterdir())[0]
    data = path.read_bytes()
    pages = check_ends(lambda start, end: data[start:end], len(data)).pages_end
    draw = random.Random(1)
    for position in (0, pages - 1, pages, len(data) - 1, *draw.sample(range(len(data)), 20)):
        flip_bit(path, position)
        assert len(differences(store)) == 1, position
        flip_bit(path, position)
    assert differences(store) == []


def forge(path: Path, change: Any) -> None:
    """Other rows under a seal and an origin that are right."""
    table = pq.read_table(path)
    origin = pq.read_metadata(path).metadata[ORIGIN_KEY]
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(change(table))
        writer.add_key_value_metadata({ORIGIN_KEY: origin})
    with open(path, "r+b") as file:
        seal(file)


def test_another_row(store: Path) -> None:
    path = sorted((store / "heads").iterdir())[1]

    def other_queue(table: pa.Table) -> pa.Table:
        values = table.column("queueId").to_pylist()
        values[7] = 99
        return table.set_column(1, table.schema.field(1), pa.array(values, pa.int32()))

    forge(path, other_queue)
    [text] = differences(store)
    assert text.startswith("row 7 (physical offset ") and "queueId is 99, in the log it is " in text


def test_rows_twice_or_in_another_order(store: Path) -> None:
    path = sorted((store / "heads").iterdir())[1]
    forge(path, lambda table: table.take(pa.array([*range(1, len(table)), 0])))
    assert differences(store)[0].startswith("row 0 ")
    forge(path, lambda table: pa.concat_tables([table, table.slice(0, 1)]))
    assert differences(store) == ["its rows are not those that it says"]


def test_a_record_that_was_changed_in_the_log(
    every_kind: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a file, which no look at its end shows."""
    monkeypatch.setattr(rows, "TAIL", 512)
    store = copy_store(every_kind, tmp_path / "store")
    write_all(store)
    queue_offset = 20
    flip_bit(log_files(store)[0], queue_offset + 7)
    [text] = differences(store)
    assert "queueOffset is " in text


def test_what_has_no_log_file_any_more(store: Path) -> None:
    os.unlink(log_files(store)[0])
    found = compare_heads(str(store))
    assert found.files == 1 and found.differences == []
    assert found.left_over == [str(store / "heads" / "00000000000000000000.parquet")]


def test_deleted_while_they_are_compared(store: Path, monkeypatch: Any) -> None:
    real = module.check_pages

    def deleting(read: Any, sealed: Any) -> None:
        for path in log_files(store)[:-1]:
            os.unlink(path)
        real(read, sealed)

    monkeypatch.setattr(module, "check_pages", deleting)
    assert differences(store) == []
