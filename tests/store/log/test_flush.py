from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.flush import CommitRealTimeService, FlushRealTimeService, GroupCommitService
from mqlake.store.results import (
    AppendMessageResult,
    AppendMessageStatus,
    PutMessageFuture,
    PutMessageResult,
    PutMessageStatus,
)
from tests.waiting import PATIENCE_S

SIZE = 4096 * 4
OK, TIMEOUT = PutMessageStatus.PUT_OK, PutMessageStatus.FLUSH_DISK_TIMEOUT


class Log(MappedFileQueue):
    """A queue whose flush waits for `gate` and fails when `error` is set; `flushes` counts those that did something."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory), SIZE)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error: OSError | None = None
        self.flushes = 0

    def put(self, count: int, wait: bool = True) -> PutMessageFuture:
        mapped_file = self.get_last_mapped_file()
        assert mapped_file is not None
        start = mapped_file.append_record(b"x" * count, 1000)
        appended = AppendMessageResult(
            AppendMessageStatus.PUT_OK, mapped_file.file_from_offset + start, count
        )
        end = mapped_file.file_from_offset + start + count
        return PutMessageFuture(PutMessageResult(OK, appended), end, time.monotonic() + (60 if wait else 0))

    def flush(self, least_pages: int) -> bool:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        before = self.flushed_where
        done = super().flush(least_pages)
        self.flushes += self.flushed_where != before
        return done


class SharedLog(Log):
    """With write buffers, and somebody who flushes what has been committed before the service does."""

    def get_last_mapped_file(self) -> MappedFile | None:
        mapped_file = super().get_last_mapped_file()
        if mapped_file is not None and mapped_file.wrote_position == 0:
            mapped_file.write_buffer = memoryview(bytearray(SIZE))
        return mapped_file

    def commit(self, least_pages: int) -> bool:
        done = super().commit(least_pages)
        super().flush(least_pages)
        return done


class Heard:
    """What the services tell."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.flushed = 0
        self.errors: list[OSError] = []

    def on_flushed(self) -> None:
        with self.condition:
            self.flushed += 1
            self.condition.notify_all()

    def on_error(self, error: OSError) -> None:
        with self.condition:
            self.errors.append(error)
            self.condition.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.condition:
            assert self.condition.wait_for(condition, PATIENCE_S)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "commitlog")


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def service(log: Log, heard: Heard) -> Iterator[GroupCommitService]:
    config = MessageStoreConfig(sync_flush_timeout=40)
    service = GroupCommitService(config, log, heard.on_flushed, heard.on_error)
    service.start()
    yield service
    log.gate.set()
    service.shutdown()


def answered(future: PutMessageFuture) -> tuple[PutMessageStatus, str]:
    result = future.result()
    return result.status, result.reason


class TestGroupCommit:
    def test_answers_when_the_bytes_are_on_disk(self, log: Log, service: GroupCommitService) -> None:
        future = log.put(100)
        assert not future.done()
        service.put_request(future)
        assert answered(future) == (OK, "")
        assert log.flushed_where == 100

    def test_what_arrives_during_a_flush_rides_on_the_next_together(
        self, log: Log, service: GroupCommitService
    ) -> None:
        log.gate.clear()
        first = log.put(10)
        service.put_request(first)
        assert log.entered.wait(PATIENCE_S)
        later = [log.put(10) for _ in range(50)]
        for future in later:
            service.put_request(future)
        assert not any(future.done() for future in later)
        log.gate.set()
        assert {answered(future) for future in [first, *later]} == {(OK, "")}
        assert log.flushes <= 2

    def test_over_the_border_of_a_file(self, log: Log, service: GroupCommitService) -> None:
        first = log.put(SIZE)
        second = log.put(10)
        service.put_request(second)
        service.put_request(first)
        assert answered(first) == answered(second) == (OK, "")
        assert log.flushed_where == SIZE + 10

    def test_over_the_border_while_others_flush(self, tmp_path: Path, heard: Heard) -> None:
        log = SharedLog(tmp_path / "commitlog")
        service = GroupCommitService(MessageStoreConfig(), log, heard.on_flushed, heard.on_error)
        first, second = log.put(SIZE), log.put(10)
        service.put_request(first)
        service.put_request(second)
        service._commit_group()
        assert answered(first) == answered(second) == (OK, "")

    def test_a_flush_that_hangs_does_not_hold_its_waiters(
        self, log: Log, service: GroupCommitService, heard: Heard
    ) -> None:
        log.gate.clear()
        future = log.put(10, wait=False)
        service.put_request(future)
        assert answered(future) == (TIMEOUT, "no flush within 40 ms")
        log.gate.set()
        heard.wait_for(lambda: heard.flushed > 0)
        assert answered(future)[0] is TIMEOUT, "the answer was given"

    def test_a_failure_is_the_answer_to_all_and_nothing_is_tried_again(
        self, log: Log, service: GroupCommitService, heard: Heard
    ) -> None:
        log.error = OSError(5, "Input/output error")
        future = log.put(10)
        service.put_request(future)
        assert answered(future) == (TIMEOUT, "flush failed: [Errno 5] Input/output error")
        assert heard.errors == [log.error]
        log.error = None
        later = log.put(10)
        service.put_request(later)
        assert answered(later)[0] is TIMEOUT
        assert (log.flushed_where, log.flushes, heard.flushed) == (0, 0, 0)

    def test_a_wake_up_without_waiters_flushes(
        self, log: Log, service: GroupCommitService, heard: Heard
    ) -> None:
        log.put(10)
        service.wakeup()
        heard.wait_for(lambda: heard.flushed > 0)
        assert log.flushed_where == 10

    def test_shutdown_answers_everyone_also_who_comes_too_late(
        self, log: Log, service: GroupCommitService
    ) -> None:
        log.gate.clear()
        futures = [log.put(10) for _ in range(5)]
        for future in futures:
            service.put_request(future)
        log.gate.set()
        service.shutdown()
        assert {answered(future)[0] for future in futures} == {OK}
        late = log.put(10)
        service.put_request(late)
        assert answered(late) == (OK, "")

    def test_an_event_loop_is_woken(self, log: Log, service: GroupCommitService) -> None:
        async def put_many() -> set[PutMessageStatus]:
            futures = [log.put(10) for _ in range(20)]
            for future in futures:
                service.put_request(future)
            return {(await future).status for future in futures}

        assert asyncio.run(put_many()) == {OK}


class TestRealTime:
    def test_flushes_when_enough_pages_are_dirty(self, log: Log, heard: Heard) -> None:
        config = MessageStoreConfig(
            flush_interval_commit_log=1,
            flush_commit_log_least_pages=2,
            flush_commit_log_thorough_interval=10**6,
        )
        service = FlushRealTimeService(config, log, heard.on_flushed, heard.on_error)
        log.put(4096)
        service.start()
        heard.wait_for(lambda: heard.flushed >= 3)
        assert log.flushed_where == 0
        log.put(4096)
        heard.wait_for(lambda: log.flushed_where == 8192)
        service.shutdown()

    def test_flushes_all_in_time(self, log: Log, heard: Heard) -> None:
        config = MessageStoreConfig(
            flush_interval_commit_log=1,
            flush_commit_log_least_pages=1000,
            flush_commit_log_thorough_interval=1,
        )
        service = FlushRealTimeService(config, log, heard.on_flushed, heard.on_error)
        log.put(4)
        service.start()
        heard.wait_for(lambda: log.flushed_where == 4)
        service.shutdown()

    def test_ends_with_the_first_error(self, log: Log, heard: Heard) -> None:
        log.error = OSError(5, "Input/output error")
        config = MessageStoreConfig(flush_interval_commit_log=1, flush_commit_log_least_pages=0)
        service = FlushRealTimeService(config, log, heard.on_flushed, heard.on_error)
        log.put(4)
        service.start()
        heard.wait_for(lambda: bool(heard.errors))
        service._thread.join(PATIENCE_S)
        assert not service._thread.is_alive()
        assert len(heard.errors) == 1
        service.shutdown()


def test_what_waits_in_a_write_buffer_is_committed_in_time(log: Log, heard: Heard) -> None:
    config = MessageStoreConfig(commit_interval_commit_log=1, commit_commit_log_thorough_interval=1)
    service = CommitRealTimeService(config, log, heard.on_flushed, heard.on_error)
    mapped_file = log.get_last_mapped_file()
    assert mapped_file is not None
    mapped_file.write_buffer = memoryview(bytearray(SIZE))
    log.put(100)
    assert log.max_offset == 0
    service.start()
    heard.wait_for(lambda: log.committed_where == 100)
    service.shutdown()
    assert log.max_offset == 100
    assert heard.flushed >= 1


class TestFailedOnce:
    """Of the queue itself: whoever flushes next is told too."""

    def test_every_later_flush_and_commit_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = MappedFileQueue(str(tmp_path), SIZE)
        mapped_file = log.get_last_mapped_file()
        assert mapped_file is not None
        mapped_file.append_record(b"x" * 100, 1000)

        def fails_once(_fd: int) -> None:
            monkeypatch.undo()
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("os.fdatasync", fails_once)
        with pytest.raises(OSError, match=r"^\[Errno 5\] Input/output error"):
            log.flush(0)
        for again in (log.flush, log.commit):
            with pytest.raises(OSError, match="an earlier write to the disk failed: Input/output error"):
                again(0)
        assert log.flushed_where == 0
        assert log.store_timestamp == 0

    def test_the_checkpoints_time_is_of_committed_messages(self, tmp_path: Path) -> None:
        log = MappedFileQueue(str(tmp_path), SIZE)
        mapped_file = log.get_last_mapped_file()
        assert mapped_file is not None
        mapped_file.write_buffer = memoryview(bytearray(SIZE))
        mapped_file.append_record(b"x" * 100, 1000)
        log.commit(0)
        mapped_file.append_record(b"x" * 100, 2000)
        log.flush(0)
        assert (log.flushed_where, log.store_timestamp) == (100, 1000)
