# mypy: disable-error-code="misc"
"""Shared by the stream readers of all sources: the limit of a batch, and where the trigger availableNow ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mqlake.lake.options import SourceOptions
from mqlake.spark.error_messages import short_errors

Place = TypeVar("Place")


@short_errors
class LimitedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[Place]):
    """A stream over places (stores, queues, partitions), each with offsets of its own."""

    def __init__(self, options: SourceOptions) -> None:
        self._limits = options
        self._target: Mapping[Place, int] | None = None
        """The ends when an availableNow query began, None with another trigger."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's names, here and below
        if self._limits.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._limits.max_bytes_per_trigger)
        if self._limits.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._limits.max_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    @staticmethod
    def _shares(left: Mapping[Place, int], limit: ReadLimit) -> Mapping[Place, int] | None:
        """Returns how much of a batch's limit each place gets, by what is left to read of it; None: there is no limit.
        At least 1, so that a place with little left does not wait for ever."""
        if isinstance(limit, ReadMaxBytes):
            most = limit.max_bytes
        elif isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        else:
            return None
        total = max(1, sum(left.values()))
        return {place: max(1, size * most // total) for place, size in left.items()}

    def _ends(self) -> Mapping[Place, int]:
        """Returns the end of each place now."""
        raise NotImplementedError
