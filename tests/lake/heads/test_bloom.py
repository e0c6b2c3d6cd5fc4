"""Bloom filters, against those that pyarrow writes: what is in a row group is never denied."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.lake.heads.bloom import groups_that_may_have

GROUP = 500


def written(groups: list[list[str | None]], **options: Any) -> tuple[pq.FileMetaData, bytes]:
    sink = pa.BufferOutputStream()
    schema = pa.schema([("other", pa.int64()), ("keys", pa.string())])
    with pq.ParquetWriter(sink, schema, **options) as writer:
        for texts in groups:
            writer.write_table(pa.table({"other": range(len(texts)), "keys": texts}, schema))
    data = sink.getvalue().to_pybytes()
    return pq.read_metadata(pa.BufferReader(data)), data


def with_filters(groups: list[list[str | None]], ndv: int = GROUP) -> tuple[pq.FileMetaData, bytes]:
    return written(groups, bloom_filter_options={"keys": {"ndv": ndv, "fpp": 0.01}})


def asked(file: tuple[pq.FileMetaData, bytes], *texts: str) -> set[int]:
    metadata, data = file
    return groups_that_may_have(metadata, lambda start, end: data[start:end], "keys", texts)


def test_each_text_is_found_in_its_row_group_and_in_few_others():
    dice = random.Random(3)
    groups = [[f"{dice.getrandbits(64):x}" for _ in range(GROUP)] for _ in range(20)]
    file = with_filters([[*texts, None] for texts in groups])
    found = [asked(file, text) for texts in groups for text in texts[:50]]
    assert all(number // 50 in each for number, each in enumerate(found))
    assert sum(map(len, found)) < len(found) * 1.5, "one in a hundred of the others, by their size"
    assert asked(file, "in none") == set()
    assert {3, 7} <= asked(file, groups[3][0], groups[7][0], "in none")
    assert asked(file) == set()


@given(st.lists(st.text(max_size=300).filter(lambda text: "\x00" not in text), min_size=1, max_size=40))
def test_no_text_is_denied(texts: list[str]):
    usable = [text for text in texts if text.encode("utf-8", "ignore").decode() == text]
    file = with_filters([list(usable)], ndv=64)
    for text in usable:
        assert asked(file, text) == {0}


def test_without_a_filter_all_may_have_it():
    assert asked(written([["a"], ["b"]]), "c") == {0, 1}


@pytest.mark.parametrize("at", [0, 1, 2, 5, 9, 14])
def test_a_filter_of_another_kind_may_have_it(at: int):
    metadata, data = with_filters([["a"]], ndv=1000)
    begin = metadata.row_group(0).column(1).bloom_filter_offset
    changed = bytearray(data)
    changed[begin + at] ^= 0x15
    assert asked((metadata, data), "c") == set()
    assert asked((metadata, bytes(changed)), "c") == {0}


def test_a_filter_that_is_cut_may_have_it():
    metadata, _ = with_filters([["a"]])
    assert groups_that_may_have(metadata, lambda start, end: b"", "keys", ["c"]) == {0}
