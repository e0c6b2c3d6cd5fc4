"""Compaction: the last message of each key, in a store that is whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mqlake.spark
from mqlake.message import MessageExtBrokerInner
from mqlake.spark.jobs.compact import COLUMNS, compact
from mqlake.store import open_store
from mqlake.store.verify import verify_store
from tests.spark.stores import decoded


@pytest.mark.spark
def test_the_last_of_each_key_stays(spark: SparkSession, tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path / "compacted"
    with open_store(root, {"mappedFileSizeCommitLog": 1 << 20}) as store:
        for n in range(200):
            body = b"" if n == 195 else str(n).encode()
            keys = f"key-{n % 20}" if n % 50 else None
            message = MessageExtBrokerInner(
                f"T{n % 2}",
                body,
                keys=keys,
                tags="t",
                queue_id=n % 3,
                flag=n,
                born_timestamp=1_700_000_000_000 + n,
            )
            message.properties["n"] = str(n)
            assert store.put_message(message).is_ok
    log = mqlake.spark.read_log(spark, str(root), columns=COLUMNS)
    written = compact(log, str(out)).collect()
    kept = sorted(decoded(out), key=lambda m: m.physical_offset)
    assert sorted(int(m.properties["n"]) for m in kept) == [n for n in range(180, 200) if n != 195]
    for queue in {(m.topic, m.queue_id) for m in kept}:
        of_queue = [int(m.properties["n"]) for m in kept if (m.topic, m.queue_id) == queue]
        assert of_queue == sorted(of_queue)
    assert sum(row.messages for row in written) == len(kept) == 19
    for message in kept:
        n = int(message.properties["n"])
        assert (message.topic, message.queue_id, message.flag, message.tags) == (f"T{n % 2}", n % 3, n, "t")
        assert message.born_timestamp == 1_700_000_000_000 + n and message.body == str(n).encode()
    assert verify_store(out).findings == []
