"""Figures of a log beside figures made of every message by itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqlake.spark.jobs.stats import collected, log_stats, stats_page
from tests.spark.stores import seen


@pytest.mark.spark
def test_figures(spark: SparkSession, every_kind: Path) -> None:
    stats = log_stats(spark, str(every_kind), top=3)
    tables = collected(stats)
    messages = seen(every_kind)
    topics = Counter(m.topic for m in messages)
    assert {row["topic"]: row["records"] for row in tables["topics"]} == topics
    queues = Counter((m.topic, m.queue_id) for m in messages)
    assert {(row["topic"], row["queueId"]): row["records"] for row in tables["queues"]} == queues
    assert sum(row["records"] for row in tables["rates"]) == len(messages)
    keys = Counter((m.topic, key) for m in messages for key in (m.keys or "").split())
    assert {(row["topic"], row["key"]): row["records"] for row in tables["keys"]} == dict(
        sorted(keys.items(), key=lambda item: (-item[1], *item[0]))[:3]
    )
    for row in tables["quantiles"]:
        latencies = [m.store_timestamp - m.born_timestamp for m in messages if m.topic == row["topic"]]
        assert row["latencyMax"] == max(latencies)
        assert row["sizeMax"] == max(m.store_size for m in messages if m.topic == row["topic"])
        assert row["sizeP50"] <= row["sizeP95"] <= row["sizeP99"] <= row["sizeMax"]
    for row in tables["skew"]:
        counts = [count for (topic, _), count in queues.items() if topic == row["topic"]]
        assert (row["queues"], row["least"], row["most"]) == (len(counts), min(counts), max(counts))
        assert row["skew"] == pytest.approx(max(counts) * len(counts) / sum(counts))
    page = stats_page(tables, title="<figures>", interval=stats.interval)
    assert "&lt;figures&gt;" in page and page.count("data:image/png;base64,") == 2 and "Topic-1" in page
