"""Compaction beside a loop over all messages: the last of each key, in a store that is whole."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mqlake.spark
from mqlake.message import PROPERTY_CRC32, MessageExt, MessageExtBrokerInner
from mqlake.spark.jobs.compact import COLUMNS, compact
from mqlake.store import open_store
from mqlake.store.check.verify import verify_store
from tests.spark.stores import decoded, log_files, overwrite

FILE_SIZE = 1 << 20
BORN = 1_700_000_000_000
STORED_AT = 56
COUNT = 200


def a_store(root: Path, first: int, **settings: object) -> Path:
    """Twenty keys in two topics and three queues; several keys are one, some have none, empty bodies delete."""
    with open_store(root, {"mappedFileSizeCommitLog": FILE_SIZE, **settings}) as store:
        for n in range(first, first + COUNT):
            body = b"" if n % 41 == 0 or n == first + COUNT - 5 else str(n).encode()
            keys = (f"key-{n % 20}", [f"key-{n % 20}", "shared"], None)[n % 7 % 3]
            message = MessageExtBrokerInner(
                f"T{n % 2}", body, keys=keys, tags="t", queue_id=n % 3, flag=n, born_timestamp=BORN + n
            )
            message.properties["n"] = str(n)
            assert store.put_message(message).is_ok
    return root


def store_times(root: Path, times: list[int]) -> None:
    """Gives the messages these store times, again and again."""
    for number, message in enumerate(decoded(root)):
        overwrite(
            log_files(root)[0],
            message.physical_offset + STORED_AT,
            struct.pack(">q", times[number % len(times)]),
        )


def last_of_each_key(messages: list[MessageExt]) -> set[int]:
    newest: dict[tuple[str, str], MessageExt] = {}
    for message in messages:
        if message.keys:
            newest[message.topic, message.keys] = message
    return {int(message.properties["n"]) for message in newest.values() if message.body}


@pytest.mark.spark
def test_the_last_of_each_key_stays(spark: SparkSession, tmp_path: Path) -> None:
    """Though the clock went back: in one store its order counts, not its times."""
    root, out = a_store(tmp_path / "store", 0, enabledAppendPropCRC=True), tmp_path / "compacted"
    store_times(root, [BORN + 10, BORN + 10, BORN + 5])
    log = mqlake.spark.read_log(spark, str(root), columns=COLUMNS)
    written = compact(log, str(out)).collect()
    kept = decoded(out)
    assert {int(m.properties["n"]) for m in kept} == last_of_each_key(decoded(root))
    assert sum(row.messages for row in written) == len(kept) > 30
    for queue in {(m.topic, m.queue_id) for m in kept}:
        of_queue = [int(m.properties["n"]) for m in kept if (m.topic, m.queue_id) == queue]
        assert of_queue == sorted(of_queue)
    before = {int(m.properties["n"]): m for m in decoded(root)}
    for message in kept:
        was = before[int(message.properties["n"])]
        assert (message.topic, message.queue_id, message.flag) == (was.topic, was.queue_id, was.flag)
        assert message.born_timestamp == was.born_timestamp and message.body == was.body
        # a checksum belongs to one record
        assert message.properties == {k: v for k, v in was.properties.items() if k != PROPERTY_CRC32}
    assert verify_store(out).findings == [] and spark_is_content(spark, out)


def spark_is_content(spark: SparkSession, root: Path) -> bool:
    return mqlake.spark.read_log(spark, str(root), verify="full", columns="size").count() == len(
        decoded(root)
    )


@pytest.mark.spark
def test_between_stores_the_time_says_what_is_later(spark: SparkSession, tmp_path: Path) -> None:
    one, two = a_store(tmp_path / "one", 0), a_store(tmp_path / "two", COUNT - 17)
    store_times(one, [BORN + 2000])
    store_times(two, [BORN + 1000])  # so what is in both stays as the first has it
    compact(
        mqlake.spark.read_log(spark, str(one), str(two), columns=COLUMNS), str(tmp_path / "out")
    ).collect()
    kept = {int(m.properties["n"]) for m in decoded(tmp_path / "out")}
    assert kept == last_of_each_key(decoded(two) + decoded(one))
