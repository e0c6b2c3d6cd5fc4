"""FastPull, the fast path of pulls: recognised by what they have in common with earlier ones.

    header  {"code":11,"extFields":{… "queueOffset":"4711" …},…,"opaque":12,…}
            └──────── the same each time ───────┘└ ┘└ … ┘         └┘    pieces ─▶ PullPlan, numbers

The pulls of a consumer at a queue differ in three numbers only: queueOffset, commitOffset and opaque. What is around
them is looked up; the first time it is read on the slow path, with numbers that prove which place is which. So any
header that is found here, in either form, means what the codec says it means. What the broker's settings and tables
say about the pull is kept too, until one of them has changed.

Taken here are pulls that find messages, and those that wait for them at the end of their queue; all others, and
whatever fails, fall through to PullMessageProcessor unchanged. Statistics are counted at most STATISTICS_S later.

Where many pulls come, compiled code (native.pulls) recognises all plain ones of a read together, finds their records
and sends them from the mapped log:

    match ─▶ what the broker says of each plan, its queue's limits and units ─▶ give ─▶ counted

Plain is a pull with a JSON header, of one queue, without access control, of all messages or of those with some tags.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from dataclasses import replace
from operator import is_, itemgetter
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from mqlake import native
from mqlake.broker.broker import Broker
from mqlake.broker.fast.signed_pulls import SignedPulls, without_signature
from mqlake.broker.metrics.rpc_latency import Rpc, RpcLatencies
from mqlake.broker.requests.pull_message import (
    COMMIT_OFFSET_FLAG,
    SUBSCRIPTION_FLAG,
    SUSPEND_FLAG,
    PullMessageProcessor,
)
from mqlake.errors import MqlakeError, ResponseError
from mqlake.formats.columns import Bytes, Int64s
from mqlake.native import pull_layout as layout
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.codec import FRAME_SIZE_MAX, decode_binary_header, decode_json_header, encode_json_header
from mqlake.remoting.codes import RequestCode, ResponseCode, SerializeType
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Answer, Connection
from mqlake.remoting.headers.consume import PullMessageRequestHeader
from mqlake.store.archive.reader import CheckedRecords
from mqlake.store.files.file_pool import PooledFile
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.filter import MessageFilter, TagFilter
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.results import GetMessageResult, GetMessageStatus

STATISTICS_S = 0.1
PLANS_MAX = 4096
"""Plans that are known at once; with one more, all are forgotten and learnt again."""
HEADER_SIZE_MAX = 1024
"""A longer header is not kept."""
BODY_SIZE_MAX = FRAME_SIZE_MAX // 2
COMPENSATION_S = 1.0
"""The pulls of a group without heartbeats are noted so often."""

_CODES = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_HEAD = Struct(">iI11s")  # length, type and header length, how the header begins
_PREFIX = Struct(">iI")
_LENGTH = Struct(">i")
_SIZED = Struct(">i18s")
_JSON_PULLS = (b'{"code":11,', b'{"code":361')
_ROCKETMQ_PULLS = (b"\x00\x0b", b"\x01\x69")
_OPAQUE_AT = slice(5, 9)  # in a ROCKETMQ header
_FIELDS_AT = 21
_INT32_MAX = 2**31 - 1

_NUMBERS_IN_JSON = re.compile(rb'("opaque":|"queueOffset":"|"commitOffset":")(0|[1-9][0-9]{0,17})')
_NUMBERS_IN_ROCKETMQ = re.compile(
    rb"(\x00\x0bqueueOffset|\x00\x0ccommitOffset)\x00\x00\x00([\x01-\x12])([0-9]+)"
)

Key = tuple[bytes, ...]

_PULLS_AT = range(0, layout.RUNS_AT - layout.PULLS_AT, layout.PULL_SIZE)
"""The place of each pull in the numbers of a step."""

_ANSWER_MARKS = (1_357_924_680_111, 1_357_924_680_222, 1_357_924_680_333, 1_357_924_444)
"""Stand-ins for nextBeginOffset, minOffset, maxOffset and opaque, in the order in which an answer has them."""

# what is put where the numbers were, to see what the codec makes of it
_OPAQUE, _QUEUE_OFFSET, _COMMIT_OFFSET = 1_357_924_681, 135_792_468_013_579_246, 246_801_357_924_680_135
_MARKS = {
    b'"opaque":': _OPAQUE,
    b'"queueOffset":"': _QUEUE_OFFSET,
    b'"commitOffset":"': _COMMIT_OFFSET,
    b"\x00\x0bqueueOffset": _QUEUE_OFFSET,
    b"\x00\x0ccommitOffset": _COMMIT_OFFSET,
}


class UnitsAhead(NamedTuple):
    """Units that compiled code has of a queue: of the messages from `first` to `end`, in `file` (which lies at
    `address` in memory) or later ones."""

    queue: ConsumeQueue
    files: list[PooledFile]
    first: int
    end: int
    file: MappedFile | CheckedRecords
    address: int

    def floor(self, in_memory_from: int) -> int:
        """The physical offset from which on its messages may be sent without a look at the disk."""
        return 0 if isinstance(self.file, CheckedRecords) else in_memory_from


class PullTables(NamedTuple):
    """The two arrays of pull_layout. Their pages take no memory before they are used."""

    numbers: Int64s
    octets: Bytes

    @classmethod
    def make(cls) -> PullTables:
        return cls(np.zeros(layout.NUMBERS_SIZE, np.int64), np.zeros(layout.OCTETS_SIZE, np.uint8))


class PullPlan:
    """The common parts of pulls with the same pieces. `order`: where among their numbers opaque, queueOffset and
    commitOffset are."""

    __slots__ = (
        "ahead",
        "code",
        "compensated_at",
        "count_max",
        "group_config",
        "head",
        "head_pieces",
        "header",
        "held_rpc",
        "in_order",
        "known",
        "last_place",
        "latency_ms",
        "message_filter",
        "messages",
        "pulls",
        "row",
        "rpc",
        "signed",
        "size",
        "span",
        "takes_fast_path",
        "versions",
    )

    def __init__(
        self, command: RemotingCommand, header: PullMessageRequestHeader, order: tuple[int, int, int]
    ) -> None:
        self.code = code = command.code
        self.signed = SignedPulls(command)
        self.header = header
        self.in_order = itemgetter(*order)
        self.rpc = Rpc(code, ResponseCode.SUCCESS, is_long_polling=False, oneway=False)
        self.held_rpc = replace(self.rpc, is_long_polling=True)
        # what the broker said when it was asked last, and of what
        self.known: tuple[object, ...] = ()
        self.versions = (-1, -1)
        self.takes_fast_path = False
        self.group_config = SubscriptionGroupConfig()
        self.message_filter: MessageFilter | None = None
        self.head = b""
        """The answer's header, with %d for nextBeginOffset, minOffset, maxOffset and opaque."""
        self.head_pieces: list[bytes] = []
        """The pieces of `head` around those numbers."""
        self.row = -1
        """The plan's number in compiled code."""
        self.span = 0
        """How many units of the queue a pull looks at, at most."""
        self.ahead: UnitsAhead | None = None
        self.compensated_at = 0.0
        # not counted yet
        self.pulls = self.messages = self.size = self.latency_ms = 0
        self.last_place = (0, 0)


class FastPull:
    """The fast path for pulls: `PullMessageProcessor` without decoding the header."""

    def __init__(
        self, broker: Broker, processor: PullMessageProcessor, latencies: RpcLatencies | None
    ) -> None:
        self._broker = broker
        self._processor = processor
        self._plans: dict[Key, PullPlan | None] = {}
        self._uncounted: list[PullPlan] = []
        self._latencies = latencies
        self._access = broker.access
        self._native: Any = None
        """A NativePulls, once plain pulls are native code's."""
        self._rows: list[PullPlan] = []
        self._hint = 0
        self.tables = PullTables.make()
        self.cells, self._view = self.tables.numbers.data, self.tables.octets.data
        self._pulls = self.cells[layout.PULLS_AT : layout.RUNS_AT]
        broker.broker_stats_manager.count_late.append(self._count)

    def __call__(self, connection: Connection, data: memoryview, start: int) -> int:
        """Answers the pull whose frame begins at data[start], and plain ones after it; where the next frame begins,
        `start` when it is not for here."""
        if self._rows:
            following = self._take(connection, data, start)
            if following > start:
                return following
        return self._take_one(connection, data, start)

    def _take_one(self, connection: Connection, data: memoryview, start: int) -> int:
        if len(data) - start < _HEAD.size:
            return start
        size, word, begin = _HEAD.unpack_from(data, start)
        if begin in _JSON_PULLS:
            kind = SerializeType.JSON
        elif begin[:2] in _ROCKETMQ_PULLS:
            kind = SerializeType.ROCKETMQ
        else:
            return start
        if self._broker.hooks.consume:  # hooks see each pull
            return start
        header_size = word & 0xFFFFFF
        if word >> 24 != kind or header_size + 4 != size or header_size > HEADER_SIZE_MAX:
            return start
        end: int = start + 4 + size
        raw, signature = bytes(data[start + 8 : end]), b""
        if self._access is not None:
            raw, signature = without_signature(raw)
        split = (_split_json if kind == SerializeType.JSON else _split_rocketmq)(raw)
        if split is None:
            return start
        pieces, numbers = split
        try:
            plan = self._plans[pieces]
        except KeyError:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
                self._forget_rows()
            plan = self._plans[pieces] = _read(pieces, kind)
        if plan is None or not self._is_usual(connection, plan):
            return start
        opaque, queue_offset, commit_offset = plan.in_order(numbers)
        if opaque > _INT32_MAX:
            return start
        if self._access is not None and not plan.signed.may(
            self._access, connection.remote_address, signature, commit_offset, queue_offset
        ):
            return start  # the slow path says why
        if not (
            self._hold(connection, plan, opaque, queue_offset, commit_offset)
            or self._answer(connection, plan, opaque, queue_offset, commit_offset)
        ):
            return start
        if plan.row >= 0:
            self._hint = plan.row
        elif kind == SerializeType.JSON:
            self._make_row(plan, pieces)
        return end

    # --- what the broker says of a plan

    def _is_usual(self, connection: Connection, plan: PullPlan) -> bool:
        """True if nothing but the numbers decides what the answer is."""
        broker, header = self._broker, plan.header
        topics = broker.topic_config_manager.data_version
        groups = broker.subscription_group_manager.data_version
        group_info = broker.consumer_manager.consumer_table.get(header.consumer_group)
        if group_info is None:
            model = subscription = None
        else:
            model = group_info.message_model
            subscription = group_info.subscription_table.get(header.topic)
        known = (broker.config, broker.store_config, topics, groups, group_info, model, subscription)
        versions = (topics.counter, groups.counter)
        # the same objects, not equal ones: to compare settings takes longer than to answer a pull
        if plan.versions != versions or not all(map(is_, plan.known, known)):
            plan.known, plan.versions = known, versions
            plan.takes_fast_path = self._prepare(connection, plan)
        if plan.takes_fast_path and group_info is None and header.sys_flag & SUBSCRIPTION_FLAG:
            now = time.monotonic()
            if now - plan.compensated_at > COMPENSATION_S:
                plan.compensated_at = now
                self._processor.filter_of(header, plan.group_config)
        return plan.takes_fast_path

    def _prepare(self, connection: Connection, plan: PullPlan) -> bool:
        """Asks as PullMessageProcessor does."""
        config = self._broker.config
        if config.slave_read_enable or config.reject_pull_consumer_enable:
            return False
        header, processor = plan.header, self._processor
        if header.topic in self._broker.topic_queue_mapping_manager.table:
            return False
        try:
            plan.group_config, topic_sys_flag = processor.check(connection, plan.code, header)
            plan.message_filter = processor.filter_of(header, plan.group_config)
        except ResponseError:
            return False
        if plan.message_filter is not None and not isinstance(plan.message_filter, TagFilter):
            return False
        found = GetMessageResult(GetMessageStatus.FOUND, *_ANSWER_MARKS[:3])
        answer = processor.response(header, found, plan.group_config, topic_sys_flag)
        answer.opaque = _ANSWER_MARKS[3]
        head = encode_json_header(answer)
        plan.head_pieces = []
        for mark in _ANSWER_MARKS:
            piece, found_mark, head = head.partition(b"%d" % mark)
            assert found_mark, (piece, mark)
            plan.head_pieces.append(piece)
        plan.head_pieces.append(head)
        plan.head = b"%d".join(piece.replace(b"%", b"%%") for piece in plan.head_pieces)
        if plan.row >= 0:  # written again when the next pull is answered
            self._forget_rows()
        return True

    # --- answers

    def _hold(
        self, connection: Connection, plan: PullPlan, opaque: int, queue_offset: int, commit_offset: int
    ) -> bool:
        """True if it is at the end of its queue, where it waits then; PullMessageProcessor answers it when no message
        has come in time, or when it has become unusual."""
        broker, header, processor = self._broker, plan.header, self._processor
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offsets = broker.consumer_offset_manager
        if (
            not header.sys_flag & SUSPEND_FLAG
            or queue_offset != broker.store.max_offset_in_queue(topic, queue_id)
            or offsets.has_offset_reset(topic, group, queue_id)
            or not connection.may_have_more_in_flight
        ):
            return False
        began = time.monotonic_ns()

        def execute() -> RemotingCommand | None:
            if (
                not broker.hooks.consume
                and self._is_usual(connection, plan)
                and self._answer(connection, plan, opaque, queue_offset, None, held_since=began)
            ):
                return None
            asked = replace(header, queue_offset=queue_offset, commit_offset=commit_offset)
            answer = processor.execute_when_wakeup(connection, plan.code, asked)
            if self._latencies is not None:
                rpc = replace(plan.held_rpc, response_code=answer.code)
                self._latencies.record(rpc, time.monotonic_ns() - began)
            return answer

        self._commit(connection, header, queue_offset, commit_offset)
        broker.store.store_stats_service.get_missed(0)
        later: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        connection.answer_later(RemotingCommand(plan.code, opaque=opaque), later)
        processor.hold(header, queue_offset, plan.message_filter, later, execute)
        return True

    def _answer(
        self,
        connection: Connection,
        plan: PullPlan,
        opaque: int,
        queue_offset: int,
        commit_offset: int | None,
        held_since: int = 0,
    ) -> bool:
        """True if there is something for it, which is on its way then. `held_since`: monotonic ns, of one that waited;
        its `commit_offset`, which is committed already, is None."""
        began = time.monotonic_ns()
        broker, header = self._broker, plan.header
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offsets = broker.consumer_offset_manager
        if offsets.has_offset_reset(topic, group, queue_id):
            return False
        try:
            result = broker.store.get_message(
                group,
                topic,
                queue_id,
                queue_offset,
                header.max_msg_nums,
                plan.message_filter,
                may_wait=False,
            )
        except (MqlakeError, OSError):  # the plain way meets it as well, and says what it is
            return False
        body_size = result.buffer_total_size
        if result.status is not GetMessageStatus.FOUND or body_size > BODY_SIZE_MAX:
            return False
        following = result.next_begin_offset
        self._commit(connection, header, following, commit_offset)
        head = plan.head % (following, result.min_offset, result.max_offset, opaque)
        size = 4 + len(head) + body_size
        connection.send_buffers((_PREFIX.pack(size, len(head)) + head, *result.buffers), 4 + size)
        elapsed = time.monotonic_ns() - began
        if self._latencies is not None and held_since:
            self._latencies.record(plan.held_rpc, began + elapsed - held_since)
        elif self._latencies is not None:
            self._latencies.record(plan.rpc, elapsed)
        self._note(plan, result.message_count, body_size, result.last_place, elapsed // 1_000_000)
        return True

    def _commit(
        self,
        connection: Connection,
        header: PullMessageRequestHeader,
        following: int,
        commit_offset: int | None,
    ) -> None:
        """Notes where a pull ended, and what it commits; None: that is committed already."""
        offsets, host = self._broker.consumer_offset_manager, connection.remote_address
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offsets.commit_pull_offset(host, group, topic, queue_id, following)
        if commit_offset is not None and header.sys_flag & COMMIT_OFFSET_FLAG:
            offsets.commit_offset(host, group, topic, queue_id, commit_offset)

    # --- plain pulls, many at a time

    def _take(self, connection: Connection, data: memoryview, start: int) -> int:
        """Answers the plain pulls at the beginning of data[start:]; where the next frame begins."""
        if not self.takes_plain_pulls:
            return start
        began = time.monotonic_ns()
        native_pulls = self._native
        count = native_pulls.match(data, start, self._hint, len(self._rows))
        ready: list[PullPlan] = []
        arrays = []  # what keeps their files mapped
        for number in range(count):
            plan = self._rows[self.cells[layout.PULLS_AT + number * layout.PULL_SIZE + layout.PLAN]]
            queue = self._queue_of(connection, plan)
            if queue is None:
                break
            array = self._prepare_pull(plan, queue, number, may_look=plan not in ready)
            if array is None:
                opaque, queue_offset, commit_offset = self._pulls[layout.OPAQUE : layout.COMMIT_OFFSET + 1]
                if not ready and self._hold(connection, plan, opaque, queue_offset, commit_offset):
                    self._hint = (plan.row + 1) % len(self._rows)
                    return int(self._pulls[layout.END])
                break
            arrays.append(array)
            ready.append(plan)
        if not ready or not self._rows:
            return start
        done = native_pulls.give(len(ready), connection.descriptor())
        if not done:
            return start
        if native_pulls.sent < native_pulls.size:
            connection.send_encoded(native_pulls.rest())
        elapsed = time.monotonic_ns() - began
        pulls = [self._pulls[at : at + layout.PULL_SIZE].tolist() for at in _PULLS_AT[:done]]
        for plan, pull in zip(ready, pulls, strict=False):
            self._taken(connection, plan, pull, elapsed)
        self._hint = (ready[done - 1].row + 1) % len(self._rows)
        return int(pulls[-1][layout.END])

    @property
    def takes_plain_pulls(self) -> bool:
        """True if neither access control nor a consume hook has to see each pull, so that compiled code may answer."""
        return self._access is None and not self._broker.hooks.consume

    def _prepare_pull(self, plan: PullPlan, queue: ConsumeQueue, number: int, *, may_look: bool) -> object:
        """Gives compiled code what it needs for the pull; the array of its file, or None if it is not plain now.
        `may_look`: no pull before it in this step needs the units that the plan has."""
        cells = self.cells
        at = layout.PULLS_AT + number * layout.PULL_SIZE
        offset = cells[at + layout.QUEUE_OFFSET]
        low, high = queue.min_offset_in_queue, queue.max_offset_in_queue
        end = min(offset + plan.span, high)
        if not low <= offset < end:
            return None
        found = self._units_ahead(plan, queue, offset, end, may_look=may_look)
        if found is None:
            return None
        ahead, array = found
        file = ahead.file
        cells[at + layout.FILE] = ahead.address
        cells[at + layout.FILE_END] = file.read_position
        cells[at + layout.FILE_BASE] = file.file_from_offset
        cells[at + layout.UNITS_START] = _unit_at(plan, ahead.first, offset)
        cells[at + layout.UNITS] = min(end, ahead.end) - offset
        cells[at + layout.IS_WHOLE] = end <= ahead.end
        cells[at + layout.MIN_OFFSET], cells[at + layout.MAX_OFFSET] = low, high
        return array

    def _queue_of(self, connection: Connection, plan: PullPlan) -> ConsumeQueue | None:
        """The queue of a plan whose pulls are plain now, else None."""
        header = plan.header
        if not self._is_usual(connection, plan) or plan.row < 0:
            return None
        offsets = self._broker.consumer_offset_manager
        if offsets.has_offset_reset(header.topic, header.consumer_group, header.queue_id):
            return None
        queue = self._broker.store.consume_queues.get(header.topic, header.queue_id)
        return queue if isinstance(queue, ConsumeQueue) else None

    def _units_ahead(
        self, plan: PullPlan, queue: ConsumeQueue, offset: int, end: int, *, may_look: bool
    ) -> tuple[UnitsAhead, Bytes] | None:
        """Units of the messages from `offset` to `end` at least, copied if need be and it `may_look`, and the bytes of
        their file; None without."""
        ahead = plan.ahead
        if (
            ahead is None
            or queue is not ahead.queue
            # whatever cuts, deletes or begins the queue again makes another list of files; all else only appends
            or ahead.queue.files.files is not ahead.files
            or not ahead.first <= offset < end <= ahead.end
            or not self._is_at_hand(plan, ahead, offset)
        ):
            ahead = plan.ahead = self._copy_ahead(plan, offset) if may_look else None
        if ahead is None:
            return None
        array = ahead.file.readable_array
        return (ahead, array) if len(array) else None  # else it was closed

    def _copy_ahead(self, plan: PullPlan, offset: int) -> UnitsAhead | None:
        """Copies units of the plan's queue from `offset` on to where compiled code finds them; None if get_message()
        has more to look at."""
        header = plan.header
        try:
            found = self._broker.store.units_in_memory(
                header.topic, header.queue_id, offset, layout.UNITS_AHEAD
            )
        except (MqlakeError, OSError):
            return None
        if found is None:
            return None
        queue, units, file = found
        array = file.readable_array
        if not len(array):  # it was closed
            return None
        units_at = _unit_at(plan, offset, offset)
        self._view[units_at : units_at + len(units)] = units
        end = offset + len(units) // layout.UNIT_SIZE
        return UnitsAhead(queue, queue.files.files, offset, end, file, array.ctypes.data)

    def _is_at_hand(self, plan: PullPlan, ahead: UnitsAhead, offset: int) -> bool:
        """True if the unit leads into the file that compiled code knows, and to what was written lately."""
        unit_at = _unit_at(plan, ahead.first, offset)
        physical_offset = int.from_bytes(self._view[unit_at : unit_at + 8], "big")
        return (
            0 <= physical_offset - ahead.file.file_from_offset < ahead.file.file_size
            and physical_offset >= ahead.floor(self._broker.store.in_memory_from)
        )

    def _taken(self, connection: Connection, plan: PullPlan, pull: list[int], elapsed: int) -> None:
        """Updates the broker's tables and statistics after an answered pull."""
        self._commit(connection, plan.header, pull[layout.NEXT], pull[layout.COMMIT_OFFSET])
        if self._latencies is not None:
            self._latencies.record(plan.rpc, elapsed)
        place = (pull[layout.LAST_OFFSET], pull[layout.LAST_SIZE])
        self._note(plan, pull[layout.FOUND], pull[layout.SIZE], place, elapsed // 1_000_000)

    def _make_row(self, plan: PullPlan, pieces: Key) -> None:
        """Has compiled code know a plan, of which a pull was answered."""
        if self._native is None and not self.load():
            return
        if self._access is not None or plan.header.max_msg_nums > layout.MESSAGES_MAX:
            return
        config = self._broker.store_config
        count_max = max(1, min(plan.header.max_msg_nums, config.max_transfer_count_on_message_in_memory))
        codes: list[int] = []
        span = count_max
        if isinstance(plan.message_filter, TagFilter):
            codes, span = sorted(plan.message_filter.codes), config.filter_span(plan.header.max_msg_nums)
        if len(codes) > layout.TAGS_MAX or span > layout.UNITS_AHEAD:
            return
        if len(self._rows) == layout.PLANS_MAX:
            self._forget_rows()
        a, name_a, b, name_b, c, name_c, d = pieces
        header = [a + name_a, b + name_b, c + name_c, d]
        topic = plan.header.topic.encode()
        text = b"".join((*header, *plan.head_pieces, topic))
        if len(text) > layout.TEXT_SIZE:
            return
        row = len(self._rows)
        at = row * layout.TEXT_SIZE
        self._view[at : at + len(text)] = text
        names = (name_a, name_b, name_c)
        order = (b'"opaque":', b'"queueOffset":"', b'"commitOffset":"')
        self.tables.numbers[row * layout.PLAN_SIZE : (row + 1) * layout.PLAN_SIZE] = [
            at,
            *map(len, header),
            *map(names.index, order),
            *map(len, plan.head_pieces),
            len(topic),
            plan.header.queue_id,
            config.max_transfer_bytes_on_message_in_memory,
            count_max,
            span,
            len(codes),
        ]
        tags_at = layout.TAGS_AT + row * layout.TAGS_MAX
        self.tables.numbers[tags_at : tags_at + len(codes)] = codes
        plan.row, plan.ahead, plan.span = row, None, span
        self._rows.append(plan)

    def _forget_rows(self) -> None:
        for plan in self._rows:
            plan.row = -1
        self._rows, self._hint = [], 0

    def load(self) -> bool:
        """Loads native code, once; True if there is any that may be used here. Plain pulls are its own from then on."""
        pulls = native.module("pulls") if sys.platform == "linux" else None
        if self._native is None and pulls is not None:
            self._native = pulls.NativePulls(*self.tables)
        return self._native is not None

    # --- statistics

    def _note(
        self,
        plan: PullPlan,
        messages: int,
        size: int,
        last_place: tuple[int, int],
        latency_ms: int,
    ) -> None:
        self._broker.store.store_stats_service.get_found(messages, latency_ms)
        if not plan.pulls:
            if not self._uncounted:
                asyncio.get_running_loop().call_later(STATISTICS_S, self._count)
            self._uncounted.append(plan)
        plan.pulls += 1
        plan.messages += messages
        plan.size += size
        plan.latency_ms += latency_ms
        plan.last_place = last_place

    def _count(self) -> None:
        plans, self._uncounted = self._uncounted, []
        for plan in plans:
            self._processor.count(
                plan.header, plan.messages, plan.size, plan.latency_ms, plan.last_place, plan.pulls
            )
            plan.pulls = plan.messages = plan.size = plan.latency_ms = 0


def _unit_at(plan: PullPlan, first: int, offset: int) -> int:
    """Returns the address of a message's unit, of those from `first` on."""
    return layout.UNITS_AT + (plan.row * layout.UNITS_AHEAD + offset - first) * layout.UNIT_SIZE


# --- headers -----------------------------------------------------------------------------------------------


def _split_json(header: bytes) -> tuple[Key, list[int]] | None:
    """The pieces around the numbers, and these; None when there are not three of them."""
    parts = _NUMBERS_IN_JSON.split(header)
    if len(parts) != 10:
        return None
    a, name_a, number_a, b, name_b, number_b, c, name_c, number_c, d = parts
    return (a, name_a, b, name_b, c, name_c, d), [int(number_a), int(number_b), int(number_c)]


def _split_rocketmq(header: bytes) -> tuple[Key, list[int]] | None:
    """As `_split_json`; the first number is opaque, which has its fixed place and no name."""
    parts = _NUMBERS_IN_ROCKETMQ.split(header[_FIELDS_AT:])
    if (
        len(parts) != 9
        or int.from_bytes(header[_FIELDS_AT - 4 : _FIELDS_AT], "big") != len(header) - _FIELDS_AT
    ):
        return None
    a, name_a, size_a, number_a, b, name_b, size_b, number_b, c = parts
    if size_a[0] != len(number_a) or size_b[0] != len(number_b):
        return None
    opaque = int.from_bytes(header[_OPAQUE_AT], "big")
    return (
        (header[: _OPAQUE_AT.start], header[_OPAQUE_AT.stop : _FIELDS_AT - 4], a, name_a, b, name_b, c),
        [opaque, int(number_a), int(number_b)],
    )


def _read(pieces: Key, kind: int) -> PullPlan | None:
    """The plan for pulls with these pieces; None when the codec does not see in them what is expected."""
    if kind == SerializeType.JSON:
        a, name_a, b, name_b, c, name_c, d = pieces
        marks = [_MARKS[name] for name in (name_a, name_b, name_c)]
        text_a, text_b, text_c = (b"%d" % mark for mark in marks)
        header = b"".join((a, name_a, text_a, b, name_b, text_b, c, name_c, text_c, d))
    else:
        before, after, a, name_a, b, name_b, c = pieces
        marks = [_OPAQUE, _MARKS[name_a], _MARKS[name_b]]
        text_a, text_b = (_SIZED.pack(18, b"%d" % mark) for mark in marks[1:])
        fields = b"".join((a, name_a, text_a, b, name_b, text_b, c))
        header = b"".join((before, _LENGTH.pack(_OPAQUE), after, _LENGTH.pack(len(fields)), fields))
    try:
        command = decode_json_header(header) if kind == SerializeType.JSON else decode_binary_header(header)
        read = command.decode_header(PullMessageRequestHeader)
    except MqlakeError:
        return None
    found = [command.opaque, read.queue_offset, read.commit_offset]
    if command.code not in _CODES or command.flag or found != [_OPAQUE, _QUEUE_OFFSET, _COMMIT_OFFSET]:
        return None
    opaque, queue_offset, commit_offset = (marks.index(mark) for mark in found)
    return PullPlan(command, read, (opaque, queue_offset, commit_offset))
