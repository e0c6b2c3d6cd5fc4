"""Two stores compared: each kind of difference is found where it was made, and nowhere else."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqlake.errors import ConfigError
from mqlake.store.check.diff import DifferenceKind, diff_stores
from tests.store.small_store import change, fill, flip, log_file


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("original") / "store")


def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def test_a_copy_is_equal(tmp_path: Path, original: Path) -> None:
    found = diff_stores(str(original), str(copy(original, tmp_path)))
    assert found.is_equal
    assert found.compared_bytes == found.a_range[1] > 0
    assert found.compared_units == 200


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.tuples(st.integers(0, 1), st.integers(100, 16000)), min_size=1, max_size=5))
def test_flipped_bits_are_named_with_file_and_position(
    tmp_path_factory: pytest.TempPathFactory, original: Path, places: set[tuple[int, int]]
) -> None:
    other = copy(original, tmp_path_factory.mktemp("flips"))
    for number, position in places:
        flip(log_file(other, number), position)
    found = diff_stores(str(original), str(other), queues=False)
    named = {
        (each.file, place)
        for each in found.differences
        for place in range(each.position, each.position + each.size)
    }
    assert named == {(str(log_file(original, number)), position) for number, position in places}
    assert {each.kind for each in found.differences} == {DifferenceKind.OTHER_BYTES}


def test_a_longer_and_a_missing_part(tmp_path: Path, original: Path) -> None:
    longer = fill(copy(original, tmp_path), 200, 10)
    log_file(longer).unlink()
    found = diff_stores(str(original), str(longer), queues=False)
    kinds = {each.kind: each for each in found.differences}
    assert kinds.keys() == {DifferenceKind.MISSING, DifferenceKind.LONGER}
    missing = kinds[DifferenceKind.MISSING]
    assert (missing.store, missing.offset, missing.size) == (str(longer), 0, 16384)
    assert kinds[DifferenceKind.LONGER].offset == found.a_range[1]
    # a slave may lack an end, and a master a beginning; a slave that goes on is ahead of its master
    assert diff_stores(str(longer), str(original), queues=False, prefix=True).is_equal
    (ahead,) = diff_stores(str(original), str(longer), queues=False, prefix=True).differences
    assert (ahead.kind, ahead.store, ahead.offset) == (DifferenceKind.LONGER, str(longer), found.a_range[1])


def test_a_unit_that_differs(tmp_path: Path, original: Path) -> None:
    other = copy(original, tmp_path)
    queue = sorted((other / "consumequeue" / "Orders" / "0").iterdir())[1]
    change(queue, 20 * 3 + 19, b"\x77")
    found = diff_stores(str(original), str(other))
    (unit,) = found.differences
    assert (unit.what, unit.offset, unit.position) == ("Orders/0", 23, 60)
    assert unit.file.endswith("consumequeue/Orders/0/00000000000000000400")


def test_stores_of_other_file_sizes_cannot_be_compared(tmp_path: Path, original: Path) -> None:
    other = fill(tmp_path / "other", 0, 5, mappedFileSizeCommitLog=4096)
    with pytest.raises(ConfigError, match="mappedFileSizeCommitLog is 16384"):
        diff_stores(str(original), str(other))
