"""Workers begin with what the daemon has imported; one that dies is followed by another such."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from mqlake.formats.columns import plain, record_codec
from mqlake.spark.daemon import prefer_installed_pyspark

SITE = Path(pyspark.__file__).parents[1]
LIB = SITE / "pyspark" / "python" / "lib"

LOAD = """
import json, os, sys
from mqlake.spark.daemon import load, prefer_installed_pyspark
prefer_installed_pyspark()
load()
print(json.dumps({
    "threads": len(os.listdir("/proc/self/task")),
    "modules": sorted(sys.modules),
    "pyspark": sys.modules["pyspark"].__file__,
}))
"""


def test_an_installed_pyspark_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archives = [str(path) for path in LIB.glob("*.zip")]
    assert len(archives) == 2
    of_another = str(tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip")
    monkeypatch.setattr(sys, "path", ["", *archives, of_another, "x.zip", str(SITE)])
    prefer_installed_pyspark()
    assert sys.path == ["", of_another, "x.zip", str(SITE)]
    elsewhere = [*archives, str(tmp_path)]
    monkeypatch.setattr(sys, "path", list(elsewhere))
    prefer_installed_pyspark()
    assert sys.path == elsewhere


def test_what_is_loaded_has_no_threads() -> None:
    """As Spark starts it: its archives first on the path, and as many threads for numpy as a task has cores."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(path) for path in LIB.glob("*.zip")),
        "OMP_NUM_THREADS": "1",
    }
    said = subprocess.check_output([sys.executable, "-c", LOAD], env=environment, text=True, timeout=120)
    found = json.loads(said)
    assert found["threads"] == 1
    assert found["pyspark"] == pyspark.__file__
    assert {"pyspark.worker", "pyarrow", "mqlake.lake.log.tasks"} < set(found["modules"])
    assert "pandas" not in found["modules"]
    assert record_codec() is plain or "mqlake.native.columns" in found["modules"]


def of_worker(spark: SparkSession) -> dict[str, Any]:
    """What a worker that has run nothing else, or only such as this, knows."""

    def look(_: object) -> Any:
        yield {
            "pid": os.getpid(),
            "daemon": Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0"),
            "reads": "mqlake.lake.log.tasks" in sys.modules,
            "frozen": gc.get_freeze_count(),
        }

    found: dict[str, Any] = spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()[0]
    return found


@pytest.mark.spark
def test_workers_are_warm_and_come_again(spark: SparkSession) -> None:
    def die(_: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        yield

    first = of_worker(spark)
    assert first["daemon"][1:4] == ["-m", "mqlake.spark.daemon", "pyspark.worker"]
    assert first["reads"] and first["frozen"] > 10_000
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        spark.sparkContext.parallelize([0], 1).mapPartitions(die).collect()
    again = of_worker(spark)
    assert again["daemon"] == first["daemon"]
    assert again["reads"] and again["frozen"] > 10_000
