"""A filler fills its place to the byte and is a record like any other to whoever checks it."""

from __future__ import annotations

import numpy as np
import pytest

from mqlake.formats.columns import ScanStop, dispatch_columns, scan_records
from mqlake.store.log.filler import FILLER_SIZE, FILLER_SIZE_MIN, FILLER_TOPIC, are_fillers, encode_filler
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
