"""Every snippet of docs/spark.md runs, in its order, on a store and a broker of ours."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mqlake.lake.arrow.schema import COLUMNS
from mqlake.spark.error_messages import when_workers_start
from mqlake.spark.options import INDEX_OPTIONS, OPTIONS, QUEUE_OPTIONS
from mqlake.spark.rocketmq.options import READ_OPTIONS, WRITE_OPTIONS
from mqlake.spark.rocketmq.sink import COLUMNS as SINK_COLUMNS
from tests.documents import snippets
from tests.interop.brokers import MqlakeBroker
from tests.spark.rocketmq.test_source import fill, options, source
from tests.waiting import until

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"
OF_SPARK = {"paths", "checkpointLocation", "queryName"}
"""What Spark itself adds to the options."""


@pytest.mark.spark
@pytest.mark.nightly
def test_the_snippets_run(
    spark: SparkSession, every_kind: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = snippets("docs/spark.md", "python")
    assert len(found) >= 14
    names: dict[str, Any] = {}
    with MqlakeBroker(tmp_path / "broker") as broker:
        fill(broker, "Orders", 30)
        for snippet in found:
            code = (
                snippet.replace("/data/store", str(every_kind))
                .replace("/data/", f"{tmp_path}/")
                .replace("127.0.0.1:9876", broker.namesrv)
            )
            when_workers_start(functools.partial(exec, compile(code, str(GUIDE), "exec"), names))
        paid = source(options(broker, "Paid"))
        until(lambda: sum(part.task.end - part.task.start for part in paid.partitions()) >= 30)
    assert names["spark"] is spark
    assert "all sound" in capfd.readouterr().out
    for directory in ("parquet", "stream", "orders"):
        assert spark.read.parquet(str(tmp_path / directory)).count() > 0


def test_every_option_and_column_is_described() -> None:
    text = GUIDE.read_text()
    known = {*OPTIONS, *QUEUE_OPTIONS, *INDEX_OPTIONS, *READ_OPTIONS, *WRITE_OPTIONS, "by"} - OF_SPARK
    for name in [*sorted(known - {"by"}), *COLUMNS, *SINK_COLUMNS]:
        assert f"`{name}`" in text, name
