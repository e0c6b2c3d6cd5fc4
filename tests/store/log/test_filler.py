"""A filler fills its place to the byte and is a record like any other to whoever checks it."""

from __future__ import annotations

import numpy as np
import pytest

from mqlake.formats.columns import ScanStop, dispatch_columns, scan_records
from mqlake.formats.record import encode_blank
from mqlake.store.log.filler import (
    FILLER_SIZE,
    FILLER_SIZE_MIN,
    FILLER_TOPIC,
    PIECE,
    are_fillers,
    encode_filler,
    fence_off,
)
from tests.store.log_of import DELAY_LEVELS, LogOf, Record


@pytest.mark.parametrize("size", [*range(FILLER_SIZE_MIN, FILLER_SIZE + 30), 4096, 1_000_003])
def test_fits_its_place(size: int) -> None:
    filler = encode_filler(size, 5000, 1_700_000_000_000)
    assert len(filler) == size
    array = np.frombuffer(filler, np.uint8)
    scan = scan_records(array, 0, size, 5000, force_prop_crc=size >= FILLER_SIZE)
    assert (len(scan), scan.stop) == (1, ScanStop.LIMIT)
    assert scan.store_timestamp[0] == 1_700_000_000_000
    assert are_fillers(scan).all()
    columns = dispatch_columns(array, scan, delay_levels=DELAY_LEVELS)
    assert len(columns.key_hash) == 0 and columns.tags_code[0] == 0


def test_messages_are_no_fillers() -> None:
    log = LogOf([Record(), Record(topic=FILLER_TOPIC.decode()), Record(sys_flag=0xC)])
    scan = scan_records(log.array, 0, len(log.array), 0)
    assert len(scan) == 3 and not are_fillers(scan).any()


@pytest.mark.parametrize(
    "size", [FILLER_SIZE_MIN, 5000, PIECE, PIECE + 1, PIECE + FILLER_SIZE_MIN + 1, 3 * PIECE]
)
def test_a_hole_between_records_is_filled_to_the_byte(size: int) -> None:
    pieces = list(fence_off(100, 100 + size, 1 << 30, 1 << 24, 1_700_000_000_000))
    data = np.frombuffer(b"".join(pieces), np.uint8)
    assert len(data) == size and max(map(len, pieces)) <= PIECE + FILLER_SIZE_MIN
    scan = scan_records(data, 0, size, (1 << 30) + 100)
    assert (len(scan), scan.stop) == (len(pieces), ScanStop.LIMIT)
    assert are_fillers(scan).all()


@pytest.mark.parametrize("room", [8, FILLER_SIZE + 7, FILLER_SIZE + 8, 5000])
def test_the_rest_of_a_file_ends_with_a_blank(room: int) -> None:
    filled = b"".join(fence_off(4096 - room, 4096, 8192, 4096, 1_700_000_000_000))
    shows = room >= FILLER_SIZE + 8
    assert len(filled) == 8 + shows * FILLER_SIZE
    assert filled[-8:] == encode_blank(room - shows * FILLER_SIZE)
    data = np.frombuffer(filled.ljust(room, b"\0"), np.uint8)
    scan = scan_records(data, 0, room, 8192 + 4096 - room)
    assert (len(scan), scan.stop) == (int(shows), ScanStop.BLANK)
