"""The kernels of records run by Python, beside the same compiled: what is compiled checks no index, Python does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mqlake import native
from mqlake.formats.columns import layout
from tests.formats.columns_cases import V6, log_of
from tests.native.uncompiled import uncompiled

COMPILED, PLAIN = native.module("records"), uncompiled("records")
LOG = log_of(
    [
        {},
        {"topic": b"Other", "born_host": V6, "sys_flag": 16, "queue_offset": 9},
        {"body": b"", "properties": b"", "store_host": V6, "sys_flag": 32},
        {"properties": b"KEYS\x01k\x02__CRC32#\x010000000000\x02"},
    ],
    base_offset=1000,
)


def test_the_extension_is_there() -> None:
    assert COMPILED is not None and not hasattr(
        COMPILED, "check"
    )  # what C calls alone is no function of Python's


def damaged(rng: random.Random) -> np.ndarray:
    data = bytearray(LOG)
    for _ in range(rng.randrange(3)):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xDA, 0xFF))
    return np.frombuffer(
        bytes(data[: rng.randrange(len(data) + 1)]) if rng.random() < 0.5 else bytes(data), np.uint8
    )


def scanned(module: Any, buf: np.ndarray, check_crc: bool) -> list[Any]:
    wide = np.zeros((len(layout.WIDE), 4), np.int64)
    narrow = np.zeros((len(layout.NARROW), 4), np.int32)
    first_of = np.zeros(4, np.int32)
    found = module.scan(
        buf, 0, len(buf), 1000, check_crc, False, wide, narrow, np.zeros(8, np.int32), first_of
    )
    return [found, wide.tolist(), narrow.tolist(), first_of.tolist()]


@pytest.mark.parametrize("seed", range(200))
def test_scans_find_the_same(seed: int) -> None:
    rng = random.Random(seed)
    buf = damaged(rng)
    assert scanned(COMPILED, buf, True) == scanned(PLAIN, buf, True)
    assert scanned(COMPILED, buf, False) == scanned(PLAIN, buf, False)
    for name in ("walk", "find_record"):
        more = (True,) if name == "walk" else ()
        arguments = (buf, 0, len(buf), 1000, *more)
        assert getattr(COMPILED, name)(*arguments) == getattr(PLAIN, name)(*arguments)
