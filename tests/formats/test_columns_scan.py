"""Logs to columns, and the search for a record."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.formats import columns
from mqlake.formats.columns import ScanStop, layout, plain
from mqlake.formats.record import (
    RecordCheck,
    RecordKind,
    check_record,
    decode_record,
    encode_blank,
)
from mqlake.native import columns as kernels
from tests.formats.columns_cases import INPUT, ROOM, V4, V6, log_of, logs, many, record, scan, working_with
from tests.waiting import trying


def as_lists(found: columns.Scan) -> dict[str, Any]:
    names = (*layout.WIDE, *layout.NARROW)
    return {name: getattr(found, name).tolist() for name in names} | {
        "topics": found.topics,
        "end": found.end,
        "stop": found.stop,
        "reason": found.stop_reason,
    }


def reference_check(data: bytes, position: int, base_offset: int, **options: bool) -> RecordCheck:
    return check_record(data, position, len(data), base_offset + position, **options)


class TestScanRecords:
    def test_fields_of_a_record(self, twin: ModuleType) -> None:
        properties = b"KEYS\x01k\x02"
        data = record(
            900, body=b"12345", topic=b"T1", properties=properties, born_host=V6, version=2, sys_flag=8
        )
        found = scan(data, 900)
        message = decode_record(data)
        assert len(found) == 1
        assert found.position.tolist() == [0]
        assert found.size.tolist() == [len(data)]
        assert found.physical_offset.tolist() == [900]
        assert found.queue_id.tolist() == [1]
        assert found.queue_offset.tolist() == [3]
        assert found.sys_flag.tolist() == [8 | 0x10]
        assert found.flag.tolist() == [2]
        assert found.body_crc.tolist() == [message.body_crc]
        assert found.born_timestamp.tolist() == [1_700_000_000_000]
        assert found.store_timestamp.tolist() == [1_700_000_000_001]
        assert found.reconsume_times.tolist() == [4]
        assert found.prepared_transaction_offset.tolist() == [5]

        def part(start: np.ndarray, length: int) -> bytes:
            return data[start[0] : start[0] + length]

        assert part(found.body_start, found.body_length[0]) == b"12345"
        assert part(found.topic_start, found.topic_length[0]) == b"T1"
        assert part(found.properties_start, found.properties_length[0]) == properties
        assert part(found.born_host_start, 20) == V6
        assert part(found.store_host_start, 8) == V4
        assert found.topics == [b"T1"]
        assert (found.end, found.stop, found.stop_reason) == (len(data), ScanStop.LIMIT, "")

    def test_a_room_is_used_again(self, twin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(columns, "SMALL_SCAN", 0)
        room = columns.ScanRoom(60)
        for topics in (b"AB", b"CBA", b"D"):
            data = log_of([{"topic": topics[n % len(topics) :][:1]} for n in range(40)])
            found = scan(data, room=room, max_records=60)
            assert as_lists(found) == as_lists(scan(data))
            assert np.shares_memory(found.size, room.narrow)

    def test_column_types(self, twin: ModuleType) -> None:
        found = scan(record())
        assert {getattr(found, name).dtype for name in layout.WIDE} == {np.dtype(np.int64)}
        assert {getattr(found, name).dtype for name in layout.NARROW} == {np.dtype(np.int32)}
        with pytest.raises(AttributeError):
            found.no_such_column  # noqa: B018

    @pytest.mark.parametrize(
        ("tail", "stop", "reason"),
        [
            (b"", ScanStop.LIMIT, ""),
            (bytes(1), ScanStop.END, ""),
            (bytes(100), ScanStop.END, ""),
            (b"\0\0\0\x01", ScanStop.TRUNCATED, "4 bytes are no record"),
            (encode_blank(8), ScanStop.BLANK, ""),
            (encode_blank(9), ScanStop.TRUNCATED, "a blank of 9 bytes, 8 are there"),
            (encode_blank(7), ScanStop.INVALID, "a blank of 7 bytes"),
            (b"\0\0\0\x5bJUNK" + bytes(100), ScanStop.INVALID, "magic 0x4a554e4b"),
            (record(110)[:50], ScanStop.TRUNCATED, "the record has 110 bytes, 50 are there"),
            (record(7), ScanStop.INVALID, "physical offset 7 where 110 was expected"),
            (record(110, body=b"BODY").replace(b"BODY", b"BUDY"), ScanStop.INVALID, "body CRC"),
        ],
    )
    def test_why_it_stops(self, twin: ModuleType, tail: bytes, stop: ScanStop, reason: str) -> None:
        first = record()
        assert len(first) == 110
        found = scan(first + tail)
        assert (len(found), found.stop, found.stop_reason) == (1, stop, reason)
        assert found.end == len(first) + (len(tail) if stop == ScanStop.BLANK else 0)

    def test_crc_is_optional(self, twin: ModuleType) -> None:
        bad = record(body=b"BODY").replace(b"BODY", b"BUDY")
        assert len(scan(bad, check_crc=False)) == 1

    def test_crc_of_an_empty_body(self, twin: ModuleType) -> None:
        data = bytearray(record(body=b""))
        data[11] ^= 1
        assert len(scan(bytes(data))) == 1
        assert columns.find_record(INPUT.put(bytes(data)), 0, len(data), 0) == 0

    def test_property_crc(self, twin: ModuleType) -> None:
        good, without = record(prop_crc=True), record()
        assert len(scan(good, force_prop_crc=True)) == 1
        assert len(scan(without, force_prop_crc=True)) == 1
        for position in (20, len(good) - 30, len(good) - 8):
            bad = bytearray(good)
            bad[position] ^= 1
            assert scan(bytes(bad), force_prop_crc=True).stop == ScanStop.INVALID
            assert scan(bytes(bad)).stop == ScanStop.LIMIT, "a client may have sent it"
            following = bytes(bad) + record(len(bad), prop_crc=True)
            assert scan(following).stop_reason == "property CRC"

    def test_goes_on_where_it_stopped(self, twin: ModuleType) -> None:
        data = log_of([{"queue_offset": i, "topic": b"T%d" % (i % 3)} for i in range(25)])
        buf = INPUT.put(data)
        position, offsets = 0, []
        for _ in trying("the end of the log"):
            found = columns.scan_records(buf, position, len(buf), 0, max_records=4)
            offsets += found.queue_offset.tolist()
            assert [found.topics[t] for t in found.topic_id] == [
                b"T%d" % (i % 3) for i in found.queue_offset.tolist()
            ]
            position = found.end
            if found.stop != ScanStop.MAX_RECORDS:
                break
        assert offsets == list(range(25))
        assert found.stop == ScanStop.LIMIT

    def test_exactly_max_records(self, twin: ModuleType) -> None:
        data = log_of([{}, {}])
        assert scan(data, max_records=2).stop == ScanStop.LIMIT
        assert scan(data + bytes(8), max_records=2).stop == ScanStop.MAX_RECORDS

    def test_many_topics(self, twin: ModuleType) -> None:
        names = [b"topic-%d" % (i * 7919 % 1500) for i in range(3000)]
        data = log_of([{"topic": name, "body": b""} for name in names])
        found = scan(data)
        assert len(found.topics) == 1500
        assert [found.topics[t] for t in found.topic_id.tolist()] == names

    def test_starts_inside(self, twin: ModuleType) -> None:
        data = log_of([{}, {}], 500)
        buf = INPUT.put(data)
        found = columns.scan_records(buf, 110, len(buf), 500)
        assert found.physical_offset.tolist() == [610]
        assert found.position.tolist() == [110]

    def test_read_only_and_writable_buffers(self, twin: ModuleType) -> None:
        data = np.frombuffer(record(), np.uint8)
        assert not data.flags.writeable
        assert len(columns.scan_records(data, 0, len(data), 0)) == 1
        assert len(columns.scan_records(data.copy(), 0, len(data), 0)) == 1

    def test_arguments_that_make_no_sense(self, twin: ModuleType) -> None:
        buf = np.zeros(100, np.uint8)
        for start, limit in ((-1, 10), (11, 10), (0, 101)):
            with pytest.raises(ValueError, match="do not lie in a buffer of 100 bytes"):
                columns.scan_records(buf, start, limit, 0)
        with pytest.raises(ValueError, match="max_records"):
            columns.scan_records(buf, 0, 100, 0, max_records=0)
        for bad in (buf[::2], buf.view(np.int8), buf.reshape(10, 10)):
            with pytest.raises(TypeError, match="contiguous array of uint8"):
                columns.scan_records(bad, 0, 10, 0)

    @many
    @given(logs(), st.booleans(), st.booleans(), st.integers(1, 6))
    def test_agrees_with_the_single_codec(
        self,
        twin: ModuleType,
        log: tuple[bytes, int],
        check_crc: bool,
        force_prop_crc: bool,
        max_records: int,
    ) -> None:
        data, base_offset = log
        options = {"check_crc": check_crc, "force_prop_crc": force_prop_crc}
        found = scan(data, base_offset, max_records=max_records, **options)
        position = n = 0
        while n < max_records and position < len(data):
            check = reference_check(data, position, base_offset, **options)
            if check.kind != RecordKind.MESSAGE:
                break
            message = decode_record(data, position, check_crc=False)
            assert found.position[n] == position
            assert found.size[n] == message.store_size
            assert found.physical_offset[n] == message.physical_offset
            assert found.queue_id[n] == message.queue_id
            assert found.queue_offset[n] == message.queue_offset
            assert found.sys_flag[n] == message.sys_flag
            assert found.flag[n] == message.flag
            assert found.body_crc[n] == message.body_crc
            assert found.born_timestamp[n] == message.born_timestamp
            assert found.store_timestamp[n] == message.store_timestamp
            assert found.reconsume_times[n] == message.reconsume_times
            assert found.prepared_transaction_offset[n] == message.prepared_transaction_offset
            body = data[found.body_start[n] : found.body_start[n] + found.body_length[n]]
            topic = data[found.topic_start[n] : found.topic_start[n] + found.topic_length[n]]
            assert body == message.body
            assert topic == found.topics[found.topic_id[n]]
            assert topic.decode("utf-8", "replace") == message.topic
            assert found.properties_start[n] + found.properties_length[n] == position + message.store_size
            position += message.store_size
            n += 1
        assert len(found) == n
        if position == len(data):
            assert found.stop == ScanStop.LIMIT
        elif n == max_records:
            assert found.stop == ScanStop.MAX_RECORDS
        else:
            assert (int(found.stop), found.stop_reason) == (int(check.kind), check.reason)
            position += check.size if check.kind == RecordKind.BLANK else 0
        assert found.end == position

    @many
    @given(logs(), st.booleans(), st.booleans())
    def test_twins_agree(self, log: tuple[bytes, int], check_crc: bool, force_prop_crc: bool) -> None:
        data, base_offset = log
        results = []
        for module in (plain, kernels):
            with working_with(module):
                found = scan(data, base_offset, check_crc=check_crc, force_prop_crc=force_prop_crc)
                results.append(as_lists(found))
        assert results[0] == results[1]


class TestWalkRecords:
    @many
    @given(logs(), st.booleans())
    def test_is_a_scan_without_columns(
        self, twin: ModuleType, log: tuple[bytes, int], check_crc: bool
    ) -> None:
        data, base_offset = log
        found = scan(data, base_offset, check_crc=check_crc)
        times = [0, *found.store_timestamp.tolist()]
        walk = columns.walk_records(INPUT.put(data), 0, len(data), base_offset, check_crc=check_crc)
        assert walk == (len(found), times[-1], found.end, found.stop, found.stop_reason)

    def test_starts_inside_and_knows_the_time_between_hosts_of_both_kinds(self, twin: ModuleType) -> None:
        data = log_of(
            [{"store_timestamp": 1}, {"store_timestamp": 2, "born_host": V6, "sys_flag": 0x10}], 500
        )
        walk = columns.walk_records(INPUT.put(data), 110, len(data), 500)
        assert (walk.records, walk.store_timestamp, walk.end, walk.stop) == (1, 2, len(data), ScanStop.LIMIT)
        with pytest.raises(ValueError, match="do not lie in a buffer"):
            columns.walk_records(INPUT.put(data), 0, 1 << 40, 500)


class TestFindRecord:
    def test_finds_what_is_at_its_place(self, twin: ModuleType) -> None:
        image = record(5000)
        junk = random.Random(1).randbytes(3000).replace(b"\xda", b"\0")
        data = junk + image + junk
        data = data + record(len(data))
        buf = INPUT.put(data)
        assert columns.find_record(buf, 0, len(buf), 0) == len(data) - len(image)
        assert columns.find_record(buf, 0, len(buf), 2000) == 3000
        assert columns.find_record(buf, 3001, len(buf), 2000) == -1
        assert columns.find_record(buf, 0, len(buf) - 1, 0) == -1
        assert columns.find_record(buf, 0, 0, 0) == -1

    def test_far_away(self, twin: ModuleType) -> None:
        data = bytes(ROOM - 4 - 110) + record(ROOM - 4 - 110) + bytes(4)
        assert columns.find_record(INPUT.put(data), 0, len(data), 0) == ROOM - 4 - 110
        # Where one block of the plain search meets the next.
        big = bytes((1 << 20) - 3) + record((1 << 20) - 3)
        assert columns.find_record(np.frombuffer(big, np.uint8), 0, len(big), 0) == (1 << 20) - 3

    @many
    @given(logs(), st.integers(0, 300))
    def test_is_the_first_valid_position(self, twin: ModuleType, log: tuple[bytes, int], start: int) -> None:
        data, base_offset = log
        start = min(start, len(data))
        expected = (
            p
            for p in range(start, len(data))
            if reference_check(data, p, base_offset).kind == RecordKind.MESSAGE
        )
        buf = INPUT.put(data)
        assert columns.find_record(buf, start, len(buf), base_offset) == next(expected, -1)
