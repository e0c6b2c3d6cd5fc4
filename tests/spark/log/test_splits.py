"""However a log is cut into splits, the same comes out of it, records and damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mqlake.errors import NotAStoreError, StoreCorruptError, WrongFileSizeError
from mqlake.spark.log.splits import PIECE_BYTES, SPLITS_MAX, Damage, LogFile, cut, open_window, plan, walk
from mqlake.spark.log.storage import Storage
from tests.spark.stores import body_position, copy_store, decoded, flip_bit, log_files, overwrite

SPLIT_SIZES = (64 << 20, 16 << 10, 5000, 1024, 333)


def read(
    root: Path, split_size: int, verify: str = "crc", piece_bytes: int = PIECE_BYTES
) -> tuple[list[int], list[Damage]]:
    """Physical offsets of the records, and the damage, in the order of the splits."""
    offsets: list[int] = []
    damages: list[Damage] = []
    for split in plan(str(root), split_size):
        for found in walk(split, open_window(split), verify=verify, piece_bytes=piece_bytes):
            if isinstance(found, Damage):
                damages.append(found)
            else:
                offsets += found.physical_offset.tolist()
    return offsets, damages


@pytest.mark.parametrize("split_size", SPLIT_SIZES)
@pytest.mark.parametrize("verify", ["none", "crc", "full"])
def test_every_record_once_and_in_order(every_kind: Path, split_size: int, verify: str) -> None:
    expected = [message.physical_offset for message in decoded(every_kind)]
    assert read(every_kind, split_size, verify) == (expected, [])


@pytest.mark.parametrize("piece_bytes", [8, 100, 333, 1000, 5000])
@pytest.mark.parametrize("verify", ["none", "crc", "full"])
def test_pieces_may_end_anywhere(damaged: Path, piece_bytes: int, verify: str) -> None:
    expected = [message.physical_offset for message in decoded(damaged)]
    assert read(damaged, 5000, verify, piece_bytes) == (expected, [])
    position, size, offset = place(damaged, 1, 9)
    overwrite(log_files(damaged)[1], position + 4, b"????")
    offsets, damages = read(damaged, 5000, verify, piece_bytes)
    assert offsets == [each for each in expected if each != offset]
    assert [(each.position, each.until) for each in damages] == [(position, position + size)]


def test_a_file_that_is_cut_short_while_it_is_read(damaged: Path) -> None:
    split = plan(str(damaged))[1]
    read_so_far = walk(split, open_window(split), piece_bytes=5000)
    next(read_so_far)
    with open(split.file, "r+b") as file:
        file.truncate(6000)
    with pytest.raises(StoreCorruptError, match=r"byte 6000: .*cut short"):
        list(read_so_far)


@pytest.mark.parametrize("split_size", SPLIT_SIZES)
def test_stores_of_java(golden_store: Path, split_size: int) -> None:
    expected = [message.physical_offset for message in decoded(golden_store)]
    assert read(golden_store, split_size, "full") == (expected, [])


@pytest.fixture
def damaged(every_kind: Path, tmp_path: Path) -> Path:
    return copy_store(every_kind, tmp_path / "store")


def place(root: Path, file: int, number: int) -> tuple[int, int, int]:
    """Position in the file, size and physical offset of a file's record; it has a body and IPv4 hosts."""
    base = int(log_files(root)[file].name)
    inside = [
        m
        for m in decoded(root)
        if base <= m.physical_offset < base + (16 << 10) and m.body and body_position(m) == 88
    ]
    message = inside[number]
    return message.physical_offset - base, message.store_size, message.physical_offset


@pytest.mark.parametrize("split_size", SPLIT_SIZES)
@pytest.mark.parametrize("file", [0, 1, -1])
def test_a_flipped_bit_costs_one_record(damaged: Path, split_size: int, file: int) -> None:
    position, size, offset = place(damaged, file, 9)
    expected = [message.physical_offset for message in decoded(damaged)]
    flip_bit(log_files(damaged)[file], position + 88)
    assert read(damaged, split_size, "none") == (expected, [])
    offsets, damages = read(damaged, split_size)
    assert offsets == [each for each in expected if each != offset]
    assert [(each.position, each.until, each.physical_offset) for each in damages] == [
        (position, position + size, offset)
    ]
    assert "CRC" in damages[0].reason


@pytest.mark.parametrize("split_size", SPLIT_SIZES)
@pytest.mark.parametrize("at", [0, 4, 28, 84], ids=["size", "magic", "physical offset", "body length"])
def test_a_broken_header_costs_one_record(damaged: Path, split_size: int, at: int) -> None:
    position, size, offset = place(damaged, 1, 12)
    expected = [message.physical_offset for message in decoded(damaged)]
    overwrite(log_files(damaged)[1], position + at, b"\x00\x01\x02\x03")
    offsets, damages = read(damaged, split_size)
    assert offsets == [each for each in expected if each != offset]
    assert [(each.position, each.until) for each in damages] == [(position, position + size)]


@pytest.mark.parametrize("split_size", SPLIT_SIZES)
def test_zeros_in_the_middle_are_damage(damaged: Path, split_size: int) -> None:
    position, _, offset = place(damaged, 1, 5)
    until, _, next_offset = place(damaged, 1, 20)
    expected = [message.physical_offset for message in decoded(damaged)]
    overwrite(log_files(damaged)[1], position, bytes(until - position))
    offsets, damages = read(damaged, split_size)
    assert offsets == [each for each in expected if not offset <= each < next_offset]
    assert [(each.position, each.until, each.reason) for each in damages] == [
        (position, until, "zeros where a record should be")
    ]


def test_a_whole_file_of_rubbish(damaged: Path) -> None:
    rubbish = np.random.default_rng(7).integers(1, 256, 16 << 10, np.uint8).tobytes()
    overwrite(log_files(damaged)[1], 0, rubbish)
    for split_size in SPLIT_SIZES:
        offsets, damages = read(damaged, split_size)
        assert [(each.position, each.until) for each in damages] == [(0, 16 << 10)]
        assert not any(16 << 10 <= offset < 32 << 10 for offset in offsets)


def end_of_log(root: Path) -> tuple[Path, int]:
    """The newest file with records, and where they end in it."""
    last = decoded(root)[-1]
    end = last.physical_offset + last.store_size
    path = next(path for path in log_files(root) if int(path.name) == end // (16 << 10) * (16 << 10))
    return path, end % (16 << 10)


def test_a_torn_tail_ends_the_log_of_a_writer_that_died(damaged: Path) -> None:
    expected = [message.physical_offset for message in decoded(damaged)]
    path, end = end_of_log(damaged)
    overwrite(path, end, b"\x00\x00\x01\x00\xda\xa3\x20\xa7 the rest never came")
    (damaged / "abort").touch()
    assert read(damaged, 5000) == (expected, [])


def test_the_newest_record_of_a_writer_counts_when_its_end_is_there(damaged: Path) -> None:
    """RocketMQ writes a record from front to back: what is read beside it may still be zeros at its end."""
    messages = decoded(damaged)
    path, end = end_of_log(damaged)
    (damaged / "abort").touch()
    for missing in (1, 20):
        overwrite(path, end - missing, bytes(missing))
        assert read(damaged, 5000) == ([m.physical_offset for m in messages[:-1]], [])


def test_the_same_after_a_clean_exit_is_damage(damaged: Path) -> None:
    expected = [message.physical_offset for message in decoded(damaged)]
    path, end = end_of_log(damaged)
    overwrite(path, end, b"\x00\x00\x01\x00\xda\xa3\x20\xa7 who did this?")
    offsets, damages = read(damaged, 5000)
    assert offsets == expected
    assert [each.position for each in damages] == [end]


def test_records_behind_a_broken_one_are_damage_whoever_died(damaged: Path) -> None:
    path, _ = end_of_log(damaged)
    file = log_files(damaged).index(path)
    position, _, _ = place(damaged, file, -3)
    overwrite(path, position, b"????")
    (damaged / "abort").touch()
    _, damages = read(damaged, 5000)
    assert [each.position for each in damages] == [position]


def test_an_empty_store_has_no_splits(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert plan(str(tmp_path)) == []


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_no_store(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAStoreError, match=str(tmp_path)):
        plan(str(tmp_path / path))


def test_a_file_cut_short(damaged: Path) -> None:
    path = log_files(damaged)[1]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WrongFileSizeError, match=path.name):
        plan(str(damaged))


def test_a_missing_file(damaged: Path) -> None:
    log_files(damaged)[1].unlink()
    with pytest.raises(StoreCorruptError, match="missing"):
        plan(str(damaged))


def test_the_damage_becomes_an_error_with_file_and_offset(damaged: Path) -> None:
    position, _, _ = place(damaged, 1, 12)
    flip_bit(log_files(damaged)[1], position + 88)
    _, (damage,) = read(damaged, 5000)
    assert str(damage.error()).startswith(f"{log_files(damaged)[1]}: corrupt at byte {position}: ")


@pytest.mark.parametrize(("verify", "split_size"), [("crc", 1 << 20), ("full", 1 << 20), ("full", 5000)])
def test_the_checksum_of_the_whole_record(tmp_path: Path, verify: str, split_size: int) -> None:
    from tests.golden import unpack

    root = unpack("propcrc", tmp_path).root
    messages = decoded(root)
    message = next(m for m in messages[20:] if "__CRC32#" in m.properties)
    path = next(p for p in log_files(root) if 0 <= message.physical_offset - int(p.name) < 16 << 10)
    flip_bit(path, message.physical_offset - int(path.name) + 16)  # the flag: no other check sees it
    expected = [m.physical_offset for m in messages]
    assert read(root, split_size, "none") == (expected, [])
    offsets, damages = read(root, split_size, verify)
    assert offsets == [offset for offset in expected if offset != message.physical_offset]
    assert [each.physical_offset for each in damages] == [message.physical_offset]


def test_a_task_is_not_made_for_each_record() -> None:
    files = [LogFile(f"/s/{base}", base, 1 << 30, 1 << 30) for base in range(0, 10 << 30, 1 << 30)]
    splits = cut(Storage("/s"), files, 1)
    assert len(splits) <= SPLITS_MAX + len(files)
    assert sum(split.end - split.start for split in splits) == 10 << 30
    assert len(cut(Storage("/s"), files, 64 << 20, [(5, 300), (1 << 30, (1 << 30) + 7)])) == 2
