"""Files of a store that were cut short or are gone: what is lost is said, and nothing else is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake.errors import (
    ConfigError,
    OffsetOutOfRangeError,
    StoreCorruptError,
    StoreError,
    WrongFileSizeError,
)
from mqlake.lake.arrow.schema import CORRUPT_COLUMN
from mqlake.spark.log.commitlog import CommitLogReader
from mqlake.spark.log.commitlog_stream import CommitLogStreamReader
from mqlake.spark.options import log_options
from mqlake.store.file_sizes import detect_settings
from tests.spark.log.test_queue_and_index import ConsumeQueueDataSource, MqIndexDataSource, rows
from tests.spark.stores import SETTINGS, copy_store, decoded, log_files

FILE_SIZE = 16 << 10


def read(root: Path, **options: str) -> tuple[list[int], list[str]]:
    """Physical offsets of the records that come, and what is said of the others."""
    columns = (
        ["physicalOffset", CORRUPT_COLUMN] if options.get("mode") == "permissive" else ["physicalOffset"]
    )
    reader = CommitLogReader(log_options({"path": str(root), "unpack": "false", **options}), columns)
    return told(
        row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()
    )


def stream(root: Path, **options: str) -> tuple[list[int], list[str]]:
    given = {"path": str(root), "unpack": "false", "maxBytesPerTrigger": "3000", **options}
    reader = CommitLogStreamReader(log_options(given), ["physicalOffset", CORRUPT_COLUMN])
    found: list[dict[str, Any]] = []
    at, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    while (end := reader.latestOffset(at, limit)) != at:
        for part in reader.partitions(at, end):
            found += [row for batch in reader.read(part) for row in batch.to_pylist()]
        at = end
    return told(found)


def told(found: Any) -> tuple[list[int], list[str]]:
    every = list(found)
    said = [row[CORRUPT_COLUMN] for row in every if row.get(CORRUPT_COLUMN)]
    return sorted(row["physicalOffset"] for row in every if not row.get(CORRUPT_COLUMN)), said


def cut_short(path: Path, size: int) -> None:
    os.truncate(path, size)


DAMAGES: dict[str, tuple[Callable[[list[Path]], object], type[StoreError], range, str]] = {
    "cut in a record": (
        lambda files: cut_short(files[1], 5000),
        WrongFileSizeError,
        range(FILE_SIZE + 5000, 2 * FILE_SIZE),
        "{1}: corrupt at byte 5000: the file ends here, the others have 16384 bytes",
    ),
    "gone": (
        lambda files: files[1].unlink(),
        StoreCorruptError,
        range(FILE_SIZE, 2 * FILE_SIZE),
        "{0}: corrupt at byte 16384: the file that follows begins at physical offset 32768, not 16384",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_log_that_is_not_whole(name: str, every_kind: Path, tmp_path: Path) -> None:
    damage, error, lost, says = DAMAGES[name]
    root = copy_store(every_kind, tmp_path / "store")
    files = log_files(root)
    expected = [
        m.physical_offset
        for m in decoded(root)
        if m.physical_offset + m.store_size <= lost.start or m.physical_offset >= lost.stop
    ]
    damage(files)
    for reader in (read, stream):
        with pytest.raises(error, match=str(files[2 if name == "gone" else 1])):
            reader(root)
        assert reader(root, mode="dropMalformed") == (expected, [])
        offsets, said = reader(root, mode="permissive")
        assert offsets == expected
        assert said.count(says.format(*files)) == 1
        assert len(said) == (1 if name == "gone" else 2)  # of a record that was cut, too


def test_a_lone_file_shorter_than_any(every_kind: Path, tmp_path: Path) -> None:
    file = tmp_path / "commitlog" / "0".zfill(20)
    file.parent.mkdir()
    file.write_bytes(log_files(every_kind)[0].read_bytes()[:500])
    says = f"{file}: corrupt at byte 500: the file was cut short here"
    with pytest.raises(StoreCorruptError, match=says):
        detect_settings(str(tmp_path))
    with pytest.raises(StoreCorruptError, match=says):
        read(tmp_path)
    offsets, said = read(tmp_path, mode="permissive")
    assert offsets == [
        m.physical_offset for m in decoded(every_kind) if m.physical_offset + m.store_size <= 500
    ]
    assert len(said) == 1 and str(file) in said[0]


def read_meanwhile(
    root: Path, damage: Callable[[Path], object], **options: str
) -> tuple[list[int], list[str]]:
    """As read(), with a file damaged between planning and reading."""
    given = {"path": str(root), "unpack": "false", "splitSize": "5000", **options}
    reader = CommitLogReader(log_options(given), ["physicalOffset", CORRUPT_COLUMN])
    parts = reader.partitions()
    damage(log_files(root)[1])
    return told(row for part in parts for batch in reader.read(part) for row in batch.to_pylist())


def test_a_file_removed_while_it_is_read(every_kind: Path, tmp_path: Path) -> None:
    def gone(name: str, **options: str) -> tuple[list[int], list[str]]:
        return read_meanwhile(copy_store(every_kind, tmp_path / name), Path.unlink, **options)

    offsets = [m.physical_offset for m in decoded(every_kind)]
    left = [each for each in offsets if each // FILE_SIZE != 1]
    for mode in ("failFast", "permissive", "dropMalformed"):
        with pytest.raises(
            OffsetOutOfRangeError, match="gone while it was read; physical offsets 16384 to 21384"
        ):
            gone(mode, mode=mode)
        found, said = gone(f"{mode}-on", mode=mode, failOnDataLoss="false")
        assert found == left
        assert len(said) == (4 if mode == "permissive" else 0)  # one for each split of it


def test_a_file_cut_short_while_it_is_read(every_kind: Path, tmp_path: Path) -> None:
    def cut(name: str, size: int, **options: str) -> tuple[list[int], list[str]]:
        root = copy_store(every_kind, tmp_path / name)
        return read_meanwhile(root, lambda file: cut_short(file, size), **options)

    messages = decoded(every_kind)
    inside = [m.physical_offset - FILE_SIZE for m in messages if m.physical_offset // FILE_SIZE == 1]
    border = next(each for each in inside if each > 6000)
    for size in (0, border, border + 20):
        kept = [
            m.physical_offset
            for m in messages
            if not FILE_SIZE + size < m.physical_offset + m.store_size <= 2 * FILE_SIZE
        ]
        assert cut(f"drop-{size}", size, mode="dropMalformed") == (kept, [])
        found, said = cut(f"keep-{size}", size, mode="permissive")
        assert found == kept and any("cut short" in each for each in said)
        with pytest.raises(StoreCorruptError, match="/00000000000000016384: corrupt at byte"):
            cut(f"fail-{size}", size)


def first_file(directory: Path) -> Path:
    return min(directory.iterdir())


@pytest.mark.parametrize("size", [0, 33, 40])
def test_a_queue_that_was_cut_short_skips_nothing(size: int, every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    expected = read(root, topics="Topic-1", skipping="false")
    queue = first_file(root / "consumequeue" / "Topic-1" / "0")
    cut_short(queue, size)
    assert read(root, topics="Topic-1", unpack="true") == expected
    if size == 33:
        with pytest.raises(StoreCorruptError, match=f"{queue}: corrupt at byte 20: 13 bytes"):
            rows(ConsumeQueueDataSource, root)


def test_an_index_that_was_cut_short_skips_nothing(every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    expected = read(root, keys="shared", skipping="false")
    index = first_file(root / "index")
    whole = index.read_bytes()
    slots = str(SETTINGS["maxHashSlotNum"])
    for damaged, says in (
        (whole[:33], "an index header has 40 bytes"),
        (whole[:600], "198|199 entries are counted, there is room for 8"),
        (whole[:36] + b"\x7f" + whole[37:], "corrupt at byte 36: .* maxHashSlotNum"),
    ):
        index.write_bytes(damaged)
        assert read(root, keys="shared") == expected
        with pytest.raises(StoreCorruptError, match=says) as failed:
            rows(MqIndexDataSource, root, maxHashSlotNum=slots)
        assert str(index) in str(failed.value)
    index.write_bytes(whole)
    with pytest.raises(StoreCorruptError, match="there is room for 0; if the store's maxHashSlotNum"):
        rows(MqIndexDataSource, root, maxHashSlotNum="10000000")


def test_a_place_that_nothing_opens() -> None:
    with pytest.raises(ConfigError, match="option 'path' is 's4://bucket/store': Protocol not known: s4"):
        log_options({"path": "s4://bucket/store"}).stores[0].check()
