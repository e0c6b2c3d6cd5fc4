"""Counts by groups against counting the messages one by one."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import mqlake.spark
from mqlake.errors import ConfigError, NotAStoreError, StoreCorruptError, UnknownKeyError
from mqlake.lake.options import Mode
from mqlake.message import MessageSysFlag
from mqlake.spark.log import counts
from mqlake.spark.log.counts import CommitLogCountsDataSource, CountTask, count_tasks, counts_of
from tests.lake.heads.logs import heads_of, random_records, write_all, write_log
from tests.spark.stores import copy_store, decoded, flip_bit, log_files, seen, time_of

Totals = dict[tuple[Any, ...], tuple[Any, ...]]


def counted(root: Path | str, by: str, **options: str) -> Totals:
    source = CommitLogCountsDataSource({"path": str(root), "by": by, "splitSize": "5000", **options})
    reader = source.reader(source.schema())
    names = [item.partition("/")[0] for item in by.split(",")]
    found: Totals = {}
    for part in reader.partitions():
        for batch in reader.read(part):
            batch.validate(full=True)
            for row in batch.to_pylist():
                key = tuple(row[name] for name in names)
                new = tuple(row[name] for name in counts.SUMS)
                old = found.get(key)
                if old is not None:
                    new = (
                        *(a + b for a, b in zip(old[:3], new[:3], strict=True)),
                        min(old[3], new[3]),
                        max(old[4], new[4]),
                    )
                found[key] = new
    return found


def expected(messages: list[Any], key: Any) -> Totals:
    groups = defaultdict(list)
    for message in messages:
        groups[key(message)].append(message)
    return {
        name: (
            len(group),
            sum(m.store_size for m in group),
            sum(len(m.body) for m in group),
            min(time_of(m.store_timestamp) for m in group),
            max(time_of(m.store_timestamp) for m in group),
        )
        for name, group in groups.items()
    }


CASES = {
    "topic": lambda m: (m.topic,),
    "queueId,topic": lambda m: (m.queue_id, m.topic),
    "tags,flag/10": lambda m: (m.tags, m.flag // 10 * 10),
    "size/64": lambda m: (m.store_size // 64 * 64,),
    "bornTimestamp/5ms,sysFlag": lambda m: (time_of(m.born_timestamp // 5 * 5), m.sys_flag),
    "physicalOffset,queueOffset,size,bodyCrc": lambda m: (
        m.physical_offset,
        m.queue_offset,
        m.store_size,
        m.body_crc,
    ),
}


@pytest.mark.parametrize("by", CASES)
@pytest.mark.parametrize("groups_max", [100_000, 1])
def test_raw_records(every_kind: Path, monkeypatch: pytest.MonkeyPatch, by: str, groups_max: int) -> None:
    monkeypatch.setattr(counts, "GROUPS_MAX", groups_max)
    assert counted(every_kind, by, unpack="false") == expected(decoded(every_kind), CASES[by])


def test_messages_of_inner_batches_are_counted(tmp_path: Path) -> None:
    from tests.golden import unpack

    root = unpack("innerbatch", tmp_path).root
    assert counted(root, "topic,flag") == expected(seen(root), lambda m: (m.topic, m.flag))


def test_options_narrow_what_is_counted(every_kind: Path) -> None:
    found = counted(every_kind, "topic", topics="Topic-1", startingOffsets="9000", unpack="false")
    assert found == expected(
        [m for m in decoded(every_kind) if m.topic == "Topic-1" and m.physical_offset >= 9000],
        lambda m: (m.topic,),
    )


# ---------------------------------------------------------------------------------------- by heads

BY_HEADS = [by for by in CASES if not {"flag", "bodyCrc"} & set(re.split(r"[,/]", by))]


def tasks(root: Path, by: str, **options: str) -> list[CountTask]:
    given, keys = CommitLogCountsDataSource({"path": str(root), "by": by, **options}).parsed()
    return count_tasks(given, keys)


@pytest.fixture
def with_heads(every_kind: Path, tmp_path: Path) -> Path:
    """All kinds of records over three files, of which two are full and have heads."""
    root = copy_store(every_kind, tmp_path / "store")
    assert len(write_all(root)) == 2
    return root


@pytest.mark.parametrize("by", BY_HEADS)
@pytest.mark.parametrize("chunk_rows", [1 << 18, 7])
def test_heads_are_counted_in_place_of_the_log(
    with_heads: Path, monkeypatch: pytest.MonkeyPatch, by: str, chunk_rows: int
) -> None:
    monkeypatch.setattr(counts, "CHUNK_ROWS", chunk_rows)
    options = {"unpack": "false", "verify": "none"}
    assert [bool(each.file) for each in tasks(with_heads, by, **options)] == [True, True, False]
    assert counted(with_heads, by, **options) == expected(decoded(with_heads), CASES[by])
    some = {
        **options,
        "topics": "Topic-1,SCHEDULE_TOPIC_XXXX",
        "startingOffsets": "9000",
        "endingOffsets": "30000",
    }
    wanted = [
        m
        for m in decoded(with_heads)
        if m.topic in ("Topic-1", "SCHEDULE_TOPIC_XXXX") and 9000 <= m.physical_offset < 30_000
    ]
    assert counted(with_heads, by, **some) == expected(wanted, CASES[by]) != {}


@pytest.mark.parametrize("more", [{}, {"topics": "Topic-1,SCHEDULE_TOPIC_XXXX,RMQ_SYS_TRANS_HALF_TOPIC"}])
def test_heads_of_what_no_consumer_sees_do_not_count(
    with_heads: Path, tmp_path: Path, more: dict[str, str]
) -> None:
    """Half and rolled back messages, and records that wait, are no messages unless their topic is asked for. A file
    with inner batches, whose messages are counted one by one, is counted from the log."""
    options = {"verify": "none", **more}
    found = counted(with_heads, "topic,sysFlag,physicalOffset", **options)
    assert found == counted(with_heads, "topic,sysFlag,physicalOffset", skipping="false", **options)
    batches = {m.physical_offset for m in decoded(with_heads) if m.sys_flag & MessageSysFlag.NEED_UNWRAP_FLAG}
    files = [int(path.name) for path in log_files(with_heads)[:2]]
    ends = [*files[1:], int(log_files(with_heads)[2].name)]
    with_batches = {a for a, b in zip(files, ends, strict=True) if any(a <= each < b for each in batches)}
    by_heads = {
        each.file.base_offset for each in tasks(with_heads, "topic", **options) if each.file is not None
    }
    assert by_heads == set(files) - with_batches
    plain = write_log(tmp_path / "plain", random_records(5, 400), 16 << 10)
    write_all(plain)
    assert all(each.file for each in tasks(plain, "topic", **options)[:-1])
    assert counted(plain, "topic,sysFlag", **options) == counted(
        plain, "topic,sysFlag", skipping="false", **options
    )


@pytest.mark.parametrize("unpack", ["true", "false"])
@pytest.mark.parametrize("mode", [mode.value for mode in Mode])
def test_damage_counts_in_each_mode_as_it_does_without_heads(tmp_path: Path, mode: str, unpack: str) -> None:
    """A record of the open file is damaged, and a body of the second file was never what its flag says: that is found
    only where bodies are unpacked, and counting its heads would count it all the same."""
    records = random_records(6, 400)
    records[30] |= {"sys_flag": int(MessageSysFlag.COMPRESSED_FLAG), "body": bytes(900)}
    root = write_log(tmp_path / "store", records, 16 << 10)
    heads = write_all(root)
    last = log_files(root)[-1]
    harmed = heads_of(root)[-6]["physicalOffset"]
    assert len(heads) > 3 and harmed > int(last.name)
    [packed] = [row["physicalOffset"] for row in heads_of(root) if row["sysFlag"] == 1]
    flip_bit(last, harmed - int(last.name) + 4)  # its magic
    options = {"verify": "none", "mode": mode, "unpack": unpack}
    by_heads = [each.file for each in tasks(root, "topic", **options) if each.file]
    if mode == Mode.FAIL_FAST.value:
        for skipping in ("true", "false"):
            with pytest.raises(StoreCorruptError, match=f"corrupt at byte {harmed - int(last.name)}"):
                counted(root, "topic", skipping=skipping, **options)
    else:
        found = counted(root, "physicalOffset,sysFlag,topic", **options)
        assert found == counted(root, "physicalOffset,sysFlag,topic", skipping="false", **options)
        places = {place for place, _, _ in found}
        assert harmed not in places and (packed in places) == (unpack == "false")
    is_unpacked = unpack == "true" and mode != Mode.FAIL_FAST.value
    assert len(by_heads) == len(heads) - is_unpacked


@pytest.mark.parametrize("harm", ["deleted", "page"])
def test_heads_that_go_or_break_after_the_plan(
    with_heads: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    given, keys = CommitLogCountsDataSource(
        {"path": str(with_heads), "by": "topic", "unpack": "false", "verify": "none"}
    ).parsed()
    planned = count_tasks(given, keys)
    first = min((with_heads / "heads").iterdir())
    if harm == "deleted":
        os.unlink(first)
    else:
        flip_bit(first, 60)  # the page of topics
    found = [table for each in planned for table in counts_of(each, given, keys)]
    assert sum(sum(table["records"].to_pylist()) for table in found) == len(decoded(with_heads))
    assert ("the log is read in their place" in caplog.text) == (harm == "page")


def test_heads_in_a_bucket_are_fetched_once(
    with_heads: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the task that counts them, which finds, too, that they do not fit: then it counts the log."""
    fetched: list[tuple[str, int]] = []
    cat_file = LocalFileSystem.cat_file

    def counted_fetch(self: LocalFileSystem, path: str, start: int, end: int) -> bytes:
        data: bytes = cat_file(self, path, start=start, end=end)
        fetched.append((path, len(data)))
        return data

    monkeypatch.setattr(LocalFileSystem, "cat_file", counted_fetch)
    options = {"unpack": "false", "verify": "none"}
    given, keys = CommitLogCountsDataSource(
        {"path": f"local://{with_heads}", "by": "topic", **options}
    ).parsed()
    planned = count_tasks(given, keys)
    heads = sorted(str(path) for path in (with_heads / "heads").iterdir())
    assert [bool(each.file) for each in planned] == [True, True, False]
    assert not set(heads) & {path for path, _ in fetched}
    found = counted(f"local://{with_heads}", "topic", **options)
    assert found == expected(decoded(with_heads), CASES["topic"])
    assert sorted(path for path, _ in fetched if path in heads) == heads
    flip_bit(Path(heads[0]), 60)
    assert counted(f"local://{with_heads}", "topic", **options) == found
    assert "the log is read in their place" in caplog.text


@pytest.mark.parametrize(
    "option", [{"verify": "crc"}, {"keys": "k"}, {"startingTimestamp": "5"}, {"skipping": "false"}]
)
def test_what_heads_do_not_say_is_asked_of_the_log(with_heads: Path, option: dict[str, str]) -> None:
    assert not any(each.file for each in tasks(with_heads, "topic", **{"verify": "none", **option}))
    assert not any(each.file for each in tasks(with_heads, "bodyCrc", verify="none"))


@pytest.mark.parametrize(
    ("by", "error", "said"),
    [
        ("", ConfigError, "must name columns"),
        ("topic,topic", ConfigError, "each once"),
        ("topics", UnknownKeyError, "did you mean 'topic'"),
        ("body", UnknownKeyError, "unknown column to group by"),
        ("topic/3", ConfigError, "is text"),
        ("storeTimestamp/3", ConfigError, "cut to 500ms"),
        ("size/none", ConfigError, "a number with k, m or g"),
    ],
)
def test_groups_that_cannot_be(by: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        counts.parse_by(by)


@pytest.mark.spark
@pytest.mark.parametrize("where", ["driver", "tasks", "tasks after all"])
def test_in_spark(spark: SparkSession, every_kind: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A small log is counted by the driver, a large one and one with many groups by tasks: the same rows and types."""
    made: list[pa.Table | None] = []
    count_here = counts._counted_here
    monkeypatch.setattr(counts, "_counted_here", lambda source: made.append(count_here(source)) or made[-1])
    if where != "driver":
        monkeypatch.setattr(counts, "HERE_BYTES_MAX" if where == "tasks" else "GROUPS_MAX", 3)
    every_type = mqlake.spark.count_by(spark, str(every_kind), by="tags,queueId,bornTimestamp/1h")
    source = CommitLogCountsDataSource({"path": str(every_kind), "by": "tags,queueId,bornTimestamp/1h"})
    assert [(each.name, each.dataType) for each in every_type.schema] == [
        (each.name, each.dataType) for each in source.schema()
    ]
    found = mqlake.spark.count_by(spark, str(every_kind), by=["topic", "size/100"], splitSize="7000")
    log = mqlake.spark.read_log(spark, str(every_kind), columns="topic,size,storeTimestamp")
    same = log.groupBy("topic", (F.floor(F.col("size") / 100) * 100).cast("int").alias("size")).agg(
        F.count("*").alias("records"), F.sum("size").alias("bytes"), F.max("storeTimestamp").alias("last")
    )
    assert sorted(
        found.select("topic", "size", "records", "bytes", "lastStoreTimestamp").collect()
    ) == sorted(same.collect())
    assert [each is not None for each in made] == [where == "driver"] * 2
    with pytest.raises(NotAStoreError):
        mqlake.spark.count_by(spark, str(every_kind / "config"), by="topic")


def test_damage_is_named_where_the_driver_counts(every_kind: Path, tmp_path: Path) -> None:
    copy = copy_store(every_kind, tmp_path / "store")
    message = next(m for m in seen(copy) if m.topic == "Topic-1")
    flip_bit(log_files(copy)[0], message.physical_offset + 4)  # its magic
    source = CommitLogCountsDataSource({"path": str(copy), "by": "topic"})
    with pytest.raises(StoreCorruptError, match=f"corrupt at byte {message.physical_offset}"):
        counts._counted_here(source)
