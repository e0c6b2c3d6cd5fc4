# mypy: disable-error-code="misc"
"""LogPartition: a task over the log (lake.log.tasks) as Spark hands it to an executor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from mqlake.lake.log.tasks import LogTask


@dataclass
class LogPartition(InputPartition):
    task: LogTask


def as_partitions(tasks: Iterable[LogTask]) -> list[LogPartition]:
    return [LogPartition(task) for task in tasks]
