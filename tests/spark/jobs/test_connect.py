"""Jobs over Spark Connect: a real server, and the commands as its clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqlake.spark.jobs.messages import Shape, shaped, write_store
from tests.ports import free_ports
from tests.spark.conftest import PlainSpark
from tests.spark.stores import decoded

COMMANDS = """
import json, sys
from click.testing import CliRunner
from mqlake.cli.main import cli

for arguments in json.loads(sys.argv[2]):
    for _ in range(5):
        done = CliRunner().invoke(cli, ["spark", *arguments, "--master", sys.argv[1], "--json"])
        if "the machine is too busy. Try again" not in done.stderr:
            break
    print(json.dumps([done.exit_code, done.stdout, done.stderr]))
"""


def run(master: str, *commands: list[str]) -> list[tuple[int, str, str]]:
    """Exit status, stdout and stderr of each command, in one process that knows no session."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, master, json.dumps(commands)],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.spark
@pytest.mark.nightly
def test_commands(spark: SparkSession, plain_spark: PlainSpark, every_kind: Path, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(n, f"c{n}") for n in range(20)], "id int, name string").coalesce(1)
    write_store(shaped(rows, Shape(topic="Orders", keys="id")), str(tmp_path / "orders")).collect()
    rows.write.parquet(str(tmp_path / "rows"))
    orders, store, out = str(tmp_path / "orders"), str(every_kind), str(tmp_path / "out")
    search, verify, export, ingest = run(
        plain_spark.master,
        ["search", store, "--key", "key-5"],
        ["verify", orders],
        ["export", orders, out, "--json-schema", "infer"],
        ["ingest", str(tmp_path / "rows"), "--topic", "Again", "--to-store", str(tmp_path / "again")],
    )
    for found in (search, verify, export, ingest):
        assert found[0] == 0, found[2]
    expected = {m.msg_id for m in decoded(every_kind) if "key-5" in (m.keys or "").split()}
    assert {json.loads(line)["msgId"] for line in search[1].splitlines()} <= expected
    assert json.loads(verify[1])["ok"]
    assert json.loads(export[1])["rows"] == json.loads(ingest[1])["messages"] == 20
    assert sorted(row.name for row in spark.read.parquet(out).select("value.name").collect())[0] == "c0"


@pytest.mark.spark
def test_nobody_there(every_kind: Path) -> None:
    ((status, _, error),) = run(f"sc://127.0.0.1:{free_ports(1)}", ["stats", str(every_kind)])
    assert status == 1 and "no Spark Connect server answers there" in error
