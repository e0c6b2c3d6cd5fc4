"""The scrub finds what is damaged, names it once, and leaves the page cache as it was."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake.message import MessageSysFlag
from mqlake.store import scrub
from mqlake.store.check.repair import repair_store
from mqlake.store.config import MessageStoreConfig
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.scrub import ScrubService
from tests.store.small_store import QUEUES, SETTINGS, TOPICS, change, fill, flip, log_file, message
from tests.waiting import PATIENCE_S, until

COUNT = 300


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DefaultMessageStore]:
    config = MessageStoreConfig.from_mapping(
        {**SETTINGS, "storePathRootDir": str(tmp_path), "flushDiskType": "SYNC_FLUSH"}
    )
    with DefaultMessageStore(config) as store:
        store.load()
        store.start()
        for number in range(COUNT):
            assert store.put_message(message(number)).is_ok
        prepared = message(COUNT)
        prepared.sys_flag = MessageSysFlag.TRANSACTION_PREPARED_TYPE
        assert store.put_message(prepared).is_ok
        assert store.wait_until_dispatched(PATIENCE_S)
        yield store


def place(store: DefaultMessageStore, number: int) -> tuple[Path, int]:
    """File and position of a message."""
    number, queue_id = number // 2, number // 2 % QUEUES
    topic = TOPICS[0]
    unit = store.consume_queues.get(topic, queue_id).get(number // QUEUES)  # type: ignore[union-attr]
    file = store.commit_log_files.find_mapped_file_by_offset(unit.physical_offset)
    assert file is not None
    return Path(file.path), unit.physical_offset - file.file_from_offset


def found(store: DefaultMessageStore) -> int:
    before = store.damage.count
    assert sum(store.scrub_service.chunks()) > 0
    return store.damage.count - before


def test_a_healthy_store_has_nothing(store: DefaultMessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(store.commit_log_files.mapped_files) > 4
    whole = sum(store.scrub_service.chunks())
    assert store.damage.count == 0 and whole >= store.max_phy_offset - SETTINGS["mappedFileSizeCommitLog"]
    for chunk in (64, 300, 1000, 5000):  # records that do not fit, and that lie over an edge
        monkeypatch.setattr(scrub, "CHUNK", chunk)
        assert found(store) == 0
    assert found(store) == 0 and list(store.scrub_service.chunks(from_any_file=True))


def test_a_piece_may_end_within_the_size_of_a_record(
    store: DefaultMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, at = place(store, 2)
    for more in range(9):  # a size begins with zeros, as does the end of the log
        monkeypatch.setattr(scrub, "CHUNK", at + more)
        assert found(store) == 0


FLIPS = {
    2: "no record is here: ",  # size
    3: "no record is here: ",
    4: "no record is here: magic",
    30: "no record is here: physical offset",
    87: "no record is here: ",  # body length
    100: "should be here: body CRC",
    15: "of Orders-1 is here, but the consume queue does not lead to it",
    27: "of Orders-0 is here, but the consume queue does not lead to it",
}


@pytest.mark.parametrize("chunk", [256, 1 << 20])
def test_flipped_bits_are_found(
    store: DefaultMessageStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, chunk: int
) -> None:
    monkeypatch.setattr(scrub, "CHUNK", chunk)
    expected = {}
    for number, (position, says) in enumerate(FLIPS.items()):
        path, at = place(store, 20 + 16 * number)
        flip(path, at + position)
        expected[f"{path}: corrupt at byte {at}: "] = says
    assert found(store) == len(FLIPS)
    lines = [record.getMessage() for record in caplog.records if "corrupt" in record.getMessage()]
    for begin, says in expected.items():
        [line] = [line for line in lines if line.startswith(begin)]
        assert says in line and "found by the scrub" in line
    assert found(store) == 0, "named once"
    assert sum(count for found_by, _, count in store.damage.counts() if found_by == "scrub") == len(FLIPS)


def test_many_places_and_what_lies_between(store: DefaultMessageStore) -> None:
    places = [place(store, number) for number in (20, 22, 100, 250)]
    for path, at in places:
        flip(path, at + 7)
    path, at = place(store, 150)
    change(path, at, bytes(40))
    assert found(store) == 5


def test_the_first_record_of_a_file(store: DefaultMessageStore) -> None:
    """The search for a record after damage would pass over it without a word."""
    flip(Path(store.commit_log_files.mapped_files[1].path), 7)
    assert found(store) == 1


def test_a_consumer_and_the_scrub_name_a_body_once(store: DefaultMessageStore) -> None:
    path, at = place(store, 200)
    flip(path, at + 100)
    store.config.change({"pullCheckCrc": "true"})
    assert store.get_message("g", TOPICS[0], 0, 50, 1).damaged
    assert store.damage.count == 1 and found(store) == 0


def test_pages_that_were_cold_are_cold_again(
    store: DefaultMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[tuple[int, int]] = []
    advise, read = os.posix_fadvise, os.preadv

    def noting(fd: int, offset: int, size: int, advice: int) -> None:
        if advice == os.POSIX_FADV_DONTNEED:
            forgotten.append((offset, size))
        advise(fd, offset, size, advice)

    def cold(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise BlockingIOError
        return read(fd, buffers, offset, flags)

    def warm(fd: int, buffers: Any, offset: int, _flags: int = 0) -> int:
        return read(fd, buffers, offset)

    monkeypatch.setattr(os, "posix_fadvise", noting)
    monkeypatch.setattr(os, "preadv", warm)
    read_bytes = sum(store.scrub_service.chunks())
    assert forgotten == []
    monkeypatch.setattr(os, "preadv", cold)
    assert sum(store.scrub_service.chunks()) == read_bytes == sum(size for _, size in forgotten)


def test_it_runs_by_itself_pauses_and_ends(store: DefaultMessageStore) -> None:
    busy = [True]
    service = ScrubService(
        store.config,
        store.commit_log_files,
        store.consume_queues,
        store.damage,
        lambda: store.max_phy_offset,
        lambda: busy[0],
        first_after_s=0.0,
    )
    path, at = place(store, 200)
    flip(path, at + 7)
    store.config.change({"scrubBytesPerSecond": "0"})
    service.start()
    try:
        assert service.rounds == 0
        store.config.change({"scrubBytesPerSecond": "1g"})
        until(lambda: service.offset >= 0)
        assert service.rounds == 0
        busy[0] = False
        until(lambda: service.rounds == 1)
        assert store.damage.count == 1
        assert abs(time.time() * 1000 - int(service.runtime_info()["scrubLastRoundTimestamp"])) < 3_600_000
    finally:
        service.shutdown()
    service.shutdown()


def test_a_file_that_is_deleted_meanwhile(store: DefaultMessageStore) -> None:
    pieces = store.scrub_service.chunks()
    next(pieces)
    os.unlink(store.commit_log_files.mapped_files[1].path)
    assert sum(pieces) > 0 and store.damage.count == 0


def test_a_deleted_topic_and_deleted_units_are_no_damage(store: DefaultMessageStore) -> None:
    store.consume_queues.delete_topic(TOPICS[1])
    assert found(store) == 0
    queue = store.consume_queues.get(TOPICS[0], 0)
    queue.correct_min_offset(place(store, 100)[1] + 16384)  # type: ignore[union-attr]
    assert found(store) == 0


def test_what_an_operator_sees(store: DefaultMessageStore) -> None:
    info = store.runtime_info()
    assert (info["scrubBytesPerSecond"], info["scrubRounds"], info["scrubOffset"]) == ("4194304", "0", "-1")


def test_a_repaired_store_has_nothing(tmp_path: Path) -> None:
    """Fillers stand where damage was, and units of lost messages lead to those after them."""
    fill(tmp_path)
    for position in (1000, 9000):
        change(log_file(tmp_path), position, bytes(300))
    assert repair_store(tmp_path).after is not None
    config = MessageStoreConfig.from_mapping({**SETTINGS, "storePathRootDir": str(tmp_path)})
    with DefaultMessageStore(config) as store:
        store.load()
        store.start()
        assert found(store) == 0
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                offset = 0
                while offset < store.max_offset_in_queue(topic, queue_id):
                    got = store.get_message("g", topic, queue_id, offset, 32)
                    assert got.damaged == [] and got.next_begin_offset > offset
                    offset = got.next_begin_offset
