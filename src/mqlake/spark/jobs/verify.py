"""verify: everything in a store against everything, in parallel; the findings are those of `mqlake store verify`.

    task     a run of splits: records (sizes, magic, CRC, place) ─┬─ their queues' units, equal?
                                                                  └─ the index entries of that stretch, equal?
    task     an index file by itself: header, order, chains
    driver   do the pieces join, is anything left over? ─ no doubt ─▶ the store is sound, these are its figures
                                                        └ any doubt ─▶ store.verify.verify_store() in one task

A sound store, which is the usual one, costs one parallel pass. A piece only says that there is a doubt, never
what it is: whether that is damage, a torn tail or what a running writer has not finished needs the whole store in
its order, and there is one implementation of that. So a store in doubt is read a second time; several of them in
parallel.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from mqlake.base.findings import Findings
from mqlake.formats.arrow import Ints
from mqlake.formats.columns import DispatchColumns, Scan, dispatch_columns
from mqlake.formats.consume_queue import PRE_BLANK_SIZE
from mqlake.formats.index import ENTRY_DTYPE, entry_position
from mqlake.message import LMQ_PREFIX, parse_delay_levels
from mqlake.spark.jobs.parallel import parallelism, per_piece, rows_batch, shared_out
from mqlake.spark.log.splits import (
    DEFAULT_SPLIT_SIZE,
    VERIFY_CRC,
    VERIFY_FULL,
    Damage,
    Split,
    open_window,
    plan,
    walk,
)
from mqlake.store.check.verify import (
    VerifyReport,
    load_index,
    load_queues,
    store_config,
    verify_checkpoint,
    verify_store,
)
from mqlake.store.check.verify_index import IndexVerifier
from mqlake.store.check.verify_queues import tags_codes, unit_limits
from mqlake.store.check.witnesses import read_units
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.store_lock import AbortFile, lock_holder
from mqlake.store.index.index_file import IndexFile
from mqlake.store.index.index_service import IndexService
from mqlake.store.log.log_reader import open_log
from mqlake.store.queues.batch_consume_queue import BatchConsumeQueue
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.queues.consume_queue_store import TRANSACTION_UNDECIDED, ConsumeQueueStore, Queue

KIND_PIECE, KIND_QUEUE, KIND_INDEX = "piece", "queue", "index"
PIECES_A_CORE = 2
"""A piece opens the store's queues, so there are few; more than one a core, so that the cores end together."""

COLUMNS = {
    "kind": "string",
    "path": "string",
    "piece": "int",
    "topic": "string",
    "queueId": "int",
    "records": "long",
    "bytes": "long",
    "units": "long",
    "firstQueueOffset": "long",
    "nextQueueOffset": "long",
    "firstUnit": "long",
    "nextUnit": "long",
    "firstStoreTimestamp": "long",
    "lastStoreTimestamp": "long",
    "entries": "long",
    "keysBefore": "long",
    "doubt": "string",
}
"""Rows of verify_frame(). `units` were compared, from firstUnit on; times are ms; a `doubt` is not yet damage."""

I64_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class Stretch:
    """What one task checks: splits that follow each other, or the index file of this number."""

    path: str
    settings: Mapping[str, object]
    number: int
    splits: tuple[Split, ...] = ()
    index_file: int | None = None


@dataclass(frozen=True)
class TopicFigures:
    """One topic of one store. Bytes are those of whole records; times are store times in ms."""

    path: str
    topic: str
    queues: int
    records: int
    bytes: int
    first_store_timestamp: int
    last_store_timestamp: int


@dataclass
class StoresReport:
    """A report a store, and figures of every topic."""

    stores: list[VerifyReport] = field(default_factory=list)
    topics: list[TopicFigures] = field(default_factory=list)
    in_doubt: dict[str, list[str]] = field(default_factory=dict)
    """By path: what made a store be read a second time."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return all(report.ok for report in self.stores)


def verify_stores(
    spark: SparkSession,
    *paths: str,
    settings: Mapping[str, object] | None = None,
    split_size: int = DEFAULT_SPLIT_SIZE,
) -> StoresReport:
    """Verifies the stores in these directories, which every executor has to see.

    What is wrong with the contents is in the reports. Raises what verify_store() raises, and ConfigError.
    """
    began = time.monotonic()
    partial = verify_frame(spark, *paths, settings=settings, split_size=split_size).collect()
    result = StoresReport(topics=_topics(partial))
    sound: dict[str, VerifyReport] = {}
    for path in dict.fromkeys(paths):
        joined = _Joined(store_config(path, settings), [row for row in partial if row.path == path])
        if joined.doubts:
            result.in_doubt[path] = joined.doubts
        else:
            sound[path] = joined.report
    doubtful = _verified_whole(spark, list(result.in_doubt), settings or {})
    result.stores = [sound.get(path) or doubtful[path] for path in dict.fromkeys(paths)]
    result.seconds = time.monotonic() - began
    for report in sound.values():
        report.seconds = result.seconds
    return result


def verify_frame(
    spark: SparkSession,
    *paths: str,
    settings: Mapping[str, object] | None = None,
    split_size: int = DEFAULT_SPLIT_SIZE,
) -> DataFrame:
    """The partial results: COLUMNS, a row for each stretch, each queue in it, and each index file."""
    stretches: list[Stretch] = []
    for path in dict.fromkeys(paths):
        config = store_config(path, settings)
        runs = shared_out(plan(path, split_size), PIECES_A_CORE * parallelism(spark))
        stretches += [
            Stretch(path, dict(settings or {}), number, tuple(run)) for number, run in enumerate(runs)
        ]
        index = load_index(config, Findings())
        stretches += [
            Stretch(path, dict(settings or {}), number, index_file=number)
            for number in range(len(index.files))
        ]
        index.close()
    return per_piece(spark, stretches, check_stretch, COLUMNS)


# ---------------------------------------------------------------------- in a task


def check_stretch(stretch: Stretch) -> Iterator[pa.RecordBatch]:
    """The rows of one stretch."""
    config = store_config(stretch.path, stretch.settings)
    findings = Findings()
    index = load_index(config, findings)
    try:
        if stretch.index_file is not None:
            rows = [_check_index_file(index, stretch.index_file)]
        else:
            queues = load_queues(config, findings)
            try:
                rows = _Checker(config, queues, index, findings).check(stretch.splits)
            finally:
                queues.close()
        common = {"path": stretch.path, "piece": stretch.number}
        yield rows_batch([{**row, **common} for row in rows], COLUMNS)
    finally:
        index.close()


def _check_index_file(index: IndexService, number: int) -> dict[str, object]:
    """Header, order and chains of one file."""
    findings = Findings()
    files = index.files[number : number + 1]
    verifier = IndexVerifier(files, findings, log_min=0, settled=True)
    doubt = str(findings.kept[0]) if findings.kept else None
    del verifier  # it holds views of the file
    return {"kind": KIND_INDEX, "entries": sum(_count(file) for file in files), "doubt": doubt}


def _count(file: IndexFile) -> int:
    return max(0, min(file.index_count, file.index_num) - 1)


class _Queue:
    """What was seen of one queue in a stretch."""

    def __init__(self, queue: Queue | None) -> None:
        self.queue = queue
        self.records = self.bytes = self.units = 0
        self.first: int | None = None
        self.next = 0
        self.first_unit: int | None = None
        self.next_unit = 0
        self.first_time, self.last_time = I64_MAX, 0
        self.doubt: str | None = None

    def doubted(self, why: str) -> None:
        self.doubt = self.doubt or why

    def row(self, topic: str, queue_id: int) -> dict[str, object]:
        return {
            "kind": KIND_QUEUE,
            "topic": topic,
            "queueId": queue_id,
            "records": self.records,
            "bytes": self.bytes,
            "units": self.units,
            "firstQueueOffset": self.first,
            "nextQueueOffset": self.next,
            "firstUnit": self.first_unit,
            "nextUnit": self.next_unit,
            "firstStoreTimestamp": self.first_time,
            "lastStoreTimestamp": self.last_time,
            "doubt": self.doubt,
        }


class _Checker:
    def __init__(
        self, config: MessageStoreConfig, queues: ConsumeQueueStore, index: IndexService, findings: Findings
    ) -> None:
        self._verify = VERIFY_FULL if config.writes_prop_crc else VERIFY_CRC
        self._delay_levels = parse_delay_levels(config.message_delay_level)
        self._queues = queues
        self._files = [file for file in index.files if _count(file)]
        self._first_entry = int(self._entries(self._files[0])[0]["phy_offset"]) if self._files else I64_MAX
        self._seen: dict[tuple[bytes, int], _Queue] = {}
        self._entries_compared = self._keys_before = 0
        self._doubt = str(findings.kept[0]) if findings.kept else None

    def check(self, splits: Sequence[Split]) -> list[dict[str, object]]:
        records = size = last_time = 0
        for split in splits:
            window = open_window(split)
            for found in walk(split, window, verify=self._verify):
                if isinstance(found, Damage):
                    self._doubt = self._doubt or str(found.error())
                    continue
                columns = dispatch_columns(window.array, found, delay_levels=self._delay_levels)
                self._check_queues(found, columns)
                self._check_index(found, columns, split.base_offset + window.origin + found.end)
                records += len(found)
                size += int(found.size.sum(dtype=np.int64))
                last_time = int(found.store_timestamp[-1])
        piece: dict[str, object] = {
            "kind": KIND_PIECE,
            "records": records,
            "bytes": size,
            "entries": self._entries_compared,
            "keysBefore": self._keys_before,
            "lastStoreTimestamp": last_time,
            "doubt": self._doubt,
        }
        return [piece] + [
            queue.row(topic.decode("utf-8", "replace"), queue_id)
            for (topic, queue_id), queue in self._seen.items()
        ]

    # ------------------------------------------------------------------ queues

    def _check_queues(self, scan: Scan, columns: DispatchColumns) -> None:
        """One sorting for all queues of a scan, then a step for each."""
        order = np.lexsort((scan.queue_id, scan.topic_id))
        topic_id, queue_id = scan.topic_id[order], scan.queue_id[order]
        borders = np.flatnonzero((np.diff(topic_id) != 0) | (np.diff(queue_id) != 0)) + 1
        visible = (scan.sys_flag[order] & TRANSACTION_UNDECIDED) == 0
        for first, last in zip([0, *borders], [*borders, len(order)], strict=True):
            topic, number = scan.topics[topic_id[first]], int(queue_id[first])
            seen = self._seen.get((topic, number))
            if seen is None:
                queue = self._queues.get(topic.decode("utf-8", "replace"), number)
                seen = self._seen[topic, number] = _Queue(queue)
            rows = order[first:last]
            times = scan.store_timestamp[rows]
            seen.records += len(rows)
            seen.bytes += int(scan.size[rows].sum(dtype=np.int64))
            seen.first_time = min(seen.first_time, int(times.min()))
            seen.last_time = max(seen.last_time, int(times.max()))
            rows = rows[visible[first:last]]
            if len(rows):
                _compare(seen, scan, columns, rows)

    # ------------------------------------------------------------------ index

    @staticmethod
    def _entries(file: IndexFile) -> npt.NDArray[Any]:
        start = entry_position(1, file.hash_slot_num)
        return np.frombuffer(file.mapped_file.view, ENTRY_DTYPE, _count(file), start)

    def _check_index(self, scan: Scan, columns: DispatchColumns, end: int) -> None:
        """The scan's keys against the entries that point into its stretch, in order."""
        if not self._files:
            return
        record = columns.key_record
        offsets, times = scan.physical_offset[record], scan.store_timestamp[record]
        before = int(np.searchsorted(offsets, self._first_entry))
        self._keys_before += before
        done = before
        for file in self._files:
            header, entries = file.header, self._entries(file)
            first = _place(entries, int(scan.physical_offset[0]))
            last = _place(entries, end)
            if first == last:
                continue
            part, here = entries[first:last], slice(done, done + last - first)
            self._entries_compared += len(part)
            done += len(part)
            seconds = (
                np.clip((times[here] - header.begin_timestamp) // 1000, 0, 0x7FFFFFFF)
                if header.begin_timestamp > 0
                else 0 * times[here]
            )
            if first == 0:  # the first entry counts from what the file began with
                seconds[:1] = part["time_diff"][:1]
            same = (
                len(part) == len(offsets[here])
                and (part["phy_offset"] == offsets[here]).all()
                and (part["key_hash"] == columns.key_hash[here]).all()
                and (part["time_diff"] == seconds).all()
            )
            if not same:
                self._doubt = self._doubt or f"{file.path}: entry {first + 1} and those behind it"
        if done != len(offsets):
            self._doubt = (
                self._doubt or f"keys of records from {int(scan.physical_offset[0])} on have no entry"
            )


def _place(entries: npt.NDArray[Any], physical_offset: int) -> int:
    """Number of the first entry that points to this offset or behind it."""
    return bisect.bisect_left(
        range(len(entries)), physical_offset, key=lambda at: int(entries["phy_offset"][at])
    )


def _compare(seen: _Queue, scan: Scan, columns: DispatchColumns, rows: Ints) -> None:
    """Records of one queue, in the order of the log, with their units."""
    queue = seen.queue
    starts = scan.queue_offset[rows]
    following = starts + 1
    if isinstance(queue, BatchConsumeQueue):
        following = starts + columns.inner_num[rows].astype(np.int64)
    if seen.first is None:
        seen.first = int(starts[0])
        seen.first_unit = (
            _unit_number(queue, scan, rows) if isinstance(queue, BatchConsumeQueue) else seen.first
        )
        seen.next, seen.next_unit = seen.first, seen.first_unit
    if starts[0] != seen.next or (starts[1:] != following[:-1]).any():
        seen.doubted(f"queue offsets do not go on at {seen.next}")
    seen.next = int(following[-1])
    if queue is None or starts[0] < 0:
        seen.doubted("records without a queue")
        return
    units = read_units(queue, seen.next_unit, len(rows))
    seen.units += len(units)
    seen.next_unit += len(rows)
    same = len(units) == len(rows) and bool(
        (units["offset"] == scan.physical_offset[rows]).all() and (units["size"] == scan.size[rows]).all()
    )
    if same and isinstance(queue, ConsumeQueue):
        same = bool((tags_codes(queue, units) == columns.tags_code[rows]).all())
    elif same:
        same = bool(
            (units["tags_code"] == columns.tags_code[rows]).all()
            and (units["store_time"] == scan.store_timestamp[rows]).all()
            and (units["msg_base_offset"] == columns.inner_base[rows]).all()
            and (units["batch_size"] == columns.inner_num[rows]).all()
        )
    if not same:
        seen.doubted(f"units from {seen.next_unit - len(rows)} on")


def _unit_number(queue: BatchConsumeQueue, scan: Scan, rows: Ints) -> int:
    """Number of the unit that points to the first of the rows, or would."""
    start, end = unit_limits(queue)

    def physical_offset(number: int) -> int:
        units = read_units(queue, number, 1)
        return int(units["offset"][0]) if len(units) else I64_MAX

    wanted = int(scan.physical_offset[rows[0]])
    return start + bisect.bisect_left(range(start, end), wanted, key=physical_offset)


# ---------------------------------------------------------------------- on the driver


class _Joined:
    """The pieces of one store together: `doubts`, and without any the report of a sound store."""

    def __init__(self, config: MessageStoreConfig, rows: list[Any]) -> None:
        self.doubts = [row.doubt for row in rows if row.doubt is not None]
        writer = lock_holder(config.lock_path)
        clean = not AbortFile(config.abort_path).exists()
        self.report = VerifyReport(
            config.store_path_root_dir, clean, None if writer == os.getpid() and clean else writer
        )
        findings = Findings()
        self._log(config, rows)
        self._queues(config, rows, findings)
        self._index(config, rows, findings)
        if not self.doubts:
            verify_checkpoint(config, self.report, findings)
        self.doubts += [str(finding) for finding in findings.kept]

    def _log(self, config: MessageStoreConfig, rows: list[Any]) -> None:
        report = self.report
        pieces = sorted((row for row in rows if row.kind == KIND_PIECE), key=lambda row: row.piece)
        report.records = sum(row.records for row in pieces)
        report.record_bytes = sum(row.bytes for row in pieces)
        report.keys_before_index = sum(row.keysBefore for row in pieces)
        report.last_store_timestamp = next(
            (row.lastStoreTimestamp for row in reversed(pieces) if row.records), 0
        )
        log = open_log(config)
        try:
            report.min_offset, report.files = log.min_offset, len(log.mapped_files)
            splits = plan(config.store_path_root_dir)
            report.end_offset = max((s.base_offset + s.end for s in splits), default=log.min_offset)
            for file in log.mapped_files:
                behind = max(0, report.end_offset - file.file_from_offset)
                if behind < file.file_size and file.last_data(behind) > behind:
                    self.doubts.append(
                        f"{file.path}: byte {behind}: something lies behind the end of the log"
                    )
        finally:
            log.close()

    def _queues(self, config: MessageStoreConfig, rows: list[Any], findings: Findings) -> None:
        queues = load_queues(config, findings)
        try:
            found: dict[tuple[str, int], list[Any]] = {}
            for row in sorted((row for row in rows if row.kind == KIND_QUEUE), key=lambda row: row.piece):
                if row.firstQueueOffset is not None:
                    found.setdefault((row.topic, row.queueId), []).append(row)
            for (topic, queue_id), parts in found.items():
                for one, following in itertools.pairwise(parts):
                    if (one.nextQueueOffset, one.nextUnit) != (
                        following.firstQueueOffset,
                        following.firstUnit,
                    ):
                        self.doubts.append(f"{topic}/{queue_id} does not go on at {one.nextQueueOffset}")
                self.report.units += sum(row.units for row in parts)
            for queue in queues:
                self.report.queues += 1
                self._left_over(queue, found.get((queue.topic, queue.queue_id)))
        finally:
            queues.close()

    def _left_over(self, queue: Queue, parts: list[Any] | None) -> None:
        """Units without a record have to be blank or older than the log."""
        start, end = unit_limits(queue)
        ranges = [(start, end)] if parts is None else [(start, parts[0].firstUnit), (parts[-1].nextUnit, end)]
        if parts is None and queue.topic.startswith(LMQ_PREFIX):
            return
        for first, last in ranges:
            while first < last:
                units = read_units(queue, first, min(65536, last - first))
                fine = (units["size"] == PRE_BLANK_SIZE) | (units["offset"] < self.report.min_offset)
                if not len(units) or not fine.all():
                    self.doubts.append(
                        f"{queue.topic}/{queue.queue_id}: units from {first} on have no record"
                    )
                    return
                first += len(units)

    def _index(self, config: MessageStoreConfig, rows: list[Any], findings: Findings) -> None:
        index = load_index(config, findings)
        try:
            files = index.files
            self.report.index_files = len(files)
            counts = [_count(file) for file in files]
            self.report.index_entries = sum(counts)
            older = sum(
                _place(_Checker._entries(file), self.report.min_offset)
                for file, count in zip(files, counts, strict=True)
                if count
            )
            compared = sum(row.entries for row in rows if row.kind == KIND_PIECE)
            if older + compared != sum(counts):
                self.doubts.append("index entries that point to no record")
        finally:
            index.close()


def _verified_whole(
    spark: SparkSession, paths: Sequence[str], settings: Mapping[str, object]
) -> dict[str, VerifyReport]:
    """Each of these stores verified by one task, in the order of its log."""
    if not paths:
        return {}
    work = functools.partial(_verify_whole, settings=dict(settings))
    rows = per_piece(spark, paths, work, {"path": "string", "report": "binary"}).collect()
    return {row.path: pickle.loads(bytes(row.report)) for row in rows}


def _verify_whole(path: str, settings: Mapping[str, object]) -> Iterator[pa.RecordBatch]:
    report = pickle.dumps(verify_store(path, settings))
    yield rows_batch([{"path": path, "report": report}], {"path": "string", "report": "binary"})


def _topics(rows: list[Any]) -> list[TopicFigures]:
    found: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        if row.kind == KIND_QUEUE:
            found.setdefault((row.path, row.topic), []).append(row)
    return [
        TopicFigures(
            path,
            topic,
            len({row.queueId for row in parts}),
            sum(row.records for row in parts),
            sum(row.bytes for row in parts),
            min(row.firstStoreTimestamp for row in parts),
            max(row.lastStoreTimestamp for row in parts),
        )
        for (path, topic), parts in sorted(found.items())
    ]
