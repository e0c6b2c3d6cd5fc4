"""Sources that Spark finds by itself: in sessions that nobody registered them with."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqlake.spark.sources import SOURCES, register
from tests.spark.stores import seen

ROOT = Path(__file__).parent.parent.parent
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
FRESH = """
import sys
from pyspark.sql import SparkSession

options = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
builder = SparkSession.builder.master("local[1]")
for key, value in options.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.sql(f"create temporary view log using commitlog options (path '{sys.argv[1]}')")
print(spark.sql("select count(*) from log where topic = 'Topic-1'").first()[0])
import mqlake.spark

mqlake.spark.register(spark)
print(spark.sql("select count(*) from log where topic = 'Topic-1'").first()[0])
spark.stop()
"""


@pytest.mark.spark
def test_a_fresh_session_reads_and_may_register_later(every_kind: Path) -> None:
    """A JVM of its own, in which filters are not pushed down until `register`."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(every_kind)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=300,
    )
    expected = str(sum(message.topic == "Topic-1" for message in seen(every_kind)))
    assert done.stdout.split() == [expected, expected], done.stderr[-3000:]


@pytest.mark.spark
def test_filters_are_pushed_where_that_is_on(spark: SparkSession, every_kind: Path) -> None:
    session = spark.newSession()
    for name, enabled in (("off", "false"), ("on", "true")):
        session.conf.set(PUSHDOWN, enabled)
        frame = session.read.format("commitlog").load(str(every_kind)).where("physicalOffset < 1000")
        assert frame.count() == sum(message.physical_offset < 1000 for message in seen(every_kind)), name
    register(session)
    register(session)


def test_the_modules_are_those_of_the_sources() -> None:
    modules = sorted(path.name for path in (ROOT / "src").glob("pyspark_mqlake_*.py"))
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sorted(wheel["force-include"]) == [f"src/{name}" for name in modules]
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules)\n"
        "import importlib\n"
        f"found = [importlib.import_module(name[:-3]).DefaultSource for name in {modules!r}]\n"
        "print(*sorted(each.name() for each in found))\n"
        "print(*sorted(name for name in set(sys.modules) - before if '.' not in name))"
    )
    names, imported = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert names.split() == sorted(source.name() for source in SOURCES)
    light = {"mqlake", *sys.stdlib_module_names}
    assert {each for each in imported.split() if not each.startswith("pyspark_")} <= light
