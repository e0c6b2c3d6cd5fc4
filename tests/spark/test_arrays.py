"""Arrow arrays without pandas: what `pa.array` would make, and nothing imported for it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from mqlake.spark.arrays import codes_of, number_array, string_array

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
from mqlake.spark.arrays import codes_of, number_array, string_array
numbers = number_array(np.arange(3), np.arange(3) > 1)
pa.repeat(string_array(["a"])[0], 3)
codes_of(string_array(["a", None]).dictionary_encode(null_encoding="encode"))
pa.RecordBatch.from_arrays([numbers], ["numbers"])
print("pandas" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", made], text=True, timeout=60) == "False\n"
