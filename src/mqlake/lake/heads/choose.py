"""Which records of files with heads a query may want: its conditions go to the heads, places in the log come back.

    keys ─▶ Bloom filters ─▶ row groups
    conditions ─▶ heads (Parquet) ─▶ physical offset, size and number of each record that may pass ─▶ places, blocks

A file with valid heads is known whole: what they do not show is not in it. A message of an inner batch has a queue
offset, tags and keys of its own, so conditions on these let every such record pass. The rows are filtered again when
they have been read, so a condition that heads do not answer is left out here.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mqlake.errors import UnfitHeadsError
from mqlake.lake.arrow.filters import Condition, RowFilter
from mqlake.lake.arrow.schema import NUMBERS, OF_A_MESSAGE, TIMES
from mqlake.lake.heads.bloom import groups_that_may_have
from mqlake.lake.heads.parquet import BLOOM_COLUMNS, rows_of
from mqlake.lake.heads.schema import SCHEMA
from mqlake.lake.heads.valid import Heads, Look, look_through, passed_over, place_of, unfit_if_damaged, warn
from mqlake.lake.log.reading import Gathered, Reading, files_within, laid_out, meet
from mqlake.lake.log.single_records import message_number
from mqlake.lake.log.splits import LogFile, runs
from mqlake.lake.log.storage import Storage
from mqlake.lake.offsets import Position, PositionKind
from mqlake.message import MessageSysFlag

QUEUES_MAX = 64
"""A position of more queues is left to the rows' own filter."""
KEYS_MAX = 16
"""The same for keys."""
_PLACE = ("physicalOffset", "size", "queueId", "queueOffset")


def choose(
    storage: Storage,
    files: Sequence[LogFile],
    names: Mapping[str, int],
    wanted: RowFilter,
    split_size: int,
) -> tuple[Reading, list[list[LogFile]]]:
    """Returns what has to be read of the files with heads, and the other files: runs of files that follow each other.
    `names`: the files in the store's directory of heads, and their sizes.

    For rows without damage: what was damaged later is met only where it is wanted. Files outside the wanted physical
    offsets are not opened.
    """
    expression = expression_of(wanted)
    if expression is None:
        return Reading([]), runs(files, files)
    inside, place = files_within(files, wanted), place_of(storage)
    looks, gathered = _look(storage, place, names, inside, expression, _Named(wanted))
    known = [(each.heads.origin.begin, each.heads.origin.end) for each in looks if each.heads is not None]
    warn(passed_over(place, looks))
    reading = laid_out(gathered.reading([]), storage, wanted, split_size)
    others = [look.file for look in looks if look.heads is None]
    return Reading(meet(reading.ranges, known), reading.places), runs(inside, others)


def _look(
    storage: Storage,
    place: Storage,
    names: Mapping[str, int],
    files: Sequence[LogFile],
    expression: pc.Expression,
    named: _Named,
) -> tuple[list[Look[Any]], Gathered]:
    """The files, with their heads if these can be used, and the places of the records that pass."""
    if place.is_local:
        chosen = list(look_through(storage, place, names, files, named.groups))
        found = {look.heads.path: look.made for look in chosen if look.heads and look.made is not None}
        with contextlib.suppress(UnfitHeadsError, FileNotFoundError):  # one of them: then file by file
            gathered = _gathered(list(found), expression, list(found.values()))
            return [replace(look, made=None) for look in chosen], gathered
    looks, gathered = list[Look[Any]](), Gathered()
    for look in look_through(
        storage,
        place,
        names,
        files,
        lambda heads: _gathered([heads.source], expression, [named.groups(heads)]),
    ):
        if look.made is not None:
            gathered.merge(look.made)
        looks.append(replace(look, made=None))
    return looks, gathered


def _gathered(
    files: Sequence[str | bytes], expression: pc.Expression, groups: Sequence[Sequence[int]]
) -> Gathered:
    """The places of the records that pass. UnfitHeadsError where a page is damaged, FileNotFoundError."""
    found = Gathered()
    with unfit_if_damaged():
        for batch in rows_of(files, _PLACE, expression, groups):
            offset, size, queue_id, queue_offset = (
                column.to_numpy(zero_copy_only=False).astype("i8") for column in batch.columns
            )
            found.add(offset, size, message_number(queue_id, queue_offset))
    return found


class _Named:
    """The texts that a wanted record has one of, by column: Bloom filters say where they are not."""

    def __init__(self, wanted: RowFilter) -> None:
        self._texts = {
            condition.column: condition.allowed
            for condition in wanted.conditions
            if condition.column in BLOOM_COLUMNS and condition.allowed is not None
        }
        self._unpack = wanted.options.unpack

    def groups(self, heads: Heads) -> list[int]:
        """The row groups that may have wanted records. UnfitHeadsError, FileNotFoundError."""
        metadata = heads.sealed.metadata
        found = set(range(metadata.num_row_groups))
        if not self._texts:
            return sorted(found)
        batches = (
            set() if not self._unpack else {group for group in found if _may_have_batches(metadata, group)}
        )
        with unfit_if_damaged(), heads.reader() as read:
            for column, texts in self._texts.items():
                found &= groups_that_may_have(metadata, read, column, texts) | batches
        return sorted(found)


def _may_have_batches(metadata: pq.FileMetaData, group: int) -> bool:
    """True unless no record of a row group has messages of its own, which have keys of their own."""
    statistics = metadata.row_group(group).column(SCHEMA.names.index("sysFlag")).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min < 0 or statistics.max >= MessageSysFlag.NEED_UNWRAP_FLAG)


# --- conditions


def expression_of(wanted: RowFilter) -> pc.Expression | None:
    """A filter of heads that every wanted record passes; None if it would let all pass."""
    options = wanted.options
    of_record: list[pc.Expression] = []
    of_message: list[pc.Expression] = []
    if wanted.topics is not None:
        of_record.append(pc.field("topic").isin(pa.array(sorted(wanted.topics), pa.string())))
    for condition in wanted.conditions:
        made = _of_condition(condition)
        if made is not None:
            (of_message if condition.column in OF_A_MESSAGE else of_record).append(made)
    if options.keys is not None and len(options.keys) <= KEYS_MAX:
        of_message.append(functools.reduce(operator.or_, map(_has_key, options.keys), pc.scalar(False)))
    for position, compare in ((options.start, operator.ge), (options.end, operator.lt)):
        made_of = of_message if position.kind is PositionKind.QUEUES else of_record
        made_of += _of_position(position, compare)
    if of_message:
        passes = functools.reduce(operator.and_, of_message)
        if options.unpack:
            flag = pc.bit_wise_and(
                pc.field("sysFlag"), pa.scalar(int(MessageSysFlag.NEED_UNWRAP_FLAG), pa.int32())
            )
            passes |= flag != 0
        of_record.append(passes)
    return functools.reduce(operator.and_, of_record) if of_record else None


def _of_condition(condition: Condition) -> pc.Expression | None:
    column = condition.column
    if column not in SCHEMA.names or column == "topic":
        return None  # topics are in RowFilter.topics
    if column not in NUMBERS and column not in TIMES and condition.allowed is None:
        return None
    kind, field = SCHEMA.field(column).type, pc.field(column)
    try:
        if condition.allowed is not None:
            return field.isin(pa.array(condition.values, kind))
        assert condition.compare is not None
        made: pc.Expression = condition.compare(field, pa.scalar(condition.values[0], kind))
    except (
        pa.ArrowException,
        OverflowError,
        TypeError,
        ValueError,
    ):  # no value of the column, or not its precision
        return None
    return made


def _has_key(key: str) -> pc.Expression:
    """`keys` are several in one text, so that it may have the key."""
    return (pc.field("uniqKey") == key) | pc.match_substring(pc.field("keys"), key)


def _of_position(position: Position, compare: Callable[[Any, Any], Any]) -> list[pc.Expression]:
    if position.kind is PositionKind.PHYSICAL:
        return [compare(pc.field("physicalOffset"), position.value)]
    if position.kind is PositionKind.TIMESTAMP:
        return [_at(position.value, compare)]
    if (
        position.kind not in (PositionKind.QUEUES, PositionKind.QUEUE_TIMESTAMPS)
        or len(position.queues) > QUEUES_MAX
    ):
        return []
    found = []
    for (topic, queue), value in position.queues.items():
        if value >= 0:
            other = (pc.field("topic") != topic) | (pc.field("queueId") != int(queue))
            by_offset = position.kind is PositionKind.QUEUES
            found.append(
                other | (compare(pc.field("queueOffset"), value) if by_offset else _at(value, compare))
            )
    return found


def _at(value: int, compare: Callable[[Any, Any], Any]) -> pc.Expression:
    """A comparison of the store time, which is null where it is beyond the calendar."""
    field = pc.field("storeTimestamp")
    try:
        return compare(field, pa.scalar(value * 1000, pa.timestamp("us", "UTC"))) | field.is_null()
    except (pa.ArrowException, OverflowError):
        return pc.scalar(True)
