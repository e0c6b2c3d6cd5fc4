"""Histogram: how many values lie below each of some bounds, as Prometheus counts them."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate


class Histogram:
    def __init__(self, bounds: tuple[int, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values by upper bound; the last is for all above."""
        self.sum = 0

    def add(self, value: int, exactly: int, times: int = 1) -> None:
        """Counts a value, which is added to the sum as `exactly`, perhaps in a finer unit."""
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += exactly * times

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound."""
        names = (*(str(float(bound)) for bound in self._bounds), "+Inf")
        return list(zip(names, accumulate(self.counts), strict=True))
