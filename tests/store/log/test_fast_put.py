"""FastPut: the same records and results as CommitLog.put_message, and nothing changed where it declines."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake import native
from mqlake.formats.batch import encode_messages
from mqlake.formats.record import encode_message
from mqlake.message import Message, MessageExtBatch, MessageExtBrokerInner, MessageSysFlag, MessageTimeUp
from mqlake.store import DefaultMessageStore, PutMessageStatus, open_store
from mqlake.store.log import fast_put
from mqlake.store.log.fast_put import FastPut
from mqlake.store.results import PutMessageResult
from tests.waiting import until

HOST, OTHER_HOST = ("127.0.0.1", 10911), ("10.1.2.3", 7)
FILE_SIZE = 256 * 1024
I32, I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=20)
SPECIAL = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "INNER_NUM", "__CRC32#")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DefaultMessageStore]:
    with open_store(tmp_path_factory.mktemp("single"), {"mappedFileSizeCommitLog": FILE_SIZE}) as opened:
        ready(opened)
        yield opened


def ready(store: DefaultMessageStore) -> FastPut:
    """The store's, which knows the topic T and both hosts."""
    fast = store.commit_log.fast_put
    for host in (HOST, OTHER_HOST):
        assert store.put_message(usual(born_host=host)).is_ok
    until(lambda: fast.put is not fast_put._decline)
    # the first put has asked for pages to be made writable: until they are, puts go the other way
    until(lambda: put_fast(store, usual()) is not None)
    return fast


def usual(body: bytes = b"body", **fields: object) -> MessageExtBrokerInner:
    message = MessageExtBrokerInner("T", body, tags="TagA", keys="k1 k2")
    message.born_host = message.store_host = HOST
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def usual_batch(blob: bytes, **fields: object) -> MessageExtBatch:
    batch = MessageExtBatch("T", blob)
    batch.born_host = batch.store_host = HOST
    for name, value in fields.items():
        setattr(batch, name, value)
    return batch


BLOB = encode_messages([Message("T", b"first", tags="A"), Message("T", b"second")])


def put_fast(store: DefaultMessageStore, message: MessageExtBrokerInner) -> PutMessageResult | None:
    return store.commit_log.fast_put.put(message)


def put_surely(store: DefaultMessageStore, message: MessageExtBrokerInner) -> PutMessageResult:
    """Alone, after what fills the file or waits for pages has gone the other way."""
    while (result := put_fast(store, message)) is None:
        assert store.put_message(usual(bytes(20_000))).is_ok
    return result


def record_of(store: DefaultMessageStore, message: MessageExtBrokerInner) -> bytes:
    found = store.commit_log_files.select(message.physical_offset, 4)
    assert found is not None
    record = store.commit_log_files.select(message.physical_offset, int.from_bytes(found, "big"))
    assert record is not None
    return bytes(record)


class TestPut:
    @settings(max_examples=150)
    @given(
        body=st.binary(max_size=300),
        properties=st.dictionaries(TEXT, TEXT, max_size=6),
        flag=I32,
        sys_flag=st.sampled_from([0, 1, 3, 8, 0x200]),
        queue_id=st.integers(0, 5),
        born_timestamp=I64,
        born_host=st.sampled_from([HOST, OTHER_HOST]),
        reconsume_times=I32,
        prepared_transaction_offset=I64,
    )
    def test_writes_the_record_that_the_message_says(
        self, store: DefaultMessageStore, body: bytes, properties: dict[str, str], **fields: object
    ) -> None:
        message = usual(body, properties=properties, **fields)
        offsets, end = dict(store.commit_log.queue_offsets), store.max_phy_offset
        result = put_surely(store, message)
        assert record_of(store, message) == encode_message(message)
        appended = result.append_result
        assert appended is not None and result.is_ok and appended.is_ok and result.reason == ""
        assert appended.wrote_offset == message.physical_offset >= end
        assert appended.wrote_offset + appended.wrote_bytes == store.max_phy_offset
        assert appended.logics_offset == message.queue_offset == offsets.get(("T", message.queue_id), 0)
        assert store.commit_log.queue_offsets["T", message.queue_id] == message.queue_offset + 1
        assert appended.store_timestamp == message.store_timestamp
        assert (appended.store_host, appended.record_offsets, appended.msg_num) == (HOST, None, 1)

    @settings(max_examples=60)
    @given(
        items=st.lists(
            st.tuples(st.binary(max_size=100), st.dictionaries(TEXT, TEXT, max_size=3), I32),
            min_size=1,
            max_size=40,
        ),
        sys_flag=st.sampled_from([0, 1, 0x200]),
        queue_id=st.integers(0, 5),
        born_timestamp=I64,
        born_host=st.sampled_from([HOST, OTHER_HOST]),
        reconsume_times=I32,
    )
    def test_writes_a_record_of_each_message_of_a_batch(
        self, store: DefaultMessageStore, items: list[tuple[bytes, dict[str, str], int]], **fields: Any
    ) -> None:
        blob = encode_messages(
            [Message("T", body, properties=properties, flag=flag) for body, properties, flag in items]
        )
        batch = usual_batch(blob, **fields)
        first = store.commit_log.queue_offsets.get(("T", batch.queue_id), 0)
        counted = store.commit_log.fast_put.puts
        result = put_surely(store, batch)
        appended = result.append_result
        assert appended is not None and result.is_ok and appended.record_offsets is not None
        at, records = batch.physical_offset, []
        for number, (body, properties, flag) in enumerate(items):
            message = usual(body, properties=properties, **fields)
            message.flag, message.queue_offset, message.physical_offset = flag, first + number, at
            message.store_timestamp = batch.store_timestamp
            records.append(encode_message(message))
            assert appended.record_offsets[number] == at
            at += len(records[-1])
        found = store.commit_log_files.select(batch.physical_offset, appended.wrote_bytes)
        assert found is not None and bytes(found) == b"".join(records)
        assert (appended.wrote_offset, appended.wrote_bytes) == (batch.physical_offset, len(found))
        assert (
            (appended.logics_offset, appended.msg_num)
            == (first, len(items))
            == (batch.queue_offset, len(items))
        )
        assert store.max_phy_offset == at
        assert store.commit_log.queue_offsets["T", batch.queue_id] == first + len(items)
        assert store.commit_log.fast_put.puts == counted + len(items)
        assert (appended.msg_id or "").count(",") == len(items) - 1

    def test_a_property_without_a_value_is_left_out(self, store: DefaultMessageStore) -> None:
        message = usual()
        message.properties = {"A": "1", "B": None, "C": ""}  # type: ignore[dict-item]
        put_surely(store, message)
        assert record_of(store, message).endswith(b"\0\x07A\x011\x02C\x01\x02")

    def test_the_size_comes_last_and_zeros_follow(self, store: DefaultMessageStore) -> None:
        message = usual()
        put_surely(store, message)
        file = store.commit_log_files.get_last_mapped_file()
        assert file is not None
        assert file.view[file.wrote_position : file.wrote_position + 4] == bytes(4)

    def test_keeps_no_reference_too_many_or_too_few(self, store: DefaultMessageStore) -> None:
        body, properties, number, time_ms, host = (
            b"a body",
            {"KEYS": "k"},
            70_000,
            2**40,
            ("127.0.0.1", 50_000),
        )
        blob = encode_messages([Message("T", b"in a batch")] * 3)
        held = (blob, body, properties, number, time_ms, host, *properties.items(), store.running_flags)
        store.put_message(usual(born_host=host))
        declined = usual(flag=1.5)
        for _ in range(2):  # the first round leaves keys in dictionaries
            before = [sys.getrefcount(one) for one in held]
            for _ in range(50):
                fields = {"queue_id": number, "born_timestamp": time_ms, "properties": properties}
                put_surely(store, usual(body, born_host=host, flag=number, **fields))
                put_surely(store, usual_batch(blob, born_host=host, queue_id=number))
                assert put_fast(store, declined) is None
            after = [sys.getrefcount(one) for one in held]
        assert after == before

    def test_from_many_threads_over_many_files(self, store: DefaultMessageStore) -> None:
        taken: list[tuple[int, int, bytes]] = []

        def produce(thread: int) -> None:
            for number in range(500):
                body = b"%d-%d" % (thread, number) + bytes(500)
                result = store.put_message(usual(body, queue_id=60 + number % 2)).append_result
                assert result is not None
                taken.append((60 + number % 2, result.logics_offset, body))

        before = store.commit_log.fast_put.puts
        threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.wait_until_dispatched(30)
        assert store.commit_log.fast_put.puts > before + 1000
        for queue_id in (60, 61):
            bodies = {offset: body for queue, offset, body in taken if queue == queue_id}
            assert sorted(bodies) == list(range(1000))
            for offset in range(0, 1000, 32):
                found = list(store.get_message("g", "T", queue_id, offset, 32).messages())
                assert [m.body for m in found] == [bodies[m.queue_offset] for m in found]
                assert found[0].queue_offset == offset

    def test_what_waits_for_dispatch_is_woken(self, store: DefaultMessageStore) -> None:
        assert store.wait_until_dispatched(10)
        put_surely(store, usual(queue_id=70))
        until(lambda: store.max_offset_in_queue("T", 70) == 1)


class Name(str):
    pass


class TestDecline:
    """And what is wrong with it, or special about it, is found by CommitLog.put_message."""

    @pytest.mark.parametrize(
        "fields",
        [
            {"topic": "Unknown"},
            {"topic": Name("T")},
            {"topic": None},
            {"body": bytearray(b"b")},
            {"body": memoryview(b"b")},
            {"body": bytes(33_000)},
            {"queue_id": True},
            {"queue_id": 2**31},
            {"flag": -(2**31) - 1},
            {"flag": 1.0},
            {"born_timestamp": 2**63},
            {"prepared_transaction_offset": "1"},
            {"reconsume_times": 2**70},
            {"sys_flag": MessageSysFlag.TRANSACTION_PREPARED_TYPE},
            {"sys_flag": MessageSysFlag.TRANSACTION_ROLLBACK_TYPE},
            {"sys_flag": MessageSysFlag.INNER_BATCH_FLAG},
            {"sys_flag": MessageSysFlag.BORNHOST_V6_FLAG},
            {"born_host": ("::1", 1)},
            {"store_host": ["127.0.0.1", 10911]},
            {"store_host": ("127.0.0.1", 10911.0)},
            {"store_host": ("127.0.0.1", [])},
            {"properties": {"A": 1}},
            {"properties": {1: "A"}},
            {"properties": {"A": "\ud800"}},
            {"properties": {Name("A"): "B"}},
            {"properties": {f"A{n}": "B" for n in range(65)}},
            {"properties": [("A", "B")]},
            *({"properties": {"A": "B", name: "1"}} for name in SPECIAL),
        ],
        ids=lambda fields: repr(fields)[:40].partition(" at 0x")[0],
    )
    def test_what_is_not_usual(self, store: DefaultMessageStore, fields: dict[str, Any]) -> None:
        until(lambda: put_fast(store, usual()) is not None)
        self.declines(store, usual(**fields))

    @pytest.mark.parametrize(
        "fields",
        [
            {"body": b""},
            {"body": BLOB[:-1]},
            {"body": BLOB + b"\0"},
            {"body": bytearray(BLOB)},
            {"body": BLOB * 1100},
            {"properties": {"A": "B"}},
            {"properties": {"DELAY": "1"}},
            {"sys_flag": MessageSysFlag.TRANSACTION_PREPARED_TYPE},
            {"born_host": ("::1", 1)},
        ],
        ids=lambda fields: repr(fields)[:40].partition(" at 0x")[0],
    )
    def test_a_batch_that_is_not_usual(self, store: DefaultMessageStore, fields: dict[str, Any]) -> None:
        until(lambda: put_fast(store, usual_batch(BLOB)) is not None)
        self.declines(store, usual_batch(**{"blob": BLOB, **fields}))

    def test_a_slot_that_is_not_set(self, store: DefaultMessageStore) -> None:
        message = usual()
        del message.flag
        self.declines(store, message)

    def test_another_class(self, store: DefaultMessageStore) -> None:
        message = MessageTimeUp("T", b"", born_host=HOST, store_host=HOST)
        self.declines(store, message)
        self.declines(store, None)  # type: ignore[arg-type]

    def test_while_somebody_writes(self, store: DefaultMessageStore) -> None:
        with store.commit_log.appender.lock:
            self.declines(store, usual())

    def test_while_the_store_takes_none(self, store: DefaultMessageStore) -> None:
        store.running_flags.make_disk_full()
        self.declines(store, usual())
        assert store.put_message(usual()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        store.running_flags.make_disk_ok()
        put_surely(store, usual())

    def declines(self, store: DefaultMessageStore, message: MessageExtBrokerInner) -> None:
        before = store.max_phy_offset, dict(store.commit_log.queue_offsets), store.commit_log.fast_put.puts
        assert put_fast(store, message) is None
        assert (
            store.max_phy_offset,
            dict(store.commit_log.queue_offsets),
            store.commit_log.fast_put.puts,
        ) == before


class TestWhen:
    @pytest.mark.parametrize(
        "settings",
        [
            {"enabledAppendPropCRC": True},
            {"writeWithoutMmap": True},
            {"transientStorePoolEnable": True, "transientStorePoolSize": 1},
        ],
    )
    def test_never_where_records_or_files_are_others(
        self, tmp_path: Path, settings: dict[str, object]
    ) -> None:
        with open_store(tmp_path, {"mappedFileSizeCommitLog": FILE_SIZE, **settings}) as store:
            for _ in range(3):
                assert store.put_message(usual()).is_ok
            fast = store.commit_log.fast_put
            assert fast.put(usual()) is None

    def test_not_once_the_store_shuts_down(self, tmp_path: Path) -> None:
        with open_store(tmp_path, {"mappedFileSizeCommitLog": FILE_SIZE}) as store:
            fast = ready(store)
        assert fast.put(usual()) is None
        assert store.put_message(usual()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE

    def test_a_put_waits_for_the_disk_where_it_has_to(self, tmp_path: Path) -> None:
        settings = {"mappedFileSizeCommitLog": FILE_SIZE, "flushDiskType": "SYNC_FLUSH"}
        with open_store(tmp_path, settings) as store:
            ready(store)
            before = store.commit_log.fast_put.puts
            for put in (store.put_message, lambda m: store.async_put_message(m).result()):
                assert put(usual()).is_ok
                assert store.flushed_where == store.max_phy_offset
            assert store.commit_log.fast_put.puts == before + 2

    def test_a_notification_that_fails_loses_nothing(self, tmp_path: Path) -> None:
        with open_store(tmp_path, {"mappedFileSizeCommitLog": FILE_SIZE}) as store:
            fast = ready(store)
            called = []

            def fail() -> None:
                called.append(1)
                raise RuntimeError

            fast.open(store.running_flags, np.ones(1, np.int64), fail)
            assert put_surely(store, usual()).is_ok
            assert called


class TestCounts:
    def test_are_the_stores(self, store: DefaultMessageStore) -> None:
        stats = store.store_stats_service

        def counted() -> tuple[int, ...]:
            window = sum(stats._window())
            return (
                stats.put_message_times_total,
                stats.put_message_size_total,
                *stats.topic_totals()["T"],
                window,
            )

        until(lambda: put_fast(store, usual()) is not None)
        before = counted()
        result = put_fast(store, usual())
        assert result is not None and result.append_result is not None
        size = result.append_result.wrote_bytes
        assert [now - then for now, then in zip(counted(), before, strict=True)] == [1, size, 1, size, 1]

    def test_of_a_topic_begin_again_when_it_is_forgotten(self, tmp_path: Path) -> None:
        with open_store(tmp_path, {"mappedFileSizeCommitLog": FILE_SIZE}) as store:
            ready(store)
            stats = store.store_stats_service
            assert stats.topic_totals()["T"][0] >= 3
            stats.remove_topic("T")
            assert stats.topic_totals() == {}
            store.put_message(usual())
            store.put_message(usual())
            assert stats.topic_totals()["T"][0] == 2

    def test_each_says_how_long_it_held_the_lock(self, store: DefaultMessageStore) -> None:
        ready(store)
        before = store._fast_put.histogram()
        appended = store.put_message(usual()).append_result
        assert appended is not None and len(appended) == 9
        after = store._fast_put.histogram()
        assert [n for n, count in enumerate(after) if count != before[n]] == [appended.pagecache_rt]

    def test_a_slow_one_is_logged_by_whoever_looks_first(
        self, store: DefaultMessageStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        put_surely(store, usual(bytes(77)))
        size = (
            store._fast_put._native.slow_size
        )  # on a busy machine a put before this one may have been the slowest
        store._fast_put._native.slow_ms = 700  # as if the disk had stood still
        store._warn_of_slow_puts()
        text = f"[NOTIFYME] put held the log's lock for 700 ms: topic T, body {size} bytes"
        until(lambda: caplog.messages == [text], "the put is named")
        store._warn_of_slow_puts()
        assert len(caplog.messages) == 1
        assert store.longest_put_ms == 700  # whoever logged it
        store.forget_longest_put()
        assert store.longest_put_ms == 0


def test_a_slot_is_found_or_not() -> None:
    kernels = native.module("single")
    assert kernels is not None
    slot_offset = kernels.slot_offset

    class Two:
        __slots__ = ("first", "second")

    first, second = slot_offset(Two, "first"), slot_offset(Two, "second")
    assert second - first == 8 and first >= object.__basicsize__
    with pytest.raises(LookupError):
        slot_offset(type("Open", (), {}), "anything")
