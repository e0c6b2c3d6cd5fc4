"""FastPull, the fast path of pulls: recognised by what they have in common with earlier ones.

    header  {"code":11,"extFields":{… "queueOffset":"4711" …},…,"opaque":12,…}
            └──────── the same each time ───────┘└ ┘└ … ┘         └┘    pieces ─▶ PullPlan, numbers

The pulls of a consumer at a queue differ in three numbers only: queueOffset, commitOffset and opaque. What is around
them is looked up; the first time it is read on the slow path, with numbers that prove which place is which. So any
header that is found here, in either form, means what the codec says it means. What the broker's settings and tables
say about the pull is kept too, until one of them has changed.

Taken here are pulls that find messages, and those that wait for them at the end of their queue; all others, and
whatever fails, fall through to PullMessageProcessor unchanged. Statistics are counted at most STATISTICS_S later.

Compiled code (native.pulls) answers plain ones from the mapped log. It knows their plans (NativePlan) and units of
their queues ahead, and sees when the broker would say something else; then it asks here. A connection whose pulls are
plain is read by compiled code first (native.reader).

Plain is a pull with a JSON header, of one queue, without access control, of all messages or of those with some tags.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from operator import is_, itemgetter
from struct import Struct
from typing import Any

from mqlake import native
from mqlake.broker.broker import Broker
from mqlake.broker.fast.readers import add_taker
from mqlake.broker.fast.signed_pulls import SignedPulls, without_signature
from mqlake.broker.metrics.rpc_latency import Rpc, RpcLatencies
from mqlake.broker.requests.pull_message import (
    COMMIT_OFFSET_FLAG,
    SUBSCRIPTION_FLAG,
    SUSPEND_FLAG,
    PullMessageProcessor,
)
from mqlake.errors import MqlakeError, ResponseError
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.codec import FRAME_SIZE_MAX, decode_binary_header, decode_json_header, encode_json_header
from mqlake.remoting.codes import RequestCode, ResponseCode, SerializeType
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Answer, Connection
from mqlake.remoting.headers.consume import PullMessageRequestHeader
from mqlake.store.archive.reader import CheckedRecords
from mqlake.store.filter import MessageFilter, TagFilter
from mqlake.store.results import GetMessageResult, GetMessageStatus

STATISTICS_S = 0.1
PLANS_MAX = 4096
"""Plans that are known at once; with one more, all are forgotten and learnt again."""
HEADER_SIZE_MAX = 1024
"""A longer header is not kept."""
BODY_SIZE_MAX = FRAME_SIZE_MAX // 2
COMPENSATION_S = 1.0
"""The pulls of a group without heartbeats are noted so often."""
ROWS_MAX = 256
"""Plans that compiled code knows at once; with one more, all are forgotten and learnt again."""
UNITS_AHEAD = 8192
"""Units of its queue that compiled code has of each plan, for who reads on."""
USUAL_NS = 100_000_000
"""How long it answers pulls of a plan before it asks again; what could change the answer it sees at once, but not that
a group without heartbeats lives, and how much of the log is in memory."""

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

_TAKER = "takes its pulls"
"""A PullTaker of a connection."""

Key = tuple[bytes, ...]

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


class PullPlan:
    """The common parts of pulls with the same pieces. `order`: where among their numbers opaque, queueOffset and
    commitOffset are."""

    __slots__ = (
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
        "native",
        "pulls",
        "rpc",
        "signed",
        "size",
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
        self.native: Any = None
        """A NativePlan, if compiled code knows the plan."""
        self.compensated_at = 0.0
        # not counted yet
        self.pulls = self.messages = self.size = self.latency_ms = 0
        self.last_place = (0, 0)


class FastPull:
    """The fast path for pulls: `PullMessageProcessor` without decoding the header."""

    def __init__(
        self,
        broker: Broker,
        processor: PullMessageProcessor,
        latencies: RpcLatencies | None,
        scratch: memoryview,
    ) -> None:
        """`scratch`: where reads go."""
        self.broker = broker
        self._processor = processor
        self._plans: dict[Key, PullPlan | None] = {}
        self._uncounted: list[PullPlan] = []
        self._latencies = latencies
        self._access = broker.access
        self._kernels: Any = None
        """The module native.pulls, once plain pulls are native code's."""
        self._native: Any = None
        """A NativePulls of that module."""
        self._rows: list[PullPlan] = []
        """The plans that it knows."""
        self._scratch = scratch
        broker.broker_stats_manager.count_late.append(self._count)
        if latencies is not None:
            latencies.sources.append(self._counted)

    def __call__(self, connection: Connection, data: memoryview, start: int) -> int:
        """Answers the pull whose frame begins at data[start], and plain ones after it; where the next frame begins,
        `start` when it is not for here."""
        if (taker := connection.attributes.get(_TAKER)) is not None:
            following = self._take(connection, taker, data, start)
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
        if self.broker.hooks.consume:  # hooks see each pull
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
                for known in self._rows[:]:
                    self._forget(known)
                self._plans.clear()
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
        if kind == SerializeType.JSON and (plan.native is not None or self._make_row(plan, pieces)):
            self._add(connection, plan)
        return end

    # --- what the broker says of a plan

    def _is_usual(self, connection: Connection, plan: PullPlan) -> bool:
        """True if nothing but the numbers decides what the answer is."""
        broker, header = self.broker, plan.header
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
        config = self.broker.config
        if config.slave_read_enable or config.reject_pull_consumer_enable:
            return False
        header, processor = plan.header, self._processor
        if header.topic in self.broker.topic_queue_mapping_manager.table:
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
        self._forget(plan)  # made again when the next pull is answered
        return True

    # --- answers

    def _hold(
        self, connection: Connection, plan: PullPlan, opaque: int, queue_offset: int, commit_offset: int
    ) -> bool:
        """True if it is at the end of its queue, where it waits then; PullMessageProcessor answers it when no message
        has come in time, or when it has become unusual."""
        broker, header, processor = self.broker, plan.header, self._processor
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

        self.commit(connection, header, queue_offset, commit_offset)
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
        broker, header = self.broker, plan.header
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
        self.commit(connection, header, following, commit_offset)
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

    def commit(
        self,
        connection: Connection,
        header: PullMessageRequestHeader,
        following: int,
        commit_offset: int | None,
    ) -> None:
        """Notes where a pull ended, and what it commits; None: that is committed already."""
        offsets, host = self.broker.consumer_offset_manager, connection.remote_address
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offsets.commit_pull_offset(host, group, topic, queue_id, following)
        if commit_offset is not None and header.sys_flag & COMMIT_OFFSET_FLAG:
            offsets.commit_offset(host, group, topic, queue_id, commit_offset)

    # --- plain pulls

    def _take(self, connection: Connection, taker: Any, data: memoryview, start: int) -> int:
        """Has compiled code answer the plain pulls at the beginning of data[start:]; where the next frame begins."""
        following: int = taker.answer(connection, data, start)
        pulls = self._native
        if pulls.left is None:
            return following
        plan: PullPlan = pulls.left.plan
        opaque, queue_offset, commit_offset, end = pulls.asked
        if self.broker.hooks.consume or not self._is_usual(connection, plan) or plan.native is None:
            return start
        if self._read_ahead(plan, queue_offset):
            return int(taker.answer(connection, data, start))
        if self._hold(connection, plan, opaque, queue_offset, commit_offset):
            return int(end)
        return start

    def _read_ahead(self, plan: PullPlan, offset: int) -> bool:
        """Gives compiled code units of the plan's queue from `offset` on; False if get_message() has more to look
        at."""
        header, store = plan.header, self.broker.store
        try:
            found = store.units_in_memory(header.topic, header.queue_id, offset, UNITS_AHEAD)
        except (MqlakeError, OSError):
            return False
        if found is None:
            return False
        queue, units, file = found
        array = file.readable_array
        if not len(array):  # it was closed
            return False
        floor = 0 if isinstance(file, CheckedRecords) else store.in_memory_from
        until = time.monotonic_ns() + USUAL_NS
        plan.native.read_ahead(queue, units, offset, file, array.ctypes.data, floor, until)
        return True

    def _add(self, connection: Connection, plan: PullPlan) -> None:
        """Has compiled code look for the plan in what the connection brings."""
        taker: Any = connection.attributes.get(_TAKER)
        if taker is None:
            taker = connection.attributes[_TAKER] = self._native.taker()
            if connection.is_plain:
                add_taker(connection, self._scratch, taker)
        taker.add(plan.native)

    def _make_row(self, plan: PullPlan, pieces: Key) -> bool:
        """True if compiled code knows the plan from now on, of which a pull was answered."""
        if self._access is not None or (self._native is None and not self.load()):
            return False
        kernels = self._kernels
        if plan.header.max_msg_nums > kernels.MESSAGES_MAX:
            return False
        config = self.broker.store_config
        count_max = max(1, min(plan.header.max_msg_nums, config.max_transfer_count_on_message_in_memory))
        codes: list[int] = []
        span = count_max
        if isinstance(plan.message_filter, TagFilter):
            codes, span = sorted(plan.message_filter.codes), config.filter_span(plan.header.max_msg_nums)
        if len(codes) > kernels.TAGS_MAX or span > UNITS_AHEAD:
            return False
        a, name_a, b, name_b, c, name_c, d = pieces
        header = [a + name_a, b + name_b, c + name_c, d]
        if sum(map(len, (*header, *plan.head_pieces, plan.header.topic.encode()))) > kernels.TEXT_MAX:
            return False
        if len(self._rows) == ROWS_MAX:
            for known in self._rows[:]:
                self._forget(known)
        names = (name_a, name_b, name_c)
        order = [names.index(name) for name in (b'"opaque":', b'"queueOffset":"', b'"commitOffset":"')]
        bytes_max = config.max_transfer_bytes_on_message_in_memory
        plan.native = kernels.NativePlan(
            plan, header, order, plan.head_pieces, bytes_max, count_max, span, codes
        )
        self._rows.append(plan)
        return True

    def _forget(self, plan: PullPlan) -> None:
        """Compiled code knows the plan no longer."""
        if plan.native is not None:
            plan.native.forget()
            plan.native = None
            self._rows.remove(plan)

    def load(self) -> bool:
        """Loads native code, once; True if there is any that may be used here. Plain pulls are its own from then on."""
        self._kernels = native.module("pulls") if sys.platform == "linux" else None
        if self._native is None and self._kernels is not None:
            self._native = self._kernels.NativePulls(self)
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
        self.broker.store.store_stats_service.get_found(messages, latency_ms)
        if not plan.pulls:
            if not self._uncounted:
                self.count_soon()
            self._uncounted.append(plan)
        plan.pulls += 1
        plan.messages += messages
        plan.size += size
        plan.latency_ms += latency_ms
        plan.last_place = last_place

    def count_soon(self) -> None:
        """Called with the first pull that has to be counted."""
        asyncio.get_running_loop().call_later(STATISTICS_S, self._count)

    def took(self, plan: PullPlan, elapsed_ns: int) -> None:
        """Notes that compiled code took more than a millisecond for a pull."""
        self.broker.store.store_stats_service.get_found(0, elapsed_ns // 1_000_000, 0)
        if self._latencies is not None:
            self._latencies.record(plan.rpc, elapsed_ns)

    def _counted(self) -> Iterator[tuple[Rpc, int, int]]:
        """Kind, number and ns of the pulls that compiled code has answered, each in less than a millisecond, since the
        last call."""
        for code, count, elapsed_ns in self._native.take_times() if self._native is not None else ():
            yield Rpc(code, ResponseCode.SUCCESS, is_long_polling=False, oneway=False), count, elapsed_ns

    def _count(self) -> None:
        for plan, counts in self._native.take_uncounted() if self._native is not None else ():
            messages, *_, pulls = counts
            self.broker.store.store_stats_service.get_found(messages, 0, pulls)
            self._processor.count(plan.header, *counts)
        plans, self._uncounted = self._uncounted, []
        for plan in plans:
            self._processor.count(
                plan.header, plan.messages, plan.size, plan.latency_ms, plan.last_place, plan.pulls
            )
            plan.pulls = plan.messages = plan.size = plan.latency_ms = 0


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
