from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mqlake.base.disk import DiskSpace
from mqlake.errors import (
    ConfigError,
    ForeignFormatError,
    NotAStoreError,
    OffsetOutOfRangeError,
    StoreClosedError,
    StoreLockedError,
    UnknownKeyError,
    WrongFileSizeError,
)
from mqlake.formats.batch import encode_messages
from mqlake.message import Message, MessageExtBatch, MessageExtBrokerInner
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import BrokerRole, MessageStoreConfig
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.filter import TagFilter
from mqlake.store.log import appender
from mqlake.store.log.log_reader import LogReader
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.results import BoundaryType, GetMessageStatus, PutMessageStatus
from tests.store.small_store import contents
from tests.waiting import PATIENCE_S, trying, until

SMALL: dict[str, object] = {
    "mappedFileSizeCommitLog": 16384,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 20,
    "maxIndexNum": 80,
    "maxMessageSize": 4096,
    "diskMaxUsedSpaceRatio": 99,
    "cleanFileForciblyEnable": False,
}
SYNC = {"flushDiskType": "SYNC_FLUSH"}
POOL = {"transientStorePoolEnable": True, "transientStorePoolSize": 2}
OK = PutMessageStatus.PUT_OK


def message(body: bytes = b"body", topic: str = "T", **fields: object) -> MessageExtBrokerInner:
    msg = MessageExtBrokerInner(topic, body)
    for name, value in fields.items():
        setattr(msg, name, value)
    return msg


def batch(count: int, topic: str = "T") -> MessageExtBatch:
    return MessageExtBatch(topic, encode_messages([Message(topic, b"%d" % n) for n in range(count)]))


def made(root: Path, *, clock: object = None, **settings: object) -> DefaultMessageStore:
    config = MessageStoreConfig.from_mapping({**SMALL, **settings, "storePathRootDir": str(root)})
    store = DefaultMessageStore(config) if clock is None else DefaultMessageStore(config, clock_ms=clock)  # type: ignore[arg-type]
    store.load()
    store.start()
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DefaultMessageStore]:
    with open_store(tmp_path / "store", SMALL) as store:
        yield store


class TestLife:
    def test_abort_file_and_lock_show_that_it_runs(self, tmp_path: Path) -> None:
        with open_store(tmp_path, SMALL):
            assert (tmp_path / "abort").exists()
            with pytest.raises(StoreLockedError, match="in use"):
                open_store(tmp_path, SMALL)
        assert not (tmp_path / "abort").exists()
        open_store(tmp_path, SMALL).shutdown()

    def test_shutdown_twice_does_nothing_more(self, tmp_path: Path) -> None:
        store = open_store(tmp_path, SMALL)
        store.shutdown()
        store.shutdown()

    def test_after_it_puts_are_refused_and_reads_raise(self, tmp_path: Path) -> None:
        store = open_store(tmp_path, SMALL)
        offset = store.put_message(message()).append_result.wrote_offset
        store.shutdown()
        result = store.put_message(message())
        assert (result.status, result.reason) == (
            PutMessageStatus.SERVICE_NOT_AVAILABLE,
            "the store is not running",
        )
        for read in (
            lambda: store.look_message_by_offset(offset),
            lambda: store.get_message("g", "T", 0, 0, 1),
            lambda: store.query_message("T", "k", 1),
            store.flush,
        ):
            with pytest.raises(StoreClosedError):
                read()

    @pytest.mark.parametrize("mode", [{}, SYNC, {**SYNC, **POOL}], ids=["async", "sync", "sync, pool"])
    def test_puts_that_run_into_a_shutdown_are_stored_or_refused(
        self, tmp_path: Path, mode: dict[str, object]
    ) -> None:
        store = open_store(tmp_path, {**SMALL, **mode})
        told: list[bytes] = []
        statuses: set[PutMessageStatus] = set()
        begun = threading.Barrier(5)

        def put(writer: int) -> None:
            begun.wait()
            for number in range(10_000):
                body = b"%d:%d" % (writer, number)
                result = store.put_messages(batch(2)) if number % 5 == 4 else store.put_message(message(body))
                statuses.add(result.status)
                if result.status is not OK:
                    return
                if number % 5 != 4:
                    told.append(body)

        threads = [threading.Thread(target=put, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        begun.wait()
        store.wait_until_dispatched(0.02)
        store.shutdown()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert statuses <= {
            OK,
            PutMessageStatus.SERVICE_NOT_AVAILABLE,
            PutMessageStatus.CREATE_MAPPED_FILE_FAILED,
            PutMessageStatus.FLUSH_DISK_TIMEOUT,
        }
        with open_store(tmp_path, {**SMALL, **mode}) as again:
            found: list[bytes] = []
            for _ in trying("the end of the queue"):
                result = again.get_message("g", "T", 0, len(found), 32)
                if not result.buffers:
                    break
                found += [m.body for m in result.messages()]
            assert set(told) <= set(found)

    def test_a_fenced_store_leaves_its_abort_file(self, tmp_path: Path) -> None:
        store = open_store(tmp_path, SMALL)
        store.put_message(message())
        store.fence("a test")
        result = store.put_message(message())
        assert (result.status, result.reason) == (PutMessageStatus.SERVICE_NOT_AVAILABLE, "fenced: a test")
        store.shutdown()
        assert (tmp_path / "abort").exists()
        with open_store(tmp_path, SMALL) as again:
            assert again.put_message(message()).is_ok

    def test_destroy_leaves_no_message(self, tmp_path: Path) -> None:
        store = open_store(tmp_path, SMALL)
        for number in range(200):
            store.put_message(message(b"x" * 300, keys=f"k{number}"))
        (tmp_path / "config").mkdir()
        store.destroy()
        assert {path.name for path in tmp_path.iterdir()} <= {"config", "lock"}
        with open_store(tmp_path, SMALL) as again:
            assert again.put_message(message()).append_result.wrote_offset == 0

    @pytest.mark.parametrize("what", ["start", "on_recovered"])
    def test_one_that_cannot_start_gives_its_lock_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        if what == "start":
            monkeypatch.setattr("mqlake.store.files.store_lock.AbortFile.create", fail)
        with pytest.raises(OSError, match="No space"):
            open_store(tmp_path, SMALL, on_recovered=fail if what == "on_recovered" else None)
        monkeypatch.undo()
        open_store(tmp_path, SMALL).shutdown()


class TestWhatIsNoStore:
    def test_a_directory_with_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_bytes(b"important")
        with pytest.raises(NotAStoreError, match="no commitlog directory"):
            open_store(tmp_path, SMALL)
        assert contents(tmp_path) == {"thesis.tex": b"important"}

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(NotAStoreError, match="a store is a directory"):
            open_store(tmp_path / "file", SMALL)

    def test_a_dledger_store(self, tmp_path: Path) -> None:
        (tmp_path / "dledger-n0").mkdir()
        with pytest.raises(ForeignFormatError, match="DLedger"):
            open_store(tmp_path, SMALL)

    def test_another_file_size(self, tmp_path: Path) -> None:
        with open_store(tmp_path, SMALL) as store:
            store.put_message(message())
        before = contents(tmp_path)
        with pytest.raises(WrongFileSizeError, match="mappedFileSizeCommitLog says 32768"):
            open_store(tmp_path, {**SMALL, "mappedFileSizeCommitLog": 32768})
        with pytest.raises(WrongFileSizeError, match="mappedFileSizeConsumeQueue says 800"):
            open_store(tmp_path, {**SMALL, "mappedFileSizeConsumeQueue": 800})
        assert contents(tmp_path) == before

    def test_wrong_settings(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownKeyError, match="did you mean 'flushDiskType'"):
            open_store(tmp_path / "new", {"flushDiskTyp": "SYNC_FLUSH"})
        with pytest.raises(ConfigError, match="flushDiskType=SOMETIMES"):
            open_store(tmp_path / "new", {"flushDiskType": "SOMETIMES"})
        assert not (tmp_path / "new").exists()


class TestPut:
    def test_nothing_is_dispatched_before_what_waits_in_write_buffers(self, tmp_path: Path) -> None:
        held = {**SMALL, **POOL, "commitIntervalCommitLog": 600_000, "wakeCommitWhenPutMessage": False}
        held["transientStorePoolSize"] = 10
        bodies = [b"%d " % n * 100 for n in range(200)]
        with open_store(tmp_path, held) as store:
            for number, body in enumerate(bodies):
                assert store.put_message(message(body)).status is OK
                if number == 20:  # of the first file some is visible
                    store.commit_log_files.commit_all()
            files = store.commit_log_files.mapped_files
            assert len(files) > 3 and files[-1].committed_position == 0
            assert [chunk.end for chunk in LogReader(store.commit_log_files).scan(0)] == [
                files[0].committed_position
            ]
            assert store.max_phy_offset == files[0].committed_position
            assert store.wait_until_dispatched(PATIENCE_S)
            assert store.max_offset_in_queue("T", 0) == 21
            assert store.dispatch_behind_bytes == 0
            left = store.commit_log_files.max_wrote_position - files[0].committed_position
            assert int(store.runtime_info()["remainHowManyDataToCommit"]) == left > 0
            store.flush()
            assert store.runtime_info()["remainHowManyDataToCommit"] == "0"
            assert store.wait_until_dispatched(PATIENCE_S)
            assert store.max_offset_in_queue("T", 0) == len(bodies)
            got = store.get_message("G", "T", 0, 0, 32)
            assert [found.body for found in got.messages()] == bodies[:20]

    def test_what_a_flush_commits_is_dispatched(self, tmp_path: Path) -> None:
        held = {**SMALL, **POOL, "commitIntervalCommitLog": 600_000, "wakeCommitWhenPutMessage": False}
        with open_store(tmp_path, held) as store:
            assert store.put_message(message()).status is OK
            dispatch = store._reput_service
            until(lambda: not dispatch._wake.is_set() and dispatch.asleep[0] == 1, "dispatch sleeps again")
            store.flush()
            until(lambda: store.max_offset_in_queue("T", 0) == 1, "it is dispatched")

    @pytest.mark.parametrize(
        "mode",
        [{}, SYNC, {**SYNC, **POOL}, POOL, {"writeWithoutMmap": True}, {**SYNC, "writeWithoutMmap": True}],
        ids=["async", "sync", "sync, pool", "async, pool", "no mmap", "sync, no mmap"],
    )
    def test_every_mode_stores_over_several_files(self, tmp_path: Path, mode: dict[str, object]) -> None:
        bodies = [b"%d " % n * 100 for n in range(120)]
        with open_store(tmp_path, {**SMALL, **mode}) as store:
            for body in bodies:
                result = store.put_message(message(body))
                assert (result.status, result.reason) == (OK, "")
            if mode.get("flushDiskType"):
                assert store.flushed_where == store.max_phy_offset
            assert store.put_messages(batch(5)).append_result.msg_num == 5
            store.flush()
            assert store.wait_until_dispatched(PATIENCE_S)
            assert store.max_offset_in_queue("T", 0) == len(bodies) + 5
            assert len(store.commit_log_files.mapped_files) > 2
        with open_store(tmp_path, SMALL) as store:
            found: list[bytes] = []
            while len(found) < len(bodies):
                found += [m.body for m in store.get_message("g", "T", 0, len(found), 32).messages()]
            assert found[: len(bodies)] == bodies

    def test_a_future_can_be_awaited(self, tmp_path: Path) -> None:
        async def put_all(store: DefaultMessageStore) -> list[PutMessageStatus]:
            futures = [store.async_put_message(message()) for _ in range(10)]
            futures.append(store.async_put_messages(batch(3)))
            return [(await future).status for future in futures]

        with open_store(tmp_path, {**SMALL, **SYNC}) as store:
            assert asyncio.run(put_all(store)) == [OK] * 11

    def test_many_threads_get_offsets_without_holes(self, tmp_path: Path) -> None:
        with open_store(tmp_path, {**SMALL, **SYNC}) as store:
            offsets: list[int] = []

            def put() -> None:
                for _ in range(40):
                    offsets.append(store.put_message(message()).append_result.logics_offset)

            threads = [threading.Thread(target=put) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(offsets) == list(range(320))

    def test_wait_false_is_answered_at_once_and_flushed_all_the_same(self, tmp_path: Path) -> None:
        """And the checkpoint knows it, so that recovery does not begin at the first file."""
        settings = {**SMALL, **SYNC, "flushIntervalConsumeQueue": 1}
        with open_store(tmp_path, settings) as store:
            for _ in range(100):
                msg = message(b"x" * 400)
                msg.wait_store_msg_ok = False
                last = store.put_message(msg)
                assert last.status is OK
            while store.flushed_where < store.max_phy_offset:
                store.wait_until_dispatched(0.01)
            while _checkpoint(tmp_path).physic_msg_timestamp < last.append_result.store_timestamp:
                store.wait_until_dispatched(0.01)

    @pytest.mark.parametrize(
        ("msg", "status", "reason"),
        [
            (message(bytes(4097)), "MESSAGE_ILLEGAL", "the body has 4097 bytes, maxMessageSize allows 4096"),
            (message(topic="x" * 256), "MESSAGE_ILLEGAL", "the topic has 256 bytes"),
            (message(topic="no/slash"), "MESSAGE_ILLEGAL", "no/slash"),
            (message(topic=""), "MESSAGE_ILLEGAL", ""),
            (message(properties={"p": "v" * 32768}), "PROPERTIES_SIZE_EXCEEDED", "32767 are allowed"),
            (MessageExtBatch("T", b"no batch"), "MESSAGE_ILLEGAL", "not an encoded batch"),
            (MessageExtBatch("T", b""), "MESSAGE_ILLEGAL", "the batch is empty"),
        ],
        ids=["body", "long topic", "topic", "no topic", "properties", "batch", "empty batch"],
    )
    def test_what_cannot_be_stored_is_told_and_leaves_nothing(
        self, store: DefaultMessageStore, msg: MessageExtBrokerInner, status: str, reason: str
    ) -> None:
        put = store.put_messages if isinstance(msg, MessageExtBatch) else store.put_message
        result = put(msg)  # type: ignore[arg-type]
        assert result.status.name == status
        assert reason in result.reason
        assert store.max_phy_offset == 0
        assert store.put_message(message()).append_result.logics_offset == 0

    def test_a_slave_takes_none(self, tmp_path: Path) -> None:
        with open_store(tmp_path, {**SMALL, "brokerRole": "SLAVE"}) as store:
            result = store.put_message(message())
            assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            assert "slave" in result.reason

    def test_one_that_is_not_writeable_takes_none_until_it_is(self, store: DefaultMessageStore) -> None:
        store.running_flags.make_disk_full("95 % of the disk are used")
        result = store.put_message(message())
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert result.reason == "the disk is full: 95 % of the disk are used"
        store.running_flags.make_disk_ok()
        assert store.put_message(message()).is_ok

    def test_a_slave_says_what_would_keep_it_from_taking_messages_as_a_master(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_store(tmp_path, {**SMALL, "brokerRole": "SLAVE"}) as store:
            disk = [DiskSpace(used=50, free=50)]
            monkeypatch.setattr(DiskSpace, "of", lambda _: disk[0])
            store.commit_log_files.create_error = OSError(28, "No space left on device")
            assert "No space left" in store.why_no_puts()
            disk[0] = DiskSpace(used=1 << 30, free=1 << 30)  # there is room for a file again
            assert store.why_no_puts() == ""
            disk[0] = DiskSpace(used=97 << 20, free=3 << 20)
            assert "the disk is full" in store.why_no_puts()
            assert "the disk is full" in store.become_master(BrokerRole.SYNC_MASTER, PATIENCE_S)
            assert store.become_master(BrokerRole.SYNC_MASTER, PATIENCE_S, with_full_disk=True) == ""
            assert store.put_message(message()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            disk[0] = DiskSpace(used=1 << 30, free=1 << 30)
            assert store.why_no_puts() == ""
            assert store.put_message(message()).is_ok

    def test_a_lock_held_for_too_long_is_a_busy_page_cache(self, tmp_path: Path) -> None:
        now = [1_000_000]
        store = made(tmp_path, clock=lambda: now[0], osPageCacheBusyTimeOutMills=1000)
        with store:
            store.commit_log.appender.begin_time_in_lock = now[0]
            now[0] += 1500
            assert store.is_os_page_cache_busy
            result = store.put_message(message())
            assert result.status is PutMessageStatus.OS_PAGECACHE_BUSY
            assert "for 1500 ms" in result.reason
            store.commit_log.appender.begin_time_in_lock = 0
            assert store.put_message(message()).is_ok

    @pytest.mark.parametrize("kind", ["one", "batch", "batch without a map"])
    def test_how_long_one_holds_the_lock_is_told_and_warned_of(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        kind: str,
    ) -> None:
        now_ns = [0]
        monkeypatch.setattr(appender, "time", SimpleNamespace(monotonic_ns=lambda: now_ns[0]))
        store = made(tmp_path, clock=lambda: 1000, writeWithoutMmap=kind.endswith("map"))
        append = MappedFile.publish

        def slow(*arguments: object) -> object:
            now_ns[0] += 600_000_000  # the disk stands still
            return append(*arguments)

        monkeypatch.setattr(MappedFile, "publish", slow)
        with store:
            put = store.put_message(message()) if kind == "one" else store.put_messages(batch(2))
        appended = put.append_result
        assert appended is not None and appended.pagecache_rt == 600 and put.is_ok
        assert "[NOTIFYME] put held the log's lock for 600 ms: topic T, body " in caplog.text


def _checkpoint(root: Path) -> StoreCheckpoint:
    return StoreCheckpoint(str(root / "checkpoint"), read_only=True)


class TestVisible:
    def test_under_sync_flush_only_what_is_flushed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What could still be lost in a power cut is shown to nobody."""
        gate = threading.Event()
        real = __import__("os").fdatasync

        def held(fd: int) -> None:
            assert gate.wait(PATIENCE_S)
            real(fd)

        with open_store(tmp_path, {**SMALL, **SYNC, "syncFlushTimeout": 60_000}) as store:
            monkeypatch.setattr("os.fdatasync", held)
            future = store.async_put_message(message())
            assert store.wait_until_dispatched(PATIENCE_S)
            assert not future.done()
            assert store.max_phy_offset > store.confirm_offset == 0
            assert store.get_message("g", "T", 0, 0, 1).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
            gate.set()
            assert future.result().is_ok
            assert store.wait_until_dispatched(PATIENCE_S)
            assert store.get_message("g", "T", 0, 0, 1).status is GetMessageStatus.FOUND

    def test_arrivals_are_told(self, tmp_path: Path) -> None:
        arrivals = []
        config = MessageStoreConfig.from_mapping({**SMALL, "storePathRootDir": str(tmp_path)})
        store = DefaultMessageStore(config)
        store.message_arriving_listeners.append(arrivals.append)
        store.load()
        store.start()
        with store:
            for number in range(20):
                store.put_message(message(queue_id=number % 2))
            assert store.wait_until_dispatched(PATIENCE_S)
        assert sum(arrival.count for arrival in arrivals) == 20
        assert {arrival.queue_id: arrival.next_offset for arrival in arrivals} == {0: 10, 1: 10}


class TestGet:
    @pytest.fixture
    def filled(self, store: DefaultMessageStore) -> DefaultMessageStore:
        for number in range(50):
            store.put_message(message(b"%d" % number, tags=f"t{number % 2}", keys=f"k{number}"))
        assert store.wait_until_dispatched(PATIENCE_S)
        return store

    @pytest.mark.parametrize(
        ("topic", "offset", "status", "following"),
        [
            ("T", 0, "FOUND", 10),
            ("T", 45, "FOUND", 50),
            ("T", 50, "OFFSET_OVERFLOW_ONE", 50),
            ("T", 60, "OFFSET_OVERFLOW_BADLY", 50),
            ("T", -1, "OFFSET_TOO_SMALL", 0),
            ("nobody's", 3, "NO_MATCHED_LOGIC_QUEUE", 0),
        ],
    )
    def test_statuses(
        self, filled: DefaultMessageStore, topic: str, offset: int, status: str, following: int
    ) -> None:
        result = filled.get_message("g", topic, 0, offset, 10)
        assert (result.status.name, result.next_begin_offset) == (status, following)

    def test_a_filter_chooses(self, filled: DefaultMessageStore) -> None:
        result = filled.get_message("g", "T", 0, 0, 50, TagFilter("t1"))
        assert [m.body for m in result.messages()] == [b"%d" % n for n in range(1, 20, 2)]
        assert result.next_begin_offset == 20, "one queue file a call"
        nothing = filled.get_message("g", "T", 0, 0, 50, TagFilter("other"))
        assert (nothing.status, nothing.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 20)

    def test_a_unit_that_leads_elsewhere_is_damage(self, filled: DefaultMessageStore, tmp_path: Path) -> None:
        """The place of another message: it is never given out in the place of this one, which the log still has."""
        unit = filled.consume_queues.get("T", 0).get(1)
        path = tmp_path / "store" / "consumequeue" / "T" / "0" / f"{0:020d}"
        with path.open("r+b") as file:
            file.seek(2 * 20)
            file.write(unit.physical_offset.to_bytes(8, "big"))
        got = filled.get_message("g", "T", 0, 2, 1)
        assert [message.body for message in got.messages()] == [b"2"]
        assert (got.message_count, got.next_begin_offset, got.damaged) == (1, 3, [])
        assert filled.damage.counts() == [("pull", "T", 1)]
        assert filled.get_message("g", "T", 0, 3, 1).message_count == 1

    def test_by_place_and_key(self, filled: DefaultMessageStore) -> None:
        [found] = filled.query_message("T", "k7", 10).messages()
        assert found.body == b"7"
        assert filled.look_message_by_offset(found.physical_offset).body == b"7"
        assert filled.look_message_by_id(found.msg_id).body == b"7"
        with pytest.raises(OffsetOutOfRangeError):
            filled.look_message_by_offset(filled.max_phy_offset)


class TestAClockThatIsSetBack:
    """Nothing is lost or out of order; times that came once are found as always, and of those that came twice
    something that is there."""

    def test_offsets_by_time(self, tmp_path: Path) -> None:
        times = [*range(1000, 1200, 10), *range(1100, 1400, 10)]
        now = iter(times)
        current = 0

        def clock() -> int:
            return current

        with made(tmp_path, clock=clock) as store:
            for current in now:  # noqa: B007 - the clock shows it
                assert store.put_message(message(topic="T", queue_id=0)).is_ok
            assert store.wait_until_dispatched(PATIENCE_S)
            assert store.max_offset_in_queue("T", 0) == len(times)
            for at in range(950, 1450, 5):
                found = store.get_offset_in_queue_by_time("T", 0, at, BoundaryType.LOWER)
                if at <= 1100 or at > 1190:
                    assert found == sum(1 for each in times if each < at), at
                else:
                    assert 10 <= found <= 30, at
