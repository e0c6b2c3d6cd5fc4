"""Figures of a log beside figures made of every message by itself."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from mqlake.cli.main import cli
from mqlake.cli.spark.read import print_stats
from mqlake.message import MessageExtBrokerInner
from mqlake.spark.jobs.stats import collected, log_stats, stats_page
from mqlake.store import open_store
from tests.lake.heads.logs import write_all
from tests.spark.jobs.oracle import dumped, ran
from tests.spark.stores import BORN, copy_store, seen


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a zone that is not Spark's."""
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(params=["log", "heads"])
def store(request: pytest.FixtureRequest, every_kind: Path, tmp_path: Path) -> Path:
    """All kinds of records, where some files have heads and where none has."""
    if request.param == "log":
        return every_kind
    root = copy_store(every_kind, tmp_path / "store")
    write_all(root)
    return root


@pytest.mark.spark
@pytest.mark.usefixtures("elsewhere")
def test_figures(spark: SparkSession, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stats = log_stats(spark, str(store), top=3)
    tables = collected(stats)
    messages = seen(store)
    topics = Counter(m.topic for m in messages)
    assert {row["topic"]: row["records"] for row in tables["topics"]} == topics
    queues = Counter((m.topic, m.queue_id) for m in messages)
    assert {(row["topic"], row["queueId"]): row["records"] for row in tables["queues"]} == queues
    assert stats.interval == "1s"
    rates = Counter((m.topic, m.store_timestamp // 1000 * 1000) for m in messages)
    assert {(row["topic"], ms(row["storeTimestamp"])): row["records"] for row in tables["rates"]} == rates
    for row in tables["topics"]:
        of_topic = [m for m in messages if m.topic == row["topic"]]
        times = [m.store_timestamp for m in of_topic]
        assert (ms(row["firstStoreTimestamp"]), ms(row["lastStoreTimestamp"])) == (min(times), max(times))
    keys = Counter((m.topic, key) for m in messages for key in (m.keys or "").split())
    assert {(row["topic"], row["key"]): row["records"] for row in tables["keys"]} == dict(
        sorted(keys.items(), key=lambda item: (-item[1], *item[0]))[:3]
    )
    for row in tables["quantiles"]:
        latencies = [m.store_timestamp - m.born_timestamp for m in messages if m.topic == row["topic"]]
        assert row["latencyMax"] == max(latencies)
        assert row["sizeMax"] == max(m.store_size for m in messages if m.topic == row["topic"])
        sizes = sorted(m.store_size for m in messages if m.topic == row["topic"])
        for percent in (50, 95, 99):
            rank = max(0, math.ceil(len(sizes) * percent / 100) - 1)  # so few that Spark's are exact
            assert row[f"sizeP{percent}"] == sizes[rank]
            assert row[f"latencyP{percent}"] == sorted(latencies)[rank]
    for row in tables["skew"]:
        counts = [count for (topic, _), count in queues.items() if topic == row["topic"]]
        assert (row["queues"], row["least"], row["most"]) == (len(counts), min(counts), max(counts))
        assert row["skew"] == pytest.approx(max(counts) * len(counts) / sum(counts))
    usual = {
        name: [row for row in rows if not row["topic"].startswith("%RETRY%")] for name, rows in tables.items()
    }
    print_stats(usual, stats.interval)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"{sum(row['records'] for row in usual['topics'])} messages, ")
    assert max(map(len, shown)) <= 80
    page = stats_page(tables, title="<figures>", interval=stats.interval)
    assert "&lt;figures&gt;" in page and page.count("data:image/png;base64,") == 2 and "Topic-1" in page


def ms(moment: datetime) -> int:
    assert moment.tzinfo is not None
    return round(moment.timestamp() * 1000)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_store_with_one_message_and_one_with_none(tmp_path: Path) -> None:
    for name, count in (("none", 0), ("one", 1)):
        with open_store(tmp_path / name, {"mappedFileSizeCommitLog": 1 << 20}) as store:
            for _ in range(count):
                message = MessageExtBrokerInner("T", b"body", keys="a b", born_timestamp=BORN)
                assert store.put_message(message).is_ok
    (row,) = dumped(tmp_path / "one")
    told = ran("stats", tmp_path / "one")
    for table, expected in (
        ("topics", {"records": 1, "bytes": row["size"], "bodyBytes": 4}),
        ("queues", {"queueId": 0, "records": 1}),
        ("rates", {"records": 1}),
        ("quantiles", {"sizeP50": row["size"], "latencyMax": row["storeTimestamp"] - BORN}),
        ("skew", {"queues": 1, "mean": 1.0, "least": 1, "most": 1, "skew": 1.0}),
    ):
        (found,) = told[table]
        assert found["topic"] == "T" and expected.items() <= found.items()
    assert ms(datetime.fromisoformat(told["topics"][0]["lastStoreTimestamp"])) == row["storeTimestamp"]
    assert [(each["key"], each["records"]) for each in told["keys"]] == [("a", 1), ("b", 1)]
    command = ["spark", "stats", str(tmp_path / "none"), "--html", str(tmp_path / "page")]
    assert CliRunner().invoke(cli, command).stdout == "no messages\n"
    assert "0 messages" in (tmp_path / "page").read_text()
