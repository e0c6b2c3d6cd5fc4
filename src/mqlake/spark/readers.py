# mypy: disable-error-code="misc"
"""What batch readers of several sources share: Spark's filters, and small items grouped into the work of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceReader, Filter

from mqlake.spark.arrow.filters import Condition, conditions

ITEMS_A_TASK_MAX = 4096

T = TypeVar("T")


class FilteredReader(DataSourceReader):
    """A reader that keeps the filters it can use. Spark applies all of them to the rows again."""

    _conditions: tuple[Condition, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        self._conditions = tuple(conditions(filters))
        return filters

    def _may_match(self, known: Mapping[str, Any]) -> bool:
        """Whether rows with these values in these columns can pass the filters."""
        return not any(
            each.column in known and each.allowed is not None and known[each.column] not in each.allowed
            for each in self._conditions
        )


def grouped(items: Iterable[T], size_of: Callable[[T], int], size_max: int) -> list[tuple[T, ...]]:
    """Consecutive items in groups of at most `size_max`, unless a single one is larger, and ITEMS_A_TASK_MAX items."""
    groups: list[tuple[T, ...]] = []
    group: list[T] = []
    size = 0
    for item in items:
        added = size_of(item)
        if group and (size + added > size_max or len(group) == ITEMS_A_TASK_MAX):
            groups.append(tuple(group))
            group, size = [], 0
        group.append(item)
        size += added
    return [*groups, tuple(group)] if group else groups
