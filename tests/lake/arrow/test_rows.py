"""Rows against the plain decoder, for stores of mqlake and of Java."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.formats.columns import scan_records
from mqlake.formats.record import encode_record
from mqlake.lake.arrow import rows
from mqlake.lake.arrow.rows import RowBuilder
from mqlake.lake.arrow.schema import COLUMNS, CORRUPT_COLUMN, arrow_schema
from mqlake.lake.log.splits import Damage, open_window, splits_of_store, walk
from mqlake.message import host_bytes
from tests.spark.stores import decoded, row_of


def all_rows(root: Path, names: tuple[str, ...] = tuple(COLUMNS)) -> list[dict[str, Any]]:
    found = []
    for split in splits_of_store(str(root), 5000):
        window = open_window(split)
        for scan in walk(split, window):
            assert not isinstance(scan, Damage)
            for batch in RowBuilder(names, split.store).batches(window.array, scan):
                batch.validate(full=True)
                assert batch.schema == arrow_schema(names)
                found += batch.to_pylist(maps_as_pydicts="strict")
    return found


@pytest.mark.parametrize("native", [True, False])
def test_every_kind_of_record(every_kind: Path, monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    if not native:
        monkeypatch.setattr("mqlake.lake.arrow.rows.kernels", lambda: None)
    messages = decoded(every_kind)
    kinds = {(message.magic, message.sys_flag & 0x30) for message in messages}
    assert len(kinds) >= 5  # both record versions and IPv6 on either side
    assert all_rows(every_kind) == [row_of(message, every_kind) for message in messages]


def test_stores_of_java(golden_store: Path) -> None:
    expected = [row_of(message, golden_store) for message in decoded(golden_store)]
    for row in expected:  # a time beyond what a timestamp can hold
        row["bornTimestamp"] = row["bornTimestamp"] or None
    assert all_rows(golden_store) == expected


def test_rows_are_what_the_dump_shows(golden_store: Path) -> None:
    done = CliRunner().invoke(cli, ["store", "dump", str(golden_store), "--json"])
    assert done.exit_code == 0, done.output
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    found = all_rows(golden_store, tuple(name for name in COLUMNS if name not in ("brokerName", "path")))
    epoch, ms = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
    for row, object_ in zip(found, shown, strict=True):
        row["body"] = base64.b64encode(row["body"]).decode()
        for name in ("bornTimestamp", "storeTimestamp"):
            if row[name] is None:  # beyond what a timestamp can hold
                row[name] = object_[name]
            else:
                row[name] = (row[name] - epoch) // ms
    assert found == shown


def test_columns_come_as_asked_for(every_kind: Path) -> None:
    found = all_rows(every_kind, ("size", "topic", "path"))
    assert list(found[0]) == ["size", "topic", "path"]


def made(
    bodies: list[bytes], *, topic: bytes = b"T", properties: bytes = b"", born: int = 0
) -> tuple[np.ndarray, int]:
    host = host_bytes(("127.0.0.1", 1))
    log = b""
    for n, body in enumerate(bodies):
        log += encode_record(body, 0, 0, 0, n, len(log), 0, born, host, 0, host, 0, 0, topic, properties, 1)
    return np.frombuffer(log, np.uint8), len(log)


def test_batches_are_cut_by_number_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BATCH_RECORDS_MAX", 10)
    monkeypatch.setattr(rows, "BATCH_BYTES_MAX", 1000)
    bodies = [bytes(n) for n in (0, 10, 990, 10, 2000, 2000, *([1] * 25))]
    buf, end = made(bodies)
    scan = scan_records(buf, 0, end, 0, check_crc=False)
    batches = list(RowBuilder(("body",), "s").batches(buf, scan))
    assert [row["body"] for batch in batches for row in batch.to_pylist()] == bodies
    assert max(batch.num_rows for batch in batches) <= 10
    assert all(sum(map(len, batch["body"].to_pylist())) < 1000 + 2000 for batch in batches)
    without = list(RowBuilder(("size",), "s").batches(buf, scan))
    assert [batch.num_rows for batch in without] == [10, 10, 10, 1]
    chosen = list(RowBuilder(("queueOffset",), "s").batches(buf, scan, np.arange(0, 31, 3)))
    assert [batch["queueOffset"].to_pylist() for batch in chosen] == [list(range(0, 30, 3)), [30]]


def test_text_that_is_not_utf8_is_mended() -> None:
    buf, end = made([b"", b""], topic=b"T\xff", properties=b"TAGS\x01\xe4\xe4\x02KEYS\x01ok\x02\xff\x01v\x02")
    scan = scan_records(buf, 0, end, 0)
    (batch,) = RowBuilder(("topic", "tags", "keys", "properties"), "s").batches(buf, scan)
    assert batch.to_pylist(maps_as_pydicts="strict") == 2 * [
        {"topic": "T�", "tags": "��", "keys": "ok", "properties": {"TAGS": "��", "KEYS": "ok", "�": "v"}}
    ]


@pytest.mark.parametrize(
    "born",
    [2**63 - 1, -(2**63), 2**62, 1_700_000_000_000_000, 253_402_300_800_000, -62_135_596_800_001],
)
def test_times_beyond_a_timestamp_are_null(born: int) -> None:
    """A client may set any number; a year beyond 9999 ended what Python or a table made of the rows."""
    buf, end = made([b""], born=born)
    (batch,) = RowBuilder(("bornTimestamp", "storeTimestamp"), "s").batches(buf, scan_records(buf, 0, end, 0))
    assert batch["bornTimestamp"].to_pylist() == [None]
    assert batch["storeTimestamp"].null_count == 0


def test_a_row_for_damage() -> None:
    batch = RowBuilder(("topic", "physicalOffset", "path", CORRUPT_COLUMN), "s").damage(7, "f: corrupt")
    assert batch.to_pylist() == [
        {"topic": None, "physicalOffset": 7, "path": "s", CORRUPT_COLUMN: "f: corrupt"}
    ]
