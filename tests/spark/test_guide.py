"""Every snippet of docs/spark.md runs, in its order, on a store of ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mqlake.spark.options import OPTIONS
from mqlake.spark.schema import COLUMNS

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.mark.spark
def test_the_snippets_run(
    spark: SparkSession, every_kind: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(snippets) >= 7
    names: dict[str, Any] = {}
    for snippet in snippets:
        code = snippet.replace("/data/store", str(every_kind)).replace(
            "/data/parquet", str(tmp_path / "parquet")
        )
        exec(compile(code, str(GUIDE), "exec"), names)
    assert names["spark"] is spark
    assert "all sound" in capfd.readouterr().out
    assert spark.read.parquet(str(tmp_path / "parquet")).count() > 0


def test_every_option_and_column_is_described() -> None:
    text = GUIDE.read_text()
    for name in [*(option for option in OPTIONS if option != "paths"), *COLUMNS]:
        assert f"`{name}`" in text, name
