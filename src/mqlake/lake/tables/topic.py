"""A topic's table: filled from the log, read together with it, looked after.

from mqlake.lake import topic_table
orders = topic_table("/data/lake", "Orders")     # a folder with a lake.toml, or the file
orders.append_new()                              # what the log has and the table lacks, each message once
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from mqlake.base.progress import Progress, no_progress
from mqlake.base.rendering import time_text
from mqlake.errors import ConfigError, NotFoundError, StoreError, TableError
from mqlake.lake.tables.append_run import Engine, LocalEngine, StepReport, TableReport, Target, run_step
from mqlake.lake.tables.bodies import evolve_table, infer_body_schema
from mqlake.lake.tables.config import DEFAULT_COLUMNS, LATEST_SUFFIX, Lake, LakeFile, Topic
from mqlake.lake.tables.files import STORE_TIME, TARGET_BYTES
from mqlake.lake.tables.latest import KEY
from mqlake.lake.tables.latest import STEP_BYTES as LATEST_STEP_BYTES
from mqlake.lake.tables.opening import load_table, make_table, shared_catalogs
from mqlake.lake.tables.rows import TableRows
from mqlake.lake.tables.source import Lag, Source, StoreSource
from mqlake.lake.tables.table import COLUMNS, DECODER, LATEST, TOPIC, Table
from mqlake.lake.tables.union import UnionDataset, union_of
from mqlake.lake.tables.verify import SAMPLE, TableVerification, verify_table
from mqlake.lake.tables.verify_latest import verify_latest

logger = logging.getLogger(__name__)

STEP_BYTES = 1 << 30
"""Bytes of log that a commit has at most."""


@dataclass(frozen=True)
class RunOptions:
    """How a run works. `bytes_max`: of log a commit; `target_bytes`: of a Parquet file."""

    bytes_max: int = STEP_BYTES
    target_bytes: int = TARGET_BYTES
    fail_on_data_loss: bool = True
    verify: str = "crc"


def open_table(lake: Lake, topic: Topic, names: Sequence[str] = (), *, create: bool = True) -> Table:
    """The table of a topic, made if it is not there.

    Raises TableError for a table of another topic and, without `create`, for one that is not there; ConfigError for a
    catalog that cannot be opened; MissingPartError.
    """
    rows = rows_of(topic)
    properties = {TOPIC: topic.topic, COLUMNS: ",".join(rows.columns), DECODER: topic.bodies}
    properties[LATEST] = KEY if topic.latest else ""
    properties = {key: value for key, value in properties.items() if value}
    day = STORE_TIME if topic.partition == "day" else ""
    name = f"{lake.namespace}.{topic.table}"
    found = load_table(lake, name, names)
    if found is None and create:
        found = make_table(lake, name, rows.schema, properties, day, names)
    if found is None:
        where = lake.catalog or lake.warehouse
        latest = f"{topic.table}{LATEST_SUFFIX}"
        beside = not topic.latest and load_table(lake, f"{lake.namespace}.{latest}", names) is not None
        hint = f"; there is one of latest rows: --table {latest}" if beside else ""
        raise TableError(
            f"there is no {lake.format} table {name} in {where} yet: mqlake lake run makes it{hint}"
        )
    return found


def apply_table_settings(topic: Topic, table: Table) -> Topic:
    """Returns the topic with the columns and the decoder that the table was made with, where the topic's were not
    given, or inferred; and of latest rows if it is a table of those. TableError for latest rows into one that has
    all."""
    stored = table.properties
    if topic.latest and LATEST not in stored:
        raise TableError(
            f"table {table.name} has all messages: give the latest row of each key another one (--table)"
        )
    if LATEST in stored:
        topic = replace(topic, latest=True, table=topic.table)
    if topic.columns == DEFAULT_COLUMNS and COLUMNS in stored:
        topic = replace(topic, columns=tuple(stored[COLUMNS].split(",")))
    if DECODER in stored and (not topic.bodies or _is_inferred(topic.bodies)):
        topic = replace(topic, bodies=stored[DECODER])
    return topic


def _is_inferred(spec: str) -> bool:
    from mqlake.lake.bodies.body_format import BodyFormat

    return BodyFormat.from_spec(spec).inferred


def check_table(table: Table, topic: Topic, rows: TableRows) -> None:
    """TableError for a table of another topic, or with other columns than the topic's rows have."""
    owner = table.properties.get(TOPIC)
    if owner != topic.topic:
        raise TableError(
            f"table {table.name} is "
            + (f"that of topic {owner}" if owner else "not one of mqlake's")
            + f": give {topic.topic} another one (--table)"
        )
    missing = [name for name in rows.schema.names if name not in table.schema.names]
    if missing:
        raise TableError(
            f"table {table.name} has no column {missing[0]!r}: it was made with other columns; leave that one out, or "
            "make a new table (--table)"
        )


def rows_of(topic: Topic) -> TableRows:
    if not topic.bodies:
        return TableRows(topic.columns)
    from mqlake.lake.bodies.body_format import BodyFormat

    return TableRows(topic.columns, BodyFormat.from_spec(topic.bodies).body_columns)


def source_of(topic: Topic, options: RunOptions) -> Source:
    if topic.namesrv:
        from mqlake.lake.tables.broker_source import BrokerSource

        return BrokerSource(topic.namesrv, fail_on_data_loss=options.fail_on_data_loss)
    return StoreSource(topic.stores, fail_on_data_loss=options.fail_on_data_loss, verify=options.verify)


@dataclass(frozen=True)
class TopicTable:
    """The table of one topic, and where its rows come from."""

    topic: Topic
    lake: Lake
    table: Table
    source: Source
    options: RunOptions = RunOptions()

    @classmethod
    def open(
        cls,
        lake: Lake,
        topic: Topic,
        options: RunOptions = RunOptions(),
        *,
        create: bool = True,
        source: Source | None = None,
    ) -> TopicTable:
        """`source`: one that has been checked; else one is made, and asked for the topic. Raises what open_table()
        raises, and ConfigError for a topic that the source does not have."""
        if source is None:
            source = source_of(topic, options)
            if create:
                source.check([topic.topic])
        topic = infer_body_schema(topic)
        table = open_table(lake, topic, list(source.names(topic.topic)), create=create)
        if create:
            topic = evolve_table(topic, table)
        topic = apply_table_settings(topic, table)
        check_table(table, topic, rows_of(topic))
        if create and topic.latest and source.gaps(topic.topic):
            raise ConfigError(
                f"topic {topic.topic} is a static one: its messages lie on several brokers, whose clocks would say "
                "which row of a key is the latest. Fill a table of all messages (without --latest)"
            )
        return cls(topic, lake, table, source, options)

    @classmethod
    def open_all(
        cls, lake: Lake, topics: Collection[Topic], options: RunOptions = RunOptions(), *, create: bool = True
    ) -> list[TopicTable]:
        """Opens the tables of topics: those that come from the same place share a source, which is asked once for
        all topics. Raises what open() raises."""
        groups: dict[tuple[Any, ...], list[Topic]] = {}
        for topic in topics:
            groups.setdefault((*sorted(topic.stores.items()), topic.namesrv), []).append(topic)
        opened = {}
        for group in groups.values():
            source = source_of(group[0], options)
            if create:
                source.check([topic.topic for topic in group])
            with shared_catalogs():
                for topic in group:
                    opened[topic.topic] = cls.open(lake, topic, options, create=create, source=source)
        return [opened[topic.topic] for topic in topics]

    @cached_property
    def rows(self) -> TableRows:
        """The table's columns and its decoder of bodies."""
        return rows_of(self.topic)

    @property
    def target(self) -> Target:
        return Target(self.topic.topic, self.table, self.rows, self.topic.latest)

    def append_new(self, *, engine: Engine | None = None, report: Progress = no_progress) -> TableReport:
        """Appends what the log has and the table lacks. Raises what run_step() raises."""
        total = TableReport(self.topic.topic, self.table.name)
        for step in steps([self], engine or LocalEngine(), report=report):
            for each in step.tables:
                add_report(total, each)
        return total

    def read(self) -> UnionDataset:
        """The table alone, without what the log has after it."""
        return UnionDataset(self.table, self.rows, self.table.head().version, None)

    def union(self) -> UnionDataset:
        """The table and the log from there on, see union_of()."""
        return union_of(self.table, self.rows, self.source, self.topic.topic)

    def at(self, moment: int | datetime) -> UnionDataset:
        """As it was: a version (a snapshot's id) or a time, see union_of()."""
        return union_of(self.table, self.rows, self.source, self.topic.topic, moment)

    def status(self) -> TableStatus:
        """How far the table is, and what it has."""
        head = self.table.head()
        lag = self.source.lag(self.topic.topic, head.state)
        files = self.table.files(head.version)
        last = next((each for each in self.table.versions() if each.state is not None), None)
        return TableStatus(
            self.topic.topic,
            self.table.name,
            self.table.location,
            head.version,
            {name: mark.offset for name, mark in head.state.stores.items()} if head.state else {},
            lag,
            files.count,
            files.bytes,
            files.rows,
            last.at if last else 0,
        )

    def verify(self, *, sample: int = SAMPLE, report: Progress = no_progress) -> TableVerification:
        """Verifies that the table has every message once, see verify_table(), or the latest row of each key, see
        verify_latest()."""
        if self.topic.latest:
            return verify_latest(
                self.table, self.rows, self.source, self.topic.topic, sample=sample, report=report
            )
        return verify_table(
            self.table, self.rows, self.source, self.topic.topic, sample=sample, report=report
        )

    def rewind_plan(self, moment: int | datetime) -> Rewind:
        """The plan of rewind(). Raises TableError if there is no such version."""
        head = self.table.head()
        versions = self.table.versions()
        version = moment if isinstance(moment, int) else self.table.version_at(moment)
        if version is None or version not in {each.version for each in versions}:
            asked = "at that time" if version is None else version
            oldest = min(versions, key=lambda each: each.at, default=None)
            there = f"; the oldest is {oldest.version}, of {time_text(oldest.at)}" if oldest else ""
            raise TableError(f"table {self.table.name} has no version {asked}{there}")
        state = self.table.state_of(version)
        lost = ""
        try:
            self.source.tail(self.topic.topic, state)
        except (StoreError, TableError) as error:
            lost = str(error)
        before, after = self.table.files(head.version).rows, self.table.files(version).rows
        return Rewind(self.topic.topic, self.table.name, head.version, version, before - after, after, lost)

    def rewind(self, plan: Rewind) -> None:
        """Makes an earlier version the current one, position and rows; the next run appends what follows again."""
        if plan.version != plan.current:
            self.table.rewind(plan.version)


@dataclass(frozen=True)
class TableStatus:
    """`positions`: physical offsets by store. Sizes in bytes; `committed_at` in ms, 0: never."""

    topic: str
    table: str
    location: str
    version: int | None
    positions: Mapping[str, int]
    lag: Lag
    files: int
    bytes: int
    rows: int
    committed_at: int

    @property
    def is_at_risk(self) -> bool:
        """Returns True if the table lacks more than half of what the log keeps: the log may be deleted before it has
        it."""
        return bool(self.positions) and 0 < (self.lag.kept or 0) < 2 * self.lag.bytes


@dataclass(frozen=True)
class Rewind:
    """From one version to another: `rows` leave the table, `left` stay. `lost`: why the log cannot give them again."""

    topic: str
    table: str
    current: int | None
    version: int
    rows: int
    left: int
    lost: str = ""


def steps(
    tables: Sequence[TopicTable], engine: Engine, *, report: Progress = no_progress
) -> Iterator[StepReport]:
    """Steps until nothing is left that was there when the last one began; tables of one source in one pass.

    Raises what run_step() raises.
    """
    for group in groups_of(tables):
        is_done = False
        while not is_done:
            step = one_step(group, engine, report=report)
            if step.tables:
                yield step
            is_done = step.is_done


def groups_of(tables: Sequence[TopicTable]) -> list[list[TopicTable]]:
    """Groups the tables that share a source, which are read in one pass."""
    groups: dict[tuple[Any, ...], list[TopicTable]] = {}
    for table in tables:
        key = (tuple(sorted(table.topic.stores.items())), table.topic.namesrv, table.topic.latest)
        groups.setdefault(key, []).append(table)
    return list(groups.values())


def one_step(group: Sequence[TopicTable], engine: Engine, *, report: Progress = no_progress) -> StepReport:
    """One step of tables that share a source. Those of latest rows are written by this process."""
    options = group[0].options
    bytes_max = options.bytes_max
    if group[0].topic.latest:
        engine, bytes_max = LocalEngine(), min(bytes_max, LATEST_STEP_BYTES)
    step = run_step(
        group[0].source,
        [table.target for table in group],
        engine,
        bytes_max=bytes_max,
        target_bytes=options.target_bytes,
        fail_on_data_loss=options.fail_on_data_loss,
        report=report,
    )
    committed = {each.table for each in step.tables if each.commits}
    for each in group:
        if each.table.name in committed:
            try:
                each.table.tidy()
            except TableError as error:  # the rows are committed; the next step tries again
                logger.warning("table %s: its old versions stay for now: %s", each.table.name, error)
    return step


def add_report(total: TableReport, more: TableReport) -> None:
    for name in ("rows", "undecoded", "files", "bytes", "commits", "conflicts", "unkeyed"):
        setattr(total, name, getattr(total, name) + getattr(more, name))


def topic_table(file: str | os.PathLike[str], topic: str, options: RunOptions = RunOptions()) -> TopicTable:
    """The table of a topic of a lake.toml (or of the folder that has it).

    Raises NotFoundError for a topic that is not there, NotThereError, ConfigError, TableError, MissingPartError,
    OSError.
    """
    found = LakeFile.load(os.fspath(file))
    if topic not in found.topics:
        raise NotFoundError(topic, found.topics, what="topic of the lake")
    return TopicTable.open(found.lake, found.topics[topic], options)
