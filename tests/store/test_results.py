"""Futures of puts and what results say of records."""

from __future__ import annotations

import asyncio
import signal
import threading

import numpy as np
import pytest

from mqlake.errors import BadCrcError, TruncatedRecordError
from mqlake.message import create_message_id
from mqlake.store.results import (
    APPEND_OK,
    AppendMessageResult,
    AppendMessageStatus,
    GetMessageResult,
    GetMessageStatus,
    PutMessageFuture,
    PutMessageResult,
    PutMessageStatus,
    _ThreadWaiter,
    put_ok,
    wake_all,
)
from tests.formats.columns_cases import record
from tests.waiting import until

HOST = ("10.1.2.3", 10911)


def waiting() -> PutMessageFuture:
    return PutMessageFuture(PutMessageResult(PutMessageStatus.PUT_OK), next_offset=100)


class TestFuture:
    def test_without_a_wait_it_is_born_finished(self) -> None:
        future = PutMessageFuture(PutMessageResult(PutMessageStatus.PUT_OK))
        called: list[str] = []
        future.add_done_callback(lambda: called.append("at once"))
        assert future.done() and future.result().is_ok and called == ["at once"]
        assert future.finish(PutMessageStatus.FLUSH_DISK_TIMEOUT) == []
        assert future.result().is_ok

    def test_the_first_result_stays(self) -> None:
        future = waiting()
        assert not future.done()
        assert future.finish(PutMessageStatus.FLUSH_DISK_TIMEOUT, "the disk is slow") == []
        future.finish(PutMessageStatus.PUT_OK)
        result = future.result()
        assert future.done() and not result.is_ok
        assert (result.status, result.reason) == (PutMessageStatus.FLUSH_DISK_TIMEOUT, "the disk is slow")

    def test_threads_are_woken(self) -> None:
        future, found = waiting(), []
        threads = [threading.Thread(target=lambda: found.append(future.result().status)) for _ in range(3)]
        for thread in threads:
            thread.start()
        wake_all(future.finish(PutMessageStatus.PUT_OK))
        for thread in threads:
            thread.join()
        assert found == [PutMessageStatus.PUT_OK] * 3

    def test_callbacks_are_called_once(self) -> None:
        future, called = waiting(), []
        future.add_done_callback(lambda: called.append(1))
        assert called == []
        wake_all(future.finish(PutMessageStatus.PUT_OK))
        wake_all(future.finish(PutMessageStatus.PUT_OK))
        assert called == [1]

    @pytest.mark.parametrize("on_the_loop", [False, True])
    def test_a_loop_gets_one_hand_over_for_all(self, on_the_loop: bool) -> None:
        async def scene() -> list[str]:
            loop = asyncio.get_running_loop()
            futures, called = [waiting() for _ in range(3)], []
            for number, future in enumerate(futures):
                future.add_loop_callback(loop, lambda n=number: called.append(f"callback {n}"))
            tasks = [asyncio.ensure_future(_status(future)) for future in futures]
            await asyncio.sleep(0)
            hand_overs = []
            over = loop.call_soon_threadsafe
            loop.call_soon_threadsafe = lambda *args: hand_overs.append(args) or over(*args)  # type: ignore
            waiters = [waiter for future in futures for waiter in future.finish(PutMessageStatus.PUT_OK)]
            if on_the_loop:
                wake_all(waiters)
            else:
                other = threading.Thread(target=wake_all, args=(waiters,))
                other.start()
                other.join()
            assert called == []
            assert len(hand_overs) == (0 if on_the_loop else 1)
            assert await asyncio.gather(*tasks) == [PutMessageStatus.PUT_OK] * 3
            futures[0].add_loop_callback(loop, lambda: called.append("at once"))
            return called

        async def _status(future: PutMessageFuture) -> PutMessageStatus:
            return (await future).status

        assert asyncio.run(scene()) == ["callback 0", "callback 1", "callback 2", "at once"]

    def test_a_task_that_gave_up_does_not_keep_others_waiting(self) -> None:
        async def wait() -> None:
            loop = asyncio.get_running_loop()
            errors: list[object] = []
            loop.set_exception_handler(lambda _loop, context: errors.append(context))
            futures = [waiting(), waiting()]
            given_up, task = (asyncio.ensure_future(_status(future)) for future in futures)
            await asyncio.sleep(0)
            given_up.cancel()
            wake_all([waiter for future in futures for waiter in future.finish(PutMessageStatus.PUT_OK)])
            assert await task is PutMessageStatus.PUT_OK
            assert given_up.cancelled() and not errors

        async def _status(future: PutMessageFuture) -> PutMessageStatus:
            return (await future).status

        asyncio.run(wait())

    def test_a_loop_that_was_closed_does_not_keep_others_waiting(self) -> None:
        gone = asyncio.new_event_loop()
        future, called = waiting(), []
        future.add_loop_callback(gone, lambda: called.append("never"))
        future.add_done_callback(lambda: called.append("still"))
        gone.close()
        wake_all(future.finish(PutMessageStatus.PUT_OK))
        assert called == ["still"]


class TestAppendResult:
    def test_ids(self) -> None:
        one = AppendMessageResult(AppendMessageStatus.PUT_OK, 4096, 100, HOST)
        assert one.is_ok and one.msg_id == create_message_id(HOST, 4096)
        for offsets in ([10, 1 << 40], np.array([10, 1 << 40])):
            batch = AppendMessageResult(AppendMessageStatus.PUT_OK, 10, 200, HOST, record_offsets=offsets)
            assert batch.msg_id == f"{create_message_id(HOST, 10)},{create_message_id(HOST, 1 << 40)}"

    def test_without_a_record_there_is_no_id(self) -> None:
        refused = AppendMessageResult(AppendMessageStatus.MESSAGE_SIZE_EXCEEDED)
        assert not refused.is_ok and refused.msg_id is None


def test_records_that_lie_back_to_back() -> None:
    records = [size.to_bytes(4, "big") + bytes(size - 4) for size in (10, 4, 30)]
    result = GetMessageResult(GetMessageStatus.FOUND, 3, 0, 3)
    result.buffers = [memoryview(records[0] + records[1]), memoryview(records[2])]
    assert list(result.records()) == records


def test_what_follows_a_damaged_size_comes_with_it() -> None:
    result = GetMessageResult(GetMessageStatus.FOUND, 3, 0, 3)
    whole = (8).to_bytes(4, "big") + b"body"
    for size in (0, 13, 1 << 31):
        damaged = size.to_bytes(4, "big") + b"bodybody"
        result.buffers = [memoryview(whole + damaged)]
        assert list(result.records()) == [whole, damaged]


def found(*buffers: bytes) -> GetMessageResult:
    result = GetMessageResult(GetMessageStatus.FOUND, 9, 0, 9)
    result.buffers = [memoryview(buffer) for buffer in buffers]
    result.message_count = 9
    return result


class TestMessages:
    """Whole records are decoded when they are looked at, others at once, with their error."""

    def test_of_every_buffer(self) -> None:
        records = [record(n * 1000, queue_offset=n, body=b"x" * n) for n in range(5)]
        messages = list(found(b"".join(records[:3]), records[3], records[4]).messages())
        assert [message.queue_offset for message in messages] == [0, 1, 2, 3, 4]
        assert [message.body for message in messages] == [b"x" * n for n in range(5)]
        assert list(found().messages()) == []

    def test_a_damaged_one_comes_after_the_whole_ones(self) -> None:
        damaged = bytearray(record(1000, body=b"some body"))
        damaged[90] ^= 1
        messages = found(record(0) + record(500) + bytes(damaged) + record(2000)).messages()
        assert [next(messages).physical_offset, next(messages).physical_offset] == [0, 500]
        with pytest.raises(BadCrcError):
            next(messages)

    def test_what_is_no_record_at_all(self) -> None:
        with pytest.raises(TruncatedRecordError):
            list(found(record(0) + b"\0\0\0\5x").messages())


def test_the_append_result_is_made_once() -> None:
    result = put_ok((APPEND_OK, 4096, 100, HOST, 5, 6, None, 1, 7))
    appended = result.append_result
    assert appended == AppendMessageResult(AppendMessageStatus.PUT_OK, 4096, 100, HOST, 5, 6, None, 1, 7)
    assert appended is not None and appended.is_ok and appended.msg_id == create_message_id(HOST, 4096)
    assert result.append_result is appended
    assert result.is_ok and result.reason == "" and "wrote_offset=4096" in repr(result)
    assert PutMessageResult(PutMessageStatus.UNKNOWN_ERROR).append_result is None


class TestThreadsThatWait:
    def wait_for(self, count: int, answers: list[PutMessageStatus]) -> list[PutMessageFuture]:
        """Futures that so many threads wait for, whose answers go to `answers`."""
        futures = [PutMessageFuture(PutMessageResult(PutMessageStatus.PUT_OK), 1) for _ in range(count)]

        def wait(future: PutMessageFuture) -> None:
            answers.append(future.result().status)

        for future in futures:
            threading.Thread(target=wait, args=(future,), daemon=True).start()
        until(lambda: all(future._waiters for future in futures))
        return futures

    def test_all_are_woken(self) -> None:
        answers: list[PutMessageStatus] = []
        futures = self.wait_for(20, answers)
        wake_all(
            [waiter for future in futures for waiter in future.finish(PutMessageStatus.FLUSH_DISK_TIMEOUT)]
        )
        until(lambda: len(answers) == 20)
        assert set(answers) == {PutMessageStatus.FLUSH_DISK_TIMEOUT}

    @pytest.mark.parametrize("place", [0, 1, 3])
    def test_also_when_one_was_interrupted(self, place: int) -> None:
        answers: list[PutMessageStatus] = []
        futures = self.wait_for(3, answers)
        interrupted = PutMessageFuture(PutMessageResult(PutMessageStatus.PUT_OK), 1)
        futures.insert(place, interrupted)

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                interrupted.result()
        finally:
            signal.signal(signal.SIGALRM, before)
        wake_all([waiter for future in futures for waiter in future.finish(PutMessageStatus.PUT_OK)])
        until(lambda: len(answers) == 3)

    def test_also_when_one_was_interrupted_before_it_waited(self) -> None:
        answers: list[PutMessageStatus] = []
        futures = self.wait_for(3, answers)
        interrupted = PutMessageFuture(PutMessageResult(PutMessageStatus.PUT_OK), 1)
        assert interrupted._lock is not None and interrupted._add_waiter(interrupted._lock, _ThreadWaiter())
        futures.insert(1, interrupted)
        wake_all([waiter for future in futures for waiter in future.finish(PutMessageStatus.PUT_OK)])
        until(lambda: len(answers) == 3)
