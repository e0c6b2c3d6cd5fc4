"""Stores that grow, tables of them, and what must be in a table by the plain decoder of the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from mqlake.lake.tables.config import DEFAULT_COLUMNS, Lake, LakeFile, Topic
from mqlake.lake.tables.table import Table
from mqlake.lake.tables.topic import RunOptions, TopicTable
from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store
from tests.spark.stores import SETTINGS, row_of, seen

FORMATS = ("iceberg", "delta")
ORDERS = "Orders"
STORE = "broker-a"


def put(root: Path, count: int, first: int = 0, topics: tuple[str, ...] = (ORDERS, "Other")) -> None:
    """Appends messages, in turn to each topic and its three queues."""
    with open_store(root, {**SETTINGS}) as store:
        for n in range(first, first + count):
            topic = topics[n % len(topics)]
            queue_id = n // len(topics) % 3
            message = MessageExtBrokerInner(topic, b"%d " % n * (n % 9), keys=f"key-{n}", queue_id=queue_id)
            assert store.put_message(message).is_ok


def lake_of(directory: Path, format: str) -> Lake:
    return Lake(str(directory / "lake"), format)


def topic_of(store: Path, topic: str = ORDERS, **more: Any) -> Topic:
    return Topic(topic, {STORE: str(store)}, **more)


def open_topic(
    directory: Path, store: Path, format: str, topic: str = ORDERS, partition: str = "day", **options: Any
) -> TopicTable:
    given = topic_of(store, topic, partition=partition)
    return TopicTable.open(lake_of(directory, format), given, RunOptions(**options))


def save(directory: Path, store: Path, format: str, *topics: str) -> Path:
    """A lake.toml."""
    lake = lake_of(directory, format)
    path = directory / "lake.toml"
    LakeFile(lake, {topic: topic_of(store, topic) for topic in topics}).save(str(path))
    return path


def expected(store: Path, topic: str = ORDERS) -> list[dict[str, Any]]:
    """The rows of a topic's table, by a decoder that shares no code with what fills it."""
    rows = [
        {**row_of(message, store), "brokerName": STORE} for message in seen(store) if message.topic == topic
    ]
    return in_order([{name: row[name] for name in DEFAULT_COLUMNS} for row in rows])


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["physicalOffset"], row["queueOffset"]))


def rows_in(table: Table) -> list[dict[str, Any]]:
    return as_rows(pa.Table.from_batches(table.scan(table.head().version, None, None), table.schema))


def as_rows(found: pa.Table) -> list[dict[str, Any]]:
    return in_order(found.select(DEFAULT_COLUMNS).to_pylist(maps_as_pydicts="strict"))
