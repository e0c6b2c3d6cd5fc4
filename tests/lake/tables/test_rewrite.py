"""Small files become large ones: which go together, and their rows as they were."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import TableError
from mqlake.lake.tables.files import TableWriter, WriteSpec
from mqlake.lake.tables.rewrite import SMALL, Small, bins, rewritten
from tests.lake.tables.test_files import DAY, SCHEMA, rows, spec


def test_files_of_one_day_are_gathered_up_to_the_size() -> None:
    sizes = [
        ("a", 30, 1),
        ("b", 33, 1),
        ("other", 10, 2),
        ("large", 34, 1),
        ("c", 33, 1),
        ("d", 5, 1),
        ("e", 9, 1),
    ]
    assert bins(sizes, 100) == [
        [Small("a", 30), Small("b", 33), Small("c", 33)],
        [Small("d", 5), Small("e", 9)],
    ]
    exactly = [
        ("a", 30, None),
        ("b", 30, None),
        ("c", 30, None),
        ("d", 10, None),
        ("e", 1, None),
        ("f", 1, None),
    ]
    assert [[each.path for each in group] for group in bins(exactly, 100)] == [
        ["a", "b", "c", "d"],
        ["e", "f"],
    ]
    again = [(str(number), size, None) for number, size in enumerate((33, 33, 33, 33, 33, 33, 1, 1, 1))]
    assert [len(group) for group in bins(again, 100)] == [3, 4, 2], "a group begins with nothing in it"
    assert bins([("a", 1, 1), ("b", 1, 2)], 100) == [], "one file is as it was"
    assert bins([], 100) == [] == bins([("a", 40, 1), ("b", 40, 1)], 100)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2)), max_size=30))
def test_no_small_file_is_left_out_that_has_a_neighbour(sizes: list[tuple[int, int]]) -> None:
    files = [(str(number), size, part) for number, (size, part) in enumerate(sizes)]
    found = bins(files, 100)
    parts = {path: part for path, _, part in files}
    seen = [each.path for group in found for each in group]
    assert len(seen) == len(set(seen)) and all(len(group) > 1 for group in found)
    for group in found:
        assert len({parts[each.path] for each in group}) == 1
        assert sum(each.size for each in group) <= 100 and all(each.size < 100 / SMALL for each in group)
        assert [int(each.path) for each in group] == sorted(int(each.path) for each in group)


def written(root: Path, count: int) -> list[str]:
    paths = []
    for number in range(count):
        writer = TableWriter(spec(root))
        writer.write(rows(*(("a", 0, 10 * number + n, n, DAY) for n in range(3))))
        paths += [each.path for each in writer.close().files]
    return paths


def test_rows_stay_as_they_were_in_their_order(tmp_path: Path) -> None:
    paths = written(tmp_path, 3)
    [made] = rewritten(paths, spec(tmp_path))
    together = pq.read_table(made.path)
    assert together.equals(pa.concat_tables([pq.read_table(path) for path in paths]))
    assert (made.rows, together.schema.names) == (9, SCHEMA.names) and set(paths) < {
        str(each) for each in tmp_path.iterdir()
    }


@pytest.mark.parametrize("fault", ["gone", "damaged"])
def test_a_file_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path, fault: str) -> None:
    paths = written(tmp_path, 3)
    there = set(tmp_path.iterdir())
    small: WriteSpec = spec(tmp_path, target_bytes=1)  # files end early
    if fault == "gone":
        Path(paths[2]).unlink()
        there.remove(Path(paths[2]))
    else:
        Path(paths[2]).write_bytes(b"no file of that kind")
    with pytest.raises(TableError, match=f"a data file of the table is {fault}"):
        rewritten(paths, small)
    assert set(tmp_path.iterdir()) == there
