"""Times are found inside files, and a clock that was set back hides nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.lake.log import store_times
from mqlake.lake.log.splits import LogFile, log_files
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.store_times import Heads, ranges_by_samples
from mqlake.message import MessageExtBrokerInner
from mqlake.store import DefaultMessageStore, MessageStoreConfig
from tests.spark.stores import SETTINGS, decoded

START, MINUTE = 1_700_000_000_000, 60_000
RECORDS = 600


def store_with(root: Path, times: list[int]) -> Path:
    config = MessageStoreConfig.from_mapping(
        {**SETTINGS, "mappedFileSizeCommitLog": 64 << 10, "storePathRootDir": str(root)}
    )
    clock = 0
    with DefaultMessageStore(config, clock_ms=lambda: clock) as store:
        store.load()
        store.start()
        for clock in times:  # noqa: B007 - the store's clock
            assert store.put_message(MessageExtBrokerInner("T", bytes(100))).is_ok
    return root


@pytest.fixture(autouse=True)
def fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_times, "GRAIN", 2048)
    monkeypatch.setattr(store_times, "STRIDE", 8192)


def found_in(root: Path, earliest: float, latest: float) -> tuple[int, int]:
    """Messages of that time, all of which lie in the ranges; and the bytes of those."""
    storage = Storage(str(root))
    ranges = ranges_by_samples(Heads(storage, log_files(storage)), earliest, latest)
    assert ranges == sorted(ranges)
    wanted = [m.physical_offset for m in decoded(root) if earliest <= m.store_timestamp <= latest]
    for offset in wanted:
        assert any(start <= offset < end for start, end in ranges), offset
    return len(wanted), sum(end - start for start, end in ranges)


def test_an_hour_of_ten(tmp_path: Path) -> None:
    root = store_with(tmp_path / "store", [START + n * MINUTE for n in range(RECORDS)])
    size = log_files(Storage(str(root)))[-1].end_offset
    count, bytes_found = found_in(root, START + 240 * MINUTE, START + 300 * MINUTE)
    assert count == 61 and size / 10 <= bytes_found < size / 4
    assert found_in(root, START + RECORDS * 2 * MINUTE, float("inf"))[0] == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("back_minutes", [0.5, 30, 300])
def test_a_clock_that_was_set(tmp_path: Path, seed: int, back_minutes: float) -> None:
    rng = random.Random(seed)
    at = rng.randrange(100, 500)
    times = [START + n * MINUTE - (int(back_minutes * MINUTE) if n >= at else 0) for n in range(RECORDS)]
    root = store_with(tmp_path / "store", times)
    found = 0
    for _ in range(20):
        earliest = rng.choice(times) + rng.randrange(-2 * MINUTE, 2 * MINUTE)
        found += found_in(root, earliest, earliest + rng.randrange(30 * MINUTE))[0]
    assert found


class NeverWalked(list[LogFile]):
    """Files of a log of which nobody may look at all to find one."""

    def __iter__(self) -> Iterator[LogFile]:
        raise AssertionError("somebody looks at every file")


def test_a_record_of_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at all files for each record, and few files mapped at a time: a log may have 10,000."""
    root = store_with(tmp_path / "store", [START + n * MINUTE for n in range(2000)])
    monkeypatch.setattr(store_times, "MAPPED_MAX", 2)
    storage = Storage(str(root))
    heads = Heads(storage, log_files(storage))
    heads.files = NeverWalked(heads.files)
    assert len(heads.files) > 4
    for message in decoded(root):
        assert heads.store_time_at(message.physical_offset) == message.store_timestamp
    end = heads.files[-1].end_offset
    assert heads.store_time_at(-1) is heads.store_time_at(end) is heads.store_time_at(end + (1 << 20)) is None
    assert len(heads._mapped) == 2
