"""Tables of topics, read back by Spark with Iceberg's own runtime and with Delta's, each on the Spark it is made for.

Neither runs on the PySpark that mqlake is tested with, so each has an environment of its own (tools/spark_versions.py),
with its jars from the Maven registry.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tools.spark_versions import cleaned, environment

from mqlake.lake.tables.config import DEFAULT_COLUMNS
from tests.lake.tables.lakes import expected, open_topic, put
from tests.parts import needed

ICEBERG = (
    "4.1.4",
    ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.xerial:sqlite-jdbc:3.50.3.0"),
)
DELTA = ("4.2.0", ("io.delta:delta-spark_4.2_2.13:4.4.0",))
CLASS_PATH = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"

READER = """
import json, sys
from pyspark.sql import SparkSession

jars, settings, query, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4]
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
for name, value in {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1",
                    "spark.driver.host": "127.0.0.1", "spark.sql.session.timeZone": "UTC", **settings}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

def plain(value):
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    return value.timestamp() if hasattr(value, "timestamp") else value

rows = [{name: plain(value) for name, value in row.asDict().items()} for row in spark.sql(query).collect()]
with open(out, "w") as file:
    json.dump(rows, file)
spark.stop()
"""


def class_path(directory: Path, coordinates: tuple[str, ...]) -> str:
    """The jars of Maven coordinates and of what they need, with commas, as Spark takes them."""
    directory.mkdir()
    wanted = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *each.split(":")
        )
        for each in coordinates
    )
    (directory / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId>"
        f"<version>1</version><dependencies>{wanted}</dependencies></project>"
    )
    command = [needed("maven"), "-q", "-B", CLASS_PATH, f"-Dmdep.outputFile={directory / 'jars'}"]
    subprocess.run(command, cwd=directory, check=True)
    return (directory / "jars").read_text().strip().replace(os.pathsep, ",")


def read_by(
    directory: Path, spark: tuple[str, tuple[str, ...]], settings: Mapping[str, str], query: str
) -> list[dict[str, Any]]:
    version, coordinates = spark
    jars, out, script = (
        class_path(directory / "jars", coordinates),
        directory / "rows.json",
        directory / "read.py",
    )
    script.write_text(READER)
    command = [environment(version), str(script), jars, json.dumps(settings), query, str(out)]
    subprocess.run(
        command, cwd=directory, env={**cleaned(), "PYSPARK_PYTHON": str(environment(version))}, check=True
    )
    rows: list[dict[str, Any]] = json.loads(out.read_text())
    return sorted(rows, key=lambda row: row["physicalOffset"])


def as_json(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        return value.astimezone(UTC).timestamp() if isinstance(value, datetime) else value

    return [{name: plain(value) for name, value in row.items()} for row in rows]


@pytest.mark.java
@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_spark_with_the_formats_own_jars_reads_the_same_rows(tmp_path: Path, format: str) -> None:
    """Several commits, and a compaction of some of them."""
    store = tmp_path / "store"
    table = None
    for number in range(4):
        put(store, 200, 200 * number)
        table = table or open_topic(tmp_path, store, format)
        assert table.append_new().rows == 100
        if number == 2:
            table.table.compact(1 << 20)
    columns = ", ".join(DEFAULT_COLUMNS)
    if format == "iceberg":
        name = "spark.sql.catalog.mqlake"
        settings = {
            name: "org.apache.iceberg.spark.SparkCatalog",
            f"{name}.type": "jdbc",
            f"{name}.uri": f"jdbc:sqlite:{tmp_path}/lake/catalog.db",
            f"{name}.jdbc.schema-version": "V1",
            f"{name}.warehouse": f"{tmp_path}/lake",
        }
        found = read_by(tmp_path, ICEBERG, settings, f"select {columns} from mqlake.mqlake.Orders")
    else:
        settings = {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
        found = read_by(
            tmp_path, DELTA, settings, f"select {columns} from delta.`{tmp_path}/lake/mqlake/Orders`"
        )
    assert found == as_json(expected(store))
