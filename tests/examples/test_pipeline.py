"""The declarative pipeline of examples/pipeline, run as its first lines say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mqlake.lake.tables.config import Lake
from mqlake.lake.tables.opening import load_table
from tests.lake.tables.lakes import FORMATS, ORDERS, expected, put

PIPELINE = Path(__file__).parent.parent.parent / "examples" / "pipeline"
COMMAND = Path(sys.executable).parent / "spark-pipelines"
ON_DEMAND = "MQLAKE_CAMPAIGN" in os.environ
pytestmark = pytest.mark.spark


def run(root: Path, format: str, *more: str, **settings: str) -> str:
    """What the command says; the settings are those of this test in place of the example's."""
    where = root / "pipeline"
    shutil.copytree(PIPELINE, where, dirs_exist_ok=True)
    spec: dict[str, Any] = yaml.safe_load((PIPELINE / "spark-pipeline.yml").read_text())
    spec["storage"] = f"file://{root}/storage"
    given = {"store": str(root / "store"), "warehouse": str(root / "lake"), "format": format, **settings}
    spec["configuration"] |= {f"mqlake.{name}": value for name, value in given.items()}
    (where / "spark-pipeline.yml").write_text(yaml.safe_dump(spec))
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(root),
        "PATH": f"{COMMAND.parent}:{os.environ['PATH']}",
    }
    command = [str(COMMAND), "run", "--spec", str(where / "spark-pipeline.yml"), *more]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, timeout=600)
    return done.stdout + done.stderr


def keys_in(root: Path, format: str) -> list[str]:
    table = load_table(Lake(str(root / "lake"), format), "shop.Orders")
    assert table is not None
    return sorted(
        key for batch in table.scan(table.head().version, ["keys"], None) for key in batch["keys"].to_pylist()
    )


@pytest.mark.parametrize("format", FORMATS if ON_DEMAND else FORMATS[:1])
@pytest.mark.nightly
def test_the_template_fills_a_table_and_goes_on(tmp_path: Path, format: str) -> None:
    put(tmp_path / "store", 60)
    said = run(tmp_path, format)  # the command may end badly after "Run is COMPLETED": the tables count
    assert (tmp_path / "lake").exists(), said[-3000:]
    assert keys_in(tmp_path, format) == sorted(row["keys"] for row in expected(tmp_path / "store")), said[
        -3000:
    ]
    if not ON_DEMAND:
        return
    put(tmp_path / "store", 20, 60)
    every = sorted(row["keys"] for row in expected(tmp_path / "store", ORDERS))
    run(tmp_path, format)
    assert keys_in(tmp_path, format) == every
    assert "onReplay=skip" in run(tmp_path, format, "--full-refresh-all")
    assert keys_in(tmp_path, format) == every
    run(tmp_path, format, "--full-refresh-all", onReplay="skip")
    put(tmp_path / "store", 20, 80)
    run(tmp_path, format, onReplay="skip")
    assert keys_in(tmp_path, format) == sorted(row["keys"] for row in expected(tmp_path / "store"))
