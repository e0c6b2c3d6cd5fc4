from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.metaq.formats import scan as scan_module
from mqlake.metaq.formats.record import encode_record
from mqlake.metaq.formats.scan import Scan, ScanStop, find_record, scan_records

RECORDS = st.lists(st.tuples(st.binary(max_size=60), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=8)


def by(walk: str, monkeypatch: pytest.MonkeyPatch, raw: bytes, **options: int) -> Scan:
    if walk == "plain":
        monkeypatch.setattr(scan_module, "scanner", lambda: scan_module._plain_scan)
    array = np.frombuffer(raw, np.uint8)
    return scan_records(array, 0, len(array), **options)


@pytest.mark.parametrize("walk", ["plain", "kernels"])
def test_columns_and_the_end(walk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [encode_record(b"x" * n, -n, n) for n in range(5)]
    raw = b"".join(records)
    scan = by(walk, monkeypatch, raw)
    assert (scan.end, scan.stop) == (len(raw), ScanStop.LIMIT)
    assert scan.length.tolist() == [0, 1, 2, 3, 4]
    assert scan.message_id.tolist() == [0, -1, -2, -3, -4]
    assert scan.flag.tolist() == [0, 1, 2, 3, 4]
    assert scan.position.tolist() == [0, 20, 41, 63, 86]
    scan = by(walk, monkeypatch, raw, max_records=2)
    assert (len(scan), scan.end, scan.stop) == (2, 41, ScanStop.MAX_RECORDS)
    assert by(walk, monkeypatch, b"").stop is ScanStop.LIMIT
    assert by(walk, monkeypatch, raw[:-1]).stop is ScanStop.TRUNCATED
    assert by(walk, monkeypatch, b"\x7f" + bytes(19)).stop is ScanStop.TRUNCATED
    assert by(walk, monkeypatch, b"\xff" + bytes(19)).stop is ScanStop.INVALID
    assert by(walk, monkeypatch, bytes(8)).stop is ScanStop.TRUNCATED
    assert len(by(walk, monkeypatch, bytes(60))) == 3


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.data())
def test_both_walks_find_the_same(records: list[tuple[bytes, int]], data: st.DataObject) -> None:
    raw = bytearray(b"".join(encode_record(body, number, 0) for body, number in records))
    for _ in range(data.draw(st.integers(0, 2)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with pytest.MonkeyPatch.context() as patch:
        one, other = (by(walk, patch, bytes(raw)) for walk in ("plain", "kernels"))
    assert (one.end, one.stop) == (other.end, other.stop)
    for a, b in zip(one[:4], other[:4], strict=True):
        assert np.array_equal(a, b)


def test_positions_outside_the_buffer() -> None:
    with pytest.raises(ValueError, match="are not in a buffer"):
        scan_records(np.zeros(10, np.uint8), 0, 11)


def test_find_record_passes_over_random_bytes() -> None:
    raw = random.Random(1).randbytes(50_000) + encode_record(b"found", 1, 0) + b"\0" * 30
    buf = np.frombuffer(raw, np.uint8)
    assert find_record(buf, 0, len(buf)) == 50_000
    assert find_record(buf, 50_001, len(buf)) == -1
