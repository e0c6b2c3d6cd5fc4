from __future__ import annotations

import contextlib
import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mqlake.errors import ForeignFormatError, StoreCorruptError, StoreLockedError, WrongFileSizeError
from mqlake.formats.batch import encode_messages
from mqlake.formats.columns import Bytes
from mqlake.formats.record import decode_record
from mqlake.message import Message, MessageExtBatch, MessageExtBrokerInner, MessageSysFlag
from mqlake.store import recovery
from mqlake.store.check.repair import repair_store
from mqlake.store.check.verify import verify_store
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.store_lock import AbortFile, LastWriter, StoreLock
from mqlake.store.kept_copies import kept_copies, whole_records
from mqlake.store.log.log_end import SECTOR
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.queues.consume_queue import CqUnit
from mqlake.store.recovery import RecoveryReport
from tests.crash.op_log import Name, OpLog, Sync, Write
from tests.crash.power import Disk
from tests.golden import unpack
from tests.store.small_store import change, contents, flip, log_file, pretend_crash
from tests.waiting import PATIENCE_S

FILE_SIZE = 4096
SMALL = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 20,
    "maxIndexNum": 80,
    "diskMaxUsedSpaceRatio": 99,
    "cleanFileForciblyEnable": False,
}
T0 = 1_700_000_000_000


class Clock:
    """A second passes at each look."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        self.now += 1000
        return self.now


def config_of(root: Path, **settings: object) -> MessageStoreConfig:
    return MessageStoreConfig.from_mapping({**SMALL, **settings, "storePathRootDir": str(root)})


def filled(root: Path, bodies: list[bytes], **settings: object) -> list[int]:
    """A store with these messages, closed cleanly; their physical offsets and the end of the log."""
    store = DefaultMessageStore(config_of(root, **settings), clock_ms=Clock())
    store.load()
    store.start()
    offsets = []
    for number, body in enumerate(bodies):
        msg = MessageExtBrokerInner("T", body, keys=f"k{number}")
        offsets.append(store.put_message(msg).append_result.wrote_offset)
    end = store.max_phy_offset
    store.shutdown()
    return [*offsets, end]


def recovered(root: Path, **settings: object) -> tuple[RecoveryReport, list[bytes]]:
    """What recovery reports, and the bodies in queue T-0 then."""
    reports: list[RecoveryReport] = []
    with open_store(root, {**SMALL, **settings}, on_recovered=reports.append) as store:
        return reports[0], bodies_of(store)


def bodies_of(store: DefaultMessageStore, topic: str = "T") -> list[bytes]:
    found: list[bytes] = []
    at = store.min_offset_in_queue(topic, 0)
    while at < store.max_offset_in_queue(topic, 0):
        result = store.get_message("g", topic, 0, at, 32)
        assert result.next_begin_offset > at, result.status
        found += [message.body for message in result.messages()]
        at = result.next_begin_offset
    return found


def overwrite(root: Path, offset: int, data: bytes) -> None:
    with log_file(root, offset // FILE_SIZE).open("r+b") as file:
        file.seek(offset % FILE_SIZE)
        file.write(data)


def forget_flushes(root: Path) -> None:
    """As if nothing had been flushed: what comes behind a torn record then was promised to nobody."""
    checkpoint = StoreCheckpoint(str(root / "checkpoint"))
    checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = checkpoint.index_msg_timestamp = 0
    checkpoint.flush()
    checkpoint.close()


BODIES = [f"body {n} ".encode() * 20 for n in range(30)]


@pytest.fixture(params=["clean", "crash"])
def crashed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "crash")


class TestEnd:
    def test_of_a_whole_log(self, tmp_path: Path, crashed: bool) -> None:
        *_, end = filled(tmp_path, BODIES)
        if crashed:
            pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES
        assert report.clean_exit is not crashed
        assert (report.end_offset, report.torn_bytes, report.dropped_records) == (end, 0, 0)
        assert not report.lost_something

    def test_of_a_new_store(self, tmp_path: Path) -> None:
        report, bodies = recovered(tmp_path / "a" / "b")
        assert (report.clean_exit, report.end_offset, bodies) == (True, 0, [])
        assert dataclasses.replace(report, seconds=0.0) == RecoveryReport(True)
        assert report.describe() == "clean exit: 0 records checked from offset 0, the log ends at 0"

    def test_in_an_empty_last_file(self, tmp_path: Path, crashed: bool) -> None:
        """The file was made, the process died before it wrote to it."""
        *_, end = filled(tmp_path, BODIES)
        name = f"{end - end % FILE_SIZE + FILE_SIZE:020d}"
        (tmp_path / "commitlog" / name).write_bytes(bytes(FILE_SIZE))
        if crashed:
            pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert (report.end_offset, bodies) == (end, BODIES)

    def test_at_the_start_of_an_empty_last_file(self, tmp_path: Path, crashed: bool) -> None:
        """The process died between the blank and the first record of the next file."""
        *offsets, _ = filled(tmp_path, BODIES)
        first = next(n for n, offset in enumerate(offsets) if offset == FILE_SIZE)
        for path in (tmp_path / "commitlog").iterdir():
            if int(path.name) > FILE_SIZE:
                path.unlink()
        overwrite(tmp_path, FILE_SIZE, bytes(FILE_SIZE))
        for directory in ("consumequeue", "index"):
            shutil.rmtree(tmp_path / directory)
        forget_flushes(tmp_path)
        if crashed:
            pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert (report.end_offset, bodies) == (FILE_SIZE, BODIES[:first])
        with open_store(tmp_path, SMALL) as store:
            assert (
                store.put_message(MessageExtBrokerInner("T", b"next")).append_result.wrote_offset == FILE_SIZE
            )

    @pytest.mark.parametrize("size", [0, 1000])
    def test_before_a_file_that_was_not_allocated_to_its_end(self, tmp_path: Path, size: int) -> None:
        *_, end = filled(tmp_path, BODIES)
        left = tmp_path / "commitlog" / f"{end - end % FILE_SIZE + FILE_SIZE:020d}"
        left.write_bytes(bytes(size))
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert (report.end_offset, bodies) == (end, BODIES)
        assert not left.exists()


class TestTornTail:
    def test_is_cut_off_and_zeroed(self, tmp_path: Path) -> None:
        *offsets, end = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[-1] + 100, b"\xff")
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES[:-1]
        assert (report.end_offset, report.torn_reason) == (offsets[-1], "body CRC")
        assert report.torn_bytes == end - offsets[-1]
        assert not any(log_file(tmp_path, -1).read_bytes()[offsets[-1] % FILE_SIZE :])
        with open_store(tmp_path, SMALL) as store:
            result = store.put_message(MessageExtBrokerInner("T", b"next")).append_result
            assert (result.wrote_offset, result.logics_offset) == (offsets[-1], len(BODIES) - 1)

    def test_without_a_size_was_never_there(self, tmp_path: Path) -> None:
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[-1], bytes(4))
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES[:-1]
        assert report.torn_reason == "bytes of a record that was never finished"

    @pytest.mark.parametrize("lost", ["topic", "properties", "a middle part of the properties"])
    def test_that_lacks_a_sector_no_checksum_covers(self, tmp_path: Path, lost: str) -> None:
        """Written to the page cache as a whole, on disk in part: sizes, magic and body CRC are right."""
        store = DefaultMessageStore(config_of(tmp_path), clock_ms=Clock())
        store.load()
        store.start()
        store.put_message(MessageExtBrokerInner("T", b"whole"))
        start = store.max_phy_offset
        topic, value = "T" * 100, "" if lost == "topic" else "v" * (3 * SECTOR)
        # a sector begins five bytes into what is lost
        before = 89 if lost == "topic" else 89 + len(topic) + 2
        body = (bytes(range(1, 256)) * 8)[: (5 - start - before) % SECTOR + SECTOR - 10]
        msg = MessageExtBrokerInner(topic, body, properties={"name": value} if value else {})
        offset = store.put_message(msg).append_result.wrote_offset
        store.shutdown()
        at = offset + before + len(body) + (SECTOR if lost.startswith("a middle") else 0)
        sector = at + (-at) % SECTOR
        assert 0 < sector - at < 100
        overwrite(tmp_path, sector, bytes(SECTOR))
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == [b"whole"]
        assert (report.end_offset, report.torn_reason) == (
            offset,
            "a part of the record never reached the disk",
        )

    @pytest.mark.parametrize("properties", [{}, {"KEYS": "k1 k2"}], ids=["bare", "with properties"])
    def test_of_a_rocketmq_killed_within_an_append(self, tmp_path: Path, properties: dict[str, str]) -> None:
        """Its records are written from front to back, their sizes first."""
        root = tmp_path / "store"
        with open_store(root, SMALL) as store:
            store.put_message(MessageExtBrokerInner("T", b"whole"))
            start = store.max_phy_offset
            store.put_message(MessageExtBrokerInner("T", b"coming", properties=properties))
            end = store.max_phy_offset
        forget_flushes(root)
        pretend_crash(root)
        size = end - start
        for written in [*range(1, size - 40, 7), *range(size - 40, size + 1)]:
            copy = Path(shutil.copytree(root, tmp_path / str(written)))
            rest = log_file(copy).read_bytes()[start + written : end]
            overwrite(copy, start + written, bytes(len(rest)))
            report, bodies = recovered(copy)
            # what is still to come may be zeros that the record ends with
            is_whole = not any(rest)
            assert bodies == [b"whole", b"coming"][: 1 + is_whole]
            assert report.end_offset == (end if is_whole else start)

    def test_is_not_seen_in_zeros_that_were_put(self, tmp_path: Path) -> None:
        """Empty properties, zero lengths, a body of zeros, NUL in a value: a whole record for all that."""
        with open_store(tmp_path, SMALL) as store:
            for size in range(300, 340):
                store.put_message(MessageExtBrokerInner("T", bytes(size)))
            store.put_message(MessageExtBrokerInner("T", b"", properties={"a": "\0" * 40 + "z"}))
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert len(bodies) == 41
        assert report.torn_bytes == 0

    def test_leaves_a_word_about_messages_that_only_the_queues_know(self, tmp_path: Path) -> None:
        *offsets, end = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[-1], bytes(end - offsets[-1]))
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES[:-1]
        assert report.queues_reached == end and report.lost_something
        assert f"knew of messages up to offset {end}, which are gone" in report.describe()


class TestDamage:
    def test_before_flushed_messages_is_an_error_and_changes_nothing(
        self, tmp_path: Path, crashed: bool
    ) -> None:
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[-3] + 100, b"\xff")
        if crashed:
            pretend_crash(tmp_path)
        before = contents(tmp_path / "commitlog")
        for _ in range(2):
            with pytest.raises(StoreCorruptError, match="body CRC") as error:
                open_store(tmp_path, SMALL)
            assert error.value.offset == offsets[-3] % FILE_SIZE
            assert "mqlake store repair" in str(error.value)
        assert contents(tmp_path / "commitlog") == before

    def test_after_a_clean_exit_is_known_by_what_follows_it(self, tmp_path: Path) -> None:
        """Half messages are in no queue: the queues alone would let them go."""
        store = DefaultMessageStore(config_of(tmp_path), clock_ms=Clock())
        store.load()
        store.start()
        msg = MessageExtBrokerInner("T", b"half", sys_flag=MessageSysFlag.TRANSACTION_PREPARED_TYPE)
        first = store.put_message(msg).append_result.wrote_offset
        store.put_message(msg)
        store.shutdown()
        forget_flushes(tmp_path)
        flip(log_file(tmp_path), first + 89)
        with pytest.raises(StoreCorruptError, match="the last exit was clean, and whole messages follow"):
            open_store(tmp_path, SMALL)

    @pytest.mark.parametrize("flushed", [True, False])
    def test_that_no_power_cut_leaves_is_an_error(self, tmp_path: Path, flushed: bool) -> None:
        """A flipped bit: every sector of the record is there."""
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[20] + 100, b"\xff")
        if not flushed:
            forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        before = contents(tmp_path / "commitlog")
        evidence = "flushed messages follow" if flushed else "no sector between is missing"
        with pytest.raises(StoreCorruptError, match=f"body CRC; .*{evidence}") as error:
            open_store(tmp_path, SMALL)
        assert error.value.path == str(log_file(tmp_path, offsets[20] // FILE_SIZE))
        assert error.value.offset == offsets[20] % FILE_SIZE
        assert contents(tmp_path / "commitlog") == before

    def test_that_the_queues_of_sync_flush_contradict_is_an_error(self, tmp_path: Path) -> None:
        """They have a message after the hole, so all before it had been flushed."""
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[12], bytes(offsets[13] - offsets[12]))
        forget_flushes(tmp_path)
        AbortFile(str(tmp_path / "abort")).create(LastWriter("another boot", "1:1", "SYNC_FLUSH"))
        with pytest.raises(StoreCorruptError, match="the consume queues have messages from offset") as error:
            open_store(tmp_path, SMALL)
        assert error.value.offset == offsets[12] % FILE_SIZE


@pytest.fixture
def same_boot(tmp_path: Path) -> Callable[[], None]:
    """Makes the store look as a process leaves it that died while the machine went on."""

    def pretend() -> None:
        with StoreLock(str(tmp_path / "lock")) as lock:
            AbortFile(str(tmp_path / "abort")).create(LastWriter.now(lock, "ASYNC_FLUSH"))
        forget_flushes(tmp_path)

    return pretend


class TestMachineStayedUp:
    """A process that dies alone tears nothing, whatever had been flushed."""

    @pytest.mark.parametrize("number", [0, 12, 28, 29], ids=["first", "middle", "last but one", "last"])
    @pytest.mark.parametrize("damage", ["a bit", "zeros"])
    def test_a_record_that_is_no_longer_whole_is_damage(
        self, tmp_path: Path, same_boot: Callable[[], None], number: int, damage: str
    ) -> None:
        *offsets, end = filled(tmp_path, BODIES)
        at = offsets[number]
        if damage == "a bit":
            flip(log_file(tmp_path, at // FILE_SIZE), at % FILE_SIZE + 100)
        else:
            overwrite(tmp_path, at + 4, bytes((*offsets, end)[number + 1] - at - 4))
        same_boot()
        before = contents(tmp_path / "commitlog")
        with pytest.raises(StoreCorruptError, match="mqlake store repair") as error:
            open_store(tmp_path, SMALL)
        assert error.value.path == str(log_file(tmp_path, at // FILE_SIZE))
        assert error.value.offset == at % FILE_SIZE
        assert "the machine has been up since" in str(error.value) or (number, damage) == (0, "zeros")
        assert contents(tmp_path / "commitlog") == before
        repair_store(tmp_path, SMALL, accept_loss=number == len(BODIES) - 1)
        _, bodies = recovered(tmp_path)
        assert bodies == BODIES[:number] + BODIES[number + 1 :]

    def test_a_copy_of_the_store_may_be_torn(self, tmp_path: Path, same_boot: Callable[[], None]) -> None:
        """Of a snapshot, say, which is like a power cut: the lock file is another one."""
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[12], bytes(offsets[13] - offsets[12]))
        same_boot()
        with pytest.raises(StoreCorruptError):
            open_store(tmp_path, SMALL)
        copy = tmp_path.with_name("copy")
        shutil.copytree(tmp_path, copy)
        report, bodies = recovered(copy)
        assert bodies == BODIES[:12] + BODIES[13:]
        assert len(report.fences) == 1

    def test_an_append_that_was_interrupted_is_none(
        self, tmp_path: Path, same_boot: Callable[[], None]
    ) -> None:
        """Many messages put at once: the first one's size comes last of all."""
        root = tmp_path
        first = append_batch(root, 5)
        overwrite(root, first, bytes(4))
        shutil.rmtree(root / "consumequeue")
        same_boot()
        report, bodies = recovered(root)
        assert bodies == [b"before"]
        assert (report.end_offset, report.dropped_records, report.lost_something) == (first, 4, True)
        [copy] = kept_copies(str(root))
        assert copy.physical_offset == first
        assert sum(len(scan) for scan in whole_records(Path(copy.path).read_bytes(), first)) == 4

    @pytest.mark.parametrize("sized", [False, True])
    def test_records_behind_an_append_of_another_thread(
        self, tmp_path: Path, same_boot: Callable[[], None], sized: bool
    ) -> None:
        """Two threads write at once, and the process dies: had the second one's records their sizes before the first
        one's were visible, this would be damage."""
        first, starts = append_batch(tmp_path, 6), []
        log = log_file(tmp_path, 0).read_bytes()
        at = first
        while size := int.from_bytes(log[at : at + 4], "big"):
            starts.append(at)
            at += size
        for number, start in enumerate(starts):
            if number < 3 or not sized:
                overwrite(tmp_path, start, bytes(4))
        overwrite(
            tmp_path, starts[1] + 30, bytes(starts[3] - starts[1] - 30)
        )  # what the first one had not written
        shutil.rmtree(tmp_path / "consumequeue")
        same_boot()
        if sized:
            with pytest.raises(StoreCorruptError, match="the machine has been up since"):
                open_store(tmp_path, SMALL)
            return
        report, bodies = recovered(tmp_path)
        assert bodies == [b"before"]
        assert (report.end_offset, report.fences) == (first, [])

    def test_a_record_that_a_queue_knows_gets_its_size_again(
        self, tmp_path: Path, same_boot: Callable[[], None]
    ) -> None:
        first = append_batch(tmp_path, 5)
        overwrite(tmp_path, first, bytes(4))
        same_boot()
        before = contents(tmp_path / "consumequeue")
        report, bodies = recovered(tmp_path)
        assert bodies == [b"before", *(b"%d" % number for number in range(5))]
        assert (report.torn_bytes, report.dropped_records, report.fences) == (0, 0, [])
        assert contents(tmp_path / "consumequeue") == before


def append_batch(root: Path, count: int) -> int:
    """A message "before" and a batch; the batch's physical offset."""
    with open_store(root, SMALL) as store:
        store.put_message(MessageExtBrokerInner("T", b"before"))
        blob = encode_messages([Message("T", b"%d" % number) for number in range(count)])
        result = store.put_messages(MessageExtBatch("T", blob)).append_result
        assert result is not None
        return result.wrote_offset


class TestHoles:
    """What a power cut leaves in what had not been flushed: whole records after a hole are kept, in their places."""

    @pytest.mark.parametrize(
        "lost",
        [[12], [0, 1], [3, 12, 13, 27], [11, 12, 13, 14, 15], range(10, 25), [7], [8]],
        ids=lambda lost: "-".join(map(str, lost)),
    )
    def test_are_fenced_off(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: Sequence[int]
    ) -> None:
        *offsets, end = filled(tmp_path, BODIES)
        places = dict(enumerate([*offsets, end]))
        for number in lost:
            size = places[number + 1] - places[number]
            overwrite(tmp_path, offsets[number], bytes(min(size, FILE_SIZE - offsets[number] % FILE_SIZE)))
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == [body for number, body in enumerate(BODIES) if number not in lost]
        assert report.end_offset == end
        assert report.salvaged_records == len(BODIES) - lost[0] - len(lost)
        assert [start for start, _, _ in report.fences] == [
            offsets[number] for number in lost if number - 1 not in lost or offsets[number] % FILE_SIZE == 0
        ]
        [warning] = [r for r in caplog.records if "fenced off" in r.getMessage()]
        assert warning.levelname == "WARNING"
        assert f"bytes at {offsets[lost[0]]}" in warning.getMessage()
        again, bodies_again = recovered(tmp_path)
        assert bodies_again == bodies
        assert (again.clean_exit, again.torn_bytes, again.fences) == (True, 0, [])
        assert verify_store(tmp_path, SMALL).damage_count == 0

    @pytest.mark.parametrize("indexed", [True, False])
    def test_with_and_without_an_index(self, tmp_path: Path, indexed: bool) -> None:
        """The index had entries for what the hole took: it is made again, where there is one."""
        settings = {"messageIndexEnable": str(indexed).lower()}
        *offsets, _ = filled(tmp_path, BODIES, **settings)
        overwrite(tmp_path, offsets[12], bytes(offsets[13] - offsets[12]))
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        reports: list[RecoveryReport] = []
        with open_store(tmp_path, {**SMALL, **settings}, on_recovered=reports.append) as store:
            assert bodies_of(store) == BODIES[:12] + BODIES[13:]
            found = [bool(store.query_message("T", f"k{n}", 1).buffers) for n in (11, 12, 13, 29)]
        assert found == ([True, False, True, True] if indexed else [False] * 4)
        assert reports[0].records_indexed_again_from == (0 if indexed else None)
        assert ("the index was rebuilt" in reports[0].describe()) == indexed

    def test_what_was_in_them_is_kept(self, tmp_path: Path) -> None:
        *offsets, _ = filled(tmp_path, BODIES)
        half = offsets[12] + 100
        overwrite(tmp_path, half, bytes(offsets[13] - half))
        before = log_file(tmp_path, offsets[12] // FILE_SIZE).read_bytes()
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES[:12] + BODIES[13:]
        [copy] = kept_copies(str(tmp_path))
        assert [copy.path] == report.dropped_copies
        assert copy.physical_offset == offsets[12]
        position = offsets[12] % FILE_SIZE
        assert Path(copy.path).read_bytes() == before[position : half % FILE_SIZE]

    def test_before_a_torn_tail(self, tmp_path: Path) -> None:
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[12], bytes(offsets[13] - offsets[12]))
        overwrite(tmp_path, offsets[-1] + 100, b"\xff")
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES[:12] + BODIES[13:-1]
        assert report.end_offset == offsets[-1]
        assert report.torn_bytes > 0

    def test_with_damage_after_them_change_nothing(self, tmp_path: Path) -> None:
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[12], bytes(offsets[13] - offsets[12]))
        overwrite(tmp_path, offsets[20] + 100, b"\xff")
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        before = contents(tmp_path / "commitlog")
        with pytest.raises(StoreCorruptError) as error:
            open_store(tmp_path, SMALL)
        assert error.value.offset == offsets[20] % FILE_SIZE
        assert contents(tmp_path / "commitlog") == before

    def test_messages_of_the_millisecond_flushed_last_are_not_known_to_be_flushed(
        self, tmp_path: Path
    ) -> None:
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[-2], bytes(offsets[-1] - offsets[-2]))
        pretend_crash(tmp_path)
        checkpoint = StoreCheckpoint(str(tmp_path / "checkpoint"))
        store_time = decode_record(
            log_file(tmp_path, -1).read_bytes(), offsets[-1] % FILE_SIZE
        ).store_timestamp
        assert checkpoint.physic_msg_timestamp == store_time
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES[:-2] + BODIES[-1:]
        assert report.salvaged_records == 1


class TestPowerCutAfterRecovery:
    """What a recovery has shown is there after a power cut at any later moment, also when the process that died had
    left all of it in the page cache."""

    @pytest.mark.parametrize("how", ["whole", "torn", "holes", "without queues"])
    def test_nothing_of_it_is_lost(self, tmp_path: Path, how: str) -> None:
        root = tmp_path / "store"
        *offsets, _ = filled(root, BODIES)
        if how == "torn":
            overwrite(root, offsets[-2] + 100, bytes(200))
        elif how == "holes":
            overwrite(root, offsets[12], bytes(offsets[13] - offsets[12]))
        elif how == "without queues":
            shutil.rmtree(root / "consumequeue")
        if how != "without queues":
            forget_flushes(root)
        pretend_crash(root)
        dice = random.Random(how)
        with Disk(root, contents_are_safe=False) as disk:
            store = DefaultMessageStore(config_of(root))
            report = store.load()
            shown = bodies_of(store)
            targets = [tmp_path / f"cut-{number}" for number in range(12)]
            for target in targets:
                disk.cut(target, dice)
            store.shutdown()
        assert shown
        for target in targets:
            after, bodies = recovered(target)
            assert bodies == shown
            assert after.end_offset == report.end_offset

    @pytest.mark.parametrize("how", ["torn", "holes"])
    def test_nothing_of_it_comes_back_under_later_messages(self, tmp_path: Path, how: str) -> None:
        """Neither the garbage of a torn tail nor a hole, in a file before those that are flushed next."""
        root = tmp_path / "store"
        *offsets, end = filled(root, BODIES)
        if how == "torn":
            garbage = offsets[-5] + 4
            overwrite(root, garbage, b"\xee" * (FILE_SIZE - garbage % FILE_SIZE))
            kept, end = BODIES[:-5], offsets[-5]
        else:
            overwrite(root, offsets[12], bytes(offsets[13] - offsets[12]))
            kept = BODIES[:12] + BODIES[13:]
        forget_flushes(root)
        pretend_crash(root)
        dice = random.Random(how)
        lazy = {"flushIntervalCommitLog": 60_000, "flushCommitLogThoroughInterval": 60_000}
        targets = [tmp_path / f"cut-{number}" for number in range(12)]
        with Disk(root) as disk, open_store(root, {**SMALL, **lazy}) as store:
            if how == "holes":
                store.put_message(MessageExtBrokerInner("T", b"flushed"))
                store.flush()
                store._checkpoint.flush()
            for _ in range(12):
                store.put_message(MessageExtBrokerInner("T", b"\xff" * 150))
            for target in targets:
                disk.cut(target, dice)
        for target in targets:
            report, bodies = recovered(target)
            assert bodies[: len(kept)] == kept
            assert set(bodies[len(kept) :]) <= {b"flushed", b"\xff" * 150}
            assert report.end_offset >= end

    def test_queues_that_the_checkpoint_calls_flushed_are(self, tmp_path: Path) -> None:
        """Units that a recovery made again are older than what the checkpoint says was flushed: no later recovery
        looks for them in the log."""
        root = tmp_path / "store"
        filled(root, BODIES)
        units = sorted((root / "consumequeue" / "T" / "0").iterdir())[0]
        whole = units.read_bytes()
        units.write_bytes(bytes(len(whole)))
        pretend_crash(root)
        with Disk(root) as disk:
            store = DefaultMessageStore(config_of(root))
            store.load()
            targets = [tmp_path / f"cut-{number}" for number in range(8)]
            dice = random.Random(1)
            for target in targets:
                disk.cut(target, dice)
            store.shutdown()
        for target in targets:
            assert (target / units.relative_to(root)).read_bytes() == whole


class TestDamageAtTheStart:
    @pytest.mark.parametrize("magic", [b"\x12\x34\x56\x78", b"\x12\0\0\0", b"\0\0\0\x12"])
    def test_at_the_very_start_may_be_another_format(self, tmp_path: Path, magic: bytes) -> None:
        filled(tmp_path, BODIES[:1])
        overwrite(tmp_path, 4, magic)
        pretend_crash(tmp_path)
        with pytest.raises(ForeignFormatError, match="does not begin with a RocketMQ record"):
            open_store(tmp_path, SMALL)

    def test_at_the_very_start_of_a_store_with_other_messages(self, tmp_path: Path) -> None:
        _, second, *_ = filled(tmp_path, BODIES)
        overwrite(tmp_path, 4, b"\x12\x34\x56\x78")
        pretend_crash(tmp_path)
        with pytest.raises(
            StoreCorruptError, match=f"whole messages follow at offset {second}; .*repair"
        ) as error:
            open_store(tmp_path, SMALL)
        assert (error.value.path, error.value.offset) == (str(log_file(tmp_path)), 0)

    def test_shifts_all_of_the_first_file(self, tmp_path: Path) -> None:
        """No record of the first file is at its place any more; a later file shows whose store it is."""
        filled(tmp_path, BODIES)
        first, second, *_ = sorted((tmp_path / "commitlog").iterdir())
        content = first.read_bytes()
        first.write_bytes((b"garbage" + content)[: len(content)])
        pretend_crash(tmp_path)
        with pytest.raises(
            StoreCorruptError, match=f"whole messages follow at offset {int(second.name)}; .*repair"
        ):
            open_store(tmp_path, SMALL)

    def test_leaves_the_lock_free(self, tmp_path: Path) -> None:
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[-3] + 100, b"\xff")
        with pytest.raises(StoreCorruptError):
            open_store(tmp_path, SMALL)
        overwrite(tmp_path, offsets[-3] + 100, BODIES[-3][100 - 88 : 101 - 88])
        _, bodies = recovered(tmp_path)
        assert bodies == BODIES


class TestRefused:
    """A start that is refused is no start: nothing on the disk is another than before."""

    @pytest.mark.parametrize("derived", ["whole", "behind", "gone"])
    def test_leaves_every_file_as_it_was(self, tmp_path: Path, crashed: bool, derived: str) -> None:
        *offsets, _ = filled(tmp_path, BODIES, enableConsumeQueueExt=True)
        overwrite(tmp_path, offsets[-3] + 100, b"\xff")
        if crashed:
            pretend_crash(tmp_path)
        if derived == "behind":
            for place in ("consumequeue", "consumequeue_ext"):
                *_, newest = sorted((tmp_path / place / "T" / "0").iterdir())
                newest.write_bytes(bytes(newest.stat().st_size))
        elif derived == "gone":
            for place in ("consumequeue", "consumequeue_ext", "index"):
                shutil.rmtree(tmp_path / place)
            (tmp_path / "checkpoint").unlink()
        before, made = contents(tmp_path), sorted(tmp_path.rglob("*"))
        with pytest.raises(StoreCorruptError):
            open_store(tmp_path, {**SMALL, "enableConsumeQueueExt": True})
        assert contents(tmp_path) == before
        assert sorted(tmp_path.rglob("*")) == made

    def test_leaves_the_files_of_a_queue_with_a_damaged_end(self, tmp_path: Path) -> None:
        """Its last file would be deleted, and what follows the last good unit zeroed."""
        *offsets, _ = filled(tmp_path, BODIES)
        queue = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())
        change(queue[0], 15 * 20, bytes(20))
        overwrite(tmp_path, offsets[20] + 100, b"\xff")
        pretend_crash(tmp_path)
        before = contents(tmp_path)
        with pytest.raises(StoreCorruptError):
            open_store(tmp_path, SMALL)
        assert contents(tmp_path) == before

    def test_by_an_index_of_another_size(self, tmp_path: Path, crashed: bool) -> None:
        filled(tmp_path, BODIES)
        if crashed:
            pretend_crash(tmp_path)
        shutil.rmtree(tmp_path / "consumequeue")
        before, made = contents(tmp_path), sorted(tmp_path.rglob("*"))
        with pytest.raises(WrongFileSizeError, match="maxIndexNum"):
            open_store(tmp_path, {**SMALL, "maxIndexNum": 90})
        assert contents(tmp_path) == before
        assert sorted(tmp_path.rglob("*")) == made


class TestLeftovers:
    def test_of_another_place_are_no_messages(self, tmp_path: Path) -> None:
        """Whole records, right in all but the place: RocketMQ takes them for the log's end."""
        *offsets, end = filled(tmp_path, BODIES)
        stale = log_file(tmp_path).read_bytes()[offsets[2] : offsets[3]]
        overwrite(tmp_path, end, stale)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES
        assert (report.end_offset, report.torn_bytes) == (end, len(stale))
        assert report.torn_reason == f"physical offset {offsets[2]} where {end} was expected"

    def test_that_are_older_than_the_end_do_not_make_it_corrupt(self, tmp_path: Path) -> None:
        """A record of an earlier life, at its own place, behind zeros."""
        *offsets, end = filled(tmp_path, BODIES)
        with log_file(tmp_path, -1).open("rb") as file:
            file.seek(offsets[-1] % FILE_SIZE)
            record = bytearray(file.read(end - offsets[-1]))
        at = end + 64
        record[28:36] = at.to_bytes(8, "big")
        record[56:64] = T0.to_bytes(8, "big")
        overwrite(tmp_path, at, record)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES
        assert (report.end_offset, report.dropped_records) == (end, 1)


class TestDerived:
    def test_queues_and_index_that_are_gone_are_made_again(self, tmp_path: Path) -> None:
        filled(tmp_path, BODIES)
        before = contents(tmp_path / "consumequeue")
        shutil.rmtree(tmp_path / "consumequeue")
        shutil.rmtree(tmp_path / "index")
        with open_store(tmp_path, SMALL) as store:
            assert bodies_of(store) == BODIES
            for number, body in enumerate(BODIES):
                assert [m.body for m in store.query_message("T", f"k{number}", 8).messages()] == [body]
        assert contents(tmp_path / "consumequeue") == before

    def test_units_that_a_power_cut_took_are_filled_in(self, tmp_path: Path) -> None:
        filled(tmp_path, BODIES)
        before = contents(tmp_path / "consumequeue")
        queue = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())[0]
        with queue.open("r+b") as file:
            file.seek(5 * 20)
            file.write(bytes(7 * 20))
        pretend_crash(tmp_path)
        _, bodies = recovered(tmp_path)
        assert bodies == BODIES
        assert contents(tmp_path / "consumequeue") == before

    @pytest.mark.parametrize("lost", ["file", "units"])
    def test_a_gap_in_a_queue_whose_end_is_there_is_filled_in(
        self, tmp_path: Path, lost: str, crashed: bool
    ) -> None:
        bodies = [b"body %d" % n for n in range(70)]
        filled(tmp_path, bodies)
        before = contents(tmp_path / "consumequeue")
        middle = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())[1]
        if lost == "file":
            middle.unlink()
        else:
            middle.write_bytes(bytes(middle.stat().st_size))
        if crashed:
            pretend_crash(tmp_path)
        _, found = recovered(tmp_path)
        assert found == bodies
        assert contents(tmp_path / "consumequeue") == before

    def test_a_file_lost_from_between_two_of_a_batch_queue_is_filled_in(
        self, tmp_path: Path, crashed: bool
    ) -> None:
        bodies = [b"body %d" % n for n in range(70)]
        config = config_of(tmp_path, mapperFileSizeBatchConsumeQueue=1150)

        @contextlib.contextmanager
        def opened() -> Iterator[DefaultMessageStore]:
            store = DefaultMessageStore(config, is_batch_topic=lambda _: True)
            store.load_and_start()
            with store:
                yield store

        with opened() as store:
            for body in bodies:
                assert store.put_message(MessageExtBrokerInner("T", body)).is_ok
        before = contents(tmp_path / "batchconsumequeue")
        sorted((tmp_path / "batchconsumequeue" / "T" / "0").iterdir())[1].unlink()
        if crashed:
            pretend_crash(tmp_path)
        with opened() as store:
            assert bodies_of(store) == bodies
        assert contents(tmp_path / "batchconsumequeue") == before

    def test_a_file_lost_from_between_two_of_an_extension_is_filled_in(
        self, tmp_path: Path, crashed: bool
    ) -> None:
        settings = {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 1024}
        bodies = [b"body %d" % n for n in range(170)]
        filled(tmp_path, bodies, **settings)

        def units() -> list[CqUnit | None]:
            with open_store(tmp_path, {**SMALL, **settings}) as store:
                queue = store.consume_queues.get("T", 0)
                assert queue is not None
                return [queue.get(offset) for offset in range(len(bodies))]

        before = units()
        sorted((tmp_path / "consumequeue_ext" / "T" / "0").iterdir())[1].unlink()
        if crashed:
            pretend_crash(tmp_path)
        assert units() == before
        assert recovered(tmp_path, **settings)[1] == bodies

    def test_an_index_whose_header_is_nonsense_is_made_again(self, tmp_path: Path, crashed: bool) -> None:
        filled(tmp_path, BODIES)
        index = next((tmp_path / "index").iterdir())
        flip(index, 36, 6)
        if crashed:
            pretend_crash(tmp_path)
        with open_store(tmp_path, SMALL) as store:
            assert [m.body for m in store.query_message("T", "k3", 8).messages()] == [BODIES[3]]


class TestJavaStores:
    def test_killed(self, tmp_path: Path) -> None:
        golden = unpack("killed", tmp_path)
        with open_store(golden.root, golden.config) as store:
            for record in golden.expected["records"]:
                message = store.look_message_by_offset(record["physicalOffset"])
                assert message.queue_offset == record["queueOffset"]
            for queue in golden.expected["queues"]:
                assert store.max_offset_in_queue(queue["topic"], queue["queue_id"]) == queue["max_offset"]
            assert store.put_message(MessageExtBrokerInner("T", b"next")).is_ok

    def test_clean(self, tmp_path: Path) -> None:
        golden = unpack("rolled", tmp_path)
        reports: list[RecoveryReport] = []
        with open_store(golden.root, golden.config, on_recovered=reports.append) as store:
            last = golden.expected["records"][-1]
            assert reports[0].clean_exit
            assert reports[0].torn_bytes == 0
            assert reports[0].end_offset == last["physicalOffset"] + last["size"] == store.max_phy_offset


def test_a_store_in_use_is_not_recovered(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    with open_store(tmp_path, SMALL) as store:
        store.put_message(MessageExtBrokerInner("T", b"more"))
        assert store.wait_until_dispatched(PATIENCE_S)
        before = contents(tmp_path)
        with pytest.raises(StoreLockedError):
            open_store(tmp_path, SMALL)
        assert {name: data for name, data in contents(tmp_path).items() if "checkpoint" not in name} == {
            name: data for name, data in before.items() if "checkpoint" not in name
        }


KEPT_BYTES = 28 + 20
"""What is kept of a record with one key."""


@pytest.mark.parametrize("kept", [0, 12, len(BODIES)])
def test_progress_is_told_and_only_what_was_not_kept_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """First of the look at the log, then of the dispatch of what it did not keep."""
    *offsets, end = filled(tmp_path, BODIES)
    shutil.rmtree(tmp_path / "consumequeue")
    forget_flushes(tmp_path)
    pretend_crash(tmp_path)
    monkeypatch.setattr(recovery, "KEPT_BYTES_MAX", kept * KEPT_BYTES)
    told: list[tuple[int, int]] = []
    read: list[int] = []
    whole = MappedFile.read_into

    def read_into(file: MappedFile, buffer: Bytes, position: int, size: int) -> Bytes:
        read.append(file.file_from_offset)
        return whole(file, buffer, position, size)

    monkeypatch.setattr(MappedFile, "read_into", read_into)
    with open_store(tmp_path, SMALL, progress=lambda done, total: told.append((done, total))) as store:
        assert bodies_of(store) == BODIES
    files = sorted(int(path.name) for path in (tmp_path / "commitlog").iterdir())
    ends = [*files[1:], end] if end < files[-1] + FILE_SIZE else files[1:]
    ends = [each for each in ends if each <= end]
    total = len(files) * FILE_SIZE
    read_again = [each for each in ends if sum(offset < each for offset in offsets) > kept]
    assert told == [(each, 2 * total) for each in ends] + [(total + each, 2 * total) for each in read_again]
    for base, stop in zip(files, ends, strict=False):
        assert read.count(base) == 1 + (stop in read_again)


class TestReport:
    """What a recovery says of itself."""

    def test_what_is_a_loss(self) -> None:
        whole = RecoveryReport(False, end_offset=100, queues_reached=100)
        assert not whole.lost_something
        for lost in (
            {"fences": [(5, 6, "?")]},
            {"dropped_records": 1},
            {"queues_reached": 101},
            {"torn_bytes": 1, "torn_reason": "body CRC"},
        ):
            assert dataclasses.replace(whole, **lost).lost_something  # type: ignore[arg-type]
        unfinished = dataclasses.replace(whole, torn_bytes=9, torn_reason=recovery.NEVER_FINISHED)
        assert not unfinished.lost_something

    def test_its_words(self) -> None:
        report = RecoveryReport(False, scanned_from=5, end_offset=100, records_scanned=7)
        start = "no clean exit: 7 records checked from offset 5, the log ends at 100"
        assert report.describe() == start
        many = [(number, 10, "gone") for number in range(12)]
        for fields, words in (
            ({"torn_bytes": 9, "torn_reason": "cut"}, "; a torn tail of 9 bytes was cut off (cut)"),
            ({"queues_reached": 100}, ""),
            (
                {"queues_reached": 101},
                "; the consume queues knew of messages up to offset 101, which are gone",
            ),
            ({"records_indexed_again_from": 0}, "; the index was rebuilt from offset 0"),
            (
                {"dropped_records": 3, "dropped_copies": ["a", "b", "c"]},
                (
                    "; 3 whole records in it, of an append that never finished or older than the log's last, "
                    "are kept in c; `mqlake store dropped` lists them"
                ),
            ),
            (
                {"fences": many[:2], "salvaged_records": 4},
                (
                    "; 2 holes in what had not been flushed were fenced off: 10 bytes at 0 (gone), 10 bytes at 1 "
                    "(gone); the 4 whole records after the first were kept"
                ),
            ),
        ):
            assert dataclasses.replace(report, **fields).describe() == start + words  # type: ignore[arg-type]
        for count, more in ((10, "; the"), (11, " and 1 more; the"), (12, " and 2 more; the")):
            text = dataclasses.replace(report, fences=many[:count]).describe()
            assert f"10 bytes at 9 (gone){more} 0 whole records" in text
            assert "10 bytes at 10" not in text


class TestIndexAgain:
    def test_entries_that_a_power_cut_took_before_where_the_scan_begins(self, tmp_path: Path) -> None:
        """Log and queues were flushed, the index was not: its file goes, and the log is read for it from the start."""
        *offsets, _ = filled(tmp_path, BODIES)
        pretend_crash(tmp_path)
        checkpoint = StoreCheckpoint(str(tmp_path / "checkpoint"))
        checkpoint.index_msg_timestamp = 0
        checkpoint.flush()
        checkpoint.close()
        reports: list[RecoveryReport] = []
        with open_store(tmp_path, SMALL, on_recovered=reports.append) as store:
            found = [[m.body for m in store.query_message("T", f"k{n}", 8).messages()] for n in range(30)]
        assert found == [[body] for body in BODIES]
        assert reports[0].records_indexed_again_from == 0 < reports[0].scanned_from < offsets[-1]

    @pytest.mark.parametrize("lost", ["nothing", "queues", "a part of a queue"])
    def test_what_the_checkpoint_says_of_the_queues_is_true_again(
        self, tmp_path: Path, lost: str, crashed: bool
    ) -> None:
        filled(tmp_path, BODIES)
        if lost == "queues":
            shutil.rmtree(tmp_path / "consumequeue")
        elif lost == "a part of a queue":
            sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())[0].unlink()
        if crashed:
            pretend_crash(tmp_path)
        before = StoreCheckpoint(str(tmp_path / "checkpoint")).logics_msg_timestamp
        store = DefaultMessageStore(config_of(tmp_path))
        store.load()
        try:
            assert StoreCheckpoint(str(tmp_path / "checkpoint")).logics_msg_timestamp == before > 0
        finally:
            store.shutdown()

    def test_entries_of_records_that_are_gone(self, tmp_path: Path) -> None:
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[-1] + 100, b"\xff")
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES[:-1] and report.records_indexed_again_from == 0
        assert verify_store(tmp_path, SMALL).damage_count == 0


def test_the_last_file_gets_its_space(tmp_path: Path) -> None:
    """It may be sparse, as Java makes it, or as a copy has it: else a full disk would end the process in a put."""
    size = 1 << 20
    filled(tmp_path, BODIES, mappedFileSizeCommitLog=size)
    last = log_file(tmp_path)
    data = last.read_bytes().rstrip(b"\0")
    last.unlink()
    with last.open("wb") as file:
        file.write(data)
        file.truncate(size)
    assert last.stat().st_blocks * 512 < size
    pretend_crash(tmp_path)
    with open_store(tmp_path, {**SMALL, "mappedFileSizeCommitLog": size}):
        assert last.stat().st_blocks * 512 >= size


def test_progress_of_a_log_that_was_cleaned_ends_where_its_total_says(tmp_path: Path) -> None:
    """A queue lacks a file, so the log is dispatched again, from its beginning, which is not 0."""
    filled(tmp_path, BODIES * 3)
    log_file(tmp_path, 0).unlink()
    sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())[-2].unlink()
    pretend_crash(tmp_path)
    told: list[tuple[int, int]] = []
    with open_store(tmp_path, SMALL, progress=lambda done, total: told.append((done, total))):
        pass
    assert all(0 <= done <= total for done, total in told)
    assert told[-1][0] == told[-1][1]


class TestWhatOthersSayOfTheLog:
    """The names of its files, its queues and the checkpoint; more in test_misnamed, test_recovery_places and
    test_lost_end."""

    @pytest.mark.parametrize("head", ["whole", "damaged"])
    def test_a_file_under_the_name_of_an_empty_one(self, tmp_path: Path, head: str) -> None:
        *_, end = filled(tmp_path, BODIES * 3)
        first, second = log_file(tmp_path, 0), log_file(tmp_path, 1)
        empty = tmp_path / "commitlog" / f"{end - end % FILE_SIZE + FILE_SIZE:020d}"
        second.rename(empty)
        second.write_bytes(bytes(FILE_SIZE))
        at = 0
        if head == "damaged":
            at = int.from_bytes(empty.read_bytes()[:4], "big")
            change(empty, 0, b"\xff" * at)
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        with pytest.raises(StoreCorruptError, match=f"belongs to the file {second.name}") as error:
            open_store(tmp_path, SMALL)
        assert (error.value.path, error.value.offset) == (str(empty), at)
        assert first.exists()

    def test_a_record_that_its_unit_contradicts(self, tmp_path: Path) -> None:
        with open_store(tmp_path, SMALL) as store:
            places = [
                store.put_message(MessageExtBrokerInner("T", b"body", queue_id=n % 2)).append_result
                for n in range(8)
            ]
        at = places[4].wrote_offset  # of queue 0; the message after it is in the log
        change(log_file(tmp_path), at + 12, (1).to_bytes(4, "big"))
        pretend_crash(tmp_path)
        with pytest.raises(StoreCorruptError, match="QUEUEID of the record is wrong") as error:
            open_store(tmp_path, SMALL)
        assert error.value.offset == at

    @pytest.mark.parametrize("queues", ["there", "gone"])
    def test_a_log_without_files(self, tmp_path: Path, crashed: bool, queues: str) -> None:
        """With queues it is missing; without them too it is begun anew."""
        filled(tmp_path, BODIES)
        shutil.rmtree(tmp_path / "commitlog")
        if queues == "gone":
            shutil.rmtree(tmp_path / "consumequeue")
        if crashed:
            pretend_crash(tmp_path)
        if queues == "there":
            with pytest.raises(StoreCorruptError, match="no log; messages are gone"):
                open_store(tmp_path, SMALL)
        else:
            assert recovered(tmp_path)[1] == []


class TestTheIndexOfALogThatLostSomething:
    """Its entries cannot be taken out one by one: what leads to records that are gone goes with all the others."""

    def test_at_its_end(self, tmp_path: Path) -> None:
        filled(tmp_path, BODIES * 3)
        path = log_file(tmp_path, -1)
        path.write_bytes(bytes(path.stat().st_size))
        with open_store(tmp_path, SMALL, accept_loss=True) as store:
            assert store.max_phy_offset == int(path.name)
        report = verify_store(tmp_path, SMALL)
        assert report.ok, [str(each) for each in report.findings]

    def test_in_its_middle(self, tmp_path: Path) -> None:
        offsets = filled(tmp_path, BODIES * 3)
        overwrite(tmp_path, offsets[40], bytes(offsets[41] - offsets[40]))
        checkpoint = StoreCheckpoint(str(tmp_path / "checkpoint"))
        checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = 0  # and the index is on the disk
        checkpoint.flush()
        checkpoint.close()
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert len(report.fences) == 1 and len(bodies) == 3 * len(BODIES) - 1
        found = verify_store(tmp_path, SMALL)
        assert found.ok, [str(each) for each in found.findings]


def test_a_damaged_end_of_a_queue_whose_other_messages_have_expired(tmp_path: Path) -> None:
    """What the queue lacks begins before the log does."""
    with open_store(tmp_path, SMALL) as store:
        store.put_message(MessageExtBrokerInner("U", b"old"))
        for body in BODIES * 2:
            store.put_message(MessageExtBrokerInner("T", body))
        store.put_message(MessageExtBrokerInner("U", b"new"))
    log_file(tmp_path, 0).unlink()
    flip(tmp_path / "consumequeue" / "U" / "0" / ("0" * 20), 20 + 11, 3)  # the size in its second unit
    with open_store(tmp_path, SMALL) as store:
        result = store.get_message("g", "U", 0, 1, 1)
        assert [message.body for message in result.messages()] == [b"new"]


class Durable:
    """What a recovery brings to the disk, in its order."""

    def __init__(self, root: Path, log: OpLog) -> None:
        paths = {inode: path for path, (inode, _) in log.start.names.items() if inode is not None}
        self.ops: list[tuple[str, str, bytes]] = []
        for op in log.ops:
            if isinstance(op, Name):
                what, path, inode, more = op.change
                paths |= {} if inode is None else {inode: path}
                target = str(more) if what == "replace" else path
                self.ops.append((what, target, b""))
            elif isinstance(op, Write):
                self.ops.append(("write", paths.get(op.file, ""), op.data))
            elif isinstance(op, Sync):
                self.ops.append(("sync", op.path, b""))

    def first(self, what: str, path: str) -> int:
        return next(n for n, (kind, at, _) in enumerate(self.ops) if kind == what and at.startswith(path))

    def checkpoints(self) -> list[tuple[int, int]]:
        """(Place in the order, logicsMsgTimestamp) of each write of the checkpoint that was synced after."""
        found = [
            (n, int.from_bytes(data[8:16], "big"))
            for n, (kind, at, data) in enumerate(self.ops)
            if kind == "write" and at == "checkpoint"
        ]
        synced = [n for n, (kind, at, _) in enumerate(self.ops) if kind == "sync" and at == "checkpoint"]
        return [(next(at for at in synced if at > n), time) for n, time in found]


class TestTheOrderOfDurableSteps:
    """A crash within a recovery must find what it needs for the next one, so that none of its steps is taken for done
    when what it rests on never reached the disk."""

    @pytest.mark.parametrize("how", ["its end is gone", "a file in the middle is gone"])
    def test_a_doubted_checkpoint_is_taken_back_before_queues_and_restored_after(
        self, tmp_path: Path, how: str
    ) -> None:
        """A queue that has lost more than the checkpoint knows of."""
        filled(tmp_path, BODIES * 3)
        first, second, *others = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())
        assert len(others) >= 2 and len(list((tmp_path / "commitlog").iterdir())) > 3
        second.unlink()
        if how == "its end is gone":
            for each in others:
                each.unlink()
            first.write_bytes(first.read_bytes()[: 3 * 20].ljust(first.stat().st_size, b"\0"))
        pretend_crash(tmp_path)
        flushed = StoreCheckpoint(str(tmp_path / "checkpoint")).logics_msg_timestamp
        with OpLog(tmp_path) as log:
            store = DefaultMessageStore(config_of(tmp_path))
            store.load()
            assert bodies_of(store) == BODIES * 3
            store.shutdown()
        durable = Durable(tmp_path, log)
        (taken_back, nothing), *_, (restored, again) = durable.checkpoints()
        assert (nothing, again) == (0, flushed)
        queues = [
            n
            for n, (kind, path, _) in enumerate(durable.ops)
            if path.startswith("consumequeue/") and kind in ("write", "create", "size", "gone")
        ]
        assert taken_back < min(queues), "another crash would leave queues that look complete"
        synced = [
            n
            for n, (kind, path, _) in enumerate(durable.ops)
            if kind == "sync" and path.startswith("consumequeue/")
        ]
        assert max(queues) < max(synced) < restored, "the checkpoint would tell of units that are not there"

    def test_a_checkpoint_that_is_not_doubted_is_left_alone(self, tmp_path: Path) -> None:
        filled(tmp_path, BODIES)
        pretend_crash(tmp_path)
        with OpLog(tmp_path) as log:
            store = DefaultMessageStore(config_of(tmp_path))
            store.load()
            store.shutdown()
        assert Durable(tmp_path, log).checkpoints() == []

    def test_the_log_is_on_the_disk_before_queues_know_of_it(self, tmp_path: Path) -> None:
        """What a killed process left in the page cache may still go in a power cut."""
        filled(tmp_path, BODIES)
        shutil.rmtree(tmp_path / "consumequeue")
        (tmp_path / "queue-ends.json").unlink()
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        with OpLog(tmp_path) as log:
            store = DefaultMessageStore(config_of(tmp_path))
            store.load()
            store.shutdown()
        durable = Durable(tmp_path, log)
        used = {
            f"commitlog/{path.name}" for path in (tmp_path / "commitlog").iterdir() if any(path.read_bytes())
        }
        synced = {at: n for n, (kind, at, _) in reversed(list(enumerate(durable.ops))) if kind == "sync"}
        first = durable.first("write", "consumequeue/")
        assert used and all(synced[path] < first for path in used)

    def test_where_queues_ended_is_kept_before_they_lose_it(self, tmp_path: Path) -> None:
        """An accepted loss: without it the next crash would leave nobody who knows which offsets were given."""
        filled(tmp_path, BODIES)
        path = log_file(tmp_path, -1)
        path.write_bytes(bytes(path.stat().st_size))
        with OpLog(tmp_path) as log:
            store = DefaultMessageStore(config_of(tmp_path))
            store.load(accept_loss=True)
            store.shutdown()
        durable = Durable(tmp_path, log)
        kept = durable.first("replace", "config/lostQueueEnds.json")
        on_disk = next(n for n, op in enumerate(durable.ops) if op[:2] == ("sync", "config") and n > kept)
        assert on_disk < durable.first("write", "consumequeue/")
        (lowered, _), *_ = durable.checkpoints()
        assert on_disk < lowered, "the checkpoint proves the loss until it is kept"

    def test_where_queues_end_is_written_when_what_they_lacked_is_on_the_disk(self, tmp_path: Path) -> None:
        """A queue whose files went after a clean end: who reads the ends next would not miss them again."""
        with open_store(tmp_path, SMALL) as store:
            for number in range(60):
                assert store.put_message(MessageExtBrokerInner("TU"[number // 30], b"%d" % number)).is_ok
        shutil.rmtree(tmp_path / "consumequeue" / "T")
        with OpLog(tmp_path) as log:
            store = DefaultMessageStore(config_of(tmp_path))
            store.load()
            assert bodies_of(store) == [b"%d" % number for number in range(30)]
            told = len(log.ops)
            store.shutdown()
        durable = Durable(tmp_path, log)
        written = durable.first("replace", "queue-ends.json")
        queues = [
            (n, kind) for n, (kind, path, _) in enumerate(durable.ops) if path.startswith("consumequeue/T/")
        ]
        made = [n for n, kind in queues if kind in ("write", "create", "size") and n < written]
        assert written < told and made, "the recovery itself has to tell it"
        assert max(made) < max(n for n, kind in queues if kind == "sync" and n < written)
