"""A log as an Iceberg table beside the same rows as bare Parquet files: what parting, checking and committing cost.

Both sides are this process, without threads of their own: processor time is the figure. And commits, one after the
other, of which the last should take no longer than the first.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

import mqlake.lake
from bench.context import Context
from bench.measure import Line
from bench.spark import _line
from bench.workload import make_log
from mqlake.lake.tables.config import DEFAULT_COLUMNS, Lake, Topic
from mqlake.lake.tables.state import TableState
from mqlake.lake.tables.topic import TopicTable

COMMITS = 20


def lake(context: Context) -> Iterator[Line]:
    """At least half of the rows for the same processor time."""
    settings = {"mappedFileSizeCommitLog": context.scale.recovered_file}
    root = context.kept("log", lambda path: make_log(path, context.scale.recovered, settings))
    topic = min(mqlake.lake.scan(root).to_table(columns=["topic"])["topic"].unique().to_pylist())
    log = mqlake.lake.scan(root, topic, columns=DEFAULT_COLUMNS)
    rows = log.count_rows()
    with context.scratch("lake") as directory:
        numbers = itertools.count()

        def as_table() -> int:
            place = directory / f"lake-{next(numbers)}"
            table = TopicTable.open(Lake(str(place)), Topic(topic, {"bench": str(root)}))
            found = table.append_new().rows
            shutil.rmtree(place)
            return found

        def as_parquet() -> int:
            path = directory / f"{next(numbers)}.parquet"
            with pq.ParquetWriter(path, log.schema, compression="zstd") as writer:
                for batch in log.to_reader():
                    writer.write_batch(batch)
            found = int(pq.read_metadata(path).num_rows)
            path.unlink()
            return found

        yield _line(
            context,
            "log to an Iceberg table, 1 KB",
            as_table,
            as_parquet,
            peer_name="Parquet",
            amount=rows,
            unit="rows/s",
            ratio_min=0.5,
            own_cpu=True,
        )
        yield commits(directory)


def commits(directory: Path) -> Line:
    """The state alone is committed, again and again."""
    store = directory / "small"
    make_log(store, 64 << 10, {"mappedFileSizeCommitLog": 1 << 20})
    topic = str(mqlake.lake.scan(store).to_table(columns=["topic"])["topic"][0])
    table = TopicTable.open(Lake(str(directory / "commits")), Topic(topic, {"bench": str(store)})).table
    seconds = []
    for number in range(COMMITS):
        head = table.head()
        began = time.process_time()
        table.commit([], TableState(commit_id=f"{number:032x}"), head)
        seconds.append(time.process_time() - began)
    first, last = (statistics.median(part) for part in (seconds[: COMMITS // 4], seconds[-COMMITS // 4 :]))
    return Line(
        "Iceberg commits",
        1 / statistics.median(seconds),
        "commits/s",
        1 / first,
        "first",
        ratio=first / last,
        target=">= 0.3",
        met=first / last >= 0.3,
        work=f"{COMMITS} commits",
    )
