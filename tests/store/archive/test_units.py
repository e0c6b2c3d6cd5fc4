"""Units objects: what dispatch makes of a file, as it was, from any bytes between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import StoreError
from mqlake.formats.columns import dispatch_columns, scan_records
from mqlake.formats.consume_queue import CQ_DTYPE
from mqlake.store.archive.units import MAGIC, decode, encode, survey
from mqlake.store.index.index_service import IndexKeys, IndexService
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore, PreparedUnits
from tests.store.small_store import fill, fill_batches

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.data())
def test_any_units_and_keys_come_back(data: st.DataObject) -> None:
    count, keys = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))

    def column(size: int, dtype: type[np.generic] = np.int64) -> np.ndarray:
        bound = 31 if dtype is np.int32 else 63
        values = data.draw(st.lists(st.integers(-(2**bound), 2**bound - 1), min_size=size, max_size=size))
        return np.array(values, dtype)

    units = np.frombuffer(data.draw(st.binary(min_size=20 * count, max_size=20 * count)), CQ_DTYPE)
    inner = np.stack([column(count) for _ in range(3)]) if data.draw(st.booleans()) else None
    runs = data.draw(st.lists(st.lists(INT64, min_size=7, max_size=7), max_size=3))
    topics = data.draw(st.lists(st.binary(max_size=9), max_size=3))
    prepared = PreparedUnits(units, column(count), inner, runs, topics, data.draw(INT64))
    index = IndexKeys(column(keys, np.int32), column(keys), column(keys), data.draw(INT64))
    ((found, found_keys),) = decode(MAGIC + encode(prepared, index), "x")
    assert found.units.tobytes() == units.tobytes()
    assert (found.runs, found.topics, found.last_timestamp) == (runs, topics, prepared.last_timestamp)
    assert (found.inner is None) == (inner is None) and (inner is None or (found.inner == inner).all())
    assert (found.store_time == prepared.store_time).all()
    for one, other in zip(found_keys, index, strict=True):
        assert np.array_equal(one, other)


def test_those_of_a_log_are_what_dispatch_makes(tmp_path: Path) -> None:
    fill(tmp_path)
    path = tmp_path / "commitlog" / f"{16384:020d}"
    array = np.frombuffer(path.read_bytes(), np.uint8)
    pieces: list[bytes] = []
    found = survey(array, 0, len(array), 16384, {}, pieces.append)
    scan = scan_records(array, 0, len(array), 16384)
    assert found.records == len(scan) > 20 and found.topics == {"Orders", "Payments"}
    assert (found.first_time_ms, found.last_time_ms) == (
        int(scan.store_timestamp.min()),
        int(scan.store_timestamp.max()),
    )
    columns = dispatch_columns(array, scan, delay_levels={})
    ((units, keys),) = decode(b"".join(pieces), "x")
    wanted = ConsumeQueueStore.prepare(scan, columns)
    assert units.units.tobytes() == wanted.units.tobytes() and units.runs == wanted.runs
    assert np.array_equal(keys.key_hash, IndexService.prepare(scan, columns).key_hash)


def test_records_after_damage_are_found(tmp_path: Path) -> None:
    fill_batches(tmp_path, 20, 3)
    array = np.fromfile(tmp_path / "commitlog" / f"{0:020d}", np.uint8)
    scan = scan_records(array, 0, len(array), 0)
    array[int(scan.position[5]) : int(scan.position[6])] = 7
    assert survey(array, 0, len(array), 0, {}).records == len(scan) - 1


@pytest.mark.parametrize("cut", [1, 9, 30])
def test_a_cut_object_is_an_error_that_says_so(tmp_path: Path, cut: int) -> None:
    fill(tmp_path)
    array = np.fromfile(tmp_path / "commitlog" / f"{0:020d}", np.uint8)
    pieces: list[bytes] = []
    survey(array, 0, len(array), 0, {}, pieces.append)
    with pytest.raises(StoreError, match=r"the place.*is damaged at byte"):
        list(decode(b"".join(pieces)[:-cut], "the place"))
