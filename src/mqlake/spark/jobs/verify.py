"""Verifies whole stores, or logs alone, in parallel; the findings are those of `mqlake store verify`.

    task     a stretch: splits that follow each other ─▶ records (sizes, magic, CRC, place) ─▶ figures of each queue
                                                      └─▶ the verifiers of store.check: units, index entries
    task     an index file by itself: header, order, chains
    driver   do the stretches join, is anything left over? ─ no doubt ─▶ the store is sound, these are its figures
                                                           └ any doubt ─▶ verify_store() in one task

A sound store, which most are, costs one parallel pass. A stretch only says that there is a doubt, never what it is:
whether that is damage, a torn tail or what a running writer has not finished needs the whole store in its order, and
there is one implementation of that. So a store in doubt is read a second time; several of them in parallel.

verify_log() checks logs alone, also those that are not local: records, and that the offsets of each queue go on
without a gap. Damage and gaps are its findings, and nothing is read twice.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from mqlake.base.findings import Findings, Severity
from mqlake.formats.arrow import Bytes
from mqlake.formats.columns import DispatchColumns, Scan, dispatch_columns
from mqlake.lake.log.splits import (
    DEFAULT_SPLIT_SIZE,
    VERIFY_CRC,
    VERIFY_FULL,
    Damage,
    Split,
    open_window,
    splits_of_store,
    walk,
)
from mqlake.message import DEFAULT_MESSAGE_DELAY_LEVEL, UNSEEN_FLAG, parse_delay_levels
from mqlake.spark.jobs.parallel import parallelism, per_piece, rows_batch, shared_out
from mqlake.spark.options import PLACE_OPTIONS, log_options, option_texts
from mqlake.store.check.verify import (
    VerifyReport,
    load_index,
    load_queues,
    new_report,
    store_config,
    verify_checkpoint,
    verify_store,
)
from mqlake.store.check.verify_index import IndexVerifier, entries_before, entries_of
from mqlake.store.check.verify_queues import QueueVerifier
from mqlake.store.config import MessageStoreConfig
from mqlake.store.index.index_service import IndexService
from mqlake.store.log.log_reader import Hole, HoleKind, LogReader, open_log, used_files
from mqlake.store.queues.by_queue import rows_by_queue
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore
from mqlake.store.queues.queue_ends import RestorableQueues

KIND_STRETCH, KIND_QUEUE, KIND_INDEX, KIND_DAMAGE = "stretch", "queue", "index", "damage"
STRETCHES_A_CORE = 2
"""A stretch opens the store's queues, so there are few; more than one a core, so that the cores end together."""
LOG_OPTIONS = (*PLACE_OPTIONS, "verify", "splitSize")

COLUMNS = {
    "kind": "string",
    "path": "string",
    "stretch": "int",
    "topic": "string",
    "queueId": "int",
    "records": "long",
    "messages": "long",
    "bytes": "long",
    "units": "long",
    "firstOffset": "long",
    "firstQueueOffset": "long",
    "nextQueueOffset": "long",
    "breaks": "long",
    "breakOffset": "long",
    "breakExpected": "long",
    "breakFound": "long",
    "firstUnit": "long",
    "nextUnit": "long",
    "firstStoreTimestamp": "long",
    "lastStoreTimestamp": "long",
    "entries": "long",
    "keysBefore": "long",
    "file": "string",
    "position": "long",
    "doubt": "string",
}
"""Rows of verify_frame(). `units` were compared, from firstUnit on. firstOffset and breakOffset are physical, of the
first message of the queue and of the first one out of order. Times are ms. A `doubt` is not yet damage; in a row of
kind damage it is the reason, for `bytes` from `position` of `file` on."""

I64_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class Stretch:
    """The work of one task: splits that follow each other, or the index file of this number. `settings` None: the
    log alone."""

    path: str
    settings: Mapping[str, object] | None
    number: int
    splits: tuple[Split, ...] = ()
    index_file: int | None = None
    verify: str = VERIFY_CRC


@dataclass(frozen=True)
class QueueFigures:
    """One queue of one store. `messages` are those that consumers see, at queue offsets from `min_offset` up to before
    `max_offset` (None without any); bytes are those of whole records; times are store times in ms."""

    path: str
    topic: str
    queue_id: int
    records: int
    messages: int
    bytes: int
    min_offset: int | None
    max_offset: int | None
    first_store_timestamp: int
    last_store_timestamp: int


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
    """The report of each store, and figures of all topics and queues."""

    stores: list[VerifyReport] = field(default_factory=list)
    topics: list[TopicFigures] = field(default_factory=list)
    queues: list[QueueFigures] = field(default_factory=list)
    in_doubt: dict[str, list[str]] = field(default_factory=dict)
    """By path: why a store was read a second time."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return all(report.ok for report in self.stores)

    @property
    def records(self) -> int:
        return sum(report.records for report in self.stores)

    @property
    def problems(self) -> list[str]:
        """Each finding of damage, with its file and byte."""
        return [str(finding) for report in self.stores for finding in report.of(Severity.DAMAGE)]

    def describe(self) -> str:
        files = sum(report.files for report in self.stores)
        size = sum(report.record_bytes for report in self.stores)
        damages = sum(report.damage_count for report in self.stores)
        return (
            f"{self.records:,} records, {size:,} bytes in {files} {'file' if files == 1 else 'files'}, "
            f"{len(self.topics)} topics, {len(self.queues)} queues: "
        ) + ("all sound" if self.ok else f"{damages} {'finding' if damages == 1 else 'findings'} of damage")


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
    result = StoresReport()
    sound: dict[str, VerifyReport] = {}
    for path in dict.fromkeys(paths):
        joined = _JoinedStore(store_config(path, settings), [row for row in partial if row.path == path])
        result.queues += joined.queues
        if joined.doubts:
            result.in_doubt[path] = joined.doubts
        else:
            sound[path] = joined.report
    doubtful = _verified_whole(spark, list(result.in_doubt), settings or {})
    result.stores = [sound.get(path) or doubtful[path] for path in dict.fromkeys(paths)]
    result.topics = _topics(result.queues)
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
    """The partial results: COLUMNS, a row for each stretch, each queue in it, its damage, and each index file."""
    stretches: list[Stretch] = []
    for path in dict.fromkeys(paths):
        config = store_config(path, settings)
        verify = VERIFY_FULL if config.writes_prop_crc else VERIFY_CRC
        stretches += _stretches(spark, path, splits_of_store(path, split_size), verify, dict(settings or {}))
        index = load_index(config, Findings())
        stretches += [
            Stretch(path, dict(settings or {}), number, index_file=number)
            for number in range(len(index.files))
        ]
        index.close()
    return per_piece(spark, stretches, check_stretch, COLUMNS)


def verify_log(
    spark: SparkSession, *paths: str, split_size: int | None = None, **options: object
) -> StoresReport:
    """Checks sizes, magic, physical offsets, CRCs (as `verify` says) and the continuity of every queue's offsets.

    `options` are those of the source `commitlog` named in LOG_OPTIONS; `split_size` is `splitSize`. Damage is
    reported, not raised. Raises NotAStoreError, WrongFileSizeError, ConfigError, UnknownKeyError.
    """
    began = time.monotonic()
    if split_size is not None:
        options["splitSize"] = split_size
    parsed = log_options(option_texts(paths, options), LOG_OPTIONS)
    planned = {storage.root: splits_of_store(storage, parsed.split_size) for storage in parsed.stores}
    stretches = [
        stretch
        for path, splits in planned.items()
        for stretch in _stretches(spark, path, splits, parsed.verify)
    ]
    partial = per_piece(spark, stretches, check_stretch, COLUMNS).collect()
    result = StoresReport()
    for storage in parsed.stores:
        rows = [row for row in partial if row.path == storage.root]
        report = VerifyReport(storage.root, not storage.exists("abort"), None)
        result.queues += _join_log(report, planned[storage.root], rows)
        result.stores.append(report)
    result.topics = _topics(result.queues)
    result.seconds = time.monotonic() - began
    return result


def _stretches(
    spark: SparkSession,
    path: str,
    splits: list[Split],
    verify: str,
    settings: Mapping[str, object] | None = None,
) -> list[Stretch]:
    runs = shared_out(splits, STRETCHES_A_CORE * parallelism(spark))
    return [Stretch(path, settings, number, tuple(run), verify=verify) for number, run in enumerate(runs)]


# ---------------------------------------------------------------------- in a task


def check_stretch(stretch: Stretch) -> Iterator[pa.RecordBatch]:
    """The rows of one stretch."""
    if stretch.settings is None:
        rows = _read(stretch, parse_delay_levels(DEFAULT_MESSAGE_DELAY_LEVEL), None)
    else:
        config = store_config(stretch.path, stretch.settings)
        findings = Findings()
        index = load_index(config, findings)
        try:
            if stretch.index_file is not None:
                rows = [_check_index_file(index, stretch.index_file)]
            else:
                queues = load_queues(config, findings)
                try:
                    checker = _Checker(config, queues, index, findings)
                    rows = _read(stretch, parse_delay_levels(config.message_delay_level), checker)
                finally:
                    queues.close()
        finally:
            index.close()
    common = {"path": stretch.path, "stretch": stretch.number}
    yield rows_batch([{**row, **common} for row in rows], COLUMNS)


def _check_index_file(index: IndexService, number: int) -> dict[str, object]:
    """Header, order and chains of one file."""
    findings = Findings()
    files = index.files[number : number + 1]
    verifier = IndexVerifier(files, findings, log_min=0, settled=True)
    doubt = str(findings.kept[0]) if findings.kept else None
    del verifier  # it holds views of the file
    return {"kind": KIND_INDEX, "entries": sum(len(entries_of(file)) for file in files), "doubt": doubt}


@dataclass(frozen=True)
class _Chunk:
    """Records of a split, for the verifiers (a RecordChunk)."""

    path: str
    array: Bytes
    scan: Scan
    start: int
    end: int


class _Figures:
    """One queue in a stretch. A queue's offsets are continuous when each message that consumers see follows the one
    before it; half and rolled back messages have none, a message of a batch queue takes as many as it holds."""

    def __init__(self) -> None:
        self.records = self.messages = self.bytes = self.breaks = 0
        self.first_offset: int | None = None
        self.first: int | None = None
        self.next = 0
        self.first_break: tuple[int, int, int] | tuple[None, None, None] = (None, None, None)
        self.first_time, self.last_time = I64_MAX, 0

    def add(self, scan: Scan, columns: DispatchColumns, rows: Any) -> None:
        """The queue's records in a scan."""
        times = scan.store_timestamp[rows]
        self.records += len(rows)
        self.bytes += int(scan.size[rows].sum(dtype=np.int64))
        self.first_time = min(self.first_time, int(times.min()))
        self.last_time = max(self.last_time, int(times.max()))
        rows = rows[(scan.sys_flag[rows] & UNSEEN_FLAG) == 0]
        if not len(rows):
            return
        starts, counts = columns.inner_base[rows], columns.inner_num[rows].astype(np.int64)
        following = starts + counts
        self.messages += int(counts.sum())
        if self.first is None:
            self.first = self.next = int(starts[0])
            self.first_offset = int(scan.physical_offset[rows[0]])
        expected = np.concatenate([[self.next], following[:-1]])
        broken = np.flatnonzero(starts != expected)
        if len(broken) and not self.breaks:
            at = broken[0]
            self.first_break = int(scan.physical_offset[rows[at]]), int(expected[at]), int(starts[at])
        self.breaks += len(broken)
        self.next = int(following[-1])

    def row(self, topic: str, queue_id: int) -> dict[str, object]:
        at, expected, found = self.first_break
        return {
            "kind": KIND_QUEUE,
            "topic": topic,
            "queueId": queue_id,
            "records": self.records,
            "messages": self.messages,
            "bytes": self.bytes,
            "firstOffset": self.first_offset,
            "firstQueueOffset": self.first,
            "nextQueueOffset": self.next,
            "breaks": self.breaks,
            "breakOffset": at,
            "breakExpected": expected,
            "breakFound": found,
            "firstStoreTimestamp": self.first_time,
            "lastStoreTimestamp": self.last_time,
        }


class _Checker:
    """The verifiers of store.check on one stretch of the log, up to the first doubt."""

    def __init__(
        self, config: MessageStoreConfig, queues: ConsumeQueueStore, index: IndexService, findings: Findings
    ) -> None:
        self._findings = findings
        self._index_files = index.files
        self.queue_verifier = QueueVerifier(
            queues,
            findings,
            log_min=0,
            settled=True,
            root=config.store_path_root_dir,
            restorable=(),
            index=index,
            in_middle=True,
        )
        self.index_verifier: IndexVerifier | None = None

    @property
    def doubt(self) -> str | None:
        # without the byte, which counts from where the split was read
        found = (f"{each.path}: {each.kind}: {each.text}" for each in self._findings.kept)
        missing = self.index_verifier.missing if self.index_verifier is not None else 0
        keys = [f"{missing} keys of records have no entry in the index"] if missing else []
        return next(itertools.chain(found, self.queue_verifier.doubts(), keys), None)

    def check(self, chunk: _Chunk, columns: DispatchColumns) -> None:
        if self.doubt is not None:
            return
        if self.index_verifier is None:
            self.index_verifier = IndexVerifier(
                self._index_files, self._findings, log_min=0, settled=True, begin=chunk.start
            )
        self.queue_verifier.check(chunk, columns, ())
        self.index_verifier.check(chunk, columns, ())


def _read(
    stretch: Stretch, delay_levels: dict[int, int], checker: _Checker | None
) -> list[dict[str, object]]:
    """Reads the splits of a stretch once: figures of it and of its queues, and damage."""
    queues: dict[tuple[bytes, int], _Figures] = {}
    rows: list[dict[str, object]] = []
    records = size = last_time = 0
    for split in stretch.splits:
        window = open_window(split)
        for found in walk(split, window, verify=stretch.verify):
            if isinstance(found, Damage):
                rows.append(
                    {
                        "kind": KIND_DAMAGE,
                        "file": found.file,
                        "position": found.position,
                        "bytes": found.until - found.position,
                        "doubt": found.reason,
                    }
                )
                continue
            columns = dispatch_columns(window.array, found, delay_levels=delay_levels)
            for of_queue in rows_by_queue(found.topic_id, found.queue_id):
                key = found.topics[found.topic_id[of_queue[0]]], int(found.queue_id[of_queue[0]])
                queues.setdefault(key, _Figures()).add(found, columns, of_queue)
            if checker is not None:
                end = split.base_offset + window.origin + found.end
                start = int(found.physical_offset[0])
                checker.check(_Chunk(split.file, window.array, found, start, end), columns)
            records += len(found)
            size += int(found.size.sum(dtype=np.int64))
            last_time = int(found.store_timestamp[-1])
    compared: dict[tuple[bytes, int], dict[str, object]] = {}
    whole: dict[str, object] = {
        "kind": KIND_STRETCH,
        "records": records,
        "bytes": size,
        "lastStoreTimestamp": last_time,
    }
    if checker is not None:
        whole |= {"units": checker.queue_verifier.units_checked, "doubt": checker.doubt}
        if (index_verifier := checker.index_verifier) is not None:
            whole |= {"entries": index_verifier.entries_checked, "keysBefore": index_verifier.keys_before}
        for topic, queue_id, first, end in checker.queue_verifier.compared():
            compared[topic, queue_id] = {"firstUnit": first, "nextUnit": end}
    rows.append(whole)
    for (topic, queue_id), figures in queues.items():
        row = figures.row(topic.decode("utf-8", "replace"), queue_id)
        rows.append(row | compared.get((topic, queue_id), {}))
    return rows


# ---------------------------------------------------------------------- on the driver


def _stretch_rows(report: VerifyReport, splits: Sequence[Split], rows: list[Any]) -> list[Any]:
    """The rows of the stretches of one log in its order, their sums in `report`."""
    rows = sorted((row for row in rows if row.kind == KIND_STRETCH), key=lambda row: row.stretch)
    report.records = sum(row.records for row in rows)
    report.record_bytes = sum(row.bytes for row in rows)
    report.last_store_timestamp = next((row.lastStoreTimestamp for row in reversed(rows) if row.records), 0)
    report.end_offset = max((split.base_offset + split.end for split in splits), default=report.min_offset)
    return rows


def _by_queue(rows: list[Any]) -> dict[tuple[str, int], list[Any]]:
    """The rows of each queue, in the order of the log."""
    found: dict[tuple[str, int], list[Any]] = {}
    for row in sorted((row for row in rows if row.kind == KIND_QUEUE), key=lambda row: row.stretch):
        found.setdefault((row.topic, row.queueId), []).append(row)
    return found


def _breaks(rows: list[Any]) -> Iterator[tuple[int, str]]:
    """Physical offset and text of each break in the offsets of a queue."""
    expected: int | None = None
    for row in rows:
        name = f"{row.topic}, queue {row.queueId}"
        if row.firstQueueOffset is None:
            continue
        if expected is not None and row.firstQueueOffset != expected:
            yield (
                row.firstOffset,
                f"{name}: offset {row.firstQueueOffset} follows where {expected} was expected",
            )
        if row.breaks:
            more = f" (the first of {row.breaks})" if row.breaks > 1 else ""
            text = f"{name}: offset {row.breakFound} follows where {row.breakExpected} was expected{more}"
            yield row.breakOffset, text
        expected = row.nextQueueOffset


def _figures(path: str, rows: list[Any]) -> QueueFigures:
    seen = [row for row in rows if row.firstQueueOffset is not None]
    return QueueFigures(
        path,
        rows[0].topic,
        rows[0].queueId,
        sum(row.records for row in rows),
        sum(row.messages for row in rows),
        sum(row.bytes for row in rows),
        seen[0].firstQueueOffset if seen else None,
        seen[-1].nextQueueOffset if seen else None,
        min(row.firstStoreTimestamp for row in rows),
        max(row.lastStoreTimestamp for row in rows),
    )


def _join_log(report: VerifyReport, splits: Sequence[Split], rows: list[Any]) -> list[QueueFigures]:
    """The stretches of one log together: figures and findings in `report`."""
    files = {split.base_offset: split.file for split in splits}
    report.files = len(files)
    report.min_offset = min(files, default=0)
    _stretch_rows(report, splits, rows)
    findings = Findings()
    for row in sorted(
        (row for row in rows if row.kind == KIND_DAMAGE), key=lambda row: (row.file, row.position)
    ):
        base = next(base for base, file in files.items() if file == row.file)
        start, end = base + row.position, base + row.position + row.bytes
        report.holes.append(
            Hole(HoleKind.CORRUPT, row.file, row.position, start, end, row.doubt, end < report.end_offset)
        )
        findings.damage(HoleKind.CORRUPT.value, row.file, row.position, f"{row.bytes} bytes: {row.doubt}")
    queues = _by_queue(rows)
    for of_queue in queues.values():
        for offset, text in _breaks(of_queue):
            base = max(base for base in files if base <= offset)
            findings.damage("queue offset", files[base], offset - base, text)
    report.queues = len(queues)
    report.findings, report.damage_count = findings.kept, findings.damage_count
    return [_figures(report.path, queues[key]) for key in sorted(queues)]


class _JoinedStore:
    """The stretches of one store together: `doubts`, and without any the report of a sound store."""

    def __init__(self, config: MessageStoreConfig, rows: list[Any]) -> None:
        path = config.store_path_root_dir
        self.doubts = [row.doubt for row in rows if row.doubt is not None]
        self.report = new_report(config)
        findings = Findings()
        log = open_log(config)
        try:
            self.report.min_offset, self.report.files = log.min_offset, used_files(log)
            stretches = _stretch_rows(self.report, splits_of_store(path), rows)
            for file, position, _ in LogReader(log).leftovers(self.report.end_offset):
                self.doubts.append(f"{file.path}: byte {position}: data after the end of the log")
        finally:
            log.close()
        self.report.units = sum(row.units for row in stretches)
        self.report.keys_before_index = sum(row.keysBefore or 0 for row in stretches)
        found = _by_queue(rows)
        self.queues = [_figures(path, found[key]) for key in sorted(found)]
        for of_queue in found.values():
            self.doubts += [text for _, text in _breaks(of_queue)]
            seen = [row for row in of_queue if row.firstUnit is not None]
            self.doubts += [
                f"{row.topic}/{row.queueId}: units from {row.nextUnit} on have no record"
                for row, following in itertools.pairwise(seen)
                if row.nextUnit != following.firstUnit
            ]
        if not self.doubts:
            self._left_over(config, found, findings)
            self._index(config, sum(row.entries or 0 for row in stretches), findings)
        if not self.doubts:
            verify_checkpoint(config, self.report, findings)
        self.doubts += [str(finding) for finding in findings.kept]

    def _left_over(
        self, config: MessageStoreConfig, found: dict[tuple[str, int], list[Any]], findings: Findings
    ) -> None:
        """Units that no record was compared with."""
        queues = load_queues(config, findings)
        try:
            verifier = QueueVerifier(
                queues,
                findings,
                log_min=self.report.min_offset,
                settled=True,
                root=config.store_path_root_dir,
                restorable=RestorableQueues(config, queues),
            )
            for (topic, queue_id), rows in found.items():
                seen = [row for row in rows if row.firstUnit is not None]
                if seen:
                    verifier.resume(topic, queue_id, seen[0].firstUnit, seen[-1].nextUnit)
            verifier.finish((), self.report.end_offset)
            self.report.queues = sum(1 for _ in queues)
        finally:
            queues.close()

    def _index(self, config: MessageStoreConfig, compared: int, findings: Findings) -> None:
        index = load_index(config, findings)
        try:
            self.report.index_files = len(index.files)
            self.report.index_entries = sum(len(entries_of(file)) for file in index.files)
            older = sum(entries_before(file, self.report.min_offset) for file in index.files)
            if older + compared != self.report.index_entries:
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


def _topics(queues: list[QueueFigures]) -> list[TopicFigures]:
    found: dict[tuple[str, str], list[QueueFigures]] = {}
    for queue in queues:
        found.setdefault((queue.path, queue.topic), []).append(queue)
    return [
        TopicFigures(
            path,
            topic,
            len(same),
            sum(queue.records for queue in same),
            sum(queue.bytes for queue in same),
            min(queue.first_store_timestamp for queue in same),
            max(queue.last_store_timestamp for queue in same),
        )
        for (path, topic), same in sorted(found.items())
    ]
