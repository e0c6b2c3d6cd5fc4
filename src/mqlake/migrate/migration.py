"""One run of a migration: check the names and the options, append, compare, write the broker's configuration."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from mqlake.base.durable import write_durably
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import ConfigError, IllegalTopicError, NotFoundError, OffsetOutOfRangeError, StoreError
from mqlake.message import validate_topic
from mqlake.metaq.store.inspect import DataDirectory, open_data_directory
from mqlake.migrate.append import Appender, open_target
from mqlake.migrate.compare import compare, read_source
from mqlake.migrate.positions import GroupPosition, PositionCounter, write_consumer_offsets, write_topics
from mqlake.migrate.report import DIRECTORY, MigratedPartition, MigrationReport
from mqlake.store.files.store_directory import check_is_store


def migrate(
    source: str,
    store: str,
    *,
    topics: Mapping[str, str] | None = None,
    attribute_as: str = "tag",
    positions: Sequence[GroupPosition] = (),
    settings: Mapping[str, Any] | None = None,
    progress: Progress = no_progress,
) -> MigrationReport:
    """Migrates the messages of `source` that `store` does not have yet, and compares all of them.

    `topics`: those to migrate, with their names in the store; None: all, under their own names. `settings`: RocketMQ's
    keys. Raises NotAStoreError, StoreCorruptError (damage in the source; nothing after it is migrated),
    IllegalTopicError, ConfigError when the migration began with other options or these queues hold other messages,
    OffsetOutOfRangeError when MetaQ has deleted segments since, StoreLockedError, OSError.
    """
    began = time.monotonic()
    directory = _chosen(open_data_directory(source), topics)
    directory.check_gaps()
    found = [
        MigratedPartition(each.topic, each.partition, (topics or {}).get(each.topic, each.topic))
        for each in directory.partitions
    ]
    _check_names(found)
    check_is_store(store, must_exist=False)
    report = MigrationReport(source, store, directory.in_use, found, [])
    total = 3 * sum(each.size for each in directory.partitions)
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress(min(done, total), total)

    with open_target(store, settings or {}) as target:
        _check_options(store, directory, found, attribute_as)
        appender = Appender(target, attribute_as)
        for files, partition in zip(directory.partitions, found, strict=True):
            appender.run(files, partition, advance)
        target.wait_until_dispatched()
    report.changed_attributes = appender.changed_attributes
    counters = [PositionCounter(each) for each in positions]
    tallies = [
        read_source(files, partition, attribute_as, store, counters, advance)
        for files, partition in zip(directory.partitions, found, strict=True)
    ]
    compare(store, settings or {}, found, tallies, advance)
    write_topics(store, {each.to_topic: each.partition + 1 for each in found})
    names = {each.topic: each.to_topic for each in found}
    report.positions = write_consumer_offsets(store, counters, names)
    report.seconds = time.monotonic() - began
    return report


def _chosen(directory: DataDirectory, topics: Mapping[str, str] | None) -> DataDirectory:
    if topics is not None:
        there = {each.topic for each in directory.partitions}
        for topic in topics:
            if topic not in there:
                raise NotFoundError(topic, there, what=f"topic of {directory.path}")
        directory.partitions = [each for each in directory.partitions if each.topic in topics]
    return directory


def _check_names(partitions: Sequence[MigratedPartition]) -> None:
    queues: dict[tuple[str, int], str] = {}
    for each in partitions:
        try:
            validate_topic(each.to_topic)
        except IllegalTopicError as error:
            raise IllegalTopicError(f"{error}; give it another name: --topic {each.topic}=NAME") from None
        other = queues.setdefault((each.to_topic, each.partition), each.name)
        if other != each.name:
            raise ConfigError(
                f"{other} and {each.name} would both become queue {each.partition} of {each.to_topic}"
            )


def _check_options(
    store: str, directory: DataDirectory, found: Sequence[MigratedPartition], attribute_as: str
) -> None:
    """Compares the options with those that the migration began with, which are written before its first message."""
    path = os.path.join(store, DIRECTORY, "migration.json")
    known: dict[str, Any] = {"attribute": attribute_as, "topics": {}, "firstOffsets": {}}
    if os.path.exists(path):
        known = _read_options(path, known)
    if known["attribute"] != attribute_as:
        raise ConfigError(f"{store}: this migration began with attributes as {known['attribute']}")
    for files, partition in zip(directory.partitions, found, strict=True):
        to_topic = known["topics"].setdefault(partition.topic, partition.to_topic)
        if to_topic != partition.to_topic:
            raise ConfigError(f"{store}: this migration began with topic {partition.topic} as {to_topic}")
        first = known["firstOffsets"].setdefault(files.name, files.min_offset)
        if first != files.min_offset:
            raise OffsetOutOfRangeError(
                f"{files.name} begins at offset {files.min_offset} now, and began at {first}: MetaQ has deleted "
                "messages that were migrated, so they can no longer be compared"
            )
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_durably(path, orjson.dumps(known, option=orjson.OPT_INDENT_2))


def _read_options(path: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """StoreError unless it has the keys of `form`, with values of the same types."""
    with open(path, "rb") as file:
        try:
            known = orjson.loads(file.read())
        except orjson.JSONDecodeError as error:
            raise StoreError(f"{path}: not JSON: {error}") from None
    if not isinstance(known, dict) or any(type(known.get(key)) is not type(form[key]) for key in form):
        raise StoreError(f"{path}: not the options of a migration: {', '.join(form)} are needed")
    return known
