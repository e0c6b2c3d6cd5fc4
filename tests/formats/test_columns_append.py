"""Batches to records."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import FormatError, IllegalTopicError
from mqlake.formats import columns
from mqlake.formats.batch import decode_messages
from mqlake.formats.columns import ScanStop, plain
from mqlake.formats.record import (
    encode_record,
)
from mqlake.message import crc32
from mqlake.native import columns as kernels
from tests.formats.columns_cases import (
    FLIPS,
    I32,
    INPUT,
    OUTPUT,
    PROPERTIES,
    TOPICS,
    V4,
    V6,
    item,
    many,
    working_with,
)

BATCH: dict[str, Any] = {
    "base_offset": 10_000,
    "topic": b"Topic",
    "queue_id": 3,
    "queue_offset": 70,
    "sys_flag": 1,
    "born_timestamp": 1_700_000_000_000,
    "born_host": V4,
    "store_timestamp": 1_700_000_000_005,
    "store_host": V4,
    "reconsume_times": 2,
    "extra_props": b"CLUSTER\x01c\x02",
    "version": 1,
    "max_record_size": 4 << 20,
}


def expected_records(blob: bytes, start: int, **fields: Any) -> list[bytes]:
    extra = fields["extra_props"]
    records: list[bytes] = []
    for n, (flag, body, own) in enumerate(decode_messages(blob)):
        joined = own + (b"\x02" if own and extra and not own.endswith(b"\x02") else b"") + extra
        records.append(
            encode_record(
                body=body,
                body_crc=crc32(body),
                queue_id=fields["queue_id"],
                flag=flag,
                queue_offset=fields["queue_offset"] + n,
                physical_offset=start + sum(map(len, records)),
                sys_flag=fields["sys_flag"],
                born_timestamp=fields["born_timestamp"],
                born_host=fields["born_host"],
                store_timestamp=fields["store_timestamp"],
                store_host=fields["store_host"],
                reconsume_times=fields["reconsume_times"],
                prepared_transaction_offset=0,
                topic=fields["topic"],
                properties=joined,
                version=fields["version"],
            )
        )
    return records


BATCHES = st.fixed_dictionaries(
    {},
    optional={
        "topic": TOPICS,
        "sys_flag": st.integers(0, 0x7FF),
        "born_host": st.sampled_from([V4, V6]),
        "store_host": st.sampled_from([V4, V6]),
        "extra_props": st.one_of(st.just(b""), PROPERTIES),
        "version": st.sampled_from([1, 2]),
        "queue_offset": st.integers(0, 2**60),
        "max_record_size": st.integers(90, 300),
    },
)
BLOBS = st.lists(st.builds(item, st.binary(max_size=40), PROPERTIES, I32), max_size=5).map(b"".join)


class TestAppendBatch:
    def append(
        self, blob: bytes, max_blank: int, position: int = 40, **fields: Any
    ) -> tuple[columns.AppendedBatch, np.ndarray]:
        out = OUTPUT.put(b"\xee" * (position + max_blank))
        return columns.append_batch(out, position, max_blank, INPUT.put(blob), **(BATCH | fields)), out

    @pytest.mark.parametrize("extra", [b"", BATCH["extra_props"]])
    def test_records_as_encoded_singly(self, twin: ModuleType, extra: bytes) -> None:
        blob = item(b"1", b"a\x01b\x02", 9) + item(b"", b"c\x01d") + item(b"333")
        result, out = self.append(blob, 600, extra_props=extra)
        records = expected_records(blob, 10_040, **(BATCH | {"extra_props": extra}))
        total = sum(map(len, records))
        assert (result.n, result.wrote) == (3, total)
        assert result.sizes.tolist() == [len(r) for r in records]
        assert result.physical_offsets.tolist() == [
            10_040,
            10_040 + len(records[0]),
            10_040 + total - len(records[2]),
        ]
        # Neither what was before nor the first size is touched; zeros end the batch, the rest is as it was.
        assert out[:44].tobytes() == b"\xee" * 44
        assert out[44 : 40 + total].tobytes() == b"".join(records)[4:]
        assert out[40 + total : 44 + total].tobytes() == bytes(4)
        assert out[44 + total :].tobytes() == b"\xee" * (600 - total - 4)

    def test_shows_when_its_size_is_written(self, twin: ModuleType) -> None:
        result, out = self.append(item() * 32, 8000)
        out[:40] = 0
        before = columns.scan_records(out, 40, len(out), 10_000)
        assert (len(before), before.stop) == (0, ScanStop.INVALID)
        out[40:44] = np.frombuffer(struct.pack(">i", result.sizes[0]), np.uint8)
        after = columns.scan_records(out, 40, 40 + result.wrote, 10_000)
        assert after.queue_offset.tolist() == list(range(70, 102))
        assert after.physical_offset.tolist() == result.physical_offsets.tolist()

    def test_what_was_wrong_is_not_taken_for_something_else(self, twin: ModuleType) -> None:
        problems = columns.BAD_BLOB, columns.NO_ROOM, columns.RECORD_TOO_LARGE, columns.PROPERTIES_TOO_LARGE
        assert len({0, *problems}) == 5 and max(problems) < 0

    def test_room_for_a_blank_is_kept(self, twin: ModuleType) -> None:
        blob = item() * 3
        total = sum(map(len, expected_records(blob, 0, **BATCH)))
        assert self.append(blob, total + 8)[0].n == 3
        result, out = self.append(blob, total + 7)
        assert (result.n, result.wrote, len(result.sizes)) == (columns.NO_ROOM, 0, 0)
        assert out.tobytes() == b"\xee" * len(out)

    @pytest.mark.parametrize(
        "blob",
        [
            item()[:-1],
            item() + b"\0",
            bytes(21),
            bytes(22),
            item().replace(b"\0\0\0\x04body", b"\0\0\0\x05body"),
            item().replace(b"\0\0\0\x04body", b"\xff\xff\xff\xffbody"),
            item()[:-2] + b"\xff\xff",
            b"\x7f\xff\xff\xff" + item()[4:],
        ],
    )
    def test_a_blob_that_is_none(self, twin: ModuleType, blob: bytes) -> None:
        with pytest.raises(FormatError):
            decode_messages(blob)
        result, out = self.append(item() + blob, 900)
        assert result.n == columns.BAD_BLOB
        assert out.tobytes() == b"\xee" * len(out)

    def test_limits(self, twin: ModuleType) -> None:
        blob = item() + item(properties=b"p" * 32767)
        assert self.append(blob, 70_000, extra_props=b"")[0].n == 2
        assert self.append(blob, 70_000, extra_props=b"x\x01y\x02")[0].n == columns.PROPERTIES_TOO_LARGE
        size = len(expected_records(item(), 0, **BATCH)[0])
        assert self.append(item(), 900, max_record_size=size)[0].n == 1
        assert self.append(item(), 900, max_record_size=size - 1)[0].n == columns.RECORD_TOO_LARGE
        assert self.append(item(), 0, max_record_size=size - 1)[0].n == columns.RECORD_TOO_LARGE
        with pytest.raises(IllegalTopicError):
            self.append(item(), 900, topic=b"t" * 128)

    def test_an_empty_batch(self, twin: ModuleType) -> None:
        result, out = self.append(b"", 100)
        assert (result.n, result.wrote) == (0, 0)
        assert out.tobytes() == b"\xee" * len(out)

    def test_arguments_that_make_no_sense(self, twin: ModuleType) -> None:
        out, blob = np.zeros(100, np.uint8), np.frombuffer(item(), np.uint8)
        for position, max_blank in ((-1, 10), (0, -1), (50, 51)):
            with pytest.raises(ValueError, match=r"max_blank|do not lie"):
                columns.append_batch(out, position, max_blank, blob, **BATCH)
        with pytest.raises(TypeError, match="writable"):
            columns.append_batch(blob, 0, 10, blob, **BATCH)

    @many
    @given(BLOBS, BATCHES, FLIPS, st.integers(0, 1200))
    def test_twins_agree(
        self, blob: bytes, fields: dict[str, Any], flips: list[tuple[int, int]], max_blank: int
    ) -> None:
        mutable = bytearray(blob)
        for position, value in flips:
            if position < len(mutable):
                mutable[position] = value
        results = []
        for module in (plain, kernels):
            with working_with(module):
                result, out = self.append(bytes(mutable), max_blank, **fields)
                results.append(
                    (
                        result.n,
                        result.wrote,
                        result.physical_offsets.tolist(),
                        result.sizes.tolist(),
                        out.tobytes(),
                    )
                )
        assert results[0] == results[1]
        if results[0][0] > 0:
            records = b"".join(expected_records(bytes(mutable), 10_040, **(BATCH | fields)))
            assert out[44 : 40 + len(records)].tobytes() == records[4:]
