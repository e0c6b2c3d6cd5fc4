"""One Spark session for all tests, and stores to read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import mqlake.spark
from tests.lake.conftest import every_kind, golden, golden_store

__all__ = ["every_kind", "golden", "golden_store", "spark"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = mqlake.spark.session("mqlake tests", master="local[2]", short=True)
    yield session
    session.stop()
