from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqlake.errors import ForeignFormatError, StoreCorruptError, StoreLockedError
from mqlake.formats.record import decode_record
from mqlake.message import MessageExtBrokerInner
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.recovery import DROPPED_DIR, SECTOR, RecoveryReport
from tests.golden import unpack
from tests.store.small_store import contents, flip, log_file, pretend_crash
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
    while len(found) < store.max_offset_in_queue(topic, 0):
        result = store.get_message("g", topic, 0, len(found), 32)
        assert result.buffers, result.status
        found += [message.body for message in result.messages()]
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

    def test_of_a_new_store(self, tmp_path: Path) -> None:
        report, bodies = recovered(tmp_path / "a" / "b")
        assert (report.clean_exit, report.end_offset, bodies) == (True, 0, [])

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
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES[:-1]
        assert report.torn_reason == "bytes of a record that was never finished"

    def test_keeps_whole_records_aside(self, tmp_path: Path) -> None:
        *offsets, end = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[-4] + 100, b"\xff")
        forget_flushes(tmp_path)
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES[:-4]
        assert report.dropped_records == 3
        assert "3 unflushed records behind it are kept in" in report.describe()
        copy = (tmp_path / DROPPED_DIR / f"{offsets[-4]:020d}").read_bytes()
        assert len(copy) == end - offsets[-4]
        assert decode_record(copy, offsets[-3] - offsets[-4]).body == BODIES[-3]

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
        for written in range(1, end - start + 1):
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
        pretend_crash(tmp_path)
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES[:-1]
        assert report.queues_reached == end
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

    def test_messages_of_the_millisecond_flushed_last_are_not_known_to_be_flushed(
        self, tmp_path: Path
    ) -> None:
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[-2] + 100, b"\xff")
        pretend_crash(tmp_path)
        checkpoint = StoreCheckpoint(str(tmp_path / "checkpoint"))
        store_time = decode_record(
            log_file(tmp_path, -1).read_bytes(), offsets[-1] % FILE_SIZE
        ).store_timestamp
        assert checkpoint.physic_msg_timestamp == store_time
        report, bodies = recovered(tmp_path)
        assert bodies == BODIES[:-2]
        assert report.dropped_records == 1

    def test_at_the_very_start_may_be_another_format(self, tmp_path: Path) -> None:
        filled(tmp_path, BODIES)
        overwrite(tmp_path, 4, b"\x12\x34\x56\x78")
        pretend_crash(tmp_path)
        with pytest.raises(ForeignFormatError, match="does not begin with a RocketMQ record"):
            open_store(tmp_path, SMALL)

    def test_leaves_the_lock_free(self, tmp_path: Path) -> None:
        *offsets, _ = filled(tmp_path, BODIES)
        overwrite(tmp_path, offsets[-3] + 100, b"\xff")
        with pytest.raises(StoreCorruptError):
            open_store(tmp_path, SMALL)
        overwrite(tmp_path, offsets[-3] + 100, BODIES[-3][100 - 88 : 101 - 88])
        _, bodies = recovered(tmp_path)
        assert bodies == BODIES


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


def test_progress_is_told(tmp_path: Path) -> None:
    filled(tmp_path, BODIES)
    pretend_crash(tmp_path)
    told: list[tuple[int, int]] = []
    open_store(tmp_path, SMALL, progress=lambda done, total: told.append((done, total))).shutdown()
    assert told == sorted(told)
    assert 0 < told[-1][0] <= told[-1][1]
