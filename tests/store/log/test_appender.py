"""Appender: every way of a message into the log is this one, and nothing else writes a size there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import mqlake
from mqlake.formats.batch import encode_messages
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH
from mqlake.message import Message, MessageExtBatch, MessageSysFlag
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.log.appender import Appender, NoFileError, Written, no_room
from mqlake.store.log.commit_log import CommitLog
from tests.store.log.test_commit_log import FILE_SIZE, HOST, make, message

SOURCES = Path(mqlake.__file__).parent


def batch() -> MessageExtBatch:
    made = MessageExtBatch("T", encode_messages([Message("T", b"one"), Message("T", b"two")]))
    made.born_host = made.store_host = HOST
    return made


WAYS: dict[str, Callable[[CommitLog], object]] = {
    "a message": lambda log: log.put_message(message()),
    "between IPv6 hosts": lambda log: log.put_message(message(born_host=("::1", 7), store_host=("::1", 8))),
    "a half message": lambda log: log.put_message(message(sys_flag=MessageSysFlag.TRANSACTION_PREPARED_TYPE)),
    "an inner batch": lambda log: log.put_message(
        message("BatchCQ", sys_flag=MessageSysFlag.INNER_BATCH_FLAG, properties={"INNER_NUM": "2"})
    ),
    "a batch": lambda log: log.put_messages(batch()),
}


@pytest.mark.parametrize(
    "settings", [{}, {"write_without_mmap": True}, {"enabled_append_prop_crc": True}], ids=str
)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_into_the_log_is_one_append_and_one_size(
    way: str, settings: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def noting(owner: type, name: str) -> None:
        whole = getattr(owner, name)

        def noted(*given: object, **more: object) -> object:
            steps.append(name)
            return whole(*given, **more)

        monkeypatch.setattr(owner, name, noted)

    log = make(tmp_path, **settings)
    assert log.put_message(message()).is_ok
    noting(Appender, "append")
    noting(MappedFile, "publish")
    before = log.files.max_offset
    result = WAYS[way](log)
    assert result.is_ok, result  # type: ignore[attr-defined]
    assert steps == ["append", "publish"] and log.files.max_offset > before


def test_nothing_but_the_appender_makes_a_record_visible() -> None:
    """In Python by MappedFile.publish, in native code by append.pxd's."""

    def users(pattern: str, *suffixes: str) -> set[str]:
        return {
            str(path.relative_to(SOURCES))
            for path in SOURCES.rglob("*")
            if path.suffix in suffixes and re.search(pattern, path.read_text())
        }

    assert users(r"mapped_file\.publish\(|self\.publish\(start", ".py") == {
        "store/files/mapped_file.py",
        "store/log/appender.py",
    }
    assert users(r"\brelease32\(", ".pyx", ".pxd", ".py", ".h") == {
        "native/append.pxd",
        "native/prim.h",
        "native/prim.pxd",
    }
    assert users(r"\bwrite_record\(", ".pyx", ".pxd") >= {"native/sends.pyx", "native/single.pyx"}
    writes = r"store32\((?:self\.file_at|log|out), (?:position|start|reserved\.position),"
    assert users(writes, ".pyx", ".pxd", ".py") == set()


def test_what_does_not_fit_begins_the_next_file(tmp_path: Path) -> None:
    """A write that learns under the lock how much it needs says so, and is asked again."""
    log, asked = make(tmp_path), list[tuple[int, int]]()
    log.put_message(message(body=bytes(FILE_SIZE - 30_000)))

    def write(mapped_file: MappedFile, *_: object) -> Written:
        asked.append((mapped_file.file_from_offset, mapped_file.wrote_position))
        if not mapped_file.has_room(35_000):
            return no_room(35_000)
        mapped_file.write_at(mapped_file.wrote_position + 4, bytes(35_000))
        return Written(1, 35_000, 35_000, (3,), (35_000,), (1,))

    appended = log.appender.append((("Q", 0),), write)
    assert appended is not None and appended.wrote_offset == FILE_SIZE
    assert [base for base, _ in asked] == [0, FILE_SIZE]
    assert log.queue_offsets["Q", 0] == 3
    assert log.appender.append((("Q", 0),), write, mapped_only=True) is None


def test_what_no_file_takes(tmp_path: Path) -> None:
    log = make(tmp_path)
    size = FILE_SIZE - END_FILE_MIN_BLANK_LENGTH + 1
    with pytest.raises(NoFileError):
        log.appender.append((("Q", 0),), lambda *_: no_room(size))
    assert not log.queue_offsets and log.appender.begin_time_in_lock == 0 and not log.appender.lock.locked()


def test_after_a_write_that_made_something_visible_and_failed_nothing_is_taken(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.put_message(message())

    def write(mapped_file: MappedFile, *_: object) -> Written:
        mapped_file.write_at(mapped_file.wrote_position, b"\0\0\0\x64")
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError):
        log.appender.append((("Q", 0),), write)
    with pytest.raises(OSError, match="where the log ends is not known any more"):
        log.put_message(message())
