"""What filters say of rows whose values are known."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import datasource as ds

from mqlake.spark.filters import FilteredReader


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
