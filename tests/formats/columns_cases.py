"""Memory, records and logs for the tests of the column codecs."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from mqlake.formats import columns
from mqlake.formats.record import encode_blank, encode_record
from mqlake.message import DEFAULT_MESSAGE_DELAY_LEVEL, SCHEDULE_TOPIC, crc32, host_bytes, parse_delay_levels

V4 = host_bytes(("127.0.0.1", 10911))
V6 = host_bytes(("2001:db8::1", 10911))
DELAY_LEVELS = parse_delay_levels(DEFAULT_MESSAGE_DELAY_LEVEL)
ROOM = 1 << 20


class GuardedMemory:
    """ROOM bytes between two pages without access."""

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self._memory = mmap.mmap(-1, ROOM + 2 * page)
        self.array = np.frombuffer(self._memory, np.uint8)[page : page + ROOM]
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (self.array.ctypes.data - page, self.array.ctypes.data + ROOM):
            assert libc.mprotect(ctypes.c_void_p(guard), page, 0) == 0, os.strerror(ctypes.get_errno())

    def put(self, data: bytes) -> np.ndarray:
        """The data, its end at the guard. Valid until the next call."""
        room = self.array[ROOM - len(data) :]
        room[:] = np.frombuffer(data, np.uint8)
        return room


INPUT, OUTPUT = GuardedMemory(), GuardedMemory()


@contextlib.contextmanager
def working_with(module: ModuleType) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "record_codec", lambda: module)
        yield


def record(physical_offset: int = 0, **fields: Any) -> bytes:
    values: dict[str, Any] = {
        "body": b"body",
        "queue_id": 1,
        "flag": 2,
        "queue_offset": 3,
        "physical_offset": physical_offset,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "born_host": V4,
        "store_timestamp": 1_700_000_000_001,
        "store_host": V4,
        "reconsume_times": 4,
        "prepared_transaction_offset": 5,
        "topic": b"Topic",
        "properties": b"TAGS\x01TagA\x02",
    } | fields
    return encode_record(body_crc=crc32(values["body"]), **values)


def log_of(specs: list[dict[str, Any]], base_offset: int = 0) -> bytes:
    log = b""
    for spec in specs:
        log += record(base_offset + len(log), **spec)
    return log


def scan(data: bytes, base_offset: int = 0, **options: Any) -> columns.Scan:
    return columns.scan_records(INPUT.put(data), 0, len(data), base_offset, **options)


def dispatch(data: bytes, base_offset: int = 0) -> columns.DispatchColumns:
    buf = INPUT.put(data)
    found = columns.scan_records(buf, 0, len(buf), base_offset, check_crc=False)
    return columns.dispatch_columns(buf, found, delay_levels=DELAY_LEVELS)


# --- what may be in a log ---------------------------------------------------------------------------------

NAMES = [
    "TAGS",
    "KEYS",
    "UNIQ_KEY",
    "DELAY",
    "INNER_NUM",
    "INNER_BASE",
    "TAG",
    "DELAX",
    "UNIQ_KEX",
    "INNER_NUN",
    "é",
]
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["", " ", "a b", " a  b ", "18", "+3", "-1", "0", "99", "65536", "007", "9" * 19, "9" * 30, "-", "x1"]
    ),
)
PIECES = st.one_of(
    st.builds(lambda k, v: f"{k}\x01{v}\x02".encode(), st.sampled_from(NAMES), TEXTS),
    st.builds(lambda k, v: k.encode() + b"\x01" + v + b"\x02", st.sampled_from(NAMES), st.binary(max_size=8)),
    st.binary(max_size=6),
    st.sampled_from(
        [b"\x01", b"\x02", b"TAGS\x01", b"\x01v\x02", b"a\x01\x02", b"TAGS\x01x\x01y\x02", b"KEYS\x01last"]
    ),
)
PROPERTIES = st.lists(PIECES, max_size=6).map(b"".join)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TOPICS = st.one_of(
    st.sampled_from([b"", b"A", b"B", b"Topic", SCHEDULE_TOPIC.encode(), "主题".encode()]),
    st.binary(max_size=12),
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "body": st.binary(max_size=60),
        "queue_id": I32,
        "flag": I32,
        "queue_offset": I64,
        "sys_flag": st.integers(0, 0x7FF),
        "born_timestamp": I64,
        "born_host": st.sampled_from([V4, V6]),
        "store_timestamp": I64,
        "store_host": st.sampled_from([V4, V6]),
        "reconsume_times": I32,
        "prepared_transaction_offset": I64,
        "topic": TOPICS,
        "properties": PROPERTIES,
        "version": st.sampled_from([1, 2]),
        "prop_crc": st.booleans(),
    },
)
TAILS = st.one_of(
    st.just(b""),
    st.integers(1, 40).map(bytes),
    st.integers(8, 100).map(lambda n: encode_blank(n) + bytes(n - 8)),
    st.integers(-(2**31), 100).map(encode_blank),
    st.binary(max_size=120),
)
# A byte somewhere: uniform positions seldom hit the lengths of short records, so the first 100 are preferred.
FLIPS = st.lists(
    st.tuples(st.one_of(st.integers(0, 100), st.integers(0, 5000)), st.integers(0, 255)), max_size=2
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, int]:
    """(bytes, base offset): records, often damaged or cut, and something behind them."""
    base_offset = draw(st.sampled_from([0, 1 << 30, 2**62]))
    data = bytearray(log_of(draw(st.lists(SPECS, max_size=5)), base_offset))
    data += draw(TAILS)
    for position, value in draw(FLIPS):
        if position < len(data):
            data[position] = value
    cut = draw(st.one_of(st.none(), st.integers(0, 200)))
    return bytes(data if cut is None else data[: max(0, len(data) - cut)]), base_offset


many = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def item(body: bytes = b"body", properties: bytes = b"", flag: int = 0) -> bytes:
    size = 22 + len(body) + len(properties)
    return (
        struct.pack(">iiiii", size, 0, 0, flag, len(body))
        + body
        + struct.pack(">h", len(properties))
        + properties
    )
