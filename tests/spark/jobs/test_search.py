"""Searches beside a look at every message by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import mqlake.spark
from mqlake.errors import ConfigError
from mqlake.message import MessageExt
from mqlake.spark.jobs.search import Wanted, search
from tests.spark.stores import seen

Test = Callable[[MessageExt], bool]


def has_key(message: MessageExt, key: str) -> bool:
    return key in (message.keys or "").split(" ") or message.uniq_key == key


CASES: list[tuple[Wanted, Test]] = [
    (Wanted(keys=["key-5", "batch-0"]), lambda m: has_key(m, "key-5") or has_key(m, "batch-0")),
    (
        Wanted(topics=["Topic-1", "Batch"], tags=["TagA", "b"]),
        lambda m: m.topic in ("Topic-1", "Batch") and m.tags in ("TagA", "b"),
    ),
    (
        Wanted(text="\x03\x03\x03", sql="queueId = 0 and flag < 0"),
        lambda m: b"\3\3\3" in m.body and m.queue_id == 0 and m.flag < 0,
    ),
    (Wanted(sql="properties['a=b'] is not null"), lambda m: "a=b" in m.properties),
    (Wanted(until=1), lambda _: False),
]


@pytest.mark.spark
def test_what_is_found(spark: SparkSession, every_kind: Path) -> None:
    messages = seen(every_kind)
    everything = mqlake.spark.read_log(spark, str(every_kind)).cache()
    for wanted, test in CASES:
        expected = sorted(m.msg_id for m in messages if test(m))
        assert expected or wanted.until
        assert ids(search(spark, str(every_kind), wanted=wanted)) == expected, wanted
        assert ids(wanted.within(everything)) == expected, wanted
    everything.unpersist()
    with pytest.raises(ConfigError, match="--sql 'queue = 1'"):
        search(spark, str(every_kind), wanted=Wanted(sql="queue = 1"))


def ids(found: DataFrame) -> list[str]:
    return sorted(row.msgId for row in found.select("msgId").collect())
