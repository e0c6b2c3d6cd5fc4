"""Every command and every snippet of docs/spark-jobs.md runs, in its order."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from mqlake.cli.main import cli
from mqlake.cli.spark import COMMANDS
from tests.documents import blocks
from tests.interop.brokers import MqlakeBroker
from tests.spark.stores import copy_store, write_store

GUIDE = Path(__file__).parents[3] / "docs" / "spark-jobs.md"
SIZES = {"maxHashSlotNum": 100, "maxIndexNum": 400}
"""Of the store here, as a user with such a store would say them."""


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.nightly
def test_what_the_guide_says_runs(tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    copy_store(tmp_path / "store", tmp_path / "copy")
    rows = "".join(f"{n},c{n % 3}\n" for n in range(20))
    (tmp_path / "rows.csv").write_text(f"id,customer\n{rows}")
    sizes = [f"--set={name}={value}" for name, value in SIZES.items()]
    names: dict[str, Any] = {"SIZES": SIZES}
    with MqlakeBroker(tmp_path / "broker") as broker:
        found = blocks("docs/spark-jobs.md", "sh", "python")
        assert len(found) >= 15
        for kind, text in found:
            code = text.replace("/data/", f"{tmp_path}/").replace("127.0.0.1:9876", broker.namesrv)
            if kind == "python":
                code = code.replace('/store")\nassert report', '/store", settings=SIZES)\nassert report')
                exec(compile(code, str(GUIDE), "exec"), names)
                continue
            for line in code.splitlines():
                words = shlex.split(line)
                if words[2] in ("verify", "rebuild"):
                    words += sizes
                result = CliRunner().invoke(cli, words[1:], catch_exceptions=False)
                assert result.exit_code == 0, (line, result.output)
    for name in ("report.html", "figures.html"):
        assert "data:image/png" in (tmp_path / name).read_text()
    spark = names["spark"]
    assert isinstance(spark, SparkSession)
    assert spark.read.parquet(str(tmp_path / "lake")).count() > 100


def test_every_job_is_described() -> None:
    guide = GUIDE.read_text()
    for name in COMMANDS:
        assert f"`{name}`" in guide, name
