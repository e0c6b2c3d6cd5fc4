"""Items grouped into tasks, and what filters say of rows whose values are known."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds

from mqlake.spark import readers
from mqlake.spark.readers import FilteredReader, grouped


@given(st.lists(st.integers(0, 20)), st.integers(1, 30))
def test_groups(sizes: list[int], size_max: int) -> None:
    groups = grouped(sizes, lambda size: size, size_max)
    assert [size for group in groups for size in group] == sizes
    assert all(groups)
    assert all(sum(group) <= size_max or len(group) == 1 for group in groups)
    # none could have taken the first item of the next
    assert all(sum(group) + following[0] > size_max for group, following in itertools.pairwise(groups))


def test_a_group_has_a_bounded_number_of_items() -> None:
    groups = grouped(range(2 * readers.ITEMS_A_TASK_MAX + 1), lambda _: 0, 1)
    assert [len(group) for group in groups] == [readers.ITEMS_A_TASK_MAX, readers.ITEMS_A_TASK_MAX, 1]


class Reader(FilteredReader):
    def read(self, partition: ds.InputPartition) -> Iterator[tuple[object, ...]]:
        return iter(())

    def may_match(self, **known: object) -> bool:
        return self._may_match(known)


def test_filters_on_known_values() -> None:
    reader = Reader()
    assert reader.may_match(topic="A")
    filters = [ds.In(("topic",), ("A", "B")), ds.EqualTo(("queueId",), 3), ds.GreaterThan(("size",), 7)]
    assert reader.pushFilters(filters) == filters
    assert reader.may_match(topic="A", queueId=3)
    assert reader.may_match(topic="B", size=1)
    assert not reader.may_match(topic="C", queueId=3)
    assert not reader.may_match(topic="A", queueId=4)
