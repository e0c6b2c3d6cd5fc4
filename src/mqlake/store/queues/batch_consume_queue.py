"""BatchConsumeQueue: the queue of a topic whose messages come in inner batches, one unit for each batch.

    batchconsumequeue/<topic>/<queueId>/<20 digits>      units as formats.batch_consume_queue draws them

    message offsets   0 … 9      10      11 … 30
    units            ├ base 0 ┤├ base 10 ┤├ base 11 ┤         the unit of a message is searched by its base

Messages are counted, units are not: a byte offset says nothing about a message offset.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

import numpy as np

from mqlake.formats.batch_consume_queue import (
    BCQ_DTYPE,
    BCQ_STORE_UNIT_SIZE,
    UNIT,
    BatchConsumeQueueUnit,
    encode_unit,
)
from mqlake.formats.columns import Bools
from mqlake.store.files.file_pool import Buffer, FilePool
from mqlake.store.queues.consume_queue import CqUnit, StoreTimeOf
from mqlake.store.queues.unit_queue import UnitQueue, Units
from mqlake.store.results import BoundaryType


class BatchConsumeQueue(UnitQueue):
    """The queue in `directory`. Offsets of messages, except where bytes or units are said."""

    __slots__ = ("max_offset_in_queue",)

    dtype = BCQ_DTYPE
    unit = UNIT
    unit_size = BCQ_STORE_UNIT_SIZE

    def __init__(self, topic: str, queue_id: int, directory: str, file_size: int, pool: FilePool) -> None:
        super().__init__(
            topic, queue_id, directory, file_size, pool, size_key="mapperFileSizeBatchConsumeQueue"
        )
        # one past the newest message's offset
        self.max_offset_in_queue = 0

    @staticmethod
    def valid(units: Units) -> Bools:
        result: Bools = (
            (units["offset"] >= 0)
            & (units["size"] > 0)
            & (units["msg_base_offset"] >= 0)
            & (units["batch_size"] > 0)
        )
        return result

    def recover(self, *, thorough: bool) -> int:
        max_physic_offset = super().recover(thorough=thorough)
        self._look_for_lost_files()
        return max_physic_offset

    # ------------------------------------------------------------------ writing

    def put_units(self, units: Units) -> None:
        """Units of batches in the order of the commit log; those that are there already are passed over.

        OSError: nothing of it is visible, nothing has moved.
        """
        ends = units["offset"] + units["size"]
        units = units[int(np.searchsorted(ends, self.max_physic_offset, side="right")) :]
        if len(units):
            last = BatchConsumeQueueUnit._make(units[-1].item())
            self._append(units.view(np.uint8).data, last)

    def put_unit(self, unit: BatchConsumeQueueUnit) -> None:
        """One unit, as `put_units`."""
        if unit.offset + unit.size > self.max_physic_offset:
            self._append(encode_unit(*unit[:6]), unit)

    def _append(self, data: Buffer, last: BatchConsumeQueueUnit) -> None:
        self.files.write(self.files.max_offset, data)
        self.max_physic_offset = last.offset + last.size
        self.max_offset_in_queue = last.msg_base_offset + last.batch_size

    def _note_last(self, unit: Any) -> None:
        super()._note_last(unit)
        last = None if unit is None else BatchConsumeQueueUnit._make(unit)
        self.max_offset_in_queue = 0 if last is None else last.msg_base_offset + last.batch_size

    def destroy(self) -> None:
        super().destroy()
        self.max_offset_in_queue = 0

    # ------------------------------------------------------------------ reading

    @property
    def min_offset_in_queue(self) -> int:
        """The first message's offset; `max_offset_in_queue` when none is left in the commit log."""
        unit = self._unit(self.min_logic_offset // BCQ_STORE_UNIT_SIZE)
        return self.max_offset_in_queue if unit is None else unit.msg_base_offset

    def get(self, message_offset: int) -> CqUnit | None:
        """The unit of the batch that holds the message; None when it is outside the queue."""
        number = self._number_of(message_offset)
        unit = None if number is None else self._unit(number)
        if unit is None:
            return None
        return CqUnit(unit.msg_base_offset, unit.offset, unit.size, unit.tags_code, unit.batch_size)

    def get_range(self, message_offset: int, count: int) -> Units:
        """Up to `count` units (BCQ_DTYPE) from the batch that holds the message on, of one file."""
        number = self._number_of(message_offset)
        if number is None or count <= 0:
            return np.empty(0, BCQ_DTYPE)
        return self._units(number * BCQ_STORE_UNIT_SIZE, count)

    def roll_next_file(self, message_offset: int) -> int:
        """Returns the offset to go on at when nothing can be had at `message_offset`: the next batch, or the queue's
        end."""
        unit = self._unit(self._first_where(lambda unit: unit.msg_base_offset > message_offset))
        return self.max_offset_in_queue if unit is None else unit.msg_base_offset

    def get_offset_in_queue_by_time(
        self,
        timestamp: int,
        boundary: BoundaryType,
        store_time_of: StoreTimeOf,
        *,
        commit_log_min: int = 0,
    ) -> int:
        """Message offset of a batch by its store time (ms): LOWER the first not older than `timestamp` (the
        last batch when all are older), UPPER the last not newer (the first when all are newer)."""
        if boundary is BoundaryType.LOWER:
            number = self._first_where(lambda unit: unit.store_time >= timestamp)
        else:
            number = self._first_where(lambda unit: unit.store_time > timestamp) - 1
        first, last = self.min_logic_offset // BCQ_STORE_UNIT_SIZE, self._end - 1
        unit = self._unit(max(first, min(number, last)))
        return self.max_offset_in_queue if unit is None else unit.msg_base_offset

    @property
    def _end(self) -> int:
        return self.files.max_offset // BCQ_STORE_UNIT_SIZE

    def _number_of(self, message_offset: int) -> int | None:
        if message_offset >= self.max_offset_in_queue:
            return None
        number = self._first_where(lambda unit: unit.msg_base_offset > message_offset) - 1
        return number if number * BCQ_STORE_UNIT_SIZE >= self.min_logic_offset else None

    def _first_where(self, holds: Callable[[BatchConsumeQueueUnit], bool]) -> int:
        """Number of the first unit for which `holds`, the end when there is none."""
        first = self.files.min_offset // BCQ_STORE_UNIT_SIZE

        def key(number: int) -> bool:
            unit = self._unit(number)
            return unit is None or holds(unit)

        return first + bisect.bisect_left(range(first, self._end), True, key=key)

    def _unit(self, number: int) -> BatchConsumeQueueUnit | None:
        data = self.files.read(number * BCQ_STORE_UNIT_SIZE, BCQ_STORE_UNIT_SIZE)
        return BatchConsumeQueueUnit._make(UNIT.unpack(data)) if len(data) == BCQ_STORE_UNIT_SIZE else None
