"""One Spark session for all tests, and stores to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mqlake.spark
from tests.golden import CASES, Golden, unpack
from tests.spark.stores import write_store


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = mqlake.spark.session("mqlake tests", master="local[2]", short=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all kinds of records, over several files. Not to be changed: copy it."""
    root = tmp_path_factory.mktemp("every-kind") / "store"
    write_store(root)
    return root


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return unpack(request.param, tmp_path)


@pytest.fixture
def golden_store(golden: Golden) -> Path:
    return golden.root
