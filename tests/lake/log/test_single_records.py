"""Records read one by one: the same as by a scan, and damage where another record is than is expected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mqlake.lake.log.single_records import UNKNOWN, Places, message_number, picks, read_picked
from mqlake.lake.log.splits import Damage, log_files
from mqlake.lake.log.storage import Storage
from tests.spark.stores import body_position, copy_store, decoded, flip_bit
from tests.spark.stores import log_files as paths_of

Found = list[tuple[int, str]]


def read(root: Path, wanted: Places, chunk_records: int = 8192) -> Found:
    storage = Storage(str(root))
    found: Found = []
    for pick in picks(storage, log_files(storage), wanted, 7):
        for each in read_picked(pick, verify="crc", chunk_records=chunk_records):
            if isinstance(each, Damage):
                found.append((each.physical_offset, each.reason))
                continue
            buf, scan = each
            for row, start in enumerate(scan.body_start):
                body = buf[start : start + scan.body_length[row]].tobytes()
                found.append((int(scan.physical_offset[row]), body.hex()))
    return found


def all_places(root: Path) -> Places:
    messages = decoded(root)
    return Places.of(
        np.array([m.physical_offset for m in messages]),
        np.array([m.store_size for m in messages]),
        message_number(
            np.array([m.queue_id for m in messages]), np.array([m.queue_offset for m in messages])
        ),
    )


@pytest.mark.parametrize("chunk_records", [8192, 2])
@pytest.mark.parametrize("known", [True, False])
def test_every_third_record(every_kind: Path, known: bool, chunk_records: int) -> None:
    wanted = all_places(every_kind).where(np.arange(len(decoded(every_kind))) % 3 == 0)
    if not known:
        unknown = np.full(len(wanted), UNKNOWN)
        wanted = Places(wanted.offset, unknown, unknown)
    assert read(every_kind, wanted, chunk_records) == [
        (m.physical_offset, m.body.hex()) for m in decoded(every_kind)[::3]
    ]


@pytest.mark.parametrize("fault", ["offset", "size", "number", "beyond", "body"])
def test_what_is_not_there_is_damage(every_kind: Path, tmp_path: Path, fault: str) -> None:
    root = copy_store(every_kind, tmp_path / "store")
    messages = decoded(root)
    wanted = all_places(root)
    bad, at = messages[4], messages[4].physical_offset
    if fault == "offset":
        wanted.offset[4] += 8
        at += 8
    elif fault == "size":
        wanted.size[4] += 8
    elif fault == "number":
        wanted.number[4] += 1
    elif fault == "beyond":
        end = log_files(Storage(str(root)))[-1].end_offset
        wanted = Places.of(
            *(np.append(getattr(wanted, n)[:3], end - 10) for n in ("offset", "size", "number"))
        )
    else:
        flip_bit(paths_of(root)[0], at + body_position(bad))
    found = read(root, wanted)
    if fault == "beyond":
        assert found[-1][0] == end - 10 and len(found) == 4
        return
    assert [text for offset, text in found if offset == at] != [bad.body.hex()]
    rest = [(m.physical_offset, m.body.hex()) for m in messages if m is not bad]
    assert [each for each in found if each[0] != at] == rest


def test_of_equal_places_one_is_read() -> None:
    found = Places.of(np.array([5, 3, 5]), np.array([1, 2, 3]), np.array([7, 8, 9]))
    assert (list(found.offset), list(found.size), list(found.number)) == ([3, 5], [2, 1], [8, 7])
    assert len(Places.none()) == 0
