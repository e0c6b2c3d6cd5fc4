"""However a log is cut into splits, the same comes out of it, records and damage."""

from __future__ import annotations

import io
import itertools
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import NotAStoreError, StoreCorruptError, WrongFileSizeError
from mqlake.formats.record import encode_message
from mqlake.lake.log import splits
from mqlake.lake.log.splits import (
    PIECE_BYTES,
    SPLITS_MAX,
    Damage,
    LogFile,
    Split,
    cut,
    map_file,
    missing,
    open_window,
    splits_of_store,
    walk,
)
from mqlake.lake.log.splits import log_files as files_of
from mqlake.lake.log.storage import Storage
from mqlake.message import MessageExt
from tests.open_files import nearly_none_left
from tests.spark.stores import body_position, copy_store, decoded, flip_bit, log_files, overwrite

SPLIT_SIZES = (64 << 20, 16 << 10, 5000, 1024, 333)


def read(
    root: Path | Storage, split_size: int, verify: str = "crc", piece_bytes: int = PIECE_BYTES
) -> tuple[list[int], list[Damage]]:
    """Physical offsets of the records, and the damage, in the order of the splits."""
    return read_splits(
        splits_of_store(root if isinstance(root, Storage) else str(root), split_size), verify, piece_bytes
    )


def read_splits(
    planned: list[Split], verify: str = "crc", piece_bytes: int = PIECE_BYTES
) -> tuple[list[int], list[Damage]]:
    offsets: list[int] = []
    damages: list[Damage] = []
    for split in planned:
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


def test_a_first_file_that_is_being_made(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "00000000000000000000").touch()
    assert files_of(Storage(str(tmp_path))) == []


def test_a_walk_closes_its_file(every_kind: Path) -> None:
    """Also when its reader stops early."""
    split = splits_of_store(str(every_kind))[0]
    for steps in (1, 1000):
        window = open_window(split)
        reading = walk(split, window)
        list(itertools.islice(reading, steps))
        reading.close()
        with pytest.raises(ValueError, match="closed file"):
            window.show(0, 8)


def test_a_file_that_is_cut_short_while_it_is_read(damaged: Path) -> None:
    split = splits_of_store(str(damaged))[1]
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
    for zeros in (1, 20):
        overwrite(path, end - zeros, bytes(zeros))
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
    (tmp_path / "checkpoint").touch()
    assert splits_of_store(str(tmp_path)) == []


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_no_store(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAStoreError, match=str(tmp_path)):
        splits_of_store(str(tmp_path / path))


def test_a_file_cut_short(damaged: Path) -> None:
    path = log_files(damaged)[1]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WrongFileSizeError, match=path.name):
        splits_of_store(str(damaged))


def test_a_missing_file(damaged: Path) -> None:
    log_files(damaged)[1].unlink()
    with pytest.raises(StoreCorruptError, match="missing"):
        splits_of_store(str(damaged))


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


@settings(max_examples=25)
@given(data=st.data(), split_size=st.integers(200, 20_000))
def test_ranges_hold_the_records_that_begin_in_them(
    every_kind: Path, data: st.DataObject, split_size: int
) -> None:
    starts = [message.physical_offset for message in decoded(every_kind)]
    ends = st.one_of(st.integers(0, starts[-1] + 5000), st.sampled_from(starts))
    borders = sorted(data.draw(st.sets(ends, min_size=2, max_size=8)))
    ranges = list(zip(borders[::2], borders[1::2], strict=False))
    storage = Storage(str(every_kind))
    planned = cut(storage, files_of(storage), split_size, ranges)
    assert all(0 < split.bytes <= split_size for split in planned)
    inside = [offset for offset in starts if any(first <= offset < last for first, last in ranges)]
    assert read_splits(planned) == (inside, [])


def test_the_end_is_the_same_wherever_it_is_looked_for(every_kind: Path) -> None:
    storage = Storage(str(every_kind))
    files = files_of(storage)
    assert (
        files[-1].end_offset == decoded(every_kind)[-1].physical_offset + decoded(every_kind)[-1].store_size
    )
    for message in decoded(every_kind)[-12:]:
        assert files_of(storage, message.physical_offset) == files
    assert files_of(storage, files[-1].end_offset) == files


def test_an_empty_last_file_is_left_out(damaged: Path) -> None:
    """As preallocated ahead, and as a writer leaves it that died before its first record there."""
    expected = files_of(Storage(str(damaged)))
    size = 16 << 10
    (damaged / "commitlog" / f"{expected[-1].base_offset + size:020d}").write_bytes(bytes(size))
    assert files_of(Storage(str(damaged))) == expected


def test_each_split_knows_its_file_and_store(every_kind: Path) -> None:
    planned = splits_of_store(str(every_kind), 5000)
    for split, following in itertools.pairwise(planned):
        if split.file == following.file:
            assert split.end == following.start
        else:
            assert (split.end, following.start) == (split.file_size, 0)
            assert split.base_offset + split.file_size == following.base_offset
    assert {split.store for split in planned} == {str(every_kind)}
    assert planned[-1].end == planned[-1].limit < planned[-1].file_size


class TestNotWhole:
    """What is there of a log with files that are gone or cut short, for those that want to know."""

    def test_a_file_that_is_gone(self, damaged: Path) -> None:
        gone = log_files(damaged)[1]
        whole = files_of(Storage(str(damaged)))
        gone.unlink()
        files = files_of(Storage(str(damaged)), must_be_whole=False)
        assert files == [whole[0], *whole[2:]]
        [(offset, error)] = missing(files)
        assert (offset, error.path, error.offset) == (16 << 10, whole[0].file, 16 << 10)
        assert f"begins at physical offset {32 << 10}, not {16 << 10}" in str(error)

    def test_a_file_that_was_cut_short(self, damaged: Path) -> None:
        path = log_files(damaged)[1]
        path.write_bytes(path.read_bytes()[:5000])
        files = files_of(Storage(str(damaged)), must_be_whole=False)
        assert files[1] == LogFile(str(path), 16 << 10, 5000, 5000)
        [(offset, error)] = missing(files)
        assert (offset, error.path, error.offset) == ((16 << 10) + 5000, str(path), 5000)
        assert f"the others have {16 << 10} bytes" in str(error)

    def test_the_last_file_cut_short_behind_its_records(self, damaged: Path) -> None:
        path, end = end_of_log(damaged)
        path.write_bytes(path.read_bytes()[: end + 50])
        for later in log_files(damaged):
            if later > path:
                later.unlink()
        files = files_of(Storage(str(damaged)), must_be_whole=False)
        assert (files[-1].limit, files[-1].file_size) == (end, end + 50)
        assert missing(files) == []  # what is missing held no record

    def test_a_whole_log_misses_nothing(self, every_kind: Path) -> None:
        assert missing(files_of(Storage(str(every_kind)))) == missing([]) == []

    def test_splits_planned_before_a_file_was_cut_short(self, damaged: Path) -> None:
        """Each split reports what it lost; together that is all behind the new end."""
        planned = [split for split in splits_of_store(str(damaged), 5000) if split.base_offset == 16 << 10]
        starts = [m.physical_offset for m in decoded(damaged) if m.physical_offset >> 14 == 1]
        path = log_files(damaged)[1]
        path.write_bytes(path.read_bytes()[:7000])
        offsets, damages = read_splits(planned)
        whole = [start for start in starts if start < (16 << 10) + 7000]
        assert offsets in (whole, whole[:-1])
        lost = [d for d in damages if "cut short" in d.reason]
        assert [(d.position, d.until, d.reason) for d in lost] == [
            (7000, 10_000, "the file was cut short here"),
            (10_000, 15_000, "the file was cut short before"),
            (15_000, 16 << 10, "the file was cut short before"),
        ]
        assert all(d.physical_offset == (16 << 10) + d.position for d in damages)


class TestElsewhere:
    """The same of a store that is read in ranges."""

    @pytest.mark.parametrize("split_size", SPLIT_SIZES)
    @pytest.mark.parametrize("margin", [1 << 20, 16])
    def test_the_same_records(
        self,
        every_kind: Path,
        remote: Storage,
        monkeypatch: pytest.MonkeyPatch,
        split_size: int,
        margin: int,
    ) -> None:
        monkeypatch.setattr(splits, "REMOTE_MARGIN", margin)
        assert read(remote, split_size) == ([message.physical_offset for message in decoded(every_kind)], [])
        assert [split.end for split in splits_of_store(remote, split_size)] == [
            split.end for split in splits_of_store(str(every_kind), split_size)
        ]

    def test_a_range_may_begin_where_a_record_does(self, every_kind: Path, remote: Storage) -> None:
        starts = [message.physical_offset for message in decoded(every_kind)]
        files = files_of(remote)
        for first, last in itertools.pairwise(starts[::7]):
            planned = cut(remote, files, 64 << 20, [(first, last)])
            assert read_splits(planned) == ([each for each in starts if first <= each < last], [])

    @pytest.mark.parametrize("piece", [100, 1000, 16 << 10])
    def test_the_end_is_found_piece_by_piece(
        self, every_kind: Path, remote: Storage, monkeypatch: pytest.MonkeyPatch, piece: int
    ) -> None:
        expected = splits_of_store(str(every_kind))[-1].limit
        monkeypatch.setattr(splits, "DEFAULT_SPLIT_SIZE", piece)
        assert splits_of_store(remote, 64 << 20)[-1].limit == expected

    @pytest.mark.parametrize("split_size", SPLIT_SIZES)
    def test_the_same_damage(self, damaged: Path, split_size: int) -> None:
        position, size, offset = place(damaged, 1, 9)
        flip_bit(log_files(damaged)[1], position + 88)
        offsets, damages = read(uploaded(damaged), split_size)
        assert offset not in offsets and offsets == read(damaged, split_size)[0]
        assert [(d.position, d.until, d.physical_offset) for d in damages] == [
            (position, position + size, offset)
        ]

    def test_a_torn_tail_after_a_crash_and_damage_after_a_clean_exit(self, damaged: Path) -> None:
        expected = [message.physical_offset for message in decoded(damaged)]
        path, end = end_of_log(damaged)
        overwrite(path, end, b"\x00\x00\x01\x00\xda\xa3\x20\xa7 the rest never came")
        offsets, damages = read(uploaded(damaged), 5000)
        assert (offsets, [each.position for each in damages]) == (expected, [end])
        (damaged / "abort").touch()
        assert read(uploaded(damaged), 5000) == (expected, [])

    def test_files_that_are_missing_or_cut_short(self, damaged: Path) -> None:
        first, second, *_ = log_files(damaged)
        second.write_bytes(second.read_bytes()[:5000])
        with pytest.raises(WrongFileSizeError, match=second.name):
            splits_of_store(uploaded(damaged))
        files = files_of(uploaded(damaged), must_be_whole=False)
        assert [error.offset for _, error in missing(files)] == [5000]
        second.unlink()
        with pytest.raises(StoreCorruptError, match="a file between them is missing"):
            splits_of_store(uploaded(damaged))
        files = files_of(uploaded(damaged), must_be_whole=False)
        assert [Path(error.path).name for _, error in missing(files)] == [first.name]

    def test_most_files_say_what_the_size_of_a_file_is(self, damaged: Path) -> None:
        odd = log_files(damaged)[1]
        odd.write_bytes(odd.read_bytes() + bytes(1000))
        with pytest.raises(WrongFileSizeError, match=odd.name) as error:
            splits_of_store(uploaded(damaged))
        assert str(16 << 10) in str(error.value)

    @pytest.mark.parametrize("sizes", [(1000, 2000), (2000, 1000)])
    def test_of_two_sizes_the_larger_is_that_of_a_file(self, sizes: tuple[int, int]) -> None:
        files = {f"commitlog/{n * 2000:020d}": b"x" * size for n, size in enumerate(sizes)}
        with pytest.raises(WrongFileSizeError, match="1000 bytes") as error:
            splits_of_store(uploaded_files(files))
        assert "2000" in str(error.value)

    def test_a_log_without_data(self) -> None:
        assert splits_of_store(uploaded_files({"commitlog/00000000000000000000": bytes(1000)})) == []
        assert (
            splits_of_store(uploaded_files({"commitlog/00000000000000000000": b"", "commitlog/README": b"x"}))
            == []
        )


def uploaded(root: Path) -> Storage:
    return uploaded_files(
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    )


def uploaded_files(files: dict[str, bytes]) -> Storage:
    root = f"/{uuid.uuid4().hex}"
    fs = fsspec.filesystem("memory")
    for name, content in files.items():
        fs.pipe(f"{root}/{name}", content)
    return Storage(f"memory:/{root}")


@pytest.mark.parametrize(("left", "is_damage"), [(7, False), (8, True), (9, True)])
def test_zeros_at_the_end_of_a_file_where_a_blank_would_fit(
    tmp_path: Path, left: int, is_damage: bool
) -> None:
    """Fewer than its eight bytes can be nothing else. The file has a successor."""
    size, empty = 1024, len(encode_message(MessageExt("T", b"")))
    (tmp_path / "commitlog").mkdir()
    for base, length in ((0, size - left), (size, 500)):
        record = encode_message(MessageExt("T", b"x" * (length - empty), physical_offset=base))
        (tmp_path / "commitlog" / f"{base:020d}").write_bytes(record.ljust(size, b"\0"))
    for storage in (Storage(str(tmp_path)), uploaded(tmp_path)):
        offsets, damages = read(storage, 64 << 20)
        assert offsets == [0, size]
        assert [(each.position, each.until) for each in damages] == [(size - left, size)] * is_damage


@pytest.mark.parametrize("random", [True, False])
def test_a_file_may_be_mapped_without_reading_ahead(tmp_path: Path, random: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    with io.FileIO(str(path)) as file:
        array = map_file(file, 9000, random=random)
    mappings = Path("/proc/self/smaps").read_text().split(str(path))[1]
    assert ("rr" in mappings.partition("VmFlags:")[2].partition("\n")[0].split()) is random
    assert array.tobytes() == b"x" * 5000
    path.write_bytes(b"")
    with io.FileIO(str(path)) as file:
        assert len(map_file(file, 9000, random=random)) == 0


def test_a_file_that_cannot_be_mapped_is_closed(every_kind: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[io.FileIO] = []

    def fail(file: io.FileIO, *_: object) -> None:
        opened.append(file)
        raise OSError(12, "Cannot allocate memory")

    [split, *_] = splits_of_store(str(every_kind))
    monkeypatch.setattr(splits, "map_file", fail)
    with pytest.raises(OSError, match="Cannot allocate"):
        open_window(split)
    assert opened[0].closed


def test_a_log_may_have_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    """A log of 512 GiB has as many as a shell allows, each with its map."""
    offset = 0
    (tmp_path / "commitlog").mkdir()
    for number in range(40):
        message = MessageExt("T", bytes(900), queue_offset=number, physical_offset=offset)
        record = encode_message(message)
        (tmp_path / "commitlog" / f"{offset:020}").write_bytes(record.ljust(1024, b"\0"))
        offset += 1024
    with nearly_none_left():
        found = files_of(Storage(str(tmp_path)))
    assert [file.base_offset for file in found] == list(range(0, offset, 1024))
    assert [file.limit for file in found] == [1024] * 39 + [len(record)]
