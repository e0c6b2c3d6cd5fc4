"""Random stores, damaged in random ways, asked random questions: skipping never changes an answer.

The oracle decodes each record by itself, from the log alone, and applies the filters to whole rows. What the source
gives is filtered again the same way, as Spark does. A source may refuse, naming what is damaged, but not leave out.
`MQLAKE_CAMPAIGN=<stores>` asks more of them, from `MQLAKE_CAMPAIGN_SEED` on.
"""

from __future__ import annotations

import json
import operator
import os
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from mqlake.errors import ConfigError, MqlakeError, OffsetOutOfRangeError, StoreCorruptError
from mqlake.formats.batch import encode_messages
from mqlake.formats.compression import compress_body
from mqlake.lake.arrow.schema import COLUMNS
from mqlake.lake.heads.writer import HeadsWriter
from mqlake.lake.log import key_index, reading, skipping
from mqlake.message import PROPERTY_INNER_NUM, Message, MessageExtBatch, MessageExtBrokerInner, MessageSysFlag
from mqlake.spark.filters import conditions
from mqlake.spark.log.commitlog import CommitLogReader
from mqlake.spark.options import log_options
from mqlake.spark.schema import spark_schema
from mqlake.store import DefaultMessageStore, MessageStoreConfig
from tests.spark.stores import (
    COMPRESSIONS,
    SETTINGS,
    V4,
    V6,
    copy_store,
    decoded,
    row_of,
    seen,
)

STORES = int(os.environ.get("MQLAKE_CAMPAIGN", "0")) or 12
FIRST = int(os.environ.get("MQLAKE_CAMPAIGN_SEED", "1"))
QUESTIONS = 25
START = 1_700_000_000_000
TOPICS = ("Often", "Some", "Seldom", "Batch", "Gone")

Row = dict[str, Any]
Holds = Callable[[Row], bool]


# ---------------------------------------------------------------------- stores


class Writer:
    """Puts random messages into a store, which is opened anew for each part."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root, self.rng, self.count, self.clock = root, rng, 0, START
        self.queues = rng.randint(1, 3)
        self.clock_set = 0
        self.step_ms = rng.choice([0, 5, 1000, 60_000])

    def write(self, messages: int) -> None:
        config = MessageStoreConfig.from_mapping({**SETTINGS, "storePathRootDir": str(self.root)})
        store = DefaultMessageStore(
            config, clock_ms=lambda: self.clock, is_batch_topic=lambda topic: topic == "Batch"
        )
        store.load()
        store.start()
        try:
            for _ in range(messages):
                self.clock += self.rng.randint(0, 2 * self.step_ms)
                if self.count - self.clock_set > 60 and self.rng.random() < 0.01:
                    self.clock += self.rng.choice([-1, -1, 1]) * self.rng.choice([30_000, 3_600_000])
                    self.clock_set = self.count
                result = self.put(store)
                assert result.is_ok, result.reason
        finally:
            store.shutdown()

    def put(self, store: DefaultMessageStore) -> Any:
        rng, n = self.rng, self.count
        self.count += 1
        topic = rng.choices(TOPICS, (60, 20, 2, 5, 8))[0]
        queue_id = rng.randrange(self.queues)
        common: Row = {"queue_id": queue_id, "born_timestamp": START + n, "born_host": rng.choice([V4, V6])}
        if topic == "Batch" or rng.random() < 0.03:
            items = [
                Message(topic, rng.randbytes(rng.randrange(40)), tags=tag_of(rng), keys=f"key-{n} batch-{i}")
                for i in range(rng.randint(1, 4))
            ]
            batch = MessageExtBatch(topic, encode_messages(items), store_host=V4, **common)
            if topic != "Batch":
                return store.put_messages(batch)
            batch.sys_flag |= MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG
            batch.properties[PROPERTY_INNER_NUM] = str(len(items))
            batch.keys = [f"outer-{n}"] if rng.random() < 0.5 else None
            self.compress(batch)
            return store.put_message(batch)
        body = rng.randbytes(rng.randrange(60)) if rng.random() < 0.5 else bytes(rng.randrange(700))
        keys = rng.choice([None, [f"key-{n}"], [f"key-{n // 7}", "shared"], ["ключ"]])
        message = MessageExtBrokerInner(topic, body, tags=tag_of(rng), keys=keys, store_host=V4, **common)
        if rng.random() < 0.3:
            message.uniq_key = f"7F00000100{n:022X}"
        if rng.random() < 0.04:
            message.properties["DELAY"] = "3"
        if rng.random() < 0.1:
            self.compress(message)
        elif rng.random() < 0.05:
            message.sys_flag |= rng.choice([0x4, 0x8, 0xC])
        return store.put_message(message)

    def compress(self, message: MessageExtBrokerInner) -> None:
        if self.rng.random() < 0.7:
            message.sys_flag |= MessageSysFlag.COMPRESSED_FLAG | self.rng.choice(COMPRESSIONS)
            message.body = compress_body(message.body, message.sys_flag)


def tag_of(rng: random.Random) -> str | None:
    return rng.choice([None, "TagA", "TagB", "标签"])


def random_store(base: Path, rng: random.Random) -> tuple[Path, list[str]]:
    """A store and what was done to the files beside its log."""
    root, done = base / "store", []
    writer = Writer(root, rng)
    writer.write(rng.randint(30, 250))
    old = copy_store(root, base / "old")
    if rng.random() < 0.5:
        done.append("deleted Gone")
        for directory in ("consumequeue", "batchconsumequeue"):
            shutil.rmtree(root / directory / "Gone", ignore_errors=True)
        writer.write(rng.randint(0, 150))
        if rng.random() < 0.7:
            for directory in ("consumequeue", "batchconsumequeue"):
                shutil.rmtree(root / directory / "Gone", ignore_errors=True)
    else:
        writer.write(rng.randint(0, 150))
    if rng.random() < 0.6:
        table = {topic: {"readQueueNums": writer.queues, "writeQueueNums": writer.queues} for topic in TOPICS}
        (root / "config").mkdir(exist_ok=True)
        (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    for _ in range(rng.choice([0, 0, 1, 2])):
        done.append(damage(root, old, rng))
    return root, done


def damage(root: Path, old: Path, rng: random.Random) -> str:
    queue_files = sorted((root / "consumequeue").glob("*/*/*"))
    index_files = sorted((root / "index").glob("*")) if (root / "index").is_dir() else []
    kinds = ["abort", "no checkpoint"]
    kinds += ["queue gone", "file gone", "cut", "zeros", "flip", "foreign", "stale"] if queue_files else []
    kinds += ["index gone", "index cut", "index slots", "index header", "index stale"] if index_files else []
    kind = rng.choice(kinds)
    if kind in ("abort", "no checkpoint"):
        (root / "abort").touch()
        if kind == "no checkpoint":
            (root / "checkpoint").unlink(missing_ok=True)
        return kind
    path = rng.choice(index_files if kind.startswith("index") else queue_files)
    data = bytearray(path.read_bytes())
    if kind == "queue gone":
        shutil.rmtree(path.parent)
    elif kind in ("file gone", "index gone"):
        path.unlink()
    elif kind in ("cut", "index cut"):
        os.truncate(path, rng.randrange(len(data)))
    elif kind == "zeros":
        first = rng.randrange(0, len(data), 20)
        path.write_bytes(data[:first] + bytes(len(data) - first if rng.random() < 0.5 else 20) + data[first:])
        os.truncate(path, len(data))
    elif kind == "flip":
        units = max(1, np.count_nonzero(np.frombuffer(bytes(data), ">i4").reshape(-1, 5)[:, 2]))
        at = rng.randrange(units) * 20 + rng.randrange(12)
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif kind == "foreign":
        path.write_bytes(rng.choice(queue_files).read_bytes())
    elif kind == "stale":
        shutil.rmtree(path.parent)
        before = old / path.parent.relative_to(root)
        if before.is_dir():
            shutil.copytree(before, path.parent)
    elif kind == "index slots":
        data[40 : 40 + 400] = bytes(400)
        path.write_bytes(data)
    elif kind == "index header":
        data[:40] = bytes(40)
        path.write_bytes(data)
    elif kind == "index stale":
        shutil.rmtree(root / "index")
        if (old / "index").is_dir():
            shutil.copytree(old / "index", root / "index")
    return f"{kind}: {path}"


# ---------------------------------------------------------------------- questions


def question(rows: list[Row], rng: random.Random) -> tuple[list[ds.Filter], dict[str, str], list[Holds]]:
    """Filters, options, and what a row has to fulfil."""
    filters: list[ds.Filter] = []
    holds: list[Holds] = []
    some = rng.choice(rows)
    for column in rng.sample(
        ["topic", "queueId", "queueOffset", "tags", "keys", "uniqKey", "storeTimestamp", "physicalOffset"],
        rng.choice([1, 1, 2, 2, 3]),
    ):
        values = [rng.choice(rows)[column] if rng.random() < 0.6 else some[column] for _ in range(2)]
        if column in ("topic", "tags", "keys", "uniqKey") or rng.random() < 0.3:
            wanted = [value for value in values if value is not None] or ["none"]
            if rng.random() < 0.1:
                absent = {str: "none", int: 12345678, datetime: datetime(2001, 1, 1, tzinfo=UTC)}
                wanted = [absent[type(wanted[0])]]
            if rng.random() < 0.6 or column == "storeTimestamp":
                filters.append(ds.EqualTo((column,), wanted[0]))
                wanted = wanted[:1]
            else:
                filters.append(ds.In((column,), wanted))
            holds.append(lambda row, column=column, wanted=wanted: row[column] in wanted)
            continue
        value = values[0] + timedelta(minutes=rng.randint(-2, 2)) if column == "storeTimestamp" else values[0]
        kind, compare = rng.choice(
            [
                (ds.GreaterThan, lambda a, b: a > b),
                (ds.GreaterThanOrEqual, lambda a, b: a >= b),
                (ds.LessThan, lambda a, b: a < b),
                (ds.LessThanOrEqual, lambda a, b: a <= b),
            ]
        )
        filters.append(kind((column,), value))
        holds.append(lambda row, column=column, value=value, compare=compare: compare(row[column], value))
    options: dict[str, str] = {"splitSize": rng.choice(["64m", "64m", "9000"])}
    if rng.random() < 0.3:
        options["verify"] = rng.choice(["none", "full"])
    if rng.random() < 0.15:
        options["mode"] = rng.choice(["dropMalformed", "permissive"])
    if rng.random() < 0.15:
        key = rng.choice([(row["keys"] or "none").split()[0] for row in rows])
        options["keys"] = key
        holds.append(lambda row: key in (row["keys"] or "").split() or row["uniqKey"] == key)
    if rng.random() < 0.15:
        start = some["physicalOffset"]
        options["startingOffsets"] = str(start)
        holds.append(lambda row: row["physicalOffset"] >= start)
    elif rng.random() < 0.3:
        for option, compare in (("startingOffsets", int.__ge__), ("endingOffsets", int.__lt__)):
            if rng.random() < 0.6:
                places = {(row["topic"], row["queueId"]): row["queueOffset"] for row in rng.sample(rows, 3)}
                options[option] = json.dumps(
                    {
                        topic: {
                            str(queue): offset for (other, queue), offset in places.items() if other == topic
                        }
                        for topic, _ in places
                    }
                )
                holds.append(
                    lambda row, places=places, compare=compare: (
                        (row["topic"], row["queueId"]) not in places
                        or compare(row["queueOffset"], places[row["topic"], row["queueId"]])
                    )
                )
    if rng.random() < 0.15:
        until = some["storeTimestamp"]
        options["endingTimestamp"] = until.isoformat()
        holds.append(lambda row: row["storeTimestamp"] < until)
    if rng.random() < 0.3:
        topics = rng.sample(TOPICS, rng.choice([1, 2]))
        options["topics"] = ",".join(topics)
        holds.append(lambda row: row["topic"] in topics)
    return filters, options, holds


def answer(root: Path, filters: list[ds.Filter], options: dict[str, str], columns: list[str]) -> list[Row]:
    reader = CommitLogReader(log_options({"path": str(root), **options}), columns)
    reader.pushFilters(filters)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def place(row: Row) -> tuple[int, int]:
    return row["physicalOffset"], row["queueOffset"]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + STORES))
def test_any_question_of_any_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(reading, "BLOCK", rng.choice([512, 4096]))
    monkeypatch.setattr(reading, "PLACE_COST", rng.choice([0, 64]))
    monkeypatch.setattr(reading, "PLACES_MAX", rng.choice([5, 1 << 20]))
    monkeypatch.setattr(key_index, "ENTRIES_READ_MAX", 1 << 20)
    monkeypatch.setattr(
        skipping, "MOSTLY", 1e9
    )  # what queues prove is used, also where a scan would cost less
    root, done = random_store(tmp_path, rng)
    raw = [row_of(message, root) for message in decoded(root)]
    shown = [row_of(message, root) for message in seen(root)]
    assert shown and raw
    for number in range(QUESTIONS):
        if number == QUESTIONS // 2:  # the others are asked of queues and index
            HeadsWriter(str(root)).run()
        unpack = rng.random() < 0.8
        rows = shown if unpack else raw
        filters, options, holds = question(rows, rng)
        options["unpack"] = str(unpack).lower()
        if not done and rng.random() < 0.3:  # else queues and index do not know all messages
            options["skipping"] = "known"
        columns = sorted({*rng.sample(list(COLUMNS), rng.randint(1, 20)), "physicalOffset", "queueOffset"})
        columns = list(COLUMNS) if rng.random() < 0.3 else sorted({*columns, *NEEDED})
        if not ({"body"} & set(columns)):
            columns.append("body")
        expected = sorted((row for row in rows if all(each(row) for each in holds)), key=place)
        context = seed, number, filters, options, done
        assert len(conditions(filters)) == len(filters), context
        try:
            found = answer(root, filters, options, columns)
        except OffsetOutOfRangeError:  # without its queue, or with another one, an offset is not known
            assert done or not unpack, context
            assert any(options.get(name, "").startswith("{") for name in ("startingOffsets", "endingOffsets"))
            continue
        except MqlakeError as error:
            no_topic = isinstance(error, ConfigError) and "topics" in options
            assert no_topic or (isinstance(error, StoreCorruptError) and done), (context, error)
            assert no_topic or "skipping=false" in str(error), (context, error)
            found = answer(root, filters, {**options, "skipping": "false"}, columns)
        given = sorted(
            (row for row in found if row.get("_corrupt") is None and all(each(row) for each in holds)),
            key=place,
        )
        assert list(map(place, given)) == list(map(place, expected)), context
        assert given == [{name: row[name] for name in columns} for row in expected], context


NEEDED = {"topic", "queueId", "queueOffset", "tags", "keys", "uniqKey", "storeTimestamp", "physicalOffset"}


@pytest.mark.spark
def test_some_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The same questions as conditions of DataFrames, over the log and over Parquet written from the oracle's rows."""
    rng = random.Random(77)
    root, done = random_store(tmp_path, rng)
    columns = sorted(NEEDED | {"body", "size"})
    shown = [row_of(message, root) for message in seen(root)]
    plain = [tuple(row[name] for name in columns) for row in shown]
    schema = spark_schema(columns)
    spark.createDataFrame(plain, schema).coalesce(1).write.parquet(str(tmp_path / "parquet"))
    for _ in range(6):
        filters, options, _ = question(shown, rng)
        wanted = {name: value for name, value in options.items() if name in ("splitSize", "verify")}
        log = spark.read.format("commitlog").schema(schema).options(**wanted).load(str(root))
        parquet = spark.read.schema(schema).parquet(str(tmp_path / "parquet"))
        for each in filters:
            condition = as_condition(each)
            log, parquet = log.where(condition), parquet.where(condition)
        assert sorted(map(tuple, log.collect()), key=repr) == sorted(
            map(tuple, parquet.collect()), key=repr
        ), (
            filters,
            done,
        )


def as_condition(given: ds.Filter) -> Column:
    column = F.col(given.attribute[0])  # type: ignore[attr-defined]
    if isinstance(given, ds.In):
        return column.isin(list(given.value))
    compare = {
        ds.EqualTo: operator.eq,
        ds.GreaterThan: operator.gt,
        ds.GreaterThanOrEqual: operator.ge,
        ds.LessThan: operator.lt,
        ds.LessThanOrEqual: operator.le,
    }[type(given)]
    condition: Column = compare(column, F.lit(given.value))  # type: ignore[attr-defined]
    return condition
