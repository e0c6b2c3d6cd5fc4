"""The benches with Spark, which take the session that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import tiny
from tests.spark import conftest

spark = conftest.spark


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.nightly
def test_spark(tmp_path: Path) -> None:
    tiny.give_their_lines(tmp_path, tiny.SPARK)
