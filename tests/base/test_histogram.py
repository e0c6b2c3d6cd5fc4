from __future__ import annotations

from mqlake.base.histogram import Histogram


def test_each_value_falls_into_its_bucket():
    histogram = Histogram((10, 5000))
    for value in (0, 10, 11, 5000):
        histogram.add(value, value)
    histogram.add(5001, 5_001_500, times=2)
    assert histogram.counts == [2, 2, 2] and histogram.sum == 5021 + 2 * 5_001_500
    assert histogram.buckets() == [("10.0", 2), ("5000.0", 4), ("+Inf", 6)]
