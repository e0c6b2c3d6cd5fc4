"""FastSend: the usual sends of one read of a socket, taken together by compiled code.

    read ─▶ [send send send … send] pull send …
             └── parse_sends ──▶ columns ──▶ store_sends ──▶ log, one write of answers
                 stops at the first frame that is not usual: SendMessageProcessor takes it, then it goes on here

A usual send is a SEND_MESSAGE_V2 of a single message, in a header that remoting.kernels can read, with a UNIQ_KEY
and without anything that makes the broker do more than store and answer: no delay, no transaction, no timer, no
retry or other topic with rules of its own, not larger than allowed; to a topic that SendMessageProcessor has
stored messages of. The log's bytes and the answers are those that it would have made.

The code is compiled, or loaded from numba's cache, in a thread when a process has seen SENDS_BEFORE_LOADING sends: a
broker that has little to do stays small. Until then, and with MQLAKE_NO_JIT=1 for good, all sends go the other way.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mqlake.broker.fast_send_layout import (
    BODY_LENGTH,
    BODY_START,
    BORN_HOST,
    COLUMNS,
    FULL,
    HEAD_SIZE,
    HOLE_MSG_ID,
    HOLE_OPAQUE,
    HOLE_QUEUE_ID,
    HOLE_QUEUE_OFFSET,
    HOLE_UNIQ_KEY,
    ONEWAY,
    OPAQUE,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    TOPIC_LENGTH,
    TOPIC_START,
    UNIQ_KEY_LENGTH,
    UNIQ_KEY_LENGTH_MAX,
    UNIQ_KEY_START,
    UNKNOWN_QUEUE,
)
from mqlake.broker.rpc_latency import Rpc, RpcLatencies
from mqlake.broker.send_message import TIMER_PROPERTIES, SendMessageProcessor, born_host, region_fields
from mqlake.formats import columns
from mqlake.formats.record import encode_record
from mqlake.message import (
    NOT_ALLOWED_SEND_TOPICS,
    PROPERTY_CLUSTER,
    PROPERTY_CRC32,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_NUM,
    PROPERTY_POP_CK,
    PROPERTY_TRANSACTION_PREPARED,
    RETRY_GROUP_TOPIC_PREFIX,
    host_bytes,
    properties_to_bytes,
)
from mqlake.remoting.bodies.topic import PERM_WRITE, TopicFilterType
from mqlake.remoting.codec import encode_frame
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.connection import SCRATCH_SIZE, Connection, FastPath
from mqlake.store.commit_log import AppendedMany, QueueId, WrittenMany
from mqlake.store.results import (
    AppendMessageResult,
    AppendMessageStatus,
    PutMessageFuture,
    PutMessageResult,
    PutMessageStatus,
)

if TYPE_CHECKING:
    from mqlake.broker.controller import BrokerController

logger = logging.getLogger(__name__)

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

SENDS_BEFORE_LOADING = 2000
SENDS_MAX = 512
"""Sends that are taken in one step."""
QUEUES_MAX = 4096
"""Queues that are known at once; with one more, all are forgotten and learnt again."""
TOPICS_SIZE = 128 * 1024
NUMBERS_MAX = 16 + 3 * 20
"""Characters of the other things that differ between answers."""

_SENT, _SENT_ONEWAY = (
    Rpc(RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, False, oneway) for oneway in (False, True)
)

# how the header of SEND_MESSAGE_V2 begins, in all clients known
_JSON_SEND = memoryview(b'{"code":310,')
_ROCKETMQ_SEND = memoryview(b"\x01\x36")

# texts that stand for what differs between answers
_MSG_ID, _QUEUE_ID, _QUEUE_OFFSET, _UNIQ_KEY, _OPAQUE = "0123456789ABCDEF", "<1>", "<2>", "<3>", "1234509876"
_HOLES = {
    _MSG_ID: HOLE_MSG_ID,
    _QUEUE_ID: HOLE_QUEUE_ID,
    _QUEUE_OFFSET: HOLE_QUEUE_OFFSET,
    _UNIQ_KEY: HOLE_UNIQ_KEY,
    _OPAQUE: HOLE_OPAQUE,
}


class FastSend:
    """The `fast_path` of a server: `SendMessageProcessor` in bulk."""

    def __init__(self, controller: BrokerController, processor: SendMessageProcessor) -> None:
        self._controller = controller
        self._processor = processor
        self._seen = 0
        self._kernels: ModuleType | None = None
        self._host = b""
        self._answers_size = 0
        self._config: object = None
        self._topics_version: object = None
        self._topics_counter = 0
        metrics = controller.metrics
        self._latencies = None if metrics is None else metrics.rpc_latencies
        self.otherwise: FastPath | None = None
        """Asked about what is no send."""

    # --- what the connection calls

    def __call__(self, connection: Connection, data: memoryview, start: int) -> int:
        """Handles the usual sends at the beginning of data[start:]; where the next frame begins."""
        if data[start + 8 : start + 20] != _JSON_SEND and data[start + 8 : start + 10] != _ROCKETMQ_SEND:
            return start if self.otherwise is None else self.otherwise(connection, data, start)
        if self._kernels is None:
            self._seen += 1
            if self._seen == SENDS_BEFORE_LOADING:
                self._load_aside()
            return start
        host = host_bytes(born_host(connection))
        if len(host) != 8 or self._processor.flow_control.refusal() is not None:
            return start
        self._keep_up()
        return self._take(connection, self._kernels, data, start, host)

    def _take(
        self, connection: Connection, kernels: ModuleType, data: memoryview, start: int, host: bytes
    ) -> int:
        if host != self._host:
            self._host = host
            self._template[BORN_HOST] = np.frombuffer(host, np.uint8)
        buf = np.frombuffer(data, np.uint8)
        buf.flags.writeable = False  # one kind of array, one compiled function
        while True:
            count, following, why, places = self._parse(kernels, buf, start)
            if count:
                done = self._store(connection, kernels, buf, count, self._touched[:places].tolist())
                if done < count:
                    return start if done == 0 else self._end_of(done - 1)
            start = following
            if why == UNKNOWN_QUEUE:
                if not self._learn(kernels, count):
                    return start
            elif why != FULL:
                return start

    def _end_of(self, number: int) -> int:
        return int(self._columns[BODY_START, number] + self._columns[BODY_LENGTH, number])

    # --- to the log and back

    def _store(
        self, connection: Connection, kernels: ModuleType, buf: Bytes, count: int, touched: list[int]
    ) -> int:
        """Stores the first `count` sends in the columns, as many as fit, and sees to their answers; how many."""
        totals = self._totals[:, : len(touched)]

        def write(
            out: Bytes, position: int, base_offset: int, queue_offsets: Sequence[int], store_timestamp: int
        ) -> WrittenMany:
            totals[0] = queue_offsets
            totals[1] = 0
            done, size, self._answers_size = self._write(
                kernels, out, position, base_offset, buf, count, store_timestamp
            )
            following, queue_bytes = totals.tolist()
            counts = [after - before for after, before in zip(following, queue_offsets, strict=True)]
            return WrittenMany(done, size, int(self._columns[SIZE, 0]), counts, queue_bytes)

        queues = [self._names_of_queues[number] for number in touched]
        began = time.monotonic_ns()
        put = self._controller.store.async_put_many(queues, write)
        if put is None:
            return 0
        appended, future = put
        done = appended.written.records
        answers = self._answers[: self._answers_size].tobytes()
        if self._latencies is not None:
            self._measure(self._latencies, began, done, future)
        if future.done() and future.result().is_ok:
            connection.send_encoded(answers)
        else:
            self._answer_later(connection, future, appended, answers)
        return done

    def _measure(self, latencies: RpcLatencies, began: int, done: int, future: PutMessageFuture) -> None:
        """Counts the first `done` sends in the columns when they are safe; those that fail then are rare enough."""
        oneway = int(np.count_nonzero(self._columns[ONEWAY, :done]))

        def safe() -> None:
            if future.result().is_ok:
                elapsed = time.monotonic_ns() - began
                latencies.record(_SENT, elapsed, done - oneway)
                latencies.record(_SENT_ONEWAY, elapsed, oneway)

        future.add_loop_callback(asyncio.get_running_loop(), safe)

    def _answer_later(
        self, connection: Connection, future: PutMessageFuture, appended: AppendedMany, answers: bytes
    ) -> None:
        """Under SYNC_FLUSH: the answers when the disk has the messages, or others when it has not."""
        done = appended.written.records
        sends, text = self._columns[:, :done].copy(), self._text.tobytes()
        later = asyncio.get_running_loop().create_future()

        def flushed() -> None:
            later.set_result(None)
            result = future.result()
            if result.is_ok:
                connection.send_encoded(answers)
                return
            for number in range(done):
                send = sends[:, number].tolist()
                if send[ONEWAY]:
                    continue
                place = AppendMessageResult(
                    AppendMessageStatus.PUT_OK,
                    send[PHYSICAL_OFFSET],
                    send[SIZE],
                    self._controller.store_host,
                    appended.store_timestamp,
                    send[QUEUE_OFFSET],
                )
                uniq_key = text[send[UNIQ_KEY_START] : send[UNIQ_KEY_START] + send[UNIQ_KEY_LENGTH]].decode()
                answer = self._processor.answer(
                    PutMessageResult(result.status, place, result.reason), send[QUEUE_ID], uniq_key
                )
                answer.opaque = send[OPAQUE]
                connection.send(answer)

        connection.stop_waits_for(later)
        future.add_loop_callback(later.get_loop(), flushed)

    # --- the kernels, with what they share

    def _parse(self, kernels: ModuleType, buf: Bytes, start: int) -> tuple[int, int, int, int]:
        result: tuple[int, int, int, int] = kernels.parse_sends(
            buf,
            start,
            self._slots,
            self._queues,
            self._topics,
            self._touched,
            len(self._extra),
            self._record_max,
            self._refused,
            self._columns,
            self._text,
            self._head,
            self._fields,
            self._names,
        )
        return result

    def _write(
        self,
        kernels: ModuleType,
        out: Bytes,
        position: int,
        base_offset: int,
        buf: Bytes,
        count: int,
        store_timestamp: int,
    ) -> tuple[int, int, int]:
        result: tuple[int, int, int] = kernels.store_sends(
            out,
            position,
            base_offset,
            buf,
            self._text,
            self._columns,
            count,
            self._queues,
            self._topics,
            self._totals,
            self._template,
            store_timestamp,
            self._extra,
            self._answers,
            self._answer_parts,
            self._answer_holes,
        )
        return result

    # --- what is known of the broker

    def _keep_up(self) -> None:
        """Learns anew what depends on the broker's settings and topics, when these have changed."""
        config, version = self._controller.config, self._controller.topic_config_manager.data_version
        if (
            config is not self._config
            or version is not self._topics_version
            or version.counter != self._topics_counter
        ):
            self._config, self._topics_version, self._topics_counter = config, version, version.counter
            self._prepare()

    def _prepare(self) -> None:
        """Everything from the settings; no queue is known."""
        controller = self._controller
        store_host = host_bytes(controller.store_host)
        fields = region_fields(controller.config)
        extra = properties_to_bytes({**fields, PROPERTY_CLUSTER: controller.config.broker_cluster_name})
        self._extra = np.frombuffer(extra, np.uint8)
        head = encode_record(b"", 0, 0, 0, 0, 0, 0, 0, bytes(8), 0, store_host, 0, 0, b"", b"")[:HEAD_SIZE]
        self._template = np.frombuffer(head, np.uint8).copy()
        self._host = b""  # it is not in the template
        refused = (
            *fields,
            *TIMER_PROPERTIES,
            PROPERTY_CLUSTER,
            PROPERTY_POP_CK,
            PROPERTY_DELAY_TIME_LEVEL,
            PROPERTY_TRANSACTION_PREPARED,
            PROPERTY_INNER_NUM,
            PROPERTY_INNER_BASE,
            PROPERTY_CRC32,
        )
        self._refused = np.array([_hash(name.encode()) for name in refused], np.uint64)
        store_config = controller.store_config
        self._record_max = min(store_config.max_message_size, store_config.mapped_file_size_commit_log)
        self._answer_parts, self._answer_holes = self._split_answer()
        answer_max = len(self._answer_parts) + UNIQ_KEY_LENGTH_MAX + NUMBERS_MAX
        self._answers = np.empty(SENDS_MAX * answer_max, np.uint8)
        self._forget()

    def _split_answer(self) -> tuple[Bytes, Int64s]:
        """The answer to a send without what differs, and its holes (see write_answers)."""
        place = AppendMessageResult(
            AppendMessageStatus.PUT_OK, int(_MSG_ID, 16), 0, self._controller.store_host
        )
        answer = self._processor.answer(PutMessageResult(PutMessageStatus.PUT_OK, place), 0, _UNIQ_KEY)
        answer.ext_fields.update(queueId=_QUEUE_ID, queueOffset=_QUEUE_OFFSET)
        answer.opaque = int(_OPAQUE)
        frame = encode_frame(answer)
        holes, parts, taken = [], b"", 0
        for position, mark, hole in sorted((frame.index(m.encode()), m, h) for m, h in _HOLES.items()):
            parts += frame[taken:position]
            taken = position + len(mark)
            holes.append((len(parts), hole))
        return np.frombuffer(parts + frame[taken:], np.uint8), np.array(holes, np.int64)

    def _forget(self) -> None:
        self._slots = np.zeros(4 * QUEUES_MAX, np.int32)
        self._queues = np.zeros((QUEUES_MAX, 4), np.int64)
        self._topics = np.zeros(TOPICS_SIZE, np.uint8)
        self._topics_end = 0
        self._names_of_queues: list[QueueId] = []

    def _learn(self, kernels: ModuleType, number: int) -> bool:
        """Whether sends to the queue that the `number`-th in the columns goes to are usual; if so it is known now."""
        start, length = self._columns[[TOPIC_START, TOPIC_LENGTH], number].tolist()
        queue_id = int(self._columns[QUEUE_ID, number])
        topic_bytes = self._text[start : start + length].copy()
        topic = topic_bytes.tobytes().decode()
        if not self._is_usual(topic, queue_id):
            return False
        if len(self._names_of_queues) == QUEUES_MAX or self._topics_end + 1 + length > TOPICS_SIZE:
            self._forget()
        self._topics_end = kernels.add_queue(
            len(self._names_of_queues),
            self._topics_end,
            topic_bytes,
            queue_id,
            self._slots,
            self._queues,
            self._topics,
        )
        self._names_of_queues.append((topic, queue_id))
        return True

    def _is_usual(self, topic: str, queue_id: int) -> bool:
        controller = self._controller
        config, topics = controller.config, controller.topic_config_manager
        topic_config = topics.select_topic_config(topic)
        return (
            topic_config is not None
            and controller.store.commit_log.is_usual_topic(topic)
            and topic not in NOT_ALLOWED_SEND_TOPICS
            and topic not in topics.unsettled
            and not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
            and not topic_config.attributes
            and topic_config.topic_filter_type is TopicFilterType.SINGLE_TAG
            and queue_id < max(topic_config.write_queue_nums, topic_config.read_queue_nums)
            and config.broker_permission & PERM_WRITE != 0
            and config.start_accept_send_request_time_stamp <= controller.clock_ms()
        )

    # --- loading

    def _load_aside(self) -> None:
        threading.Thread(target=self.load, name="FastSendLoading", daemon=True).start()

    def load(self) -> None:
        """Loads (or, the very first time, compiles) the kernels; from then on usual sends are taken here. Nothing
        happens where numba cannot or may not compile."""
        if columns.twin() is columns.plain:
            return
        from mqlake.broker import fast_send_kernels as kernels
        from mqlake.remoting import kernels as frame_kernels

        self._columns = np.zeros((COLUMNS, SENDS_MAX), np.int64)
        self._text = np.zeros(SCRATCH_SIZE, np.uint8)
        self._head = np.zeros(frame_kernels.HEAD_SIZE, np.int64)
        self._fields = np.zeros((frame_kernels.LETTERS, 2), np.int64)
        self._names = np.zeros(kernels.NAMES_MAX, np.uint64)
        self._touched = np.zeros(SENDS_MAX, np.int64)
        self._totals = np.zeros((2, SENDS_MAX), np.int64)
        self._prepare()
        # with nothing to do each function is only compiled
        buf = np.frombuffer(b"", np.uint8)
        self._parse(kernels, buf, 0)
        self._write(kernels, np.zeros(0, np.uint8), 0, 0, buf, 0, 0)
        kernels.add_queue(
            0, 0, np.zeros(1, np.uint8), 0, self._slots.copy(), self._queues.copy(), self._topics.copy()
        )
        self._kernels = kernels


def _hash(name: bytes) -> int:
    """As fast_send_kernels.hash_bytes."""
    code = 14695981039346656037
    for byte in name:
        code = (code ^ byte) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return code
