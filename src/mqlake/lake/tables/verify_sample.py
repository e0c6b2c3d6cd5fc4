"""Rows of a table beside the same messages of the log: chosen at random among those that the log must still have.

queue offset from the queue's first one on, or physical offset from the log's beginning on     must be there
both below                                                                                     deleted: no proof
another message, or none, where one must be                                                    a finding
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import StoreError
from mqlake.lake.arrow.arrays import bool_array, bools_of
from mqlake.lake.arrow.filters import Condition
from mqlake.lake.bodies.body_format import BodyFormat
from mqlake.lake.tables.rows import TableRows
from mqlake.lake.tables.source import Source, Tail
from mqlake.lake.tables.state import queue_name
from mqlake.lake.tables.table import Table, earlier_decoders

PLACE = ("brokerName", "queueId", "queueOffset", "physicalOffset")


def pairs_of(table: pa.Table) -> Iterator[tuple[str, int]]:
    """The brokers and queue ids in it."""
    found = table.group_by(list(PLACE[:2])).aggregate([]).to_pydict()
    yield from zip(found["brokerName"], found["queueId"], strict=True)


@dataclass
class Kept:
    """The messages of a topic that a source still had when this was created."""

    tail: Tail
    bounds: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, source: Source, topic: str) -> Kept:
        return cls(source.tail(topic, None), source.bounds(topic))

    def mask(self, places: pa.Table) -> npt.NDArray[np.bool_]:
        """True for rows whose messages must be there."""
        found = np.zeros(places.num_rows, bool)
        for broker, queue_id in pairs_of(places):
            mine = pc.and_(pc.equal(places["brokerName"], broker), pc.equal(places["queueId"], queue_id))
            first, _ = self.bounds.get(queue_name(broker, queue_id), (None, None))
            limits = (("queueOffset", first), ("physicalOffset", self.tail.begins.get(broker)))
            for name, limit in limits:
                if limit is not None:
                    inside = pc.and_(mine, pc.greater_equal(places[name], limit))
                    found |= bools_of(pc.fill_null(inside, False).combine_chunks())
        return found


@dataclass
class RowSample:
    """At most `size` places; `deleted`: rows that the log no longer has."""

    size: int
    kept: Kept
    deleted: int = 0
    _keys: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    _places: pa.Table | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows with the columns of PLACE."""
        places = pa.Table.from_batches([batch.select(PLACE)])
        mask = self.kept.mask(places)
        self.deleted += int((~mask).sum())
        places = places.filter(bool_array(mask))
        keys = np.concatenate([self._keys, np.random.default_rng().random(places.num_rows)])
        both = places if self._places is None else pa.concat_tables([self._places, places])
        chosen = np.argsort(keys)[: self.size]  # those with the least of random numbers: each as likely
        self._keys, self._places = keys[chosen], both.take(pa.array(chosen))

    @property
    def places(self) -> list[tuple[Any, ...]]:
        found = [] if self._places is None else self._places.to_pylist()
        return [tuple(each[name] for name in PLACE) for each in found]

    def compare(
        self, table: Table, version: int | None, rows: TableRows, source: Source, topic: str
    ) -> tuple[int, list[str]]:
        """How many rows were compared, and what is wrong with them. Raises what Table.scan() raises, OSError.

        A row is right that any decoder made which the table has had: its body may have what has a column only since.
        """
        earlier = [
            replace(rows, decoder=BodyFormat.from_spec(spec).body_columns)
            for spec in earlier_decoders(table.properties)
        ]
        compared, findings = 0, []
        absent: list[dict[str, Any]] = []
        for row in _rows_at(table, version, self.places):
            try:
                there = _message_of(row, self.kept.tail, rows, table.schema)
            except StoreError as error:
                findings.append(str(error))
                continue
            if there is None:
                absent.append({name: row[name] for name in PLACE})
                continue
            compared += 1
            differing = [name for name in table.schema.names if there[name] != row[name]]
            if differing and not any(
                _message_of(row, self.kept.tail, each, table.schema) == row for each in earlier
            ):
                findings.append(f"{_name(row)}: not as in the log: {', '.join(differing)}")
        if absent:  # deleted meanwhile?
            now = Kept.of(source, topic).mask(pa.Table.from_pylist(absent))
            for row in (row for row, is_kept in zip(absent, now, strict=True) if is_kept):
                findings.append(
                    f"{_name(row)}: the log has no such message at physical offset {row['physicalOffset']}"
                )
        return compared, findings


def _name(row: Mapping[str, Any]) -> str:
    return f"queue {queue_name(row['brokerName'], row['queueId'])}, offset {row['queueOffset']}"


def _rows_at(
    table: Table, version: int | None, places: Sequence[tuple[Any, ...]]
) -> Iterator[dict[str, Any]]:
    """Whole rows, those at a place that is there twice both."""
    if not places:
        return
    wanted, offsets = set(places), sorted({place[3] for place in places})
    near = pc.field("physicalOffset").isin(offsets)
    values = pa.array(offsets, pa.int64())
    for batch in table.scan(version, None, near):
        some = batch.filter(pc.is_in(batch.column("physicalOffset"), value_set=values))
        for row in some.to_pylist(maps_as_pydicts="lossy"):
            if tuple(row[name] for name in PLACE) in wanted:
                yield row


def _message_of(
    row: Mapping[str, Any], tail: Tail, rows: TableRows, schema: pa.Schema
) -> dict[str, Any] | None:
    """The message at a row's place, as the row should be; None: there is none."""
    conditions = tuple(Condition(name, None, (row[name],)) for name in PLACE[1:])
    for piece in tail.pieces(conditions):
        if piece.name in (row["brokerName"], ""):
            for _, batch in piece.read(rows.read_for(schema.names)):
                for each in rows.some_of(batch, piece.name, schema).to_pylist(maps_as_pydicts="lossy"):
                    if all(each[name] == row[name] for name in PLACE):
                        return dict(each)
    return None
