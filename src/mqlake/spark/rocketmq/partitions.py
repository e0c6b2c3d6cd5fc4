# mypy: disable-error-code="misc"
"""QueuePartition: a range of a queue (lake.live.ranges) as Spark hands it to an executor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from mqlake.lake.live.ranges import QueueRange


@dataclass(frozen=True)
class QueuePartition(QueueRange, InputPartition):
    pass


def as_partitions(ranges: Iterable[QueueRange]) -> list[QueuePartition]:
    return [QueuePartition(each.queue, each.start, each.end) for each in ranges]
