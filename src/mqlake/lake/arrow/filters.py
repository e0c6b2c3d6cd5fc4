"""The choice of records that become rows, made from a scan's columns before any body is copied.

The query engine (Spark, Arrow) applies the conditions to the rows again, so this may only ever keep too much: text
that had to be mended, hashes of tags and keys, and times beyond a timestamp are compared there. What the options of a
read ask for (topics, keys, offsets, times) is exact.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from mqlake.formats.arrow import Bytes
from mqlake.formats.columns import DispatchColumns, Scan, dispatch_columns
from mqlake.formats.index import build_key, index_key_hash
from mqlake.lake.arrow.arrays import bools_of, string_array
from mqlake.lake.arrow.properties import Properties, kernels
from mqlake.lake.arrow.schema import NUMBERS, OF_A_MESSAGE, TIMES
from mqlake.lake.offsets import Position, PositionKind
from mqlake.lake.options import LogOptions
from mqlake.message import (
    DEFAULT_MESSAGE_DELAY_LEVEL,
    KEY_SEPARATOR,
    PROPERTY_KEYS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    UNSEEN_FLAG,
    MessageSysFlag,
    parse_delay_levels,
    tags_code,
)

Bools = npt.NDArray[np.bool_]

TEXTS = ("topic", "tags", "keys", "uniqKey")

_HIDDEN_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC})
"""Topics in which a broker keeps messages that no consumer is to see yet, and its notes about them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
# tags and keys are the same whatever the delay levels are
_DELAY_LEVELS = parse_delay_levels(DEFAULT_MESSAGE_DELAY_LEVEL)


def hidden_topics(asked: frozenset[str] | None) -> frozenset[str]:
    """The topics whose messages no consumer sees, but for those that are asked for."""
    return _HIDDEN_TOPICS - (asked or frozenset())


@dataclass(frozen=True)
class Condition:
    """`column` of a record compared with one value or, with `compare` None, one of several."""

    column: str
    compare: Callable[[Any, Any], Any] | None
    values: tuple[Any, ...]

    @property
    def allowed(self) -> frozenset[Any] | None:
        """The values it lets through, None when it is no enumeration of them."""
        return frozenset(self.values) if self.compare in (None, operator.eq) else None

    def mask(self, scan: Scan) -> Bools | None:
        """Which records may fulfil it; None when a scan's columns do not say."""
        if self.column in NUMBERS:
            array = getattr(scan, NUMBERS[self.column])
            values = self.values
        elif self.column in TIMES:
            array = getattr(scan, TIMES[self.column])
            values = tuple(ms for ms in map(time_ms, self.values) if ms is not None)
            if len(values) != len(self.values):
                return None
        else:
            return None
        if self.compare is None:
            return np.isin(array, list(values))
        return np.asarray(self.compare(array, values[0]))


def time_ms(value: object) -> float | None:
    """ms since 1970 of a literal in a filter; None for one without a zone, which says no moment."""
    return (value - _EPOCH) / _MS if isinstance(value, datetime) and value.tzinfo else None


def indexed_keys(condition: Condition) -> frozenset[str] | None:
    """Returns the keys, one of which a record must have to meet a condition on `keys` or `uniqKey`; None: any record
    may."""
    if condition.column not in ("keys", "uniqKey") or condition.allowed is None:
        return None
    found = set()
    for value in condition.allowed:
        words = [word for word in str(value).split(KEY_SEPARATOR) if word]
        if not words:
            return None
        found.add(words[0] if condition.column == "keys" else str(value))
    return frozenset(found)


@dataclass(frozen=True)
class RowFilter:
    """The conditions of one read."""

    options: LogOptions
    conditions: tuple[Condition, ...] = ()

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that can pass; None for all."""
        return self.allowed("topic", self.options.topics)

    def allowed(self, column: str, also: frozenset[Any] | None = None) -> frozenset[Any] | None:
        """The values of a column that the conditions let through; None: all."""
        sets = [each.allowed for each in self.conditions if each.column == column]
        known = [each for each in (*sets, also) if each is not None]
        return frozenset.intersection(*known) if known else None

    def rows(self, buf: Bytes, scan: Scan, *, packed: bool = False) -> npt.NDArray[np.int64] | None:
        """Numbers of the records that may pass; None for all.

        `packed`: the records are batches, of whose messages nothing is asked yet.
        """
        options = self.options
        wanted = [each for each in self.conditions if not (packed and each.column in OF_A_MESSAGE)]
        masks = [mask for mask in (each.mask(scan) for each in wanted) if mask is not None]
        names = [topic.decode("utf-8", "replace") for topic in scan.topics]
        if self.topics is not None or options.unpack:
            masks.append(self._of_topics(names)[scan.topic_id])
        if options.unpack:
            masks.append(scan.sys_flag & UNSEEN_FLAG == 0)
        masks += _within(scan, names, options.start, operator.ge, packed=packed)
        masks += _within(scan, names, options.end, operator.lt, packed=packed)
        if not packed:
            masks += self._by_hashes(buf, scan, names)
        if not masks:
            return None
        passing = np.logical_and.reduce(masks)
        if options.keys is None or packed:
            return None if passing.all() else np.flatnonzero(passing)
        rows = np.flatnonzero(passing)
        return rows[_has_key(buf, scan, rows, options.keys)]

    def _of_topics(self, names: list[str]) -> Bools:
        hidden = hidden_topics(self.options.topics) if self.options.unpack else frozenset()
        topics = self.topics
        passes = [(topics is None or name in topics) and name not in hidden for name in names]
        return np.array(passes, np.bool_)

    def _by_hashes(self, buf: Bytes, scan: Scan, names: list[str]) -> list[Bools]:
        tags = self.allowed("tags")
        keys = [found for found in map(indexed_keys, self.conditions) if found is not None]
        if self.options.keys is not None:
            keys.append(self.options.keys)
        if (tags is None and not keys) or len(scan) == 0:
            return []
        columns = dispatch_columns(buf, scan, delay_levels=_DELAY_LEVELS)
        masks = []
        if tags is not None:  # a delayed message has the time at which it is due in that place
            delayed = np.array([name == SCHEDULE_TOPIC for name in names])[scan.topic_id]
            masks.append(np.isin(columns.tags_code, [tags_code(tag) for tag in tags]) | delayed)
        if keys:  # a rolled back record has no keys in the index
            rolled_back = (
                scan.sys_flag & MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
            ) == MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
            masks += [_may_have_key(scan, names, columns, each) | rolled_back for each in keys]
        return masks


def _within(
    scan: Scan,
    names: list[str],
    position: Position,
    compare: Callable[[Any, Any], Any],
    *,
    packed: bool,
) -> list[Bools]:
    """Which records lie on the right side of a position."""
    kind = position.kind
    if kind is PositionKind.PHYSICAL:
        return [compare(scan.physical_offset, position.value)]
    if kind is PositionKind.TIMESTAMP:
        return [compare(scan.store_timestamp, position.value)]
    if kind not in (PositionKind.QUEUES, PositionKind.QUEUE_TIMESTAMPS) or (
        packed and kind is PositionKind.QUEUES
    ):
        return []
    column = scan.queue_offset if kind is PositionKind.QUEUES else scan.store_timestamp
    mask = np.ones(len(scan), np.bool_)
    for (topic, queue), value in position.queues.items():
        if value >= 0 and topic in names:
            mask &= (
                (scan.topic_id != names.index(topic)) | (scan.queue_id != int(queue)) | compare(column, value)
            )
    return [mask]


def _may_have_key(scan: Scan, names: list[str], columns: DispatchColumns, keys: frozenset[str]) -> Bools:
    """Marks the records one of whose keys has the hash that one of `keys` has in the record's topic."""
    record = columns.key_record
    chosen = np.zeros(len(scan), np.bool_)
    for key in keys:
        wanted = np.array([index_key_hash(build_key(name, key)) for name in names], np.int32)
        chosen[record[columns.key_hash == wanted[scan.topic_id[record]]]] = True
    return chosen


def _has_key(buf: Bytes, scan: Scan, rows: npt.NDArray[np.int64], keys: frozenset[str]) -> Bools:
    """Marks those of the records that have one of the keys: in KEYS, or as UNIQ_KEY."""
    if len(rows) == 0:
        return np.zeros(0, np.bool_)
    properties = Properties(buf, scan.properties_start[rows], scan.properties_length[rows], kernels())
    wanted = string_array(sorted(keys))
    uniq = properties.value_of(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    found = bools_of(pc.is_in(uniq, value_set=wanted))
    words = pc.split_pattern(properties.value_of(PROPERTY_KEYS), KEY_SEPARATOR)
    hits = bools_of(pc.is_in(words.flatten(), value_set=wanted))
    parents = pc.list_parent_indices(words)
    found[np.frombuffer(parents.buffers()[1], np.int64, len(parents))[hits]] = True
    return found
