from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import StoreCorruptError
from mqlake.formats.batch import encode_messages
from mqlake.message import Message, MessageExtBatch, MessageExtBrokerInner
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.store_lock import AbortFile, LastWriter, StoreLock
from mqlake.store.log.log_end import SECTOR, TORN, LastExit, LogEnd, LogEndFinder, may_be_torn, torn_records
from mqlake.store.log.log_reader import LogReader, open_log
from mqlake.store.message_store import open_store
from mqlake.store.recovery import RecoveryReport
from tests.store.small_store import change, flip, log_file, pretend_crash
from tests.store.test_recovery import BODIES, FILE_SIZE, SMALL, bodies_of, filled, forget_flushes, recovered

RECORD = np.arange(1, 3 * SECTOR, dtype=np.uint64).astype(np.uint8) | 1


@pytest.mark.parametrize(
    ("start", "end"), [(0, SECTOR), (0, 100), (100, 2 * SECTOR), (2 * SECTOR - 7, 2 * SECTOR + 60)]
)
def test_a_power_cut_takes_the_ends_of_sectors(start: int, end: int) -> None:
    array = RECORD.copy()
    assert not may_be_torn(array, start, end)
    array[end - 2 : end] = 0  # no properties
    assert not may_be_torn(array, start, end)
    array[end - 3 : end] = 0
    assert may_be_torn(array, start, end)


def test_a_sector_in_the_middle_or_a_size_may_be_missing() -> None:
    for torn in (slice(SECTOR, 2 * SECTOR), slice(2 * SECTOR - 1, 2 * SECTOR), slice(40, 44)):
        array = RECORD.copy()
        array[torn] = 0
        assert may_be_torn(array, 40, 3 * SECTOR - 5)


def same_boot(root: Path) -> None:
    with StoreLock(str(root / "lock")) as lock:
        AbortFile(str(root / "abort")).create(LastWriter.now(lock, "ASYNC_FLUSH"))
    forget_flushes(root)


@pytest.mark.parametrize("end", ["same boot", "power cut"])
def test_an_append_that_is_interrupted_anywhere_never_keeps_a_store_from_opening(
    tmp_path: Path, end: str
) -> None:
    """Of a batch of six the process had written any number of bytes; the first size comes last."""
    with open_store(tmp_path, SMALL) as store:
        store.put_message(MessageExtBrokerInner("T", b"before"))
        blob = encode_messages([Message("T", b"%d" % n * 30, keys="k") for n in range(6)])
        start = store.max_phy_offset
        assert store.put_messages(MessageExtBatch("T", blob)).is_ok
        stop = store.max_phy_offset
    path = log_file(tmp_path)
    whole = path.read_bytes()
    for written in [*range(start + 4, stop, 11), stop]:
        path.write_bytes(whole[:start] + bytes(4) + whole[start + 4 : written] + bytes(FILE_SIZE - written))
        for queue in (tmp_path / "consumequeue" / "T" / "0").iterdir():
            units = queue.read_bytes()
            queue.write_bytes(units[:20] + bytes(len(units) - 20))
        pretend_crash(tmp_path) if end == "power cut" else same_boot(tmp_path)
        report, bodies = recovered(tmp_path, messageIndexEnable=False)
        assert bodies[0] == b"before"
        if end == "same boot":
            assert (bodies, report.end_offset) == ([b"before"], start), "all or none"
        else:
            assert bodies[1:] == [b"%d" % n * 30 for n in range(len(bodies) - 1)]
            assert written < stop or len(bodies) == 7, "all is whole but for the first size"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int], dict[Path, bytes]]:
    root = tmp_path_factory.mktemp("healthy") / "store"
    offsets = filled(root, BODIES)
    forget_flushes(root)
    pretend_crash(root)
    return root, offsets, {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def restore(root: Path, files: dict[Path, bytes]) -> None:
    for path in list(root.rglob("*")):
        if path.is_file() and path not in files:
            path.unlink()
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whole_records_after_holes_are_kept_or_the_store_does_not_open(
    healthy: tuple[Path, list[int], dict[Path, bytes]], data: st.DataObject
) -> None:
    """Random sectors are missing, as after a power cut, or random bytes are wrong. The oracle: which records still have
    all the bytes they were given."""
    root, offsets, files = healthy
    restore(root, files)
    kind: Callable[..., None] = data.draw(st.sampled_from([take_sectors, garble]))
    kind(root, random.Random(data.draw(st.integers(0, 1 << 30))))
    logs = sorted((root / "commitlog").iterdir())
    now = {path: path.read_bytes() for path in logs}
    whole = [
        number
        for number, (at, size) in enumerate(sizes(offsets, files, logs))
        if now[logs[at // FILE_SIZE]][at % FILE_SIZE :][:size]
        == files[logs[at // FILE_SIZE]][at % FILE_SIZE :][:size]
    ]
    reports: list[RecoveryReport] = []
    try:
        with open_store(root, SMALL, on_recovered=reports.append) as store:
            bodies = bodies_of(store)
    except StoreCorruptError as error:
        assert kind is garble
        assert "mqlake store repair" in str(error)
        assert {path: path.read_bytes() for path in logs} == now
        return
    wanted = [BODIES[number] for number in whole]
    assert [body for body in bodies if body in wanted] == wanted
    assert set(bodies) <= set(BODIES), "nothing that was never put"
    assert len(bodies) == len(BODIES) or reports[0].lost_something or reports[0].torn_bytes, (
        "a loss without a word"
    )


def sizes(offsets: list[int], files: dict[Path, bytes], logs: list[Path]) -> list[tuple[int, int]]:
    return [
        (at, int.from_bytes(files[logs[at // FILE_SIZE]][at % FILE_SIZE :][:4], "big")) for at in offsets[:-1]
    ]


def take_sectors(root: Path, dice: random.Random) -> None:
    for path in sorted((root / "commitlog").iterdir()):
        content = bytearray(path.read_bytes())
        for at in range(0, FILE_SIZE, SECTOR):
            if (at or path.name != f"{0:020d}") and dice.random() < 0.15:
                content[at : at + SECTOR] = bytes(SECTOR)
        path.write_bytes(content)


def garble(root: Path, dice: random.Random) -> None:
    path = dice.choice(sorted((root / "commitlog").iterdir()))
    content = bytearray(path.read_bytes())
    at = dice.randrange(100, FILE_SIZE - 700)
    content[at : at + dice.randrange(1, 40)] = dice.randbytes(dice.randrange(1, 40))
    path.write_bytes(content.ljust(FILE_SIZE, b"\0")[:FILE_SIZE])


class TestTornAmongWhole:
    """A record that lacks a sector of its properties, which no CRC covers."""

    def torn(self, root: Path) -> tuple[list[int], int]:
        """Physical offsets of whole, torn, whole; the end."""
        with open_store(root, SMALL) as store:
            offsets = []
            for body, value in ((b"before", "v"), (b"torn", "v" * 4 * SECTOR), (b"after", "v")):
                offsets.append(store.max_phy_offset)
                msg = MessageExtBrokerInner("T", body, properties={"name": value})
                assert store.put_message(msg).is_ok
            end = store.max_phy_offset
        sector = offsets[1] + SECTOR - offsets[1] % SECTOR + SECTOR
        change(log_file(root), sector, bytes(SECTOR))
        forget_flushes(root)
        pretend_crash(root)
        return offsets, end

    def test_the_fence_is_the_record(self, tmp_path: Path) -> None:
        (_, torn, after), end = self.torn(tmp_path)
        report, bodies = recovered(tmp_path)
        assert report.fences == [(torn, after - torn, TORN)]
        assert (bodies, report.end_offset, report.salvaged_records) == ([b"before", b"after"], end, 1)

    def test_what_follows_may_be_older_than_the_log(self, tmp_path: Path) -> None:
        """Of an earlier life of the file: no queue knows it, and it is older than what precedes the torn record."""
        (before, torn, after), end = self.torn(tmp_path)
        times = [at + 56 for at in (before, after)]
        newer = int.from_bytes(log_file(tmp_path).read_bytes()[times[0] : times[0] + 8], "big")
        change(log_file(tmp_path), times[1], (newer - 1000).to_bytes(8, "big"))
        for queue in (tmp_path / "consumequeue" / "T" / "0").iterdir():
            change(queue, 20, bytes(40))
        report, bodies = recovered(tmp_path)
        assert (bodies, report.end_offset, report.fences) == ([b"before"], torn, [])
        assert report.torn_bytes > 0 and end > torn

    def test_a_queue_that_knows_it_makes_it_a_part_of_the_log(self, tmp_path: Path) -> None:
        """A clock that was set back."""
        (before, torn, after), end = self.torn(tmp_path)
        times = [at + 56 for at in (before, after)]
        newer = int.from_bytes(log_file(tmp_path).read_bytes()[times[0] : times[0] + 8], "big")
        change(log_file(tmp_path), times[1], (newer - 1000).to_bytes(8, "big"))
        report, bodies = recovered(tmp_path)
        assert (bodies, report.end_offset) == ([b"before", b"after"], end)
        assert [start for start, _, _ in report.fences] == [torn]


@pytest.mark.parametrize("body", [0, 1, 300])
def test_the_last_record_of_a_file_may_be_missing_whatever_its_size(tmp_path: Path, body: int) -> None:
    """The blank after it stays: also after the smallest record there is, which a filler just fits."""
    with open_store(tmp_path, SMALL) as store:
        size = 92 + body
        rest = FILE_SIZE - size - 40
        while store.max_phy_offset < rest:
            left = rest - store.max_phy_offset
            put = 92 + (400 if left > 700 else left - 92)
            assert store.put_message(MessageExtBrokerInner("T", bytes([9]) * (put - 92))).is_ok
        lost = store.max_phy_offset
        assert store.put_message(MessageExtBrokerInner("T", b"x" * body)).is_ok
        assert store.max_phy_offset == lost + size == FILE_SIZE - 40
        assert store.put_message(MessageExtBrokerInner("T", b"in the next file")).is_ok
        end = store.max_phy_offset
    before = log_file(tmp_path).read_bytes()
    change(log_file(tmp_path), lost, bytes(size))
    forget_flushes(tmp_path)
    pretend_crash(tmp_path)
    report, bodies = recovered(tmp_path)
    assert [(start, length) for start, length, _ in report.fences] == [(lost, size)]
    assert report.end_offset == end and bodies[-1] == b"in the next file"
    assert log_file(tmp_path).read_bytes()[lost + size :] == before[lost + size :]


class TestFinder:
    """LogEndFinder over a log of two files: seven messages, the fourth the last of the first file."""

    SIZES = (700, 700, 700, 1590, 700, 700, 700)

    def log(self, root: Path) -> list[int]:
        """Physical offsets of the messages, and the end. Their properties fill more than a sector."""
        with open_store(root, SMALL) as store:
            offsets = []
            for number, size in enumerate(self.SIZES):
                message = MessageExtBrokerInner("T", b"%d" % number, properties={"p": "v" * size})
                result = store.put_message(message)
                assert result.append_result is not None
                offsets.append(result.append_result.wrote_offset)
            return [*offsets, store.max_phy_offset]

    def find(
        self,
        root: Path,
        end: int,
        *,
        size: int = 0,
        known: bool | int = False,
        time: int = 0,
        flushed_until: int = 0,
        **exit: bool,
    ) -> LogEnd:
        """`known`: whether the queues know every record, or the offset of the one that they know."""
        files = open_log(MessageStoreConfig.from_mapping({**SMALL, "storePathRootDir": str(root)}))
        finder = LogEndFinder(
            LogReader(files, check_crc=False),
            LastExit(**{"clean": False, **exit}),
            flushed_until=flushed_until,
            is_known=lambda scan, record: known in (True, int(scan.physical_offset[record])),
            force_prop_crc=False,
        )
        return finder.find(end, time, "cut short", size)

    def time_of(self, root: Path, offset: int) -> int:
        data = log_file(root, offset // FILE_SIZE).read_bytes()
        return int.from_bytes(data[offset % FILE_SIZE + 56 :][:8], "big")

    def zero_sector(self, root: Path, offset: int, at: int = 1) -> None:
        """Takes a sector of the properties of the message at an offset."""
        sector = offset % FILE_SIZE // SECTOR * SECTOR + at * SECTOR
        change(log_file(root, offset // FILE_SIZE), sector, bytes(SECTOR))

    def test_a_record_that_was_finished_names_its_file_and_byte(self, tmp_path: Path) -> None:
        """The machine has been up since: no power cut took a part of it. In the second file."""
        *offsets, _ = self.log(tmp_path)
        last = offsets[-1]
        path = log_file(tmp_path, last // FILE_SIZE)
        change(path, last % FILE_SIZE + 84, b"\x7f")  # its body has two billion bytes
        assert self.find(tmp_path, last).end == last
        with pytest.raises(StoreCorruptError, match="was finished, and the machine has been up") as caught:
            self.find(tmp_path, last, machine_stayed_up=True)
        assert (caught.value.path, caught.value.offset) == (str(path), last % FILE_SIZE) and last > FILE_SIZE

    def test_no_size_at_the_end_is_a_record_that_was_not_finished(self, tmp_path: Path) -> None:
        *offsets, _ = self.log(tmp_path)
        last = offsets[-1]
        change(log_file(tmp_path, last // FILE_SIZE), last % FILE_SIZE, bytes(4))
        change(log_file(tmp_path, last // FILE_SIZE), last % FILE_SIZE + 84, b"\x7f")
        assert self.find(tmp_path, last, machine_stayed_up=True).end == last

    def test_a_torn_record_that_ends_a_file_is_fenced_when_the_next_one_follows(self, tmp_path: Path) -> None:
        *offsets, end = self.log(tmp_path)
        assert offsets[3] < FILE_SIZE <= offsets[4]
        for number in (1, 3):
            self.zero_sector(tmp_path, offsets[number])
        found = self.find(tmp_path, offsets[1], size=offsets[2] - offsets[1])
        fences = [(fence.start, fence.size, fence.reason) for fence in found.fences]
        torn = int.from_bytes(log_file(tmp_path).read_bytes()[offsets[3] : offsets[3] + 4], "big")
        assert fences == [(offsets[1], offsets[2] - offsets[1], "cut short"), (offsets[3], torn, TORN)]
        assert (found.end, found.records) == (end, 4)

    def test_what_the_queues_know_counts_if_they_were_given_only_what_was_flushed(
        self, tmp_path: Path
    ) -> None:
        *offsets, end = self.log(tmp_path)
        self.zero_sector(tmp_path, offsets[1])
        size = offsets[2] - offsets[1]
        assert self.find(tmp_path, offsets[1], size=size, known=True).end == end
        assert self.find(tmp_path, offsets[1], size=size, queued_only_flushed=True).end == end
        with pytest.raises(
            StoreCorruptError, match=f"the consume queues have messages from offset {offsets[2]} on"
        ):
            self.find(tmp_path, offsets[1], size=size, known=True, queued_only_flushed=True)

    def test_a_torn_record_in_the_second_file(self, tmp_path: Path) -> None:
        *offsets, end = self.log(tmp_path)
        self.zero_sector(tmp_path, offsets[5])
        size = offsets[6] - offsets[5]
        found = self.find(tmp_path, offsets[5], size=size)
        assert [(fence.start, fence.size, fence.mapped_file.path) for fence in found.fences] == [
            (offsets[5], size, str(log_file(tmp_path, 1)))
        ]
        assert (found.end, found.records) == (end, 1)

    def test_a_queue_that_knows_one_record_is_enough(self, tmp_path: Path) -> None:
        """The first or the last of a chunk."""
        *offsets, end = self.log(tmp_path)
        self.zero_sector(tmp_path, offsets[1])
        size = offsets[2] - offsets[1]
        for number, is_asked in ((2, True), (3, True), (4, True), (5, False), (6, True)):
            options = {"size": size, "known": offsets[number], "queued_only_flushed": True}
            if is_asked:
                with pytest.raises(StoreCorruptError, match="the consume queues have messages"):
                    self.find(tmp_path, offsets[1], **options)  # type: ignore[arg-type]
            else:
                assert self.find(tmp_path, offsets[1], **options).end == end  # type: ignore[arg-type]

    def test_what_had_been_flushed_was_there(self, tmp_path: Path) -> None:
        *offsets, end = self.log(tmp_path)
        self.zero_sector(tmp_path, offsets[1])
        size, follows = offsets[2] - offsets[1], self.time_of(tmp_path, offsets[2])
        assert self.find(tmp_path, offsets[1], size=size, flushed_until=follows).end == end
        with pytest.raises(StoreCorruptError, match=f"flushed messages follow at offset {offsets[2]}"):
            self.find(tmp_path, offsets[1], size=size, flushed_until=follows + 1)
        with pytest.raises(StoreCorruptError, match=f"exit was clean, .* follow at offset {offsets[2]}"):
            self.find(tmp_path, offsets[1], size=size, clean=True)

    def test_older_records_end_the_log_unless_a_queue_knows_the_first(self, tmp_path: Path) -> None:
        *offsets, end = self.log(tmp_path)
        self.zero_sector(tmp_path, offsets[1])
        size, follows = offsets[2] - offsets[1], self.time_of(tmp_path, offsets[2])
        assert self.find(tmp_path, offsets[1], size=size, time=follows).end == end
        for known, found in ((False, offsets[1]), (offsets[3], offsets[1]), (offsets[2], end)):
            options = {"size": size, "known": known, "time": follows + 60_000}
            assert self.find(tmp_path, offsets[1], **options).end == found  # type: ignore[arg-type]

    def test_records_that_are_all_torn_are_no_end(self, tmp_path: Path) -> None:
        """Of the second file none is whole; of the first, those before are."""
        *offsets, _ = self.log(tmp_path)
        for number in (1, 4, 5, 6):
            self.zero_sector(tmp_path, offsets[number])
        found = self.find(tmp_path, offsets[1], size=offsets[2] - offsets[1])
        assert [fence.start for fence in found.fences] == [offsets[1]]
        assert (found.end, found.records) == (self.end_of(tmp_path, offsets[3]), 2)
        assert found.last_timestamp == self.time_of(tmp_path, offsets[3])

    def end_of(self, root: Path, offset: int) -> int:
        data = log_file(root, offset // FILE_SIZE).read_bytes()
        return offset + int.from_bytes(data[offset % FILE_SIZE :][:4], "big")

    def test_of_several_holes_the_first_is_named(self, tmp_path: Path) -> None:
        """The queues know only what lies in the second file, after both."""
        *offsets, _ = self.log(tmp_path)
        for number in (1, 3):
            self.zero_sector(tmp_path, offsets[number])
        files = open_log(MessageStoreConfig.from_mapping({**SMALL, "storePathRootDir": str(tmp_path)}))
        finder = LogEndFinder(
            LogReader(files, check_crc=False),
            LastExit(clean=False, queued_only_flushed=True),
            flushed_until=0,
            is_known=lambda scan, record: int(scan.physical_offset[record]) >= FILE_SIZE,
            force_prop_crc=False,
        )
        with pytest.raises(StoreCorruptError, match="the consume queues have messages from offset") as caught:
            finder.find(offsets[1], 0, "cut short", offsets[2] - offsets[1])
        assert (caught.value.path, caught.value.offset) == (str(log_file(tmp_path)), offsets[1])

    def test_an_append_of_many_is_dropped_as_a_whole_unless_something_proves_that_it_had_ended(
        self, tmp_path: Path
    ) -> None:
        """Its first record has no size yet; all of one append have the same time."""
        *offsets, end = self.log(tmp_path)

        def stamp(number: int, time: int) -> None:
            at = offsets[number]
            change(log_file(tmp_path, at // FILE_SIZE), at % FILE_SIZE + 56, time.to_bytes(8, "big"))

        for number in range(1, 7):
            stamp(number, 1_700_000_000_000)
        change(log_file(tmp_path), offsets[1], bytes(4))
        dropped = self.find(tmp_path, offsets[1], machine_stayed_up=True)
        assert (dropped.end, dropped.fences) == (offsets[1], [])
        kept = self.find(tmp_path, offsets[1], machine_stayed_up=True, known=True)
        assert (kept.end, [fence.start for fence in kept.fences]) == (end, [offsets[1]])
        for number in (2, 6):  # in the same file, and in the next one
            stamp(number, 1_700_000_000_001)
            kept = self.find(tmp_path, offsets[1], machine_stayed_up=True)
            assert (kept.end, [fence.start for fence in kept.fences]) == (end, [offsets[1]])
            stamp(number, 1_700_000_000_000)

    @pytest.mark.parametrize("topic", ["T", "TT", "Topic"])
    def test_a_topic_that_never_came(self, tmp_path: Path, topic: str) -> None:
        """Zeros where a topic has to be, of any length."""
        with open_store(tmp_path, SMALL) as store:
            for _ in range(3):
                assert store.put_message(MessageExtBrokerInner(topic, b"body", properties={"a": "b"})).is_ok
        size = 91 + len(topic) + len(b"body") + 4
        change(log_file(tmp_path), size + 84 + 4 + 4 + 1, bytes(len(topic)))
        files = open_log(MessageStoreConfig.from_mapping({**SMALL, "storePathRootDir": str(tmp_path)}))
        [chunk] = LogReader(files).scan(0, 3 * size)
        assert torn_records(chunk, 0) == [1]
        later = int(chunk.scan.store_timestamp[1]) + 1
        assert torn_records(chunk, later) == [], "it had been flushed"


def test_properties_of_which_the_second_sector_never_came(tmp_path: Path) -> None:
    """They are shorter than a sector, and lie in two."""
    with open_store(tmp_path, SMALL) as store:
        for _ in range(2):
            message = MessageExtBrokerInner("T", b"b" * 350, properties={"p": "v" * 200})
            assert store.put_message(message).is_ok
    config = MessageStoreConfig.from_mapping({**SMALL, "storePathRootDir": str(tmp_path)})
    log = open_log(config)
    try:
        [chunk] = LogReader(log, check_crc=False).scan(0, store.max_phy_offset)
        end = int(chunk.scan.end) // 2
        assert int(chunk.scan.properties_start[0]) < SECTOR < end
        change(log_file(tmp_path), SECTOR, bytes(end - SECTOR))
        assert torn_records(chunk, 0) == [0]
    finally:
        log.close()


def test_a_wrong_size_of_one_byte_is_damage_and_not_a_missing_one(tmp_path: Path) -> None:
    with open_store(tmp_path, SMALL) as store:
        offsets = []
        for _ in range(3):
            offsets.append(store.max_phy_offset)
            assert store.put_message(MessageExtBrokerInner("T", b"body")).is_ok
    assert offsets[1] < 256
    flip(log_file(tmp_path), offsets[1] + 3)
    same_boot(tmp_path)
    with pytest.raises(StoreCorruptError) as error:
        open_store(tmp_path, SMALL)
    assert error.value.offset == offsets[1]


def test_a_size_with_one_byte_is_not_missing() -> None:
    array = RECORD.copy()
    array[40:43] = 0
    assert not may_be_torn(array, 40, 3 * SECTOR - 5)


def test_a_last_record_without_its_end_is_torn_unless_nothing_can_have_torn_it(tmp_path: Path) -> None:
    with open_store(tmp_path, SMALL) as store:
        for _ in range(3):
            store.put_message(MessageExtBrokerInner("T", b"body", properties={"k": "v"}))
        end = store.max_phy_offset
    change(log_file(tmp_path), end - 1, b"\0")
    for number in range(3):
        change(log_file(tmp_path), number * end // 3 + 56, (1_700_000_000_000 + number).to_bytes(8, "big"))
    config = MessageStoreConfig.from_mapping({**SMALL, "storePathRootDir": str(tmp_path)})
    log = open_log(config)
    try:
        reader = LogReader(log)
        chunk = next(reader.scan(0, log.mapped_files[0].file_size))
        assert torn_records(chunk, 0) == [2]
        assert torn_records(chunk, 1_700_000_000_002) == [2]
        assert torn_records(chunk, 1_700_000_000_003) == []  # it had been flushed
        for last_exit, found in (
            (LastExit(clean=False), [2]),
            (LastExit(clean=True), []),
            (LastExit(clean=False, machine_stayed_up=True), []),
        ):
            finder = LogEndFinder(
                reader,
                last_exit,
                flushed_until=0,
                is_known=lambda _scan, _record: False,
                force_prop_crc=False,
            )
            assert finder.torn_records(chunk) == found
    finally:
        log.close()
