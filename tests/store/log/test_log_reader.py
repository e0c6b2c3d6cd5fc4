"""LogReader: holes and their kinds, what it goes on behind, where it ends, and a log that is being written."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqlake.errors import ForeignFormatError
from mqlake.formats.columns import Bytes, ScanStop, layout, scan_records
from mqlake.formats.record import decode_record, encode_blank, encode_message
from mqlake.message import MessageExt
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import OS_PAGE_SIZE, MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log import log_reader
from mqlake.store.log.log_reader import (
    HoleKind,
    LogChunk,
    LogReader,
    LogWalk,
    end_in_file,
    end_of_records,
    end_of_whole,
    open_log,
    refuse_foreign,
)
from tests.memory import resident
from tests.store.small_store import COUNT, SETTINGS, change, fill, log_file, message


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fill(tmp_path / "store")


def config_of(root: Path) -> MessageStoreConfig:
    return MessageStoreConfig.from_mapping({**SETTINGS, "storePathRootDir": str(root)})


def walked(root: Path, *, check_crc: bool = True, **options: object) -> tuple[LogWalk, list[int]]:
    """The walk when it is done, and the physical offsets of the records it came by."""
    log = open_log(config_of(root))
    try:
        walk = LogReader(log, check_crc=check_crc).walk(**options)  # type: ignore[arg-type]
        offsets = [offset for chunk in walk.chunks() for offset in chunk.scan.physical_offset.tolist()]
    finally:
        log.close()
    return walk, offsets


def test_a_whole_log_has_no_holes(root: Path) -> None:
    walk, offsets = walked(root)
    assert len(offsets) == COUNT and offsets == sorted(offsets)
    assert walk.holes == [] and walk.start == 0 and walk.end > offsets[-1]


def test_it_goes_on_behind_damage(root: Path) -> None:
    _, offsets = walked(root)
    change(log_file(root), offsets[3] + 100, b"!!!")
    walk, left = walked(root)
    assert left == offsets[:3] + offsets[4:]
    (hole,) = walk.holes
    assert (hole.kind, hole.start, hole.end, hole.records_follow) == (
        HoleKind.CORRUPT,
        offsets[3],
        offsets[4],
        True,
    )
    assert hole.path == str(log_file(root)) and "CRC" in hole.reason.upper()


def test_without_crc_a_changed_body_is_a_record(root: Path) -> None:
    _, offsets = walked(root)
    change(log_file(root), offsets[3] + 100, b"!!!")
    walk, left = walked(root, check_crc=False)
    assert left == offsets and walk.holes == []


def test_damage_over_the_end_of_a_file(root: Path) -> None:
    _, offsets = walked(root)
    size = SETTINGS["mappedFileSizeCommitLog"]
    last = max(offset for offset in offsets if offset < size)
    change(log_file(root), last, bytes(size - last))
    walk, left = walked(root)
    assert left == [offset for offset in offsets if offset != last]
    assert [(hole.kind, hole.start, hole.end) for hole in walk.holes] == [(HoleKind.CORRUPT, last, size)]


def test_half_a_record_at_the_end_is_torn(root: Path) -> None:
    _, offsets = walked(root)
    path, position = newest(root), offsets[-1] % SETTINGS["mappedFileSizeCommitLog"]
    change(path, position + 60, bytes(len(message(COUNT - 1).body) + 60))
    walk, left = walked(root)
    assert left == offsets[:-1] and walk.end == offsets[-1]
    assert [(hole.kind, hole.start) for hole in walk.holes] == [(HoleKind.TORN, offsets[-1])]
    settled, _ = walked(root, known_until=offsets[-1] + 60)
    assert [hole.kind for hole in settled.holes] == [HoleKind.CORRUPT]
    assert f"reach to offset {offsets[-1] + 60}" in settled.holes[0].reason


def test_older_records_behind_the_end_are_stale(root: Path) -> None:
    """As a log that was cut in its middle and written on leaves them."""
    _, offsets = walked(root)
    path, size = newest(root), SETTINGS["mappedFileSizeCommitLog"]
    cut = offsets[-5]
    change(path, cut % size, bytes(offsets[-3] - cut))
    newer = offsets[-6]
    change(path, newer % size + 56, (2**50).to_bytes(8, "big"))  # its store time
    change(path, offsets[-1] % size + 56, (2**51).to_bytes(8, "big"))  # the first one after the hole decides
    walk, left = walked(root)
    assert left == offsets[:-5]
    assert [(hole.kind, hole.start) for hole in walk.holes] == [(HoleKind.STALE, cut)]
    data = path.read_bytes()
    assert walk.holes[0].end == path_base(path) + len(data.rstrip(b"\0"))
    further, _ = walked(root, known_until=path_base(path) + size)
    assert further.holes == walk.holes, "no more than there are bytes"
    known, left = walked(root, is_known=lambda scan, record: int(scan.physical_offset[record]) == offsets[-3])
    assert left == offsets[:-5] + offsets[-3:]
    assert [(hole.kind, hole.start, hole.end) for hole in known.holes] == [
        (HoleKind.CORRUPT, cut, offsets[-3])
    ]


def test_a_range_is_scanned_in_chunks(root: Path) -> None:
    _, offsets = walked(root)
    log = open_log(config_of(root))
    try:
        reader = LogReader(log)
        first = log.mapped_files[0].file_size
        last = next(offset for offset in offsets if offset > first + 1000)
        for end, count in ((offsets[9], 9), (last, offsets.index(last)), (None, COUNT)):
            for chunks in (reader.scan(0, end), reader.scan(0, end, chunk_records=7)):
                found = [offset for chunk in chunks for offset in chunk.scan.physical_offset.tolist()]
                assert found == offsets[:count]
    finally:
        log.close()


Scanned = tuple[list[int], int, ScanStop, str]


def scanned(chunks: Iterable[LogChunk]) -> Scanned:
    """Where the records are, where the scan ends, and why."""
    offsets: list[int] = []
    chunk = None
    for chunk in chunks:
        assert chunk.start <= chunk.end
        offsets += chunk.scan.physical_offset.tolist()
    assert chunk is not None
    return offsets, chunk.end, chunk.scan.stop, chunk.scan.stop_reason


FILE_BYTES = 3 * OS_PAGE_SIZE
BODY_START = layout.BODY_START_V4


def log_of_images(root: Path, bodies: list[tuple[int, bool]], damaged: int | None) -> MappedFileQueue:
    """A log of two files; a body is of so many bytes, before a record that says just its place, if there is one."""
    data = bytearray(2 * FILE_BYTES)
    at = 0
    for size, has_image in bodies:
        body = b"\xda" * size + (plain_record(at + BODY_START + size, b"image") if has_image else b"")
        whole = plain_record(at, body)
        left = FILE_BYTES - at % FILE_BYTES
        if len(whole) + 8 > left:
            data[at : at + 8] = encode_blank(left)
            at += left
            whole = plain_record(at, b"the first of a file")
        if at >= len(data):
            break
        data[at : at + len(whole)] = whole
        at += len(whole)
    if damaged is not None:
        data[damaged] ^= 0xFF
    return raw_log(root, FILE_BYTES, {0: data[:FILE_BYTES]}, {0: data[FILE_BYTES:]})


@settings(max_examples=100, deadline=None)
@given(
    bodies=st.lists(st.tuples(st.integers(0, 300), st.booleans()), min_size=1, max_size=60),
    damaged=st.none() | st.integers(0, 2 * FILE_BYTES - 1),
    piece=st.integers(1, 6000),
    end=st.none() | st.integers(1, 2 * FILE_BYTES),
    check_crc=st.booleans(),
)
@example(
    bodies=[(0, False), (0, True), (50, False)], damaged=None, piece=BODY_START, end=None, check_crc=True
)
def test_two_threads_find_what_one_does(
    bodies: list[tuple[int, bool]], damaged: int | None, piece: int, end: int | None, check_crc: bool
) -> None:
    """Wherever the pieces seem to begin."""
    with TemporaryDirectory() as root, closing(log_of_images(Path(root), bodies, damaged)) as log:
        reader = LogReader(log, check_crc=check_crc)

        def look_at(chunk: LogChunk) -> int:
            file, scan = chunk.mapped_file, chunk.scan
            for position, offset, size in zip(scan.position, scan.physical_offset, scan.size, strict=True):
                place = int(offset) - file.file_from_offset
                assert (place - position) % OS_PAGE_SIZE == 0  # lost sectors are looked for by positions
                copy, original = chunk.array[position : position + size], file.array[place : place + size]
                assert copy.tobytes() == original.tobytes()
            return chunk.start

        with patch.object(log_reader, "PIECE_BYTES", piece):
            found = list(reader.scan_with(look_at, 0, end))
        assert [start for _, start in found] == [chunk.start for chunk, _ in found]
        assert scanned(chunk for chunk, _ in found) == scanned(reader.scan(0, end))


def test_what_is_only_on_the_disk_comes_into_memory(tmp_path: Path) -> None:
    size = 64 * OS_PAGE_SIZE
    with (
        closing(MappedFile(str(tmp_path / "file"), size)) as file,
        closing(MappedFile(str(tmp_path / "other"), size)) as other,
        closing(log_reader._FromDisk()) as disk,
    ):
        file.append_record(b"x" * size, 0)
        file.sync()
        file.evict(0, size)
        os.posix_fadvise(file._descriptor(), 0, 0, os.POSIX_FADV_DONTNEED)
        if file.is_cached(0, size):
            pytest.skip("here files are always in memory")
        disk.bring(other, 0, size)
        assert other.is_unwritten(0)
        disk.bring(file, 0, size)
        assert file.is_cached(0, size)


def test_a_log_that_cannot_be_brought_into_memory_is_read_all_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(*arguments: int) -> int:
        asked.append(arguments)
        raise OSError(errno.EINVAL, "not with this file")

    monkeypatch.setattr(os, "sendfile", refuse)
    monkeypatch.setattr(MappedFile, "is_cached", lambda self, start, end: False)
    with closing(open_log(config_of(root))) as log:
        found = sum(count for _, count in LogReader(log).scan_with(lambda chunk: chunk.count, 0))
    assert found == COUNT and asked


@pytest.mark.parametrize("buffer_pieces", [0, 2])
def test_what_two_threads_have_scanned_is_not_in_memory(
    root: Path, monkeypatch: pytest.MonkeyPatch, buffer_pieces: int
) -> None:
    monkeypatch.setattr(log_reader, "BUFFER_PIECES", buffer_pieces)
    log = open_log(config_of(root))
    try:
        for _ in LogReader(log).scan_with(lambda chunk: chunk.start, 0):
            pass
        for file in log.mapped_files[:-1]:
            rest = OS_PAGE_SIZE if buffer_pieces == 0 else 0  # of the page that is not over yet
            assert resident(Path(file.path)) <= rest
    finally:
        log.close()


def test_a_start_in_the_middle(root: Path) -> None:
    _, offsets = walked(root)
    walk, left = walked(root, start=offsets[77])
    assert left == offsets[77:] and walk.start == offsets[77]


def test_what_is_written_during_the_walk_is_left_to_the_next(root: Path) -> None:
    """The walk has seen zeros; before it looks what lies behind them, a writer has put two records there."""
    _, offsets = walked(root)
    path, size = newest(root), SETTINGS["mappedFileSizeCommitLog"]
    at = offsets[-2] % size
    with path.open("rb") as file:
        records = file.read()[at : at + (offsets[-1] - offsets[-2]) + 400]
    change(path, at, bytes(len(records)))
    log = open_log(config_of(root))
    try:
        walk = LogReader(log).walk()
        seen = []
        for chunk in walk.chunks():
            seen += chunk.scan.physical_offset.tolist()
            if seen[-1] == offsets[-3]:
                change(path, at, records)
        assert seen == offsets[:-2] and walk.holes == [] and walk.end == offsets[-2]
    finally:
        log.close()
    assert walked(root)[1] == offsets


def test_a_file_of_something_else_is_refused(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        path.write_bytes(os.urandom(SETTINGS["mappedFileSizeCommitLog"]))
    log = open_log(config_of(root))
    try:
        with pytest.raises(ForeignFormatError, match="no RocketMQ record"):
            refuse_foreign(log)
    finally:
        log.close()


def test_one_record_is_enough_to_be_a_log(tmp_path: Path) -> None:
    """Also when its body is damaged, and no other is there; or when the file holds only a blank."""
    record = plain_record(0, b"body")
    damaged = record.replace(b"body", b"b0dy")
    for number, first in enumerate((record, damaged, encode_blank(8192), b"")):
        (tmp_path / str(number)).mkdir()
        log = raw_log(tmp_path / str(number), 8192, {0: first})
        refuse_foreign(log)
        log.close()
    (tmp_path / "later").mkdir()
    log = raw_log(tmp_path / "later", 8192, {0: b"garbage" * 10, 200: plain_record(200)})
    refuse_foreign(log)
    log.close()
    (tmp_path / "few").mkdir()
    log = raw_log(tmp_path / "few", 8192, {7: b"x"})  # of the first eight bytes the last
    with pytest.raises(ForeignFormatError):
        refuse_foreign(log)
    log.close()
    refuse_foreign(MappedFileQueue(str(tmp_path / "none"), 8192, read_only=True))


def path_base(path: Path) -> int:
    """Physical offset of a file's first byte."""
    return int(path.name)


def newest(root: Path) -> Path:
    """The newest file that holds a record."""
    found = [path for path in sorted((root / "commitlog").iterdir()) if any(path.read_bytes()[:8])]
    assert decode_record(found[-1].read_bytes()[: SETTINGS["mappedFileSizeCommitLog"]])
    return found[-1]


@pytest.mark.parametrize("piece_bytes", [1, 500, 5000, 1 << 20])
def test_the_end_is_found_piece_by_piece(root: Path, piece_bytes: int) -> None:
    log = open_log(config_of(root))
    try:
        first, last = log.mapped_files[0], log.mapped_files[-1]
        for file, stop in ((first, ScanStop.BLANK), (last, ScanStop.END)):
            size, base = file.file_size, file.file_from_offset
            found = end_of_records(
                lambda a, b, file=file: file.array[a:b],  # type: ignore[misc]
                0,
                size,
                base,
                piece_bytes=piece_bytes,
            )
            assert found == end_in_file(file)
            assert found[1] is stop
    finally:
        log.close()


def test_the_end_is_found_wherever_a_piece_ends() -> None:
    """A piece may end within a size, of which the first bytes are zeros as after the end."""
    first = plain_record(0, b"body")
    second = plain_record(len(first), b"another")
    array = np.frombuffer((first + second).ljust(1024, b"\0"), np.uint8)
    for piece_bytes in range(1, 1025):
        pieces: list[tuple[int, int]] = []

        def read(start: int, end: int, pieces: list[tuple[int, int]] = pieces) -> Bytes:
            pieces.append((start, end))
            return array[start:end]

        found = end_of_records(read, 0, 1024, 0, piece_bytes=piece_bytes)
        assert found == (len(first + second), ScanStop.END), piece_bytes
        assert max(end for _, end in pieces) <= 1024
    assert end_of_records(lambda a, b: array[a:b], len(first), 1024, 0, piece_bytes=50)[0] == len(
        first + second
    )


def test_of_a_long_file_what_was_searched_is_given_up_meanwhile(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "scan_records", functools.partial(scan_records, max_records=10))
    evicted: list[tuple[int, int]] = []
    monkeypatch.setattr(MappedFile, "evict", lambda file, start, end: evicted.append((start, end)))
    _, offsets = walked(root)
    evicted.clear()
    log = open_log(config_of(root))
    try:
        size = log.mapped_files[0].file_size
        assert end_in_file(log.mapped_files[0])[0] == size
        first = [offset for offset in offsets if offset < size]
        assert evicted[: len(first[::10])] == [(0, offset) for offset in first[::10]]
        assert evicted[-1] == (0, size)
        evicted.clear()
        assert end_in_file(log.mapped_files[0], first[-1]) == (size, ScanStop.BLANK)
        assert end_in_file(log.mapped_files[0], 2 * size)[0] == size
    finally:
        log.close()


@pytest.mark.parametrize("empty", [0, 1, 3])
@pytest.mark.parametrize("full", [0, 1, 2])
@pytest.mark.parametrize("half", [0, 50])
def test_the_files_are_set_to_the_end_of_the_log(tmp_path: Path, full: int, half: int, empty: int) -> None:
    """Files that were allocated ahead are closed, but never the only one; half a record is not counted."""
    size = 4096
    files: list[dict[int, bytes]] = []
    for number in range(full):
        record = plain_record(number * size, b"body")
        files.append({0: record, len(record): encode_blank(size - len(record))})
    last = plain_record(full * size, b"the last one")
    files.append({0: last, len(last): plain_record(full * size + len(last), b"half")[:half]})
    log = raw_log(tmp_path, size, *files, *[{}] * empty)
    try:
        LogReader(log).find_end()
        positions = [(file.wrote_position, file.read_position) for file in log.mapped_files]
        assert positions == [*[(size, size)] * full, (len(last), len(last))]
        assert log.max_offset == full * size + len(last)
    finally:
        log.close()


@pytest.mark.parametrize("count", [1, 4])
def test_a_log_of_empty_files_keeps_the_first(tmp_path: Path, count: int) -> None:
    log = raw_log(tmp_path, 4096, *[{}] * count)
    try:
        LogReader(log).find_end()
        assert [file.wrote_position for file in log.mapped_files] == [0]
    finally:
        log.close()


def test_a_file_that_was_searched_does_not_stay_in_memory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted: list[tuple[int, int]] = []
    monkeypatch.setattr(MappedFile, "evict", lambda file, start, end: evicted.append((start, end)))
    log = open_log(config_of(root))
    try:
        end, _ = end_in_file(log.mapped_files[0])
    finally:
        log.close()
    assert evicted[-1] == (0, end)


def test_what_is_left_after_an_end(root: Path) -> None:
    _, offsets = walked(root)
    path, position = newest(root), offsets[-1] % SETTINGS["mappedFileSizeCommitLog"]
    log = open_log(config_of(root))
    try:
        reader = LogReader(log)
        (left,) = reader.leftovers(offsets[-1])
        assert (left[0].path, left[1]) == (str(path), position)
        assert path.read_bytes()[left[2] - 1] and not any(path.read_bytes()[left[2] :])
        assert reader.leftovers(left[0].file_from_offset + left[2]) == []
    finally:
        log.close()


def test_a_log_ends_with_the_blank_of_its_last_file(root: Path) -> None:
    first, *later = sorted((root / "commitlog").iterdir())
    for path in later:
        path.unlink()
    walk, offsets = walked(root)
    assert walk.end == first.stat().st_size > offsets[-1] and walk.holes == []


def test_a_blank_may_come_alone(tmp_path: Path) -> None:
    """As it does when the records before it fill a chunk."""
    size = 4096
    first = plain_record(0)
    log = raw_log(
        tmp_path, size, {0: first, len(first): encode_blank(size - len(first))}, {0: encode_blank(size)}
    )
    try:
        walk = LogReader(log).walk()
        assert [chunk.count for chunk in walk.chunks()] == [1]
        assert walk.end == 2 * size and walk.holes == []
    finally:
        log.close()


def test_a_file_that_its_records_fill(tmp_path: Path) -> None:
    """Without a blank, as no writer leaves it: the scan goes on in the next file, unless it was to end before."""
    size, names = 4096, []
    for number in range(2):
        at, data = number * size, b""
        for length in (1000, size - 1000):
            body = bytes(length - len(encode_message(MessageExt("T", b""))))
            message = MessageExt("T", body, physical_offset=at + len(data))
            data += encode_message(message)
        names.append(tmp_path / "commitlog" / f"{at:020}")
        names[0].parent.mkdir(exist_ok=True)
        names[-1].write_bytes(data)
    log = open_log(MessageStoreConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=size))
    try:
        for mapped_file in log.mapped_files:
            mapped_file.set_positions(size)
        reader = LogReader(log, check_crc=False)
        for end, starts in ((None, [0, 1000, 4096, 5096]), (size + 1000, [0, 1000, 4096]), (1000, [0])):
            found = [at for chunk in reader.scan(0, end) for at in chunk.scan.physical_offset.tolist()]
            assert found == starts
    finally:
        log.close()


def raw_log(root: Path, size: int, *files: dict[int, bytes]) -> MappedFileQueue:
    """Files of `size` bytes with holes but for these bytes at these positions, opened to be read."""
    (root / "commitlog").mkdir()
    for number, places in enumerate(files):
        with (root / "commitlog" / f"{number * size:020}").open("wb") as file:
            file.truncate(size)
            for position, data in places.items():
                file.seek(position)
                file.write(data)
    return open_log(MessageStoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=size))


def plain_record(physical_offset: int, body: bytes = b"", topic: str = "T") -> bytes:
    """Without properties."""
    return encode_message(MessageExt(topic, body, physical_offset=physical_offset))


def test_records_after_holes_may_begin_where_data_begins(tmp_path: Path) -> None:
    pages = 4 * 4096
    places, length = (0, pages, 2 * pages), len(plain_record(0))
    log = raw_log(tmp_path, 4 * pages, {at: plain_record(at) for at in places})
    try:
        walk = LogReader(log).walk()
        assert [at for chunk in walk.chunks() for at in chunk.scan.physical_offset.tolist()] == list(places)
        assert [(hole.start, hole.end) for hole in walk.holes] == [
            (length, pages),
            (pages + length, 2 * pages),
        ]
        assert walk.end == 2 * pages + length
    finally:
        log.close()


def test_a_walk_tells_how_far_it_is_and_gives_up_what_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, files = 4096, []
    for base in (0, 4096):
        record = plain_record(base, b"body")
        files.append({0: record, len(record): encode_blank(size - len(record))})
    log = raw_log(tmp_path, size, *files, {0: plain_record(2 * size)})
    evicted: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        MappedFile, "evict", lambda file, start, end: evicted.append((file.file_from_offset, start, end))
    )
    told: list[tuple[int, int]] = []
    try:
        walk = LogReader(log).walk(progress=lambda done, total: told.append((done, total)))
        spans, yielded = [], []
        for chunk in walk.chunks():
            spans.append((chunk.start, chunk.end, chunk.count, chunk.path))
            yielded.append(len(evicted))
        length = len(plain_record(2 * size))
        paths = [file.path for file in log.mapped_files]
        assert spans == [
            (0, size, 1, paths[0]),
            (size, 2 * size, 1, paths[1]),
            (2 * size, 2 * size + length, 1, paths[2]),
        ]
        assert told == [(size, 3 * size), (2 * size, 3 * size), (2 * size + length, 3 * size)]
        assert yielded == [0, 1, 2], "a chunk's pages stay until the next one is asked for"
        assert evicted[:3] == [(0, 0, size), (size, 0, size), (2 * size, 0, length)]
        assert walk.end == 2 * size + length
    finally:
        log.close()


def test_bytes_after_the_end_are_noted_file_by_file(tmp_path: Path) -> None:
    size, first = 8192, plain_record(0)
    log = raw_log(tmp_path, size, {0: first, len(first): b"\x7f" * 10}, {100: b"x"})
    try:
        walk = LogReader(log).walk()
        assert len(list(walk.chunks())) == 1
        found = [(hole.kind, hole.position, hole.start, hole.end) for hole in walk.holes]
        end = len(first)
        assert found == [(HoleKind.TORN, end, end, end + 10), (HoleKind.TORN, 0, size, size + 101)]
    finally:
        log.close()


def test_a_last_record_that_is_finished_meanwhile_is_no_torn_tail(tmp_path: Path) -> None:
    first = plain_record(0)
    second = plain_record(len(first), b"body")
    log = raw_log(tmp_path, 8192, {0: first, len(first): second[:-10]})
    try:
        walk = LogReader(log).walk()
        for _ in walk.chunks():
            change(tmp_path / "commitlog" / f"{0:020}", len(first), second)
        assert walk.holes == [] and walk.end == len(first)
    finally:
        log.close()


def test_the_newest_record_counts_when_its_end_is_there(tmp_path: Path) -> None:
    """Of three records the last: a record without properties ends with its topic, and two zeros."""
    records, at = [], 0
    for body in (b"", b"a longer body", b"a body"):
        records.append(plain_record(at, body, topic="Topic"))
        at += len(records[-1])
    log = raw_log(tmp_path, 8192, {0: b"".join(records)})
    try:
        file = log.mapped_files[0]
        file.set_positions(file.file_size)
        (chunk,) = LogReader(log).scan(0)
        assert (chunk.start, chunk.end) == (0, at) and end_of_whole(file.array, chunk.scan) == at
        change(tmp_path / "commitlog" / f"{0:020}", at - 3, b"\0")  # the last letter of its topic
        assert end_of_whole(file.array, chunk.scan) == at - len(records[-1])
    finally:
        log.close()
