"""Arrow arrays without pandas: what `pa.array` would make, and nothing imported for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mqlake.lake.arrow.arrays import batch_of, bools_of, codes_of, number_array, repeated, string_array

NUMBERS = np.array([1, -2, 3, 4, 5, 6, 7, 8, 9], np.int64)


@pytest.mark.parametrize("values", [NUMBERS, NUMBERS.astype(np.int32), NUMBERS[:0], NUMBERS[::2]])
def test_numbers(values: np.ndarray) -> None:
    assert number_array(values).equals(pa.array(values))
    valid = values > 3
    made = number_array(values, valid)
    made.validate(full=True)
    assert made.equals(pa.array(values, mask=~valid))


@pytest.mark.parametrize("texts", [[], ["a", "", "Zürich 🚀"], [None, "b", None], [None]])
def test_strings(texts: list[str | None]) -> None:
    made = string_array(texts)
    made.validate(full=True)
    assert made.equals(pa.array(texts, pa.string()))
    codes = codes_of(made.dictionary_encode(null_encoding="encode"))
    assert len(codes) == len(texts)
    assert [texts.index(text) for text in texts] == [int(np.flatnonzero(codes == code)[0]) for code in codes]


def test_pandas_is_not_imported() -> None:
    made = """
import sys, numpy as np, pyarrow as pa
from mqlake.lake.arrow.arrays import batch_of, bools_of, codes_of, number_array, repeated, string_array
numbers = number_array(np.arange(3), np.arange(3) > 1)
pa.repeat(string_array(["a"])[0], 3)
codes_of(string_array(["a", None]).dictionary_encode(null_encoding="encode"))
pa.RecordBatch.from_arrays([numbers], ["numbers"])
print("pandas" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", made], text=True, timeout=60) == "False\n"


def test_rows_of_figures() -> None:
    kinds = {"name": pa.string(), "count": pa.int32(), "size": pa.int64(), "bytes": pa.binary()}
    schema = pa.schema(list(kinds.items()))
    rows = [
        {"name": "é", "count": -1, "size": 1 << 40},
        {"size": 0, "bytes": b"\0"},
        {"name": None, "more": 1},
    ]
    known = [{name: row.get(name) for name in kinds} for row in rows]
    for some in (rows, []):
        made = batch_of(some, schema)
        made.validate(full=True)
        assert made.equals(pa.RecordBatch.from_pylist(known[: len(some)], schema=schema))


def test_repeated_and_back() -> None:
    assert repeated("a", 3).to_pylist() == ["a"] * 3
    assert repeated(7, 2).equals(pa.array([7, 7], pa.int32()))
    array = pa.array([True, None, False, True] * 5)
    for part in (array, array.slice(3), array.slice(9, 2), array.slice(0, 0)):
        assert bools_of(part).tolist() == [bool(value) for value in part.to_pylist()]


def test_reading_without_pandas(every_kind: Path) -> None:
    """What derived files and the search for a key are made of."""
    made = f"""
import sys
from mqlake.spark.log.commitlog import CommitLogDataSource
from mqlake.spark.log.queue_and_index import ConsumeQueueDataSource, MqIndexDataSource
for source, more in (
    (CommitLogDataSource, {{"keys": "shared"}}),
    (ConsumeQueueDataSource, {{}}),
    (MqIndexDataSource, {{"maxHashSlotNum": "100"}}),
):
    found = source({{"path": {str(every_kind)!r}, **more}})
    reader = found.reader(found.schema())
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
print("pandas" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", made], text=True, timeout=60) == "False\n"
