"""Consume queue units to the records they lead to."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.formats import columns
from mqlake.formats.columns import plain
from mqlake.formats.consume_queue import UNIT
from mqlake.formats.record import HEADS, HOST_FLAGS, SYS_FLAG_POSITION, decode_record
from mqlake.native import columns as kernels
from tests.formats.columns_cases import INPUT, record, working_with

BASE = 10_000


def a_log(count: int, **fields: object) -> tuple[bytes, list[tuple[int, int]]]:
    data, places = b"", []
    for n in range(count):
        values = {"queue_id": 3, "queue_offset": 70 + n, "body": b"x" * n} | fields
        one = record(BASE + len(data), **values)
        places.append((len(data), len(data) + len(one)))
        data += one
    return data, places


def units_of(places: list[tuple[int, int]]) -> bytes:
    return b"".join(UNIT.pack(BASE + start, end - start, 7) for start, end in places)


def follow(data: bytes, units: bytes, **asked: Any):
    """(count, bytes, runs), None when a unit leads elsewhere."""
    return follow_until(data, len(data), units, **asked)


def follow_until(
    data: bytes,
    end: int,
    units: bytes,
    *,
    topic: str = "Topic",
    queue_id: int = 3,
    queue_offset: int = 70,
    bytes_max: int = 1 << 40,
    check_crc: bool = False,
):
    """The same for offsets that follow each other, and for a list of them."""
    consecutive = range(queue_offset, queue_offset + len(units) // 20)
    found, listed = (
        columns.follow_units(
            INPUT.put(data), end, BASE, units, topic, queue_id, offsets, bytes_max, check_crc=check_crc
        )
        for offsets in (consecutive, np.array(consecutive, np.int64))
    )
    if found is None or listed is None:
        assert found is listed
        return None
    results = [(count, size, runs[:run_count].tolist()) for count, size, run_count, runs in (found, listed)]
    assert results[0] == results[1]
    return results[0]


def flipped(data: bytes, position: int) -> bytes:
    damaged = np.frombuffer(data, np.uint8).copy()
    damaged[position] ^= 1
    return damaged.tobytes()


def one_run(places: list[tuple[int, int]]) -> tuple[int, int, list[list[int]]]:
    start, end = places[0][0], places[-1][1]
    return len(places), end - start, [[start, end]]


class TestFollowUnits:
    def test_units_lead_to_their_records(self, twin: ModuleType) -> None:
        data, places = a_log(5)
        assert follow(data, units_of(places)) == one_run(places)
        assert follow(data, units_of(places[2:]), queue_offset=72) == one_run(places[2:])
        assert follow(data, b"") == (0, 0, [])

    def test_records_of_others_between_them(self, twin: ModuleType) -> None:
        data, places, runs = b"", [], []
        for n in range(9):
            other = record(BASE + len(data), queue_id=4) if n % 3 == 1 else b""
            data += other
            one = record(BASE + len(data), queue_id=3, queue_offset=70 + n, body=b"x" * n)
            places.append((len(data), len(data) + len(one)))
            data += one
            if other or not runs:
                runs.append(list(places[-1]))
            runs[-1][1] = places[-1][1]
        assert follow(data, units_of(places)) == (9, sum(end - start for start, end in places), runs)
        assert len(runs) == 4

    def test_the_end_of_what_may_be_read(self, twin: ModuleType) -> None:
        data, places = a_log(3)
        units = units_of(places)
        assert follow_until(data, places[1][1], units[:40]) == one_run(places[:2])
        assert follow_until(data, places[2][1] - 1, units) is None
        assert follow_until(data, len(data) + 1, units) is None

    def test_bytes_are_limited_but_for_the_first(self, twin: ModuleType) -> None:
        data, places = a_log(5)
        assert follow(data, units_of(places), bytes_max=places[2][1]) == one_run(places[:3])
        assert follow(data, units_of(places), bytes_max=places[2][1] - 1) == one_run(places[:2])
        assert follow(data, units_of(places), bytes_max=0) == one_run(places[:1])

    @pytest.mark.parametrize(
        "queue",
        [
            {"queue_id": 2},
            {"queue_offset": 71},
            {"topic": "Topid"},
            {"topic": "Topics"},
            {"topic": "Topi"},
            {"topic": ""},
        ],
    )
    def test_records_of_other_messages(self, twin: ModuleType, queue: dict[str, Any]) -> None:
        data, places = a_log(3)
        assert follow(data, units_of(places), **queue) is None

    @pytest.mark.parametrize(
        ("offset", "size"),
        [
            (BASE + 1, 100),
            (BASE - 100, 100),
            (BASE + 400, 100),
            (-(2**63), 100),
            (2**63 - 1, 100),
            (BASE, 0),
            (BASE, -1),
            (BASE, 90),
            (BASE, 2**31 - 1),
            (BASE, -(2**31)),
        ],
    )
    def test_units_that_lead_nowhere(self, twin: ModuleType, offset: int, size: int) -> None:
        data, places = a_log(3)
        assert follow(data, units_of(places[:1]) + UNIT.pack(offset, size, 0)) is None
        assert follow(data, UNIT.pack(offset, size, 0)) is None

    def test_every_byte_of_the_place_and_the_lengths_counts(self, twin: ModuleType) -> None:
        data, places = a_log(1, body=b"body")
        lengths_and_topic = (*range(84, 88), *range(92, 100))
        for position in (*range(8), *range(12, 16), *range(20, 36), *lengths_and_topic):
            assert follow(flipped(data, position), units_of(places)) is None, position

    def test_bodies_are_checked_when_asked(self, twin: ModuleType) -> None:
        data, places = a_log(3, body=b"body")
        assert follow(data, units_of(places), check_crc=True) == one_run(places)
        for position in (*range(8, 12), *range(88, 92)):
            damaged = flipped(data, places[1][0] + position)
            assert follow(damaged, units_of(places)) == one_run(places)
            assert follow(damaged, units_of(places), check_crc=True) is None

    @given(st.data())
    def test_both_twins_say_the_same_of_any_bytes(self, data: st.DataObject) -> None:
        log, places = a_log(3)
        damaged = bytearray(log)
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
        said = []
        for module in (kernels, plain):
            with working_with(module):
                said.append(
                    [follow(bytes(damaged), units_of(places), check_crc=crc) for crc in (False, True)]
                )
        assert said[0] == said[1]


class TestGatherRuns:
    def gather(self, data: bytes, runs: list[tuple[int, int]], size: int) -> bytes:
        array = np.array(runs, np.int64).reshape(-1, 2)
        return columns.gather_runs(INPUT.put(data), array, size).tobytes()

    def test_one_behind_the_other(self, twin: ModuleType) -> None:
        data = bytes(range(256))
        assert (
            self.gather(data, [(3, 7), (250, 256), (0, 1), (9, 9)], 11) == data[3:7] + data[250:] + data[:1]
        )
        assert self.gather(data, [], 0) == b""

    @pytest.mark.parametrize(
        ("runs", "size"),
        [
            ([(-1, 3)], 4),
            ([(0, 11)], 11),
            ([(11, 11)], 0),
            ([(5, 3)], -2 % 8),
            ([(2**62, 2**62 + 4)], 4),
            ([(-(2**63), 2**63 - 1)], 4),
            ([(0, 4)], 3),
            ([(0, 4)], 5),
        ],
    )
    def test_what_lies_outside(self, twin: ModuleType, runs: list[tuple[int, int]], size: int) -> None:
        with pytest.raises(ValueError, match="outside"):
            self.gather(bytes(10), runs, size)


class TestWholeRecords:
    """Records from anywhere in a log, back to back."""

    def records(self) -> list[bytes]:
        return [
            record(0, body=b""),
            record(7_000_000, body=b"x" * 300, store_host=bytes(16) + bytes(4)),
            record(-5, properties=b""),
            record(9, topic=b"T" * 200, version=2),
        ]

    def places(self) -> list[tuple[int, int, int]]:
        places, start = [], 0
        for one in self.records():
            body = decode_record(one).body
            body_start = start + one.index(body, HEADS[one[SYS_FLAG_POSITION + 3] & HOST_FLAGS].size)
            start += len(one)
            places.append((body_start, body_start + len(body), start))
        return places

    def test_each_whole_record(self, twin: ModuleType) -> None:
        places = self.places()
        data = INPUT.put(b"".join(self.records()))
        assert columns.whole_records(data, 4) == columns.whole_records(data, 100) == places
        assert columns.whole_records(data, 3) == places[:3]
        assert columns.whole_records(data, 0) == columns.whole_records(INPUT.put(b""), 5) == []

    def test_up_to_the_first_that_is_not(self, twin: ModuleType) -> None:
        places = self.places()
        ends = [end for _, _, end in places]
        data = b"".join(self.records())
        for position in (3, 7, 110, 400):  # of the size, the magic, the body and the topic's length
            damaged = bytearray(data)
            damaged[ends[0] + position] ^= 0x40
            assert columns.whole_records(INPUT.put(bytes(damaged)), 4) == places[:1], position
        for cut in range(ends[2] + 1, ends[3]):
            assert columns.whole_records(INPUT.put(data[:cut]), 4) == places[:3]
        assert columns.whole_records(INPUT.put(data[: ends[1]] + bytes(100)), 4) == places[:2]

    @given(st.binary(max_size=300))
    def test_any_bytes(self, data: bytes) -> None:
        whole = record(1)
        found = []
        for module in (kernels, plain):
            with working_with(module):
                found.append(columns.whole_records(INPUT.put(whole + data), 9))
        assert found[0] == found[1] and found[0][0][2] == len(whole)
