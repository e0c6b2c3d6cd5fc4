# mypy: disable-error-code="misc"
"""TaskPartition: the work of one task as Spark hands it to an executor.

Where there is no work, Spark hands a partition of its own to one task, which has nothing to read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark.sql.datasource import InputPartition

Task = TypeVar("Task")


@dataclass(frozen=True)
class TaskPartition(InputPartition, Generic[Task]):
    task: Task


def as_partitions(tasks: Iterable[Task]) -> list[TaskPartition[Task]]:
    return [TaskPartition(task) for task in tasks]
