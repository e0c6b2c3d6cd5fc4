"""Records as columns: the same as read one by one, damage between them, and memory that is given back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import StoreCorruptError
from mqlake.metaq.formats.record import encode_payload, encode_record
from mqlake.metaq.store import inspect
from mqlake.metaq.store.columns import Damage, Records, read_partition, read_segment
from mqlake.metaq.store.inspect import PartitionFiles, SegmentFile
from tests.memory import resident

MESSAGES = st.lists(
    st.tuples(st.binary(max_size=40), st.none() | st.text(max_size=9), st.integers(1, 2**63 - 1))
)


@given(MESSAGES, st.integers(1, 4), st.integers(1, 100))
def test_columns_are_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[tuple[bytes, str | None, int]],
    records_max: int,
    bytes_max: int,
) -> None:
    path = tmp_path_factory.mktemp("t") / "segment"
    records = [encode_record(encode_payload(body, a), n, a is not None) for body, a, n in messages]
    path.write_bytes(b"".join(records))
    segment = SegmentFile(1000, path.stat().st_size, str(path))
    found = []
    end = 1000
    for columns in read_segment(segment, may_be_torn=False):
        assert isinstance(columns, Records)
        for part in columns.batches(records_max, bytes_max):
            assert 1 <= len(part) <= records_max and part.offset[0] == end
            found += zip(
                part.bodies().to_pylist(),
                part.attributes().to_pylist(),
                part.scan.message_id.tolist(),
                part.size.tolist(),
                strict=True,
            )
            end = part.end
    assert found == [(*each, len(raw)) for each, raw in zip(messages, records, strict=True)]
    assert end == 1000 + path.stat().st_size


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_file_that_was_cut_short_is_damage(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "segment"
    record = encode_record(b"x" * 30, 1, 0)
    path.write_bytes(record * 3)
    segment = SegmentFile(500, len(record) * 3, str(path))
    os.truncate(path, len(record) * kept)
    found = list(read_segment(segment, len(record), may_be_torn=False))
    first = max(kept, 1) * len(record)
    reason = "the file was cut short before"
    assert found[-1] == Damage(str(path), first, 3 * len(record), 500 + first, reason)
    assert [len(each) for each in found[:-1] if isinstance(each, Records)] == [1] * (kept == 2)
    assert all(isinstance(each, Records) for each in read_segment(segment, may_be_torn=True))


def test_an_attribute_that_does_not_fit_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    good, bad = (
        encode_record(payload, 1, 1) for payload in (encode_payload(b"x", "a"), b"\x00\x00\x00\x09abc")
    )
    path.write_bytes(good + bad + good)
    segment = SegmentFile(0, path.stat().st_size, str(path))
    kinds = [type(each) for each in read_segment(segment, may_be_torn=False)]
    assert kinds == [Records, Damage, Records]
    with pytest.raises(StoreCorruptError, match=f"byte {len(good)}: an attribute of 9 bytes does not fit"):
        list(read_partition(PartitionFiles("t", 0, str(tmp_path), [segment])))


def test_pages_that_were_read_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "READ_BYTES_KEPT", 1 << 18)
    path = tmp_path / "segment"
    path.write_bytes(encode_record(bytes(4000), 1, 0) * 4000)
    segment = SegmentFile(0, path.stat().st_size, str(path))
    seen = []
    for found in read_segment(segment, may_be_torn=False, chunk_records=200):
        assert isinstance(found, Records) and found.bodies()[0].as_py() == bytes(4000)
        seen.append(resident(tmp_path))
    assert len(seen) == 20 and 0 < max(seen) < 8 << 20
