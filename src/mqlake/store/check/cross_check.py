"""Weighs a record against the consume queue unit and the index entries that lead to it: who is right when they differ?

    record at P says  topic T, queue q, offset n        its own place in the queues leads elsewhere, or is not there
    a unit says       P, size, tags code                at another place (T', q', n'), that differs in one field

No CRC covers TOPIC, QUEUEID, QUEUEOFFSET, SYSFLAG, the times and the properties of a record (unless it has a property
CRC). Each of them is known a second time: the unit's place knows topic, queue and queue offset, its neighbours where
it lies between them, the unit itself the size and the hash of the tags; an entry of the index knows topic and keys,
and the store time to the second. A record is wrong where more of these witnesses agree with each other than with it,
and nothing else in the log speaks for it. What they agree upon is a `WrongField`, which repair writes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from mqlake.formats.columns import Bytes, DispatchColumns, Int64s, Scan
from mqlake.message import (
    KEY_SEPARATOR,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_NUM,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    UNSEEN_FLAG,
    bytes_to_properties,
    tags_code,
)
from mqlake.store.index.index_service import IndexService
from mqlake.store.queues.batch_consume_queue import BatchConsumeQueue
from mqlake.store.queues.by_queue import rows_by_queue
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore, Queue
from mqlake.store.queues.leads_to import leads_to, offset_of, read_units

QUEUE_ID, QUEUE_OFFSET, SYS_FLAG, TOPIC = "QUEUEID", "QUEUEOFFSET", "SYSFLAG", "TOPIC"
PROPERTIES, STORE_TIMESTAMP = "properties", "STORETIMESTAMP"

ASKED_MAX = 20_000
"""Records of which another place is looked for in one check: with more of them it is the queues that are wrong."""
ASKED_IN_VAIN_MAX = 100
"""The same for one queue, none of which has another place."""
MENDED_MAX = 1000
"""Properties and times that are looked into, which takes some ms each."""
NEIGHBOURS = 1024
SECOND_MS = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class WrongField:
    """Bytes of a record that are wrong by themselves. `position` is the record's, `offset` counts from there."""

    path: str
    position: int
    field: str
    offset: int
    found: bytes
    right: bytes
    witnesses: tuple[str, ...]
    """The sources that agree on what is right, in words."""

    @property
    def text(self) -> str:
        return (
            f"{self.field} is {self._shown(self.found)} where it must be {self._shown(self.right)}: "
            + ", ".join(self.witnesses)
        )

    def _shown(self, value: bytes) -> str:
        if self.field == TOPIC:
            return repr(value.decode("utf-8", "replace"))
        if self.field == PROPERTIES:
            return f"{value.decode('utf-8', 'backslashreplace')!r}"
        return str(int.from_bytes(value, "big", signed=True))


@dataclasses.dataclass(frozen=True, slots=True)
class Misplaced:
    """Row `row` of a scan belongs to another place than it says."""

    row: int
    topic: bytes
    queue_id: int
    queue_offset: int
    field: str
    witnesses: tuple[str, ...]


class Witnesses:
    """The queues and, when there is one, the index of a store. Good for one check of it."""

    def __init__(self, queues: ConsumeQueueStore, index: IndexService | None = None) -> None:
        self._queues = queues
        self._index = index
        self._reached = queues.max_physic_offset
        self._asked = 0
        self._mended = 0
        self._in_vain: dict[tuple[bytes, int], int] = {}
        topics = sorted((topic.encode() for topic in queues.topics()), key=len)
        self._by_length = {
            length: np.frombuffer(b"".join(same), np.uint8).reshape(-1, length)
            for length, same in itertools.groupby(topics, key=len)
        }

    # ------------------------------------------------------------------ places

    def misplaced(
        self, buf: Bytes, scan: Scan, columns: DispatchColumns, rows: Int64s
    ) -> Iterator[Misplaced]:
        """Yields those of the rows of one queue that belong elsewhere, in the order of the log."""
        if not len(rows):
            return
        topic, queue_id = scan.topics[scan.topic_id[rows[0]]], int(scan.queue_id[rows[0]])
        queue = self._queues.get(topic.decode("utf-8", "replace"), queue_id)
        # the queues may merely be behind: dispatch goes in the order of the log
        doubtful = ~leads_to(queue, scan, rows) & (scan.physical_offset[rows] < self._reached)
        for row in rows[doubtful].tolist():
            in_vain = self._in_vain.get((topic, queue_id), 0)
            if self._asked >= ASKED_MAX or in_vain >= ASKED_IN_VAIN_MAX:
                return
            self._asked += 1
            found = self._place_of(buf, scan, columns, row, queue)
            if found is None:
                self._in_vain[topic, queue_id] = in_vain + 1
            else:
                self._in_vain[topic, queue_id] = 0
                yield found

    def all_misplaced(self, buf: Bytes, scan: Scan, columns: DispatchColumns) -> Iterator[Misplaced]:
        """Yields the misplaced rows of a whole scan, also those that say no queue leads to them."""
        undecided = (scan.sys_flag & UNSEEN_FLAG) != 0
        yield from self.wrongly_hidden(scan, columns, np.flatnonzero(undecided))
        for rows in rows_by_queue(scan.topic_id, scan.queue_id, np.flatnonzero(~undecided)):
            yield from self.misplaced(buf, scan, columns, rows)

    def _place_of(
        self, buf: Bytes, scan: Scan, columns: DispatchColumns, row: int, own: Queue | None
    ) -> Misplaced | None:
        topic, queue_id = scan.topics[scan.topic_id[row]], int(scan.queue_id[row])
        offset = int(scan.queue_offset[row])
        name = topic.decode("utf-8", "replace")
        for other_id, queue in self._queues.queues(name).items():
            if other_id != queue_id and (seen := self._witnesses(queue, offset, scan, columns, row)):
                return Misplaced(row, topic, other_id, offset, QUEUE_ID, seen)
        for other in self._like(topic):
            other_queue = self._queues.get(other.decode(), queue_id)
            seen = () if other_queue is None else self._witnesses(other_queue, offset, scan, columns, row)
            if seen and not self._index_says(topic, buf, scan, row):
                if self._index_says(other, buf, scan, row):
                    seen += ("the index has its key under that topic",)
                return Misplaced(row, other, queue_id, offset, TOPIC, seen)
        if own is not None:
            right = offset_of(own, int(scan.physical_offset[row]))
            if isinstance(own, BatchConsumeQueue) and right != int(columns.inner_base[row]):
                right = None  # an inner batch says its offset twice
            seen = () if right is None else self._witnesses(own, right, scan, columns, row)
            if right is not None and seen:
                return Misplaced(row, topic, queue_id, right, QUEUE_OFFSET, seen)
        return None

    def _like(self, topic: bytes) -> list[bytes]:
        """The topics that differ in one byte from this one."""
        same = self._by_length.get(len(topic))
        if same is None:
            return []
        return [row.tobytes() for row in same[(same != np.frombuffer(topic, np.uint8)).sum(axis=1) == 1]]

    @staticmethod
    def _witnesses(
        queue: Queue, queue_offset: int, scan: Scan, columns: DispatchColumns, row: int
    ) -> tuple[str, ...]:
        """The evidence that the record belongs here; nothing unless its unit leads to the record."""
        unit = queue.get(queue_offset) if queue_offset >= 0 else None
        if unit is None or (unit.physical_offset, unit.size) != (
            int(scan.physical_offset[row]),
            int(scan.size[row]),
        ):
            return ()
        if isinstance(queue, BatchConsumeQueue) and unit.queue_offset != queue_offset:
            return ()
        found = [f"unit {queue_offset} of {queue.topic}/{queue.queue_id} leads here with the record's size"]
        if unit.tags_code == int(columns.tags_code[row]):
            found.append("its tags code is that of the record's tags")
        before = queue.get(queue_offset - 1) if queue_offset else None
        after = queue.get(queue_offset + unit.batch_num)
        if (before is None or before.physical_offset < unit.physical_offset) and (
            after is None or after.physical_offset > unit.physical_offset
        ):
            found.append("it stands between the units before and after it")
        return tuple(found) if len(found) > 1 else ()

    def _index_says(self, topic: bytes, buf: Bytes, scan: Scan, row: int) -> bool | None:
        """True if the index has the record by its key as one of this topic; None when it has no key."""
        start = int(scan.properties_start[row])
        properties = bytes_to_properties(buf[start : start + int(scan.properties_length[row])].data)
        keys = [properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "")]
        keys += properties.get(PROPERTY_KEYS, "").split(KEY_SEPARATOR)
        key = next(filter(None, keys), None)
        if self._index is None or key is None:
            return None
        time = int(scan.store_timestamp[row])
        found = self._index.query_offset(
            topic.decode("utf-8", "replace"), key, NEIGHBOURS, time - SECOND_MS, time + SECOND_MS
        )
        return int(scan.physical_offset[row]) in found

    # ------------------------------------------------------------------ transactions

    def wrongly_hidden(self, scan: Scan, columns: DispatchColumns, rows: Int64s) -> Iterator[Misplaced]:
        """Rows that say they are prepared or rolled back, to which a consume queue leads: none leads to such ones."""
        for row in rows[: ASKED_MAX - self._asked].tolist():
            self._asked += 1
            topic, queue_id = scan.topics[scan.topic_id[row]], int(scan.queue_id[row])
            queue = self._queues.get(topic.decode("utf-8", "replace"), queue_id)
            offset = int(scan.queue_offset[row])
            if queue is not None and (seen := self._witnesses(queue, offset, scan, columns, row)):
                yield Misplaced(row, topic, queue_id, offset, SYS_FLAG, seen)

    # ------------------------------------------------------------------ contents

    def mended_properties(
        self, properties: bytes, queue: Queue, unit: int, said: int
    ) -> tuple[int, bytes] | None:
        """(byte, what it must be) that is wrong in a record's properties, when unit number `unit` of its queue has
        `said` for the hash of its tags; None when it rather is the unit that is wrong."""
        if self._mended >= MENDED_MAX:
            return None
        self._mended += 1
        found = _tags_code_of(properties)
        if found == said:  # it is something else that differs
            return None
        others = _codes_around(queue, unit)
        unit_known, record_known = said in others, found in others
        one_bit_of_unit = ((said ^ found) & (1 << 64) - 1).bit_count() == 1
        if (record_known and not unit_known) or (unit_known == record_known and one_bit_of_unit):
            return None
        return _flipped(properties, lambda changed: _tags_code_of(changed) == said)

    def mended_batch(
        self, properties: bytes, queue: BatchConsumeQueue, number: int
    ) -> tuple[int, bytes] | None:
        """As mended_properties(), of an inner batch whose unit has this number: which offset it has and how many
        messages. The unit is right when the units before and after it join on to it."""
        (own,) = read_units(queue, number, 1)
        said = bytes_to_properties(properties)
        if (said.get(PROPERTY_INNER_BASE), said.get(PROPERTY_INNER_NUM)) == (
            str(own["msg_base_offset"]),
            str(own["batch_size"]),
        ):
            return self.mended_properties(properties, queue, number, int(own["tags_code"]))
        if self._mended >= MENDED_MAX:
            return None
        self._mended += 1
        first = max(queue.files.min_offset // queue.unit_size, number - 1)
        units = read_units(queue, first, number - first + 2)
        ends = units["msg_base_offset"] + units["batch_size"]
        if (units["msg_base_offset"][1:] != ends[:-1]).any() or len(units) < 2:
            return None
        is_last = number - first == len(units) - 1
        if is_last and said.get(PROPERTY_INNER_NUM) != str(own["batch_size"]):
            return None  # no unit after it joins on to it, so nothing says how many messages it has
        unit = units[number - first]
        right = int(unit["tags_code"]), str(unit["msg_base_offset"]), str(unit["batch_size"])

        def is_right(changed: bytes) -> bool:
            found = bytes_to_properties(changed)
            base, num = found.get(PROPERTY_INNER_BASE), found.get(PROPERTY_INNER_NUM)
            return (tags_code(found.get(PROPERTY_TAGS)), base, num) == right

        return _flipped(properties, is_right)


def wrong_times(times: Int64s) -> Iterator[tuple[int, int]]:
    """(number, right) of store times (ms) that one flipped bit has put out of the order of the log: those before and
    after are in order, and one time between them differs from it by a bit."""
    before, here, after = times[:-2], times[1:-1], times[2:]
    alone = (before <= after) & ((here < before) | (here > after))
    for at in np.flatnonzero(alone)[:MENDED_MAX].tolist():
        low, high = int(before[at]), int(after[at])
        found = [time for bit in range(63) if low <= (time := int(here[at]) ^ 1 << bit) <= high]
        if len(found) == 1:
            yield at + 1, found[0]


# ---------------------------------------------------------------------- one flipped bit


def _tags_code_of(properties: bytes) -> int:
    return tags_code(bytes_to_properties(properties).get(PROPERTY_TAGS))


def _codes_around(queue: Queue, unit: int) -> set[int]:
    """Tags codes of the units before and after one."""
    first = max(queue.files.min_offset // queue.unit_size, unit - NEIGHBOURS)
    codes = read_units(queue, first, unit - first + NEIGHBOURS)["tags_code"].tolist()
    return set(codes[: unit - first] + codes[unit - first + 1 :])


def _flipped(data: bytes, is_right: Callable[[bytes], bool]) -> tuple[int, bytes] | None:
    """The one byte of `data` that makes it right when one bit of it is flipped; None when there are several or none."""
    found: tuple[int, bytes] | None = None
    changed = bytearray(data)
    for at, byte in enumerate(data):
        for bit in range(8):
            changed[at] = byte ^ 1 << bit
            if is_right(bytes(changed)):
                if found is not None:
                    return None
                found = at, bytes([changed[at]])
        changed[at] = byte
    return found
