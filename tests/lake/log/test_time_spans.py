"""What is skipped by time holds no record of that time, wherever the clock jumped."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mqlake.lake
from mqlake.formats.record import store_timestamp_position
from mqlake.lake.log import splits, store_times, time_spans
from mqlake.lake.log.splits import log_files
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.store_times import Heads
from mqlake.lake.log.time_spans import ranges_by_time
from mqlake.message import MessageExt, MessageExtBrokerInner
from mqlake.store import DefaultMessageStore, MessageStoreConfig
from tests.spark.stores import SETTINGS, copy_store, decoded, overwrite

START, MINUTE = 1_700_000_000_000, 60_000
RECORDS = 400
FILE_SIZE = 64 << 10


@pytest.fixture(autouse=True)
def fine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store_times, "GRAIN", 2048)
    monkeypatch.setattr(store_times, "STRIDE", 8192)
    monkeypatch.setattr(time_spans, "BLOCK", 2048)
    time_spans._known.clear()
    yield
    time_spans._known.clear()


def append(root: Path, times: list[int]) -> None:
    config = MessageStoreConfig.from_mapping(
        {**SETTINGS, "mappedFileSizeCommitLog": FILE_SIZE, "storePathRootDir": str(root)}
    )
    clock = 0
    with DefaultMessageStore(config, clock_ms=lambda: clock) as store:
        store.load()
        store.start()
        for clock in times:  # noqa: B007 - the store's clock
            assert store.put_message(MessageExtBrokerInner("T", bytes(100))).is_ok


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MessageExt]]:
    root = tmp_path_factory.mktemp("times") / "store"
    append(root, [START + n * MINUTE for n in range(RECORDS)])
    return root, decoded(root)


def set_times(root: Path, messages: list[MessageExt], times: list[int]) -> None:
    """Writes store times into the records, as a clock that jumped would have."""
    for message, time in zip(messages, times, strict=True):
        base, position = divmod(message.physical_offset, FILE_SIZE)
        where = position + store_timestamp_position(message.sys_flag)
        overwrite(root / "commitlog" / f"{base * FILE_SIZE:020d}", where, struct.pack(">q", time))


def matching(root: Path, low: int, high: int, **scan: object) -> list[int]:
    def at(ms: int) -> pa.Scalar:
        return pa.scalar(ms * 1000, pa.timestamp("us", "UTC"))

    time = pc.field("storeTimestamp")
    table = mqlake.lake.scan(root, **scan).to_table(  # type: ignore[arg-type]
        ["physicalOffset"], (time >= at(low)) & (time <= at(high))
    )
    return table["physicalOffset"].to_pylist()


JUMPS = st.lists(
    st.tuples(st.integers(0, RECORDS - 1), st.integers(1, 60), st.integers(-900, 900)), max_size=4
)
"""At which record, for how many, and by how many minutes the clock is wrong."""


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(jumps=JUMPS, of=st.integers(0, RECORDS - 1), before=st.integers(0, 3), length=st.integers(0, 120))
def test_a_clock_that_jumps_hides_nothing(
    written: tuple[Path, list[MessageExt]],
    tmp_path_factory: pytest.TempPathFactory,
    jumps: list[tuple[int, int, int]],
    of: int,
    before: int,
    length: int,
) -> None:
    """Asked for the times about some record, mostly one whose time is wrong."""
    root, messages = written
    times = [START + n * MINUTE for n in range(RECORDS)]
    for at, count, minutes in jumps:
        for n in range(at, min(RECORDS, at + count)):
            times[n] += minutes * MINUTE
    copy = copy_store(root, tmp_path_factory.mktemp("jumps") / "store")
    set_times(copy, messages, times)
    wrong = jumps[of % len(jumps)][0] if jumps else of
    first = times[wrong if of % 5 else of] - before * MINUTE
    last = first + length * MINUTE
    holds = [m.physical_offset for m, time in zip(messages, times, strict=True) if first <= time <= last]
    assert matching(copy, first, last) == holds
    assert matching(copy, first, last) == holds  # by what is remembered now
    assert matching(copy, first, last, skipping=False) == holds
    bounds = {"start": first, "end": last + 1}
    options = {name: store_time(ms) for name, ms in bounds.items()}
    rows = mqlake.lake.scan(copy, **options).to_table(["physicalOffset"])  # type: ignore[arg-type]
    assert rows["physicalOffset"].to_pylist() == holds
    shutil.rmtree(copy.parent)


def store_time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def ranges(root: Path, low: float, high: float = float("inf")) -> list[tuple[int, int]]:
    storage = Storage(str(root))
    return ranges_by_time(Heads(storage, log_files(storage)), low, high)


def bytes_of(found: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in found)


def walks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The files that are walked over from now on, and from which position."""
    seen: list[tuple[str, int]] = []

    def counted(split: splits.Split, *args: object, **kwargs: object) -> object:
        seen.append((os.path.basename(split.file), split.start))
        return splits.walk(split, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(time_spans, "walk", counted)
    return seen


def test_little_is_read_and_files_are_walked_over_once(
    written: tuple[Path, list[MessageExt]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, messages = written
    seen = walks(monkeypatch)
    found = ranges(root, START + 100 * MINUTE, START + 110 * MINUTE)
    size = sum(message.store_size for message in messages[100:111])
    assert size <= bytes_of(found) <= size + 2 * time_spans.BLOCK
    assert [position for _, position in seen] == [0] * len(log_files(Storage(str(root)))) != [0]
    seen.clear()
    assert ranges(root, START + 100 * MINUTE, START + 110 * MINUTE) == found
    assert seen == []
    assert ranges(root, START + RECORDS * MINUTE) == [] == ranges(root, 0, START - 1)


def test_a_file_that_is_read_anyway_is_not_walked_over(
    written: tuple[Path, list[MessageExt]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, messages = written
    seen = walks(monkeypatch)
    assert ranges(root, 0) == [(0, messages[-1].physical_offset + messages[-1].store_size)]
    assert seen == []


def test_what_is_appended_is_walked_over_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    append(root, [START + n * MINUTE for n in range(50)])
    assert ranges(root, START + 200 * MINUTE) == []
    before = decoded(root)[-1].physical_offset
    append(root, [START + (300 if n == 30 else n) * MINUTE for n in range(60)])
    seen = walks(monkeypatch)
    message = decoded(root)[80]
    found = ranges(root, START + 200 * MINUTE)
    assert [position for _, position in seen] == [before]
    assert any(start <= message.physical_offset < end for start, end in found)
    assert bytes_of(found) <= time_spans.BLOCK


@pytest.mark.parametrize("how", ["rewritten", "another", "shorter"])
def test_what_is_remembered_of_another_file_is_not_believed(
    written: tuple[Path, list[MessageExt]], tmp_path: Path, how: str
) -> None:
    root, messages = written
    copy = copy_store(root, tmp_path / "store")
    late = START + 1000 * MINUTE
    assert ranges(copy, late) == []
    times = [START + n * MINUTE for n in range(RECORDS)]
    if how == "shorter":  # cut, and other records written there
        shutil.rmtree(copy)
        append(copy, [START + n * MINUTE for n in range(20)])
        append(copy, [late])
        assert bytes_of(ranges(copy, late))
        return
    times[10] = late
    if how == "another":
        other = copy_store(copy, tmp_path / "other")
        shutil.rmtree(copy)
        os.rename(other, copy)
    set_times(copy, messages, times)
    found = ranges(copy, late)
    assert [start <= messages[10].physical_offset < end for start, end in found] == [True]


def test_a_block_with_damage_is_read(written: tuple[Path, list[MessageExt]], tmp_path: Path) -> None:
    root, messages = written
    copy = copy_store(root, tmp_path / "store")
    damaged = messages[150].physical_offset
    base = damaged // FILE_SIZE * FILE_SIZE
    overwrite(copy / "commitlog" / f"{base:020d}", damaged - base + 4, b"no magic")
    found = ranges(copy, 0, START)
    assert any(start <= damaged < end for start, end in found)
    assert bytes_of(found) <= 3 * time_spans.BLOCK
    rows = mqlake.lake.scan(copy, mode="permissive", end=store_time(START + 1)).to_table(["_corrupt"])
    assert sum(text is not None for text in rows["_corrupt"].to_pylist()) == 1


def test_a_remote_log_is_read_unless_samples_are_enough(written: tuple[Path, list[MessageExt]]) -> None:
    fsspec = pytest.importorskip("fsspec")
    root, messages = written
    fsspec.filesystem("memory").put(str(root), "/times/store", recursive=True)
    storage = Storage("memory://times/store")
    heads = Heads(storage, log_files(storage))
    end = messages[-1].physical_offset + messages[-1].store_size
    late = START + 10 * RECORDS * MINUTE
    assert bytes_of(ranges_by_time(heads, late, late)) == end
    assert bytes_of(ranges_by_time(heads, late, late, sampled=True)) < end


def test_samples_do_where_the_clock_was_right(written: tuple[Path, list[MessageExt]]) -> None:
    root, messages = written
    low, high = START + 100 * MINUTE, START + 110 * MINUTE
    holds = [message.physical_offset for message in messages[100:111]]
    assert matching(root, low, high, skipping="sampled") == holds
    assert not time_spans._known
