"""Files of a table: parted by day, rolled by size, described as they are, and gone when nobody commits them."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from mqlake.lake.offsets import LastMessage
from mqlake.lake.tables import files as module
from mqlake.lake.tables.files import (
    QueueRange,
    TableWriter,
    WriteSpec,
    Written,
    add_ranges,
    count_rows,
    delete_files,
    delete_paths,
    file_system_of,
    queue_ranges,
)

SCHEMA = pa.schema(
    [
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("physicalOffset", pa.int64()),
        ("storeTimestamp", pa.timestamp("us", "UTC")),
        ("body", pa.binary()),
    ]
)
DAY = datetime(2024, 5, 1, 23, 59, 59, 999_000, UTC)


def rows(*each: tuple[str, int, int, int, datetime | None], body: bytes = b"x") -> pa.RecordBatch:
    names = SCHEMA.names[:5]
    return pa.RecordBatch.from_pylist(
        [{**dict(zip(names, row, strict=True)), "body": body} for row in each], SCHEMA
    )


def spec(root: Path, **more: Any) -> WriteSpec:
    return WriteSpec(str(root), SCHEMA, **more)


def test_a_file_for_each_day(tmp_path: Path) -> None:
    later = DAY.replace(day=2, hour=0, minute=0, second=0, microsecond=0)
    writer = TableWriter(spec(tmp_path, day_format="day={}"))
    writer.write(rows(("a", 0, 5, 100, DAY), ("a", 0, 6, 200, later), ("b", 1, 0, 50, later)))
    writer.write(rows(("a", 0, 7, 300, later)))
    written = writer.close()
    assert [(each.day, each.rows) for each in written.files] == [(date(2024, 5, 1), 1), (date(2024, 5, 2), 3)]
    for each in written.files:
        assert Path(each.path).parent == tmp_path / f"day={each.day}"
        assert each.size == os.path.getsize(each.path) > 0 and each.metadata.num_rows == each.rows
    assert written.bytes == sum(each.size for each in written.files)
    stored = round(later.timestamp() * 1000)
    assert (written.rows, written.undecoded, written.until) == (4, 0, stored)
    assert written.queues == {
        "a:0": QueueRange(5, 7, 3, LastMessage(300, stored)),
        "b:1": QueueRange(0, 0, 1, LastMessage(50, stored)),
    }
    assert pq.read_table(written.files[1].path)["queueOffset"].to_pylist() == [6, 0, 7]


def test_files_end_at_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the row group that reaches it; what is in the file already is counted as it is."""
    monkeypatch.setattr(module, "GROUP_BYTES", 4000)
    writer = TableWriter(spec(tmp_path, target_bytes=10_000))
    for n in range(60):
        writer.write(rows(("a", 0, n, n, DAY), body=os.urandom(1000)))
    written = writer.close()
    assert [each.rows for each in written.files] == [
        *[8] * 7,
        4,
    ] and written.rows == 60  # four make a row group
    numbers = [n for each in written.files for n in pq.read_table(each.path)["queueOffset"].to_pylist()]
    assert numbers == list(range(60))


def test_what_waits_counts_before_it_is_written(tmp_path: Path) -> None:
    """A quarter of it, which is about what the compression leaves."""
    writer = TableWriter(spec(tmp_path, target_bytes=10_000))
    for n in range(100):
        writer.write(rows(("a", 0, n, n, DAY), body=bytes(1000)))
    assert [each.rows for each in writer.close().files][:2] == [39, 39]


def test_nothing_is_left_of_what_is_given_up(tmp_path: Path) -> None:
    writer = TableWriter(spec(tmp_path, target_bytes=2000))
    for n in range(20):
        writer.write(rows(("a", 0, n, n, DAY), body=os.urandom(1000)))
    assert list(tmp_path.iterdir())
    writer.discard()
    assert list(tmp_path.iterdir()) == [] and writer.close() == Written()
    kept = TableWriter(spec(tmp_path))
    kept.write(rows(("a", 0, 0, 0, DAY)))
    kept.write(rows())
    written = kept.close()
    assert (written.rows, len(written.files)) == (1, 1)
    delete_files(spec(tmp_path), written.files * 2)  # gone already is no error
    assert list(tmp_path.iterdir()) == []


def test_undecoded_rows_are_counted() -> None:
    written = Written()
    reasons = pa.array([None, "no JSON", None, "no object"], pa.string())
    batch = rows(*(("a", 0, n, n, DAY) for n in range(4)))
    for name in ("undecoded", "undecoded_reason"):
        batch = batch.append_column(name, reasons if name != "undecoded" else reasons.cast(pa.binary()))
    for _ in range(2):
        count_rows(written, batch)
    assert (written.rows, written.undecoded) == (8, 4)
    both = Written()
    both.add(written)
    both.add(Written(until=3))
    assert (both.rows, both.undecoded, both.until) == (8, 4, written.until)


def test_the_last_message_of_a_queue_is_that_of_its_last_offset() -> None:
    """Whatever the clock said, and in whichever order parts are added."""
    early = DAY.replace(day=1, hour=1)
    first = queue_ranges(rows(("a", 0, 5, 100, DAY), ("a", 1, 0, 150, DAY), ("a", 0, 6, 200, early)))
    later = queue_ranges(rows(("a", 0, 7, 300, early)))
    ms = round(early.timestamp() * 1000)
    assert first["a:0"] == QueueRange(5, 6, 2, LastMessage(200, ms))
    for parts in ((first, later), (later, first)):
        found: dict[str, QueueRange] = {}
        for part in parts:
            add_ranges(found, part)
        assert found["a:0"] == QueueRange(5, 7, 3, LastMessage(300, ms))
    assert first["a:0"].count == 2  # adding changes nothing of what was added


def test_paths_are_deleted_and_counted(tmp_path: Path) -> None:
    """All that can be, though one cannot."""
    paths = [str(tmp_path / name) for name in ("a", "none", "b")]
    for path in (paths[0], paths[2]):
        Path(path).touch()
    seen: list[tuple[int, int]] = []
    assert delete_paths(paths, lambda done, total: seen.append((done, total))) == 2
    assert seen == [(1, 3), (2, 3), (3, 3)] and list(tmp_path.iterdir()) == []
    (tmp_path / "c").touch()
    assert delete_paths([f"file://{tmp_path}/c"]) == 1


def test_rows_of_one_day_are_not_copied() -> None:
    """Nearly all batches are; those of two days are parted, and rows without a time are of none."""
    early, next_day = DAY.replace(hour=0, minute=0, second=0, microsecond=0), datetime(2024, 5, 2, tzinfo=UTC)
    one = rows(("a", 0, 1, 1, early), ("a", 0, 2, 2, DAY))
    [(day, found)] = module._by_day(one, "storeTimestamp")
    assert day == date(2024, 5, 1) and found is one
    two = rows(("a", 0, 1, 1, DAY), ("a", 0, 2, 2, next_day), ("a", 0, 3, 3, None), ("a", 0, 4, 4, DAY))
    parts = {day: part["queueOffset"].to_pylist() for day, part in module._by_day(two, "storeTimestamp")}
    assert parts == {date(2024, 5, 1): [1, 4], date(2024, 5, 2): [2], None: [3]}


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:9"])
def test_which_file_system_a_place_is_on(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """An endpoint of another S3 is for places in S3 alone."""
    monkeypatch.setattr(module, "s3_endpoint", lambda: endpoint)
    for place in ("/data/lake", "file:/data/lake", "file:///data/lake"):
        found, inside = file_system_of(place)
        assert isinstance(found, pyarrow.fs.LocalFileSystem) and inside == "/data/lake"
    if endpoint:
        found, inside = file_system_of("s3://bucket/lake")
        assert isinstance(found, pyarrow.fs.S3FileSystem) and inside == "bucket/lake"
