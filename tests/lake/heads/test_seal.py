"""Every byte of a file of heads is under one of the seal's checksums."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mqlake.errors import UnfitHeadsError
from mqlake.lake.heads.seal import Read, Sealed, check_ends, check_pages, seal
from tests.lake.heads.logs import random_records, write_all, write_log


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = write_log(tmp_path_factory.mktemp("sealed") / "s", random_records(3, 60), 8000)
    return write_all(root)[0].read_bytes()


def read_of(data: bytes | bytearray) -> Read:
    return lambda start, end: bytes(data[start:end])


def opened(data: bytes | bytearray) -> Sealed:
    return check_ends(read_of(data), len(data))


def test_every_flipped_byte_is_seen(data: bytes) -> None:
    """In the ends when the file is opened, in the pages when they are checked."""
    sealed = opened(data)
    check_pages(read_of(data), sealed)
    assert 0 < sealed.pages_end < len(data) and sealed.metadata.num_rows > 10
    changed = bytearray(data)
    for position in range(len(data)):
        changed[position] ^= 1 << position % 8
        if position < sealed.pages_end:
            with pytest.raises(UnfitHeadsError, match="pages"):
                check_pages(read_of(changed), opened(changed))
        else:
            with pytest.raises(UnfitHeadsError):
                opened(changed)
        changed[position] = data[position]


def test_a_file_that_is_cut_short_or_longer(data: bytes) -> None:
    for size in (*range(40), *range(40, len(data), 97), len(data) - 1):
        with pytest.raises(UnfitHeadsError):
            opened(data[:size])
    with pytest.raises(UnfitHeadsError):
        opened(data + b"\0")
    with pytest.raises(UnfitHeadsError):
        opened(data + data[-8:])


def test_a_parquet_file_without_a_seal(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(data)
    pq.write_table(pq.read_table(tmp_path / "a.parquet"), tmp_path / "b.parquet")
    with pytest.raises(UnfitHeadsError, match="no seal"):
        opened((tmp_path / "b.parquet").read_bytes())
    with open(tmp_path / "b.parquet", "r+b") as file:
        seal(file)
    assert opened((tmp_path / "b.parquet").read_bytes()).metadata.num_rows == opened(data).metadata.num_rows
    assert pq.read_table(tmp_path / "b.parquet").equals(pq.read_table(tmp_path / "a.parquet"))
