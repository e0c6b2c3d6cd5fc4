"""The limits that options set, and the ends that an availableNow query stops at."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from mqlake.lake.options import SourceOptions
from mqlake.spark.stream_readers import LimitedStreamReader


class Reader(LimitedStreamReader[str]):
    end = 5

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's names, here and below
        return {}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        return iter(())

    def _ends(self) -> dict[str, int]:
        return {"store": self.end}

    def shares(self, left: dict[str, int], limit: ReadLimit) -> object:
        return self._shares(left, limit)

    @property
    def target(self) -> object:
        return self._target


def limit(**options: int) -> ReadLimit:
    return Reader(SourceOptions(**options)).getDefaultReadLimit()


def test_limits() -> None:
    assert limit() == ReadAllAvailable()
    assert limit(max_bytes_per_trigger=7) == ReadMaxBytes(7)
    assert limit(max_offsets_per_trigger=8) == ReadMaxRows(8)


def test_available_now_is_what_there_was_at_the_start() -> None:
    reader = Reader(SourceOptions())
    assert reader.target is None
    reader.prepareForTriggerAvailableNow()
    reader.end = 9
    assert reader.target == {"store": 5}


def test_a_limit_is_shared_by_what_is_left() -> None:
    """A place that got nothing would never be read beside a large one."""
    left = {"large": 9_000, "small": 999, "tiny": 1}
    shares = Reader(SourceOptions()).shares
    assert (
        shares(left, ReadMaxRows(100))
        == shares(left, ReadMaxBytes(100))
        == {"large": 90, "small": 9, "tiny": 1}
    )
    assert shares(left, ReadMaxRows(10_000)) == left
    assert shares({"read": 0}, ReadMaxRows(5)) == {"read": 1}
    assert shares(left, ReadAllAvailable()) is None
