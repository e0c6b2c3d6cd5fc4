"""RocketMQ's known ways to lose messages, one test each: what the Java store 5.3.3 does where it can be shown, and
what mqlake does in the same place. docs/reliability.md has the table."""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from mqlake.errors import StoreLockedError
from mqlake.message import MessageExtBrokerInner
from mqlake.store import (
    DefaultMessageStore,
    MessageStoreConfig,
    PutMessageStatus,
    ReadOnlyStore,
    open_store,
)
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.mapped_file import MappedFile
from tests.interop.java_peer import JavaStore, by_key, put

HOST = ("127.0.0.1", 10911)
SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 16384,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}


def message(body: bytes = b"body", **properties: str) -> MessageExtBrokerInner:
    made = MessageExtBrokerInner("T", body, properties=properties)
    made.born_host = made.store_host = HOST
    return made


def checkpoint_of(root: Path) -> StoreCheckpoint:
    checkpoint = StoreCheckpoint(str(root / "checkpoint"), read_only=True)
    checkpoint.close()
    return checkpoint


class TestStaleBytes:
    """#7437 #9121 #10017: recovery takes whatever looks like a record, wherever it says it belongs."""

    @pytest.fixture
    def killed(self, java_store: JavaStore, tmp_path: Path) -> tuple[Path, int]:
        """A store that Java was killed over; behind its last record lies a copy of its first."""
        root = tmp_path / "java"
        puts = java_store.write(
            root, SMALL, [put("T", b"m%d" % n, keys=f"k{n}") for n in range(3)], halt=True
        )
        end = puts[-1]["wroteOffset"] + puts[-1]["wroteBytes"]
        log = root / "commitlog" / ("0" * 20)
        data = bytearray(log.read_bytes())
        first = puts[0]["wroteBytes"]
        data[end : end + first] = data[:first]
        log.write_bytes(bytes(data))
        return root, end

    def test_java_takes_them_for_a_message(self, java_store: JavaStore, killed: tuple[Path, int]) -> None:
        root, end = killed
        assert java_store.read(root, SMALL, []).max_physical_offset > end

    def test_mqlake_does_not(self, killed: tuple[Path, int]) -> None:
        root, end = killed
        with open_store(root, SMALL) as store:
            assert store.max_phy_offset == end
            assert store.max_offset_in_queue("T", 0) == 3


class TestIndexAfterACrash:
    """#8007: the last index file is dropped, and what was in it is never indexed again."""

    @pytest.fixture
    def killed(self, java_store: JavaStore, tmp_path: Path) -> Path:
        """Five log files, all flushed by the checkpoint's word, so that recovery begins with the last."""
        root = tmp_path / "java"
        ops = [put("T", b"x" * 2000, keys=f"k{n}") for n in range(30)]
        puts = java_store.write(root, SMALL, ops, halt=True)
        flushed = puts[-1]["storeTimestamp"] + 60_000
        with (root / "checkpoint").open("r+b") as checkpoint:
            checkpoint.write(struct.pack(">qq", flushed, flushed))
        return root

    def test_java_does_not_find_the_first_message_by_its_key(
        self, java_store: JavaStore, killed: Path
    ) -> None:
        first, last = java_store.read(killed, SMALL, [by_key("T", "k0"), by_key("T", "k29")]).answers
        assert (len(first["physicalOffsets"]), len(last["physicalOffsets"])) == (0, 1)

    def test_mqlake_finds_every_message(self, killed: Path) -> None:
        with open_store(killed, SMALL) as store:
            for number in range(30):
                assert len(store.query_message("T", f"k{number}", 8).buffers) == 1


class TestRecordThatNoFileHolds:
    """Acknowledged and not stored: the record is larger than a commit log file."""

    def test_java_says_put_ok(self, java_store: JavaStore, tmp_path: Path) -> None:
        puts = java_store.write(tmp_path, SMALL, [put("T", b"x" * 20_000)])
        assert (puts[0]["status"], puts[0]["appendStatus"]) == ("PUT_OK", "END_OF_FILE")
        assert java_store.read(tmp_path, SMALL, []).records == []

    def test_mqlake_says_message_illegal(self, tmp_path: Path) -> None:
        with open_store(tmp_path, SMALL) as store:
            result = store.put_message(message(b"x" * 20_000))
            assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
            assert "a commit log file takes" in result.reason
            assert store.put_message(message()).is_ok


def test_unflushed_messages_are_shown_to_nobody_under_sync_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """#8239. The disk is held up; nothing of what waits for it can be read, all of it can afterwards."""
    disk = threading.Event()
    flush = MappedFile.flush

    def slow_flush(mapped_file: MappedFile, least_pages: int) -> int:
        disk.wait(60)
        return flush(mapped_file, least_pages)

    with open_store(tmp_path, {**SMALL, "flushDiskType": "SYNC_FLUSH"}) as store:
        monkeypatch.setattr(MappedFile, "flush", slow_flush)
        futures = [store.async_put_message(message()), store.async_put_message(message(WAIT="false"))]
        assert store.max_phy_offset > 0
        assert store.confirm_offset == 0
        assert store.wait_until_dispatched(10)
        assert store.max_offset_in_queue("T", 0) == 0
        assert not store.get_message("g", "T", 0, 0, 32).buffers
        disk.set()
        assert all(future.result().is_ok for future in futures)
        store.flush()
        assert store.wait_until_dispatched(10)
        assert len(store.get_message("g", "T", 0, 0, 32).buffers) == 2


class TestCheckpoint:
    def test_never_ahead_of_what_was_flushed(self, tmp_path: Path) -> None:
        """#678 #10073."""
        clock = iter(range(10_000, 20_000))
        settings = {**SMALL, "flushIntervalCommitLog": 3_600_000}
        store = make(tmp_path, settings, lambda: next(clock))
        try:
            store.put_message(message())
            store.flush()
            flushed_until = store.commit_log.queue.store_timestamp
            store.put_message(message())
            assert store.commit_log.queue.mapped_files[-1].store_timestamp > flushed_until
            assert checkpoint_time(store) == flushed_until
        finally:
            store.shutdown()

    def test_advances_with_messages_that_do_not_wait(self, tmp_path: Path) -> None:
        """#7233: WAIT=false only wakes the flush."""
        with open_store(tmp_path, {**SMALL, "flushDiskType": "SYNC_FLUSH"}) as store:
            result = store.put_message(message(WAIT="false"))
            assert result.append_result is not None
            store.flush()
            assert checkpoint_time(store) == result.append_result.store_timestamp
        assert checkpoint_of(tmp_path).physic_msg_timestamp == result.append_result.store_timestamp


def make(root: Path, settings: dict[str, Any], clock_ms: Any) -> DefaultMessageStore:
    config = MessageStoreConfig.from_mapping({**settings, "storePathRootDir": str(root)})
    store = DefaultMessageStore(config, clock_ms=clock_ms)
    store.load()
    store.start()
    return store


def checkpoint_time(store: DefaultMessageStore) -> int:
    assert store._checkpoint is not None
    return store._checkpoint.physic_msg_timestamp


def test_the_pool_and_sync_flush_go_together(tmp_path: Path) -> None:
    """#7523: what waits in the pool is committed before it is flushed."""
    settings = {**SMALL, "flushDiskType": "SYNC_FLUSH", "transientStorePoolEnable": True}
    with open_store(tmp_path, settings) as store:
        assert all(store.put_message(message()).is_ok for _ in range(300))
        copy = tmp_path.with_name("copy")
        shutil.copytree(tmp_path, copy)
    with ReadOnlyStore(copy, SMALL) as seen:
        assert sum(chunk.count for chunk in seen.scan()) == 300


def test_a_second_writer_changes_nothing(tmp_path: Path) -> None:
    """RocketMQ loads, recovers and truncates before it takes the lock."""
    with open_store(tmp_path, SMALL) as store:
        store.put_message(message())
        log = tmp_path / "commitlog" / ("0" * 20)
        before = log.read_bytes()
        with pytest.raises(StoreLockedError):
            open_store(tmp_path, SMALL)
        assert log.read_bytes() == before
        assert store.put_message(message()).is_ok
