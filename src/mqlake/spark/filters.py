"""Filters that Spark offers, applied to a scan's columns before any body is copied.

All of them are given back to Spark as well, so this may only ever keep too much: text that had to be mended
and times beyond a timestamp are compared by Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import datasource

from mqlake.formats.columns import Scan

NUMBERS = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "physicalOffset": "physical_offset",
    "bodyCrc": "body_crc",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "size": "size",
}
TIMES = {"bornTimestamp": "born_timestamp", "storeTimestamp": "store_timestamp"}

_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    datasource.EqualTo: operator.eq,
    datasource.GreaterThan: operator.gt,
    datasource.GreaterThanOrEqual: operator.ge,
    datasource.LessThan: operator.lt,
    datasource.LessThanOrEqual: operator.le,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Condition:
    """`column` of a record compared with one value or, with `compare` None, one of several."""

    column: str
    compare: Callable[[Any, Any], Any] | None
    values: tuple[Any, ...]

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics it lets through, when it is about topics."""
        if self.column == "topic" and self.compare in (None, operator.eq):
            return frozenset(self.values)
        return None

    def mask(self, scan: Scan) -> npt.NDArray[np.bool_] | None:
        """Which records may fulfil it; None when that is not known here."""
        if self.column in NUMBERS:
            array = getattr(scan, NUMBERS[self.column])
            values = self.values
        elif self.column in TIMES:
            array = getattr(scan, TIMES[self.column])
            if not all(isinstance(value, datetime) and value.tzinfo for value in self.values):
                return None
            values = tuple((value - _EPOCH) / _MS for value in self.values)
        else:
            return None
        if self.compare is None:
            return np.isin(array, list(values))
        return np.asarray(self.compare(array, values[0]))


def conditions(filters: list[datasource.Filter]) -> list[Condition]:
    """Those filters that can be applied here."""
    found = []
    for each in filters:
        column = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else ""
        if column != "topic" and column not in NUMBERS and column not in TIMES:
            continue
        if isinstance(each, datasource.In):
            found.append(Condition(column, None, tuple(each.value)))
        elif type(each) in _COMPARISONS:
            found.append(Condition(column, _COMPARISONS[type(each)], (each.value,)))
    return found


def rows_passing(
    scan: Scan, topics: frozenset[str] | None, wanted: list[Condition]
) -> npt.NDArray[np.int64] | None:
    """Numbers of the records of these topics (None: any) that may fulfil every condition; None for all."""
    masks = [mask for mask in (condition.mask(scan) for condition in wanted) if mask is not None]
    allowed = [topics] if topics is not None else []
    allowed += [condition.topics for condition in wanted if condition.topics is not None]
    if allowed:
        names = [topic.decode("utf-8", "replace") for topic in scan.topics]
        passes = np.array([all(name in each for each in allowed) for name in names], np.bool_)
        masks.append(passes[scan.topic_id] if len(passes) else np.zeros(0, np.bool_))
    if not masks:
        return None
    return np.flatnonzero(np.logical_and.reduce(masks))
