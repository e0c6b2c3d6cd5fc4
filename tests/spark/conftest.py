"""One Spark session for all tests, and stores to read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mqlake.spark
from tests.lake.conftest import every_kind, golden, golden_store
from tests.ports import free_ports

__all__ = ["every_kind", "golden", "golden_store", "spark"]

SERVER = """
import sys
from pyspark.sql import SparkSession

port, work, log = sys.argv[1:]
settings = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": port,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.daemon.module": "mqlake.spark.daemon",
    "spark.local.dir": work,
    "spark.sql.warehouse.dir": work + "/warehouse",
}
builder = SparkSession.builder.master("local[2]")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
assert not any(name.split(".")[0] == "mqlake" for name in sys.modules)
spark.sql(f"create temporary view log using commitlog options (path '{log}')")
print(spark.sql("select count(*) from log where topic = 'Topic-1'").first()[0])
import mqlake.spark

later = spark.newSession()
mqlake.spark.register(later)
later.sql(f"create temporary view log using commitlog options (path '{log}')")
print(later.sql("select count(*) from log where topic = 'Topic-1'").first()[0], flush=True)
sys.stdin.read()
spark.stop()
"""


@dataclass(frozen=True)
class PlainSpark:
    """A Spark Connect server that nobody registered mqlake's sources with; `master`: its address.

    `counts`: rows of the topic Topic-1 of `every_kind`, as a session of the server's own saw them, and another one
    after mqlake.spark.register().
    """

    master: str
    counts: list[str]


@pytest.fixture(scope="session")
def plain_spark(every_kind: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainSpark]:
    """PySpark's own server in a process of its own, as start-connect-server.sh starts it, with filters not pushed."""
    pipe, port, work = subprocess.PIPE, str(free_ports(1)), tmp_path_factory.mktemp("connect")
    command = [sys.executable, "-c", SERVER, port, str(work), str(every_kind)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (
        (work / "server.log").open("w") as log,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment) as server,
    ):
        assert server.stdin is not None and server.stdout is not None
        counts = [server.stdout.readline().strip() for _ in range(2)]
        assert all(counts), (work / "server.log").read_text()[-3000:]
        yield PlainSpark(f"sc://127.0.0.1:{port}", counts)
        server.stdin.close()


INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Java that is generated and compiled for each query does not pay for some hundred rows; the demo, the kills and what
else has a driver of its own run as users do."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = mqlake.spark.session("mqlake tests", master="local[2]", short=True, config=INTERPRETED)
    yield session
    session.stop()
