"""Records ↔ consume queue units, in one pass over the log.

    chunk of records ─ by (topic, queue) ─▶ queue offsets go on where they ended? ─▶ read those units, compare

    queue   ├ expired ┼ first record ═══════ compared ═══════╪ gap ╪═══════ compared ═══╪ next ┼ left over ┤
                                                    what is not compared is looked at in finish()

Every unit is either compared with its record, or expired, or it stands in a gap, or it points into a hole of the
log (then it tells which message was lost there), or it is wrong. Nothing is done record by record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Sequence

import numpy as np

from mqlake.base.findings import Finding, Findings, Severity
from mqlake.base.rendering import count_text
from mqlake.formats.columns import Bools, DispatchColumns, Int64s, Scan
from mqlake.formats.consume_queue import PRE_BLANK_SIZE
from mqlake.formats.record import SYS_FLAG_POSITION
from mqlake.message import LMQ_PREFIX, SCHEDULE_TOPIC, UNSEEN_FLAG, MessageSysFlag
from mqlake.store.check.cross_check import (
    PROPERTIES,
    QUEUE_ID,
    QUEUE_OFFSET,
    STORE_TIMESTAMP,
    SYS_FLAG,
    Misplaced,
    Witnesses,
    WrongField,
    wrong_times,
)
from mqlake.store.index.index_service import IndexService
from mqlake.store.log.filler import are_fillers
from mqlake.store.log.log_reader import Hole, RecordChunk
from mqlake.store.queues.batch_consume_queue import BatchConsumeQueue
from mqlake.store.queues.by_queue import rows_by_queue
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore, Queue
from mqlake.store.queues.leads_to import points_to, read_units
from mqlake.store.queues.lost_ends import QueueEnd
from mqlake.store.queues.unit_queue import Units

UNITS_A_READ = 65536
LOST_KEPT = 1000

WRONG_FIELD = "record"
"""The kind of a finding about a field of a record that repair can put right."""
QUEUE_ID_POSITION = 12
QUEUE_OFFSET_POSITION = 20


@dataclasses.dataclass(frozen=True, slots=True)
class LostMessage:
    """A message that a consume queue still points to, where the log has a hole."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int


class _State:
    """The state of one queue's check. Offsets are of messages; `cursor` counts units (batch queues)."""

    __slots__ = (
        "cursor",
        "first",
        "first_unit",
        "gaps",
        "missing",
        "missing_from",
        "next",
        "problems",
        "queue",
    )

    def __init__(self, queue: Queue | None, first: int) -> None:
        self.queue = queue
        self.restart(first)

    def restart(self, first: int) -> None:
        self.first = self.next = first
        self.gaps: list[tuple[int, int]] = []
        self.problems: list[tuple[Finding, int]] = []
        self.missing = 0
        self.missing_from = 0
        self.first_unit = self.cursor = -1

    def compared(self) -> list[tuple[int, int]]:
        """The ranges of units that records were compared with."""
        if isinstance(self.queue, BatchConsumeQueue):
            return [(self.first_unit, self.cursor)] if self.cursor >= 0 else []
        ends = [first for first, _ in self.gaps] + [self.next]
        firsts = [self.first] + [last for _, last in self.gaps]
        return list(zip(firsts, ends, strict=True))


class QueueVerifier:
    """`settled`: the store was closed cleanly and has no writer; otherwise queues and log may differ at the end.

    `in_middle`: the records come from a stretch of the log (see mqlake.spark.jobs.verify), not from its beginning.
    """

    def __init__(
        self,
        queues: ConsumeQueueStore,
        findings: Findings,
        *,
        log_min: int,
        settled: bool,
        root: str,
        restorable: Container[tuple[str, int]],
        index: IndexService | None = None,
        in_middle: bool = False,
    ) -> None:
        self.units_checked = 0
        self.lost: list[LostMessage] = []
        self.lost_count = 0
        self.lost_ends: list[QueueEnd] = []
        self.wrong_fields: list[WrongField] = []
        self.queues = queues
        self._findings = findings
        self._log_min = log_min
        self._settled = settled
        self._root = root
        self._restorable = restorable
        self._in_middle = in_middle
        self._states: dict[tuple[bytes, int], _State] = {}
        self._fillers = False
        self._witnesses = Witnesses(queues, index)
        self._hole_starts = self._hole_ends = np.empty(0, np.int64)
        self._log_end = 0

    # ------------------------------------------------------------------ records

    def check(self, chunk: RecordChunk, columns: DispatchColumns, holes: Sequence[Hole]) -> None:
        """The records of a chunk against their units; `holes` are those before it."""
        scan = chunk.scan
        if not self._fillers:
            self._fillers = bool(are_fillers(scan).any())
        for row, right in wrong_times(scan.store_timestamp):
            at = int(scan.store_host_start[row] - scan.position[row]) - 8
            said = _i64(int(scan.store_timestamp[row]))
            seen = ("it is between the times of the records before and after",)
            self._wrong_field(chunk, row, STORE_TIMESTAMP, at, said, _i64(right), seen)
        undecided = (scan.sys_flag & UNSEEN_FLAG) != 0
        if undecided.any():
            wrongly = list(self._witnesses.wrongly_hidden(scan, columns, np.flatnonzero(undecided)))
            for found in wrongly:
                self._wrong_place(chunk, found)
                undecided[found.row] = False
        visible = np.flatnonzero(~undecided)
        if not len(visible):
            return
        damaged = self._fillers or bool(holes)
        topics = list(scan.topics)
        topic_id, queue_id, offsets = scan.topic_id, scan.queue_id, scan.queue_offset
        troubled: list[Int64s] = []
        for rows in rows_by_queue(topic_id, queue_id, visible):
            if not self._check_fast(chunk, columns, rows):
                troubled.append(rows)
        if not troubled:
            return
        # what belongs to another queue than it says is compared there
        moved = [found for rows in troubled for found in self._misplaced(chunk, columns, rows)]
        if moved:
            topic_id, queue_id, offsets = topic_id.copy(), queue_id.copy(), offsets.copy()
        for found in moved:
            if found.topic not in topics:
                topics.append(found.topic)
            topic_id[found.row] = topics.index(found.topic)
            queue_id[found.row], offsets[found.row] = found.queue_id, found.queue_offset
        for rows in rows_by_queue(topic_id, queue_id, np.sort(np.concatenate(troubled))):
            place = topics[topic_id[rows[0]]], int(queue_id[rows[0]])
            self._check_queue(chunk, columns, place, rows, offsets[rows], damaged)

    def _misplaced(self, chunk: RecordChunk, columns: DispatchColumns, rows: Int64s) -> list[Misplaced]:
        found = list(self._witnesses.misplaced(chunk.array, chunk.scan, columns, rows))
        for each in found:
            self._wrong_place(chunk, each)
        return found

    def _state_of(self, topic: bytes, queue_id: int, first: int) -> _State:
        state = self._states.get((topic, queue_id))
        if state is None:
            state = self._states[topic, queue_id] = _State(
                self.queues.get(topic.decode("utf-8", "replace"), queue_id), first
            )
        return state

    def _check_fast(self, chunk: RecordChunk, columns: DispatchColumns, rows: Int64s) -> bool:
        """The fast path: returns True if the rows of one queue continue it and all match their units. Nothing is
        noted if not."""
        scan = chunk.scan
        topic, queue_id = scan.topics[scan.topic_id[rows[0]]], int(scan.queue_id[rows[0]])
        offsets = scan.queue_offset[rows]
        known = (topic, queue_id) in self._states
        state = self._state_of(topic, queue_id, int(offsets[0]))
        queue = state.queue
        sound = (
            isinstance(queue, ConsumeQueue)
            and offsets[0] == state.next
            and offsets[0] >= 0
            and bool((np.diff(offsets) == 1).all())
            and (known or self._in_middle or offsets[0] == queue.min_offset_in_queue)
        )
        if sound:
            assert isinstance(queue, ConsumeQueue)
            units = read_units(queue, int(offsets[0]), len(rows))
            if len(units) == len(rows) and not _differ(queue, units, scan, columns, rows).any():
                self.units_checked += len(units)
                state.next = int(offsets[-1]) + 1
                return True
        if not known:
            del self._states[topic, queue_id]
        return False

    def _check_queue(
        self,
        chunk: RecordChunk,
        columns: DispatchColumns,
        place: tuple[bytes, int],
        rows: Int64s,
        offsets: Int64s,
        damaged: bool,
    ) -> None:
        scan = chunk.scan
        state = self._state_of(*place, int(offsets[0]))
        counts: Int64s = np.ones(len(rows), np.int64)
        if isinstance(state.queue, BatchConsumeQueue) or (
            state.queue is None and (scan.sys_flag[rows] & MessageSysFlag.INNER_BATCH_FLAG).any()
        ):
            counts = columns.inner_num[rows].astype(np.int64)
        expected = np.concatenate(([state.next], offsets[:-1] + counts[:-1]))
        jumps = np.flatnonzero(offsets != expected)
        if len(jumps):
            rows, offsets, counts = self._sort_out(state, chunk, rows, offsets, counts, jumps)
            expected = np.concatenate(([state.next], offsets[:-1] + counts[:-1]))
            jumps = np.flatnonzero(offsets != expected)
        begin = 0
        for jump in jumps.tolist():
            self._compare(state, chunk, columns, rows[begin:jump], offsets[begin:jump])
            begin = jump
            self._jump(state, chunk, int(rows[jump]), int(offsets[jump]), int(expected[jump]), damaged)
        self._compare(state, chunk, columns, rows[begin:], offsets[begin:])
        if len(offsets):
            state.next = int(offsets[-1] + counts[-1])

    def _sort_out(
        self,
        state: _State,
        chunk: RecordChunk,
        rows: Int64s,
        offsets: Int64s,
        counts: Int64s,
        jumps: Int64s,
    ) -> tuple[Int64s, Int64s, Int64s]:
        """Finds the queue offsets that are wrong by themselves, as the queue and the records after them show.

        Returns rows, offsets and counts with those put right, and without records that have no place at all.
        """
        offsets = offsets.copy()
        kept = np.ones(len(rows), np.bool_)
        right = state.next
        for at in jumps.tolist():
            if at:
                right = int(offsets[at - 1] + counts[at - 1]) if kept[at - 1] else right
            row, found = int(rows[at]), int(offsets[at])
            physical = int(chunk.scan.physical_offset[row])
            if found == right or points_to(state.queue, found, physical):
                continue
            following = int(offsets[at + 1]) if at + 1 < len(offsets) else None
            in_place = following == right + counts[at] or points_to(state.queue, right, physical)
            if in_place or following == right:
                self._wrong_offset(state, chunk, row, found, right if in_place else None)
                kept[at] = in_place
                offsets[at] = right
        return rows[kept], offsets[kept], counts[kept]

    def _wrong_offset(
        self, state: _State, chunk: RecordChunk, row: int, found: int, right: int | None
    ) -> None:
        scan = chunk.scan
        if right is not None:
            field = QUEUE_OFFSET, QUEUE_OFFSET_POSITION, _i64(found), _i64(right)
            self._wrong_field(chunk, row, *field, ("the messages before and after it leave this place",))
            return
        path, position = chunk.path, int(scan.position[row])
        text = f"{_name(scan, row)} has {found} where there is no place for a record"
        state.problems.append((Finding(Severity.DAMAGE, "queue offset", path, position, text), 1))

    def _wrong_place(self, chunk: RecordChunk, found: Misplaced) -> None:
        scan, row = chunk.scan, found.row
        if found.field == QUEUE_ID:
            says = int(scan.queue_id[row]).to_bytes(4, "big", signed=True)
            wrong = QUEUE_ID_POSITION, says, found.queue_id.to_bytes(4, "big", signed=True)
        elif found.field == QUEUE_OFFSET:
            wrong = QUEUE_OFFSET_POSITION, _i64(int(scan.queue_offset[row])), _i64(found.queue_offset)
        elif found.field == SYS_FLAG:
            flag = int(scan.sys_flag[row])
            right = flag & ~UNSEEN_FLAG
            wrong = (
                SYS_FLAG_POSITION,
                flag.to_bytes(4, "big", signed=True),
                right.to_bytes(4, "big", signed=True),
            )
        else:
            at = int(scan.topic_start[row] - scan.position[row])
            wrong = at, scan.topics[scan.topic_id[row]], found.topic
        self._wrong_field(chunk, row, found.field, *wrong, found.witnesses)

    def _wrong_field(
        self,
        chunk: RecordChunk,
        row: int,
        field: str,
        offset: int,
        found: bytes,
        right: bytes,
        witnesses: tuple[str, ...],
    ) -> None:
        path, position = chunk.path, int(chunk.scan.position[row])
        wrong = WrongField(path, position, field, offset, found, right, witnesses)
        self.wrong_fields.append(wrong)
        text = f"{_name(chunk.scan, row)}: {wrong.text}"
        self._findings.add(Finding(Severity.DAMAGE, WRONG_FIELD, path, position, text))

    def _jump(
        self, state: _State, chunk: RecordChunk, row: int, offset: int, expected: int, damaged: bool
    ) -> None:
        scan = chunk.scan
        if offset == 0:  # the topic was deleted and made again: its old queues are gone
            state.restart(0)
            return
        name = _name(scan, row)
        if offset > expected:
            state.gaps.append((expected, offset))
            text = f"{name} goes on at {offset}, {expected} was expected"
            place = scan.topics[scan.topic_id[row]].decode("utf-8", "replace"), int(scan.queue_id[row])
            accepted = self.queues.lost_ends.get(place) == offset
            severity = Severity.NOTE if damaged or accepted else Severity.DAMAGE
        else:
            text = f"{name} has {offset} again, {expected} was expected"
            severity = Severity.DAMAGE
        path, position = chunk.path, int(scan.position[row])
        state.problems.append((Finding(severity, "queue offset", path, position, text), 1))

    # ------------------------------------------------------------------ units of records

    def _compare(
        self, state: _State, chunk: RecordChunk, columns: DispatchColumns, rows: Int64s, offsets: Int64s
    ) -> None:
        """Records of consecutive queue offsets with their units."""
        queue, scan = state.queue, chunk.scan
        if not len(rows) or offsets[0] < 0:
            return
        if queue is None:
            state.missing += len(rows)
            return
        is_batch = isinstance(queue, BatchConsumeQueue)
        first = self._cursor(state, chunk, int(rows[0])) if is_batch else int(offsets[0])
        units = read_units(queue, first, len(rows))
        self.units_checked += len(units)
        if len(units) < len(rows):
            if not state.missing:
                state.missing_from = first + len(units)
            state.missing += len(rows) - len(units)
            rows = rows[: len(units)]
        if is_batch:
            state.cursor = first + len(units)
        wrong = _differ(queue, units, scan, columns, rows)
        for at in np.flatnonzero(wrong).tolist():
            unit, row = units[at], int(rows[at])
            if (unit["offset"], unit["size"]) == (scan.physical_offset[row], scan.size[row]):
                code = int(tags_codes(queue, units[at : at + 1])[0])
                wrong[at] = not self._mend_properties(queue, chunk, row, first + at, code)
        for start, end in _runs(wrong):
            unit, row = units[start], int(rows[start])
            code = tags_codes(queue, units[start : start + 1])[0]
            said = f"offset {unit['offset']}, size {unit['size']}, tags code {code}"
            found = f"offset {scan.physical_offset[row]}, size {scan.size[row]}, tags code {columns.tags_code[row]}"
            if is_batch:
                said += f", {unit['batch_size']} messages from {unit['msg_base_offset']} on at {unit['store_time']}"
                found += f", {columns.inner_num[row]} from {columns.inner_base[row]} on at {scan.store_timestamp[row]}"
            text = (
                f"unit {first + start} of {queue.topic}/{queue.queue_id} says {said}; the record has {found}"
            )
            if end - start > 1:
                text += f" (and {end - start - 1} more)"
            self._problem(state, "queue unit", first + start, text, end - start)

    def _cursor(self, state: _State, chunk: RecordChunk, row: int) -> int:
        """The number of the unit that belongs to this row, the next one of a batch queue."""
        queue = state.queue
        assert queue is not None
        if state.cursor < 0:
            state.cursor = state.first_unit = (
                queue.first_from(int(chunk.scan.physical_offset[row]))
                if self._in_middle
                else queue.min_logic_offset // queue.unit_size
            )
        return state.cursor

    def _mend_properties(self, queue: Queue, chunk: RecordChunk, row: int, unit: int, code: int) -> bool:
        """Returns True if it is the record's properties that are wrong, and not its unit, whose tags code is `code`."""
        if queue.topic == SCHEDULE_TOPIC:
            return False
        scan = chunk.scan
        start, length = int(scan.properties_start[row]), int(scan.properties_length[row])
        properties = chunk.array[start : start + length].tobytes()
        if isinstance(queue, BatchConsumeQueue):
            mended = self._witnesses.mended_batch(properties, queue, unit)
        else:
            mended = self._witnesses.mended_properties(properties, queue, unit, code)
        if mended is None:
            return False
        at, right = mended
        seen = f"unit {unit} of {queue.topic}/{queue.queue_id} says what this makes of it"
        field = PROPERTIES, start - int(scan.position[row]) + at, properties[at : at + 1], right
        self._wrong_field(chunk, row, *field, (seen,))
        return True

    def _problem(self, state: _State, kind: str, unit: int, text: str, count: int) -> None:
        assert state.queue is not None
        path, position = _place(state.queue, unit)
        state.problems.append((Finding(Severity.DAMAGE, kind, path, position, text), count))

    # ------------------------------------------------------------------ stretches of a log

    def doubts(self) -> Iterator[str]:
        """Problems of queues so far, which finish() would report."""
        for (topic, queue_id), state in self._states.items():
            yield from (finding.text for finding, _ in state.problems)
            if state.missing:
                name = topic.decode("utf-8", "replace")
                yield f"{count_text(state.missing, 'record')} of {name}/{queue_id} without a unit"

    def compared(self) -> Iterator[tuple[bytes, int, int, int]]:
        """Topic, queue id, first unit, one past the last unit: what the records so far were compared with."""
        for (topic, queue_id), state in self._states.items():
            for first, end in state.compared():
                yield topic, queue_id, first, end

    def resume(self, topic: str, queue_id: int, first: int, end: int) -> None:
        """Takes these units as compared, by another verifier."""
        state = self._state_of(topic.encode(), queue_id, first)
        state.next = end
        state.first_unit, state.cursor = first, end

    # ------------------------------------------------------------------ the rest

    def finish(self, holes: Sequence[Hole], log_end: int) -> None:
        """The remaining findings: records without units, units without records."""
        self._hole_starts = np.array([hole.start for hole in holes], np.int64)
        self._hole_ends = np.array([hole.end for hole in holes], np.int64)
        self._log_end = log_end
        for (topic, queue_id), state in self._states.items():
            self._finish_state(topic.decode("utf-8", "replace"), queue_id, state)
        seen = {id(state.queue) for state in self._states.values()}
        for queue in self.queues:
            if id(queue) not in seen and not queue.topic.startswith(LMQ_PREFIX):
                start, end = unit_limits(queue)
                self._left_over(queue, start, end)

    def _finish_state(self, topic: str, queue_id: int, state: _State) -> None:
        for finding, count in state.problems:
            self._findings.add(finding, count)
        queue = state.queue
        if state.missing:
            deleted = queue is None and (topic, queue_id) not in self._restorable
            if queue is None:
                path, position = f"{self._root}/consumequeue/{topic}/{queue_id}", 0
                text = f"the queue is not there; the log has {count_text(state.missing, 'record')} of it"
                if deleted:
                    text += ": its topic was deleted, and does not come back"
            else:
                path, position = _place(queue, state.missing_from)
                text = (
                    f"{count_text(state.missing, 'record')} of {topic}/{queue_id} without a unit, from unit "
                    f"{state.missing_from} on"
                )
            severity = Severity.DAMAGE if self._settled and not deleted else Severity.NOTE
            self._findings.add(Finding(severity, "missing units", path, position, text))
        if queue is None:
            return
        start, end = unit_limits(queue)
        for number, (first, last) in enumerate(state.compared()):
            self._left_over(queue, start, min(first, end), in_gap=number > 0)
            start = max(start, last)
        self._left_over(queue, start, end)

    def _left_over(self, queue: Queue, start: int, end: int, *, in_gap: bool = False) -> None:
        """Units [start, end) that no record was compared with. In a gap between records they may be blank or
        point to the message after it (see rebuild)."""
        following = read_units(queue, end, 1) if in_gap else np.empty(0, queue.dtype)
        for first, units in _blocks(queue, start, end):
            offsets = units["offset"].astype(np.int64)
            fine = (units["size"] == PRE_BLANK_SIZE) | (offsets < self._log_min)
            if len(following):
                fine |= (offsets == following["offset"][0]) & (units["size"] == following["size"][0])
            lost = ~fine & self._in_hole(offsets)
            ahead = ~fine & ~lost & (offsets >= self._log_end)
            wrong = ~fine & ~lost & ~ahead
            self._lose(queue, first, units, np.flatnonzero(lost))
            name = f"{queue.topic}/{queue.queue_id}"
            for where, severity, text in (
                (wrong, Severity.DAMAGE, "where the log has no record of that queue offset"),
                (
                    ahead,
                    Severity.DAMAGE if self._settled else Severity.NOTE,
                    f"behind the end of the log ({self._log_end})",
                ),
            ):
                for a, b in _runs(where):
                    path, position = _place(queue, first + a)
                    units_text = (
                        f"unit {first + a}" if b - a == 1 else f"units {first + a} to {first + b - 1}"
                    )
                    detail = f"{units_text} of {name} point to offset {offsets[a]} on, {text}"
                    self._findings.add(Finding(severity, "dangling units", path, position, detail), b - a)

    def _in_hole(self, offsets: Int64s) -> Bools:
        if not len(self._hole_starts):
            return np.zeros(len(offsets), np.bool_)
        hole = np.searchsorted(self._hole_starts, offsets, side="right") - 1
        inside: Bools = (hole >= 0) & (offsets < self._hole_ends[np.maximum(hole, 0)])
        return inside

    def _lose(self, queue: Queue, first: int, units: Units, where: Int64s) -> None:
        is_batch = isinstance(queue, BatchConsumeQueue)
        self.lost_count += int(units["batch_size"][where].sum()) if is_batch else len(where)
        end = queue.max_offset_in_queue
        is_last = len(where) > 0 and first + int(where[-1]) + 1 == end
        if is_last and not is_batch and int(units["offset"][where[-1]]) < self._log_end:
            self.lost_ends.append(QueueEnd(queue.topic, queue.queue_id, end))
        for number in where[: max(0, LOST_KEPT - len(self.lost))].tolist():
            unit = units[number]
            queue_offset = int(unit["msg_base_offset"]) if is_batch else first + number
            self.lost.append(
                LostMessage(queue.topic, queue.queue_id, queue_offset, int(unit["offset"]), int(unit["size"]))
            )


def _differ(queue: Queue, units: Units, scan: Scan, columns: DispatchColumns, rows: Int64s) -> Bools:
    """Which units are not those of the records."""
    result: Bools = (
        (units["offset"] != scan.physical_offset[rows])
        | (units["size"] != scan.size[rows])
        | (tags_codes(queue, units) != columns.tags_code[rows])
    )
    if isinstance(queue, BatchConsumeQueue):
        result |= (
            (units["store_time"] != scan.store_timestamp[rows])
            | (units["msg_base_offset"] != columns.inner_base[rows])
            | (units["batch_size"] != columns.inner_num[rows])
        )
    return result


def _i64(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _name(scan: Scan, row: int) -> str:
    return f"{scan.topics[scan.topic_id[row]].decode('utf-8', 'replace')}/{scan.queue_id[row]}"


# ---------------------------------------------------------------------- reading units


def unit_limits(queue: Queue) -> tuple[int, int]:
    """Numbers of the first unit on disk and of the one past the last."""
    return queue.files.min_offset // queue.unit_size, queue.files.max_offset // queue.unit_size


def _blocks(queue: Queue, start: int, end: int) -> Iterator[tuple[int, Units]]:
    """(number of the first, units) of [start, end); a file that is missing in the middle is passed over."""
    while start < end:
        units = read_units(queue, start, min(UNITS_A_READ, end - start))
        if len(units):
            yield start, units
            start += len(units)
        else:
            start = max(start + 1, queue.files.next_file_start(start * queue.unit_size) // queue.unit_size)


def _place(queue: Queue, unit: int) -> tuple[str, int]:
    """File and byte of a unit; the queue's directory when there is no such file."""
    file = queue.files.file_at(unit * queue.unit_size)
    if file is None:
        return queue.files.directory, 0
    return file.path, unit * queue.unit_size - file.file_from_offset


def tags_codes(queue: Queue, units: Units) -> Int64s:
    """The units' tags codes, those that lie in the extension read from there."""
    codes: Int64s = units["tags_code"].astype(np.int64)
    return queue.ext.tags_codes(codes) if isinstance(queue, ConsumeQueue) and queue.ext is not None else codes


def _runs(where: Bools) -> list[tuple[int, int]]:
    """The runs [start, end) of True."""
    if not where.any():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate(([False], where, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
