"""Sources that Spark finds by itself: in sessions that nobody registered them with."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mqlake.lake
from mqlake.client.blocking import Producer
from mqlake.client.produce.producer import ProducerConfig
from mqlake.lake.tables.config import ICEBERG, Lake
from mqlake.lake.tables.opening import load_table
from mqlake.message import Message
from mqlake.spark.sources import SOURCES, register
from tests.interop.brokers import MqlakeBroker
from tests.spark.conftest import PlainSpark
from tests.spark.stores import seen

ROOT = Path(__file__).parent.parent.parent
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
CLIENT = """
import json, sys

sys.modules["mqlake"] = None  # the client has PySpark alone
from pyspark.sql import SparkSession

master, log, namesrv, out = sys.argv[1:]
spark = SparkSession.builder.remote(master).getOrCreate()

def patient(work):
    # Spark waits no more than 10 s for a Python worker, and no setting changes that
    for left in range(4, -1, -1):
        try:
            return work()
        except Exception as error:
            if not left or "connect back" not in str(error):
                raise

log_of = spark.read.format("commitlog").load(log).where("topic = 'Topic-1'")
found = {"read": patient(log_of.count)}
spark.sql(f"create temporary view stored using commitlog options (path '{log}')")
found["view"] = patient(spark.sql("select count(*) from stored where topic = 'Topic-1'").first)[0]
try:
    spark.sql(f"create table refused using commitlog options (path '{log}')")
except Exception as error:
    found["table"] = "use CREATE TEMPORARY VIEW" in str(error)
live = spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe="Live").load()
texts = live.selectExpr("decode(body, 'utf-8') as text")
found["live"] = sorted(row.text for row in patient(texts.collect))
rows = spark.createDataFrame([("Live", bytearray(b"from Connect"))], "topic string, body binary")
patient(rows.write.format("rocketmq").options(namesrvAddr=namesrv).mode("append").save)
stream = spark.readStream.format("commitlog").option("topics", "Topic-1").load(log).select("topic", "queueOffset")
sink = stream.writeStream.format("mqlake-iceberg").option("table", "shop.One").option("warehouse", out + "/lake")
sink = sink.option("checkpointLocation", out + "/checkpoint").trigger(availableNow=True)
patient(lambda: sink.start().awaitTermination())
print(json.dumps(found))
"""


@pytest.mark.spark
@pytest.mark.nightly
def test_a_fresh_session_reads_and_may_register_later(plain_spark: PlainSpark, every_kind: Path) -> None:
    """A JVM of its own, in which filters are not pushed down until `register`."""
    expected = str(sum(message.topic == "Topic-1" for message in seen(every_kind)))
    assert plain_spark.counts == [expected, expected]


@pytest.mark.spark
@pytest.mark.nightly
def test_plain_spark_connect(plain_spark: PlainSpark, every_kind: Path, tmp_path: Path) -> None:
    """Sources and sinks, in the API and in SQL, of a client without mqlake: the server's Python finds them."""
    with MqlakeBroker(tmp_path / "broker") as broker:
        with Producer("Producers", broker.namesrv, ProducerConfig(send_msg_timeout_s=30)) as producer:
            producer.send(Message("Live", b"before"))
        command = [
            sys.executable,
            "-c",
            CLIENT,
            plain_spark.master,
            str(every_kind),
            broker.namesrv,
            str(tmp_path),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr.replace("\tat ", "")[:5000]
        live = mqlake.lake.scan(namesrv=broker.namesrv, topics="Live").to_table(columns=["body"])
    topic = sum(message.topic == "Topic-1" for message in seen(every_kind))
    assert json.loads(done.stdout) == {"read": topic, "view": topic, "table": True, "live": ["before"]}
    assert sorted(live["body"].to_pylist()) == [b"before", b"from Connect"]
    table = load_table(Lake(str(tmp_path / "lake"), ICEBERG), "shop.One")
    assert table is not None
    assert table.files(table.head().version).rows == topic


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
