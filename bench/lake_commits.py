"""Commits, one after the other: whether the last ones take longer than the first, and what grows meanwhile.

Each commit adds a file of a few rows, a hard link to one that was written once, so what is measured is the commit:
finding out where the table is, the new metadata or log entry, and looking after old versions as a run does.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.context import Context
from bench.measure import Line
from bench.workload import TOPIC, make_log
from mqlake.lake.tables.append_run import WriteTarget, next_state, write_pieces
from mqlake.lake.tables.config import DELTA, FORMATS, ICEBERG, Lake, Topic
from mqlake.lake.tables.topic import TopicTable

FLAT = 0.5
"""The last commits make at least half as many as the first in the same processor time."""
SHOWN = 20
"""One in so many commits is at an end."""
COMPACTED = 100
"""Commits after which a table is compacted, where a commit takes longer with each data file."""


def lake_commits(context: Context) -> Iterator[Line]:
    for format, compacted in (*((each, 0) for each in FORMATS), (DELTA, COMPACTED)):
        with context.scratch("lake-commits") as directory:
            yield commits(directory, format, context.scale.lake_commits, compacted)


def commits(directory: Path, format: str, count: int, compacted: int) -> Line:
    """`compacted`: the table is compacted after so many commits, each time; 0: never."""
    store = directory / "store"
    make_log(store, 64 << 10, {"mappedFileSizeCommitLog": 1 << 20})
    lake = Lake(str(directory / "lake"), format)
    opened = TopicTable.open(lake, Topic(TOPIC, {"bench": str(store)}))
    table = opened.table
    if format == ICEBERG:  # versions are kept for an hour else, in which a run makes 12
        table.evolve(table.schema, {"history.expire.max-snapshot-age-ms": "0"})
    plan = opened.source.plan({TOPIC: None}, 1 << 30)
    target = WriteTarget(opened.target.rows, table.write_spec(1 << 20, opened.target.rows.schema.names))
    written = write_pieces(plan.pieces, {TOPIC: target})[TOPIC]
    (file,) = written.files
    seconds, others = [], 0.0
    for number in range(count):
        link = f"{os.path.dirname(file.path)}/{number:05}.parquet"
        os.link(file.path, link)
        began = time.process_time()
        head = table.head()
        table.commit([replace(file, path=link)], next_state(head.state, written, plan.reached[TOPIC]), head)
        table.tidy()
        seconds.append(time.process_time() - began)
        if compacted and number % compacted == compacted - 1:
            began = time.process_time()
            table.compact(128 << 20)
            others += time.process_time() - began
    some = max(1, count // SHOWN)
    first, last = statistics.median(seconds[:some]), statistics.median(seconds[-some:])
    found = [each for each in (directory / "lake").rglob("*") if each.is_file() and each.suffix != ".parquet"]
    return Line(
        f"commits, {format}" + (f", compacted every {compacted}" if compacted else ""),
        1 / statistics.median(seconds),
        "commits/s",
        1 / first,
        f"first {some}",
        ratio=first / last,
        cpu_us=last * 1e6,
        peer_cpu_us=first * 1e6,
        target=f">= {FLAT:g}",
        met=first / last >= FLAT,
        work=f"{count} commits, mean {statistics.mean(seconds) * 1e3:.1f} ms, {others * 1e3 / count:.1f} ms of "
        f"compaction for each; now {len(table.versions())} versions, {table.files(table.head().version).count} data "
        f"files, {len(found)} files of metadata of {sum(each.stat().st_size for each in found) >> 10} KiB",
    )
