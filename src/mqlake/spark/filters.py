# mypy: disable-error-code="misc"
"""Spark's filters as conditions, for the readers that can use them."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader, Filter

from mqlake.lake.arrow.filters import TEXTS, Condition
from mqlake.lake.arrow.schema import NUMBERS, TIMES

_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    datasource.EqualTo: operator.eq,
    datasource.GreaterThan: operator.gt,
    datasource.GreaterThanOrEqual: operator.ge,
    datasource.LessThan: operator.lt,
    datasource.LessThanOrEqual: operator.le,
}


def conditions(filters: Sequence[Filter]) -> list[Condition]:
    """Returns the filters that can be applied here."""
    found = []
    for each in filters:
        column = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else ""
        if column not in NUMBERS and column not in TIMES and column not in TEXTS:
            continue
        if isinstance(each, datasource.In):
            found.append(Condition(column, None, tuple(each.value)))
        elif type(each) in _COMPARISONS and (column not in TEXTS or isinstance(each, datasource.EqualTo)):
            found.append(Condition(column, _COMPARISONS[type(each)], (each.value,)))
    return found


_PLANS = "pyspark.sql.worker.plan_data_source_read"
_PUSHES = "pyspark.sql.worker.data_source_pushdown_filters"


def _planned_without_filters() -> bool:
    """Returns True if this is a process of Spark's that plans a read to which no filters are pushed. Each has one
    module to run, as its main module or imported by the daemon it was forked from."""
    main = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "") or ""
    running = {main, *sys.modules}
    return main.startswith("pyspark.") and _PLANS in running and _PUSHES not in running


class FilteredReader(DataSourceReader):
    """A reader that keeps the filters it can use. Spark applies all of them to the rows again."""

    _conditions: tuple[Condition, ...] = ()

    @property
    def pushFilters(self) -> Callable[[list[Filter]], list[Filter]]:  # noqa: N802 - Spark's name
        """A reader that has it is refused where filterPushdown.enabled is off, although Spark then never calls it."""
        return super().pushFilters if _planned_without_filters() else self._push_filters

    def _push_filters(self, filters: list[Filter]) -> list[Filter]:
        self._conditions = tuple(conditions(filters))
        return filters

    def _may_match(self, known: Mapping[str, Any]) -> bool:
        """True if rows with these values in these columns can pass the filters."""
        return not any(
            each.column in known and each.allowed is not None and known[each.column] not in each.allowed
            for each in self._conditions
        )
