"""rebuild: consume queues and index of a whole store rebuilt in parallel, as `mqlake store rebuild` does it.

    task     a run of splits ─▶ records (sizes, CRC) ─▶ what dispatch needs of them, shared out by queue
    Spark    the parts of each bucket of queues, and those of the index, in the order of the log to one task each
    task     ConsumeQueueStore.dispatch() of a bucket's queues      ─┐
    task     IndexService.dispatch() of all records                 ─┴▶ rebuild.tmp/new/…
    driver   the lock, the swap of the directories: store.check.rebuild

Each queue, and the index, gets the same calls in the same order as from one process, so the bytes are the same. A
log that is not sound from its beginning to its end, or that the queues contradict, is left to that one process, which
knows what may be a torn tail and what is damage.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from mqlake.base.findings import Findings
from mqlake.base.progress import Progress
from mqlake.formats.arrow import Ints
from mqlake.formats.columns import DispatchColumns, Scan, dispatch_columns
from mqlake.lake.log.splits import VERIFY_CRC, VERIFY_FULL, Damage, Split, open_window, splits_of_store, walk
from mqlake.message import parse_delay_levels
from mqlake.spark.jobs.parallel import parallelism, per_piece, rows_batch, shared_out
from mqlake.spark.schema import table_schemas
from mqlake.store.check.cross_check import Witnesses
from mqlake.store.check.rebuild import (
    DERIVED,
    RebuildReport,
    beside,
    build_derived,
    end_queues,
    fsync_dirs,
    new_queues,
    rebuild_store,
    topics_of_batches,
)
from mqlake.store.check.verify import load_queues, store_config
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.index.index_service import IndexService
from mqlake.store.log.log_reader import LogReader, open_log, refuse_foreign
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore
from mqlake.store.written_pages import give_up_pages

PIECES_A_CORE = 4
INDEX_BUCKET = -1
"""The index is one sequence over all files of the log: one bucket."""

_PARTS = {"bucket": "int", "piece": "int", "number": "int", "part": "binary", "damage": "string"}
_BUILT = {
    "records": "long",
    "queues": "int",
    "topics": "string",
    "deletedTopics": "string",
    "indexFiles": "int",
    "entries": "long",
    "batchTopics": "string",
    "damage": "string",
}


def rebuild(
    spark: SparkSession,
    path: str,
    settings: Mapping[str, object] | None = None,
    *,
    trust_log: bool = False,
) -> RebuildReport:
    """Rebuilds the store in directory `path`, which driver and executors have to see and no writer may use.

    Raises what store.check.rebuild.rebuild_store() raises; nothing has changed then.
    """
    build = functools.partial(_build, spark, dict(settings or {}))
    return rebuild_store(path, settings, trust_log=trust_log, build=build)


def _build(
    spark: SparkSession,
    settings: Mapping[str, object],
    config: MessageStoreConfig,
    directory: str,
    batch_topics: set[str],
    may_end_early: bool,
    progress: Progress,
) -> RebuildReport | None:
    """As store.check.rebuild.build_derived(), by tasks."""
    one_process = functools.partial(build_derived, config, directory, batch_topics, may_end_early, progress)
    log = open_log(config)
    try:
        refuse_foreign(log)
        report = RebuildReport(config.store_path_root_dir, log.min_offset)
        splits = splits_of_store(config.store_path_root_dir)
        report.end_offset = max((split.base_offset + split.end for split in splits), default=log.min_offset)
        if may_end_early or not splits or LogReader(log).leftovers(report.end_offset):
            return one_process()
    finally:
        log.close()
    _make_directories(directory)
    buckets = max(1, 2 * parallelism(spark) - 1)
    pieces = list(enumerate(shared_out(splits, PIECES_A_CORE * parallelism(spark))))
    work = functools.partial(_parts, root=config.store_path_root_dir, settings=settings, buckets=buckets)
    parts = per_piece(spark, pieces, work, _PARTS)
    in_order = parts.repartition(buckets + 1, "bucket").sortWithinPartitions("bucket", "piece", "number")
    write = functools.partial(
        _write,
        root=config.store_path_root_dir,
        settings=settings,
        directory=directory,
        batch_topics=frozenset(batch_topics),
    )
    rows = in_order.mapInArrow(write, table_schemas(_BUILT)[0]).collect()
    if any(row.damage is not None for row in rows):
        return one_process()
    found = set(itertools.chain.from_iterable(row.batchTopics.split("\n") for row in rows if row.batchTopics))
    if not found <= batch_topics:
        batch_topics |= found
        return None
    report.records = sum(row.records or 0 for row in rows)
    report.queues = sum(row.queues or 0 for row in rows)
    report.topics = len(
        set(itertools.chain.from_iterable(row.topics.split("\n") for row in rows if row.topics))
    )
    report.deleted_topics = sorted(
        set(itertools.chain.from_iterable(row.deletedTopics.split("\n") for row in rows if row.deletedTopics))
    )
    report.index_files = sum(row.indexFiles or 0 for row in rows)
    report.index_entries = sum(row.entries or 0 for row in rows)
    fsync_dirs(directory)
    return report


def _make_directories(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    for name in DERIVED:
        os.makedirs(os.path.join(directory, name))


# ---------------------------------------------------------------------- tasks that read


def _parts(
    piece: tuple[int, list[Split]], *, root: str, settings: Mapping[str, object], buckets: int
) -> Iterator[pa.RecordBatch]:
    """For each chunk of records and each bucket what dispatch needs of them; damage ends a piece."""
    number, splits = piece
    config = store_config(root, settings)
    verify = VERIFY_FULL if config.writes_prop_crc else VERIFY_CRC
    delay_levels = parse_delay_levels(config.message_delay_level)
    chunk = 0
    queues = load_queues(config, Findings())
    with contextlib.closing(queues):
        witnesses = Witnesses(queues)
        for split in splits:
            window = open_window(split)
            for found in walk(split, window, verify=verify):
                common = {"piece": number, "number": chunk}
                chunk += 1
                if isinstance(found, Damage):
                    yield rows_batch([{**common, "bucket": 0, "damage": str(found.error())}], _PARTS)
                    return
                columns = dispatch_columns(window.array, found, delay_levels=delay_levels)
                if any(witnesses.all_misplaced(window.array, found, columns)):
                    yield rows_batch([{**common, "bucket": 0, "damage": "queues that know better"}], _PARTS)
                    return
                bucket = _buckets(found, buckets)
                rows = [
                    {
                        **common,
                        "bucket": each,
                        "part": _packed(found, columns, np.flatnonzero(bucket == each)),
                    }
                    for each in np.unique(bucket).tolist()
                ]
                if config.message_index_enable:
                    rows.append({**common, "bucket": INDEX_BUCKET, "part": _packed_keys(found, columns)})
                yield rows_batch(rows, _PARTS)


def _buckets(scan: Scan, buckets: int) -> Ints:
    """Which bucket each record's queue is in: the same for all chunks of all tasks."""
    of_topic = np.array([zlib.crc32(topic) for topic in scan.topics], np.int64)
    found: Ints = (of_topic[scan.topic_id] + scan.queue_id) % buckets
    return found


def _packed(scan: Scan, columns: DispatchColumns, rows: Ints) -> bytes:
    out = io.BytesIO()
    np.savez(
        out,
        wide=scan._wide[:, rows],
        narrow=scan._narrow[:, rows],
        topics=np.frombuffer(b"\0".join(scan.topics), np.uint8),
        **{
            name: getattr(columns, name)[rows]
            for name in ("tags_code", "has_keys", "inner_num", "inner_base")
        },
    )
    return out.getvalue()


def _packed_keys(scan: Scan, columns: DispatchColumns) -> bytes:
    """Packs the records with keys, and the last one, which says how far the index has come."""
    rows = np.union1d(columns.key_record, [len(scan) - 1]).astype(np.int64)
    out = io.BytesIO()
    np.savez(
        out,
        wide=scan._wide[:, rows],
        narrow=scan._narrow[:, rows],
        topics=np.empty(0, np.uint8),
        key_hash=columns.key_hash,
        key_record=np.searchsorted(rows, columns.key_record).astype(np.int32),
    )
    return out.getvalue()


# ---------------------------------------------------------------------- tasks that write


def _unpacked(part: bytes) -> tuple[Scan, DispatchColumns]:
    with np.load(io.BytesIO(part)) as arrays:
        wide, narrow = np.ascontiguousarray(arrays["wide"]), np.ascontiguousarray(arrays["narrow"])
        scan = Scan(wide, narrow, np.empty(0, np.int32))
        topics = arrays["topics"].tobytes()
        scan.topics = topics.split(b"\0") if topics else []
        empty = {name: np.empty(0, np.int64) for name in DispatchColumns._fields}
        columns = DispatchColumns(
            **{**empty, **{n: arrays[n] for n in DispatchColumns._fields if n in arrays}}
        )
    return scan, columns


def _write(
    batches: Iterator[pa.RecordBatch],
    *,
    root: str,
    settings: Mapping[str, object],
    directory: str,
    batch_topics: frozenset[str],
) -> Iterator[pa.RecordBatch]:
    """Writes the buckets that come, one after the other, each in the order of the log."""
    rows = (row for batch in batches for row in batch.to_pylist())
    config = store_config(root, settings)
    for bucket, parts in itertools.groupby(rows, lambda row: row["bucket"]):
        if bucket == INDEX_BUCKET:
            yield rows_batch([_write_index(config, directory, parts)], _BUILT)
        else:
            with contextlib.closing(load_queues(config, Findings())) as old:
                queues = new_queues(config, directory, old, batch_topics)
                yield rows_batch([_write_queues(queues, parts)], _BUILT)


def _write_index(
    config: MessageStoreConfig, directory: str, parts: Iterator[dict[str, Any]]
) -> dict[str, object]:
    index = IndexService(beside(config, directory))
    entries = 0
    try:
        for part in parts:
            scan, columns = _unpacked(part["part"])
            index.dispatch(scan, columns)
            give_up_pages(None, index)
            entries += len(columns.key_hash)
        index.flush(StoreCheckpoint(config.checkpoint_path, read_only=True))
        return {"indexFiles": len(index.files), "entries": entries}
    finally:
        index.close()


def _write_queues(queues: ConsumeQueueStore, parts: Iterator[dict[str, Any]]) -> dict[str, object]:
    records, found = 0, set()
    try:
        for part in parts:
            if part["damage"] is not None:
                return {"damage": part["damage"]}
            scan, columns = _unpacked(part["part"])
            found |= topics_of_batches(scan)
            queues.dispatch(scan, columns)
            records += len(scan)
        end_queues(queues)
        return {
            "records": records,
            "queues": sum(1 for _ in queues),
            "topics": "\n".join(queues.topics()),
            "deletedTopics": "\n".join(sorted(queues.left_out)),
            "batchTopics": "\n".join(sorted(found)),
        }
    finally:
        queues.close()
