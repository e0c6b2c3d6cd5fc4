"""What a session leaves behind: nothing when its process ends, and what was killed goes with the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

import mqlake.spark
from mqlake.cli.spark.shared import retry_once
from mqlake.spark.requirements import QUICK_PYTHON
from mqlake.spark.session_helper import quick_python
from tests.waiting import PATIENCE_S, until


@pytest.mark.spark
def test_a_second_session_is_the_first(spark: SparkSession) -> None:
    place = spark.conf.get("spark.local.dir")
    again = mqlake.spark.session("another", config={"spark.sql.mqlake.test": "1"})
    assert again is spark and spark.conf.get("spark.local.dir") == place
    assert spark.conf.get("spark.sql.mqlake.test") == "1"
    spark.conf.unset("spark.sql.mqlake.test")


@pytest.mark.spark
def test_processes_of_spark_run_the_installed_pyspark(spark: SparkSession) -> None:
    assert Path(spark.sparkContext.pythonExec).name == QUICK_PYTHON
    library = Path(pyspark.__file__).parent / "python" / "lib"
    archives = [str(next(library.glob(name))) for name in ("pyspark.zip", "py4j-*.zip")]
    script = "import os, sys, pyspark; print(os.environ['PYTHONPATH'], pyspark.__file__, sys.executable)"
    said = subprocess.check_output(
        [spark.sparkContext.pythonExec, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*archives, "/other path"])},
        text=True,
    )
    assert said.strip() == f"/other path {pyspark.__file__} {sys.executable}"


def test_a_directory_that_lets_nothing_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert quick_python(str(tmp_path)) == sys.executable


def test_what_is_asked_after_an_interrupt_is_asked_twice() -> None:
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        if len(asked) == 1:
            raise Py4JNetworkError("Answer from Java side is empty")
        return len(asked)

    assert retry_once(ask) == 2


def made_in(directory: str) -> list[str]:
    """Without the compiled code, which is kept for the next process."""
    return [name for name in os.listdir(directory) if name != f"mqlake-{os.getuid()}"]


@pytest.mark.spark
@pytest.mark.nightly
def test_a_job_that_is_told_to_end_leaves_nothing(every_kind: Path, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="with space ") as scratch:
        command = [
            sys.executable,
            "-c",
            "from mqlake.cli.main import main; main()",
            "spark",
            "export",
            "--follow",
        ]
        process = subprocess.Popen(
            [*command, str(every_kind), str(tmp_path), "--master", "local[1]"],
            env={**os.environ, "TMPDIR": scratch},
            start_new_session=True,
        )
        try:
            until((tmp_path / "_checkpoint" / "commits" / "0").exists, timeout_s=300)
            (work,) = made_in(scratch)
            assert work.startswith("mqlake-spark-session-")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            assert made_in(scratch) == []
        finally:
            process.kill()
            process.wait()
