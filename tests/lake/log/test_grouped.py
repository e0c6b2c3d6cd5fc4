"""Items grouped into tasks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mqlake.lake.log import grouped as module
from mqlake.lake.log.grouped import grouped


@given(st.lists(st.integers(0, 20)), st.integers(1, 30))
def test_groups(sizes: list[int], size_max: int) -> None:
    groups = grouped(sizes, lambda size: size, size_max)
    assert [size for group in groups for size in group] == sizes
    assert all(groups)
    assert all(sum(group) <= size_max or len(group) == 1 for group in groups)
    # none could have taken the first item of the next
    assert all(sum(group) + following[0] > size_max for group, following in itertools.pairwise(groups))


def test_a_group_has_a_bounded_number_of_items() -> None:
    groups = grouped(range(2 * module.ITEMS_A_TASK_MAX + 1), lambda _: 0, 1)
    assert [len(group) for group in groups] == [module.ITEMS_A_TASK_MAX, module.ITEMS_A_TASK_MAX, 1]
