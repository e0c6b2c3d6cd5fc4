from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqlake.errors import StoreError
from mqlake.metaq.store.message_set import FileMessageSet
from tests.metaq.records import bodies, record

A, B, C = record(b"a" * 10), record(b"b" * 20), record(b"c")


class Sink:
    """A receiver that keeps what it gets."""

    data = b""

    def transfer(self, head: bytes, fd: int, offset: int, count: int) -> int:
        self.data += head + os.pread(fd, count, offset)
        return count


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "00000000000000000000.meta")


def test_appended_is_readable_when_it_is_flushed(path: str) -> None:
    messages = FileMessageSet.open(path, mutable=True)
    assert [messages.append(A), messages.append(B + C, 2)] == [0, 30]
    assert (messages.size, messages.high_water_mark, messages.message_count()) == (91, 0, 3)
    assert messages.read(100) == b"" and messages.slice(0, 100).size == 0
    messages.flush()
    assert messages.high_water_mark == 91
    assert messages.read(1000) == A + B + C and messages.read(5, 3) == A[3:8]
    messages.append(C)
    assert messages.read(1000) == A + B + C
    messages.close()
    assert Path(path).read_bytes() == A + B + C + C


def test_slices_are_views_on_the_same_file(path: str) -> None:
    messages = FileMessageSet.open(path, mutable=True)
    messages.append(A + B + C, 3)
    messages.flush()
    part = messages.slice(30, 75)
    assert (part.size, part.high_water_mark, part.mutable) == (45, 45, False)
    assert bodies(part.read(1000)) == [b"b" * 20]
    assert part.slice(40, 1000).read(1000) == C[:5]
    with pytest.raises(StoreError, match="immutable"):
        part.append(A)
    sink = Sink()
    assert part.write(-7, sink) == 45
    assert sink.data == b"value 45 -7\r\n" + (B + C)[:45]
    os.unlink(path)
    del messages
    assert part.read(5) == B[:5], "a slice keeps a deleted file open"


def test_recovery_cuts_off_behind_the_last_whole_record(path: str) -> None:
    for tail in (b"", b"x" * 7, C[:-1], record(b"zz")[:-1] + b"?", b"\xff" * 30, bytes(45), bytes(60) + A):
        Path(path).write_bytes(A + B + tail)
        messages = FileMessageSet.open(path, mutable=True)
        assert (messages.size, messages.high_water_mark, messages.message_count()) == (70, 70, 2), tail
        assert messages.append(C) == 70
        messages.close()
        assert Path(path).read_bytes() == A + B + C


def test_an_empty_message_is_one(path: str) -> None:
    Path(path).write_bytes(record(b"", 5) + A)
    assert FileMessageSet.open(path, mutable=True).message_count() == 2


def test_recovery_of_more_than_one_chunk(path: str) -> None:
    count = 70_000
    Path(path).write_bytes(record(b"") * count + b"half a")
    messages = FileMessageSet.open(path, mutable=True)
    assert (messages.message_count(), messages.size) == (count, 20 * count)


def test_a_fast_boot_reads_nothing(path: str) -> None:
    Path(path).write_bytes(A + b"garbage")
    messages = FileMessageSet.open(path, mutable=True, fast_boot=True)
    assert (messages.size, messages.high_water_mark, messages.message_count()) == (37, 37, 0)


def test_an_immutable_file_is_taken_as_it_is(path: str) -> None:
    Path(path).write_bytes(A + b"garbage")
    messages = FileMessageSet.open(path, mutable=False)
    assert (messages.size, messages.high_water_mark, messages.message_count()) == (37, 37, 0)
    messages.close()
    with pytest.raises(FileNotFoundError):
        FileMessageSet.open(path + "x", mutable=False)


def test_a_write_that_fails_leaves_the_set_as_it_was(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = FileMessageSet.open(path, mutable=True)
    messages.append(A)
    real = os.pwrite

    def short(fd: int, data: bytes, position: int) -> int:
        if len(data) < 10:
            raise OSError(28, "No space left on device")
        return real(fd, bytes(data)[: len(data) // 2], position)

    monkeypatch.setattr(os, "pwrite", short)
    with pytest.raises(OSError, match="No space"):
        messages.append(B)
    monkeypatch.undo()
    assert os.path.getsize(path) == messages.size == 30
    messages.append(C)
    messages.flush()
    assert bodies(messages.read(100)) == [b"a" * 10, b"c"]


def test_a_write_in_pieces_is_whole(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = FileMessageSet.open(path, mutable=True)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: real(fd, bytes(data)[:7], position))
    messages.append(A)
    assert Path(path).read_bytes() == A
