"""FastSend, the fast path of sends: compiled code takes those of one read of a socket together.

    read ─▶ [send send batch … send] pull send …
             └── read_sends ──▶ columns ──▶ write_sends ──▶ log, one write of answers
                 stops at the first frame for the slow path, SendMessageProcessor; goes on after that frame

From its first send on, a connection's reads go to a SendReader (native.produce), which does all of this without Python
as long as `is_open` holds, and leaves everything else to the Connection.

Also the commits of half messages that are in the log's last file. The record that consumers get is made of the half
message's in the log; EndTransactionProcessor takes all other END_TRANSACTIONs, rollbacks among them.

The fast path takes a SEND_MESSAGE_V2, as Java's client sends, or a SEND_MESSAGE, as Go's does, of a single message, or
a SEND_BATCH_MESSAGE of up to SENDS_MAX; in a header that native.frames can read, without anything that makes the
broker do more than store and answer: no delay, no timer, no retry or other topic with rules of its own, not larger than
allowed; as a half message with its producer's group, and no time before which it is not to be asked for; to a topic
that SendMessageProcessor has stored messages of. The log's bytes and the answers are those of the slow path.

Where native code has not been compiled, and with MQLAKE_NO_NATIVE=1, all sends take the slow path.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqlake import native
from mqlake.broker.broker import Broker
from mqlake.broker.fast.readers import add_taker
from mqlake.broker.fast.signers import Signers
from mqlake.broker.metrics.rpc_latency import Rpc, RpcLatencies
from mqlake.broker.requests.send_message import (
    STORED,
    SendMessageProcessor,
    born_host,
    region_fields,
)
from mqlake.broker.state.topic_config import has_usual_attributes
from mqlake.broker.transaction.end_transaction import answer_to_commit
from mqlake.broker.transaction.service import TransactionalMessageService, TransactionState
from mqlake.formats.columns import Bytes, Int64s
from mqlake.formats.record import encode_record
from mqlake.message import (
    NOT_ALLOWED_SEND_TOPICS,
    PROPERTY_CLUSTER,
    RETRY_GROUP_TOPIC_PREFIX,
    TRANS_HALF_TOPIC,
    host_bytes,
    ids,
    properties_to_bytes,
)
from mqlake.message.policy import Policy, names_with
from mqlake.native.frame_layout import HEAD_ROOM, LETTERS, SHAPES_SIZE
from mqlake.native.send_layout import (
    ACCESS_SIZE,
    ALLOWED_SLOTS,
    BORN_TIMESTAMP,
    COLUMNS,
    COMMIT,
    FRAME_START,
    FULL,
    HALF,
    HALF_QUEUE_ID,
    HALF_QUEUE_OFFSET,
    HALVES_MAX,
    HEAD_SIZE,
    HOLE_MSG_ID,
    HOLE_OPAQUE,
    HOLE_QUEUE_ID,
    HOLE_QUEUE_OFFSET,
    HOLE_UNIQ_KEY,
    KEYS,
    KEYS_LEFT,
    KEYS_WANTED,
    KIND,
    NAMES_MAX,
    NEW_KEY_SIZE,
    NEW_KEYS,
    NEW_KEYS_MAX,
    NEW_ROOM,
    NEXT_OFFSET,
    OF_COLUMNS,
    PARTS,
    QUEUE_BYTES,
    QUEUE_ID,
    QUEUE_MESSAGES,
    QUEUE_PUTS,
    QUEUE_SIZE,
    QUEUES_MAX,
    REAL_QUEUE,
    ROWS,
    SENDS_MAX,
    SIGNER_NAMES_SIZE,
    SIGNER_SIZE,
    SIGNER_SLOTS_MAX,
    SIGNERS_MAX,
    SIZE,
    TEXT,
    TOPIC_LENGTH,
    TOPIC_START,
    TOUCHED,
    UNDECIDED,
    UNKNOWN_QUEUE,
    UNKNOWN_SIGNER,
)
from mqlake.remoting.bodies.topic import PERM_WRITE, TopicFilterType
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.command import RESPONSE_FLAG, RemotingCommand
from mqlake.remoting.connection import SCRATCH_SIZE, Connection
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.log.appender import Written
from mqlake.store.results import (
    AppendMessageResult,
    AppendMessageStatus,
    PutMessageFuture,
    PutMessageResult,
    PutMessageStatus,
)

logger = logging.getLogger(__name__)

_HAS_TAKER = "has a SendTaker"
Rpcs = Sequence[tuple[int, bool, int]]
"""Code, whether it is one way, and how many requests there were of it; empty if they are not measured."""

NEW_KEYS_S = 1.0
"""How old a new UNIQ_KEY may be when a message gets it, about: it says when it was made."""
OPEN_NS = 1_000_000
"""How long native code goes on storing sends before it asks again; a turn of the event loop may take longer."""
TOPICS_SIZE = 512 * 1024
ANSWER_MORE_MAX = 300
"""Bytes that what differs between answers has at most: 3 numbers of up to 20 digits, of each message 25 of an id, and a
UNIQ_KEY with its name."""

# texts that stand for what differs between answers
_MSG_ID, _QUEUE_ID, _QUEUE_OFFSET, _UNIQ_KEY, _OPAQUE = "0123456789ABCDEF", "<1>", "<2>", "<3>", "1234509876"
_HOLES = {
    _MSG_ID: HOLE_MSG_ID,
    _QUEUE_ID: HOLE_QUEUE_ID,
    _QUEUE_OFFSET: HOLE_QUEUE_OFFSET,
    f',"transactionId":"{_UNIQ_KEY}"': HOLE_UNIQ_KEY,
    _OPAQUE: HOLE_OPAQUE,
}


class _Unflushed(NamedTuple):
    """Answers that wait for a flush, and what keeps a stopping server from closing their connections before."""

    flush: PutMessageFuture
    later: asyncio.Future[RemotingCommand | None]
    answers: list[tuple[Connection, bytes, int, Rpcs]]
    """Connection, frames, when they were read, and what they count as."""


class _SendTables:
    """The two arrays of send_layout. Each part is given by its contents, or by its size if it is zeros."""

    def __init__(self, contents: Sequence[int | npt.NDArray[Any]]) -> None:
        places, end = [], 2 * PARTS
        for which, content in enumerate(contents):
            if which == TEXT:
                numbers_end, end = end, 0
            size = content if isinstance(content, int) else len(content)
            places += [end, end + size]
            end += size
        self.numbers: Int64s = np.zeros(numbers_end, np.int64)
        self.octets: Bytes = np.zeros(end, np.uint8)
        self.numbers[: 2 * PARTS] = places
        for which, content in enumerate(contents):
            if not isinstance(content, int):
                self[which][:] = content

    def __getitem__(self, which: int) -> npt.NDArray[Any]:
        start, end = self.numbers[2 * which : 2 * which + 2].tolist()
        return (self.numbers if which < TEXT else self.octets)[start:end]


class FastSend:
    """The fast path for sends: `SendMessageProcessor` in bulk."""

    def __init__(
        self,
        broker: Broker,
        processor: SendMessageProcessor,
        transactions: TransactionalMessageService,
        latencies: RpcLatencies | None,
        scratch: memoryview,
    ) -> None:
        """`scratch`: where reads go."""
        self.broker = broker
        self._processor, self.flow_control = processor, processor.flow_control
        self._transactions = transactions
        self.native: Any = None
        """A NativeSends, from the first send on."""
        self._scratch = scratch
        self.is_sync_flush = broker.store_config.is_sync_flush
        self._unflushed: _Unflushed | None = None
        """Sends stored in this iteration of the event loop, under SYNC_FLUSH."""
        self._keys_made_at = 0.0
        self.latencies = latencies
        """The histogram of sends, if they are measured."""
        if latencies is not None:
            latencies.sources.append(self._counted)
        self._signers = None if broker.access is None else Signers(broker.access)
        """Under access control."""

    # --- what the connection calls

    def __call__(self, connection: Connection, data: memoryview, start: int) -> int:
        """Handles the sends at the beginning of data[start:] that the fast path takes; where the next frame begins."""
        if (self.native is None and not self.load()) or not self.native.may_begin(data, start):
            return start
        host = host_number(connection)
        if host is None or not self._takes_sends():
            return start
        if _HAS_TAKER not in connection.attributes and connection.is_plain:
            connection.attributes[_HAS_TAKER] = True
            add_taker(connection, self._scratch, self.native.taker(self, connection, host))
        if self._signers is not None and not self._signers.keep_up(connection):
            return start
        return self._take(connection, data, start, host)

    # --- what a reader calls

    def is_open(self) -> bool:
        """True if native code may store the sends of this read. It does not ask again for OPEN_NS, unless settings,
        topics or flow control change."""
        sends, store = self.native, self.broker.store
        if not self._takes_sends() or not store.takes_native_sends():
            return False
        sends.open_until = time.monotonic_ns() + OPEN_NS
        sends.notify = None if store.replicas is None else store.replicas.notify
        return True

    def finish(self, connection: Connection, size: int, following: int, began: int) -> int:
        """Stores the sends that native code has read and could not store, or answers after a flush those that it has
        stored. `following`: where their last frame ends, in a read of `size` bytes; `began`: when it was read. Returns
        where the first frame begins that is left."""
        done = self._settle(connection, self._scratch[:size], began)
        return following if done == self.native.messages else self._frame_start(done)

    def measured(self, elapsed_ns: int) -> None:
        """The sends in the columns have been answered, each after so long."""
        self._record(self._rpcs(self.native.messages), elapsed_ns)

    def _counted(self) -> Iterator[tuple[Rpc, int, int]]:
        """Kind, number and ns of the requests that readers have answered, each in less than a millisecond, since the
        last call."""
        for code, oneway, count, elapsed_ns in self.native.take_counts() if self.native is not None else ():
            yield Rpc(code, ResponseCode.SUCCESS, False, oneway), count, elapsed_ns

    def _takes_sends(self) -> bool:
        """True if usual sends may take the fast path now."""
        if self.broker.hooks.send or not self.broker.store_config.batch_inherits_properties:
            return False  # hooks see each send; the kernels write the properties of RocketMQ 5.3.3
        if self.flow_control.refusal() is not None:
            return False
        self._keep_up()
        if self._signers is not None:
            self._signers.keep_time()
        if self._new_keys[KEYS_WANTED] or self._new_keys[KEYS_LEFT]:
            self._make_keys()
        return True

    def _make_keys(self) -> None:
        """For the next messages that come without a UNIQ_KEY, as those of Node's client do, while some come."""
        keys, now = self._new_keys, time.monotonic()
        is_wanted, are_old = keys[KEYS_WANTED] != 0, now - self._keys_made_at > NEW_KEYS_S
        keys[KEYS_WANTED] = 0
        if is_wanted and (are_old or keys[KEYS_LEFT] < NEW_KEYS_MAX // 2):
            made = "".join(ids.create_uniq_id() for _ in range(NEW_KEYS_MAX))
            self.tables[KEYS][:] = np.frombuffer(made.encode(), np.uint8)
            keys[KEYS_LEFT], self._keys_made_at = NEW_KEYS_MAX, now
        elif are_old:
            keys[KEYS_LEFT] = 0

    def _take(self, connection: Connection, data: memoryview, start: int, host: int) -> int:
        sends, store = self.native, self.broker.store
        began, writes = time.monotonic_ns(), store.takes_native_sends()
        while True:
            following, count = sends.take(data, start, host, writes), sends.messages
            if count and (done := self._settle(connection, data, began)) < count:
                return self._frame_start(done)
            start, why = following, sends.why
            if why == UNKNOWN_QUEUE:
                if not self._learn(count):
                    return start
            elif why in (UNKNOWN_SIGNER, UNDECIDED):
                if not self._learn_signer(connection, host, why, count):
                    return start
            elif why != FULL:
                return start

    def _settle(self, connection: Connection, data: memoryview, began: int) -> int:
        """Stores the messages in the columns if native code has not, and has them answered; how many messages."""
        sends, store = self.native, self.broker.store
        if (frames := sends.answers) is None:
            return self._store(connection, data, began)
        if (replicas := store.replicas) is not None:
            replicas.notify()
        count: int = sends.messages
        if self.is_sync_flush:
            self._answer_flushed(connection, frames, sends.end, began, self._rpcs(count))
        else:
            self._answer(connection, frames, began, count, None)
        return count

    def _frame_start(self, number: int) -> int:
        """Returns the beginning of the frame of the send whose first message is the `number`-th in the columns."""
        return self._cells[FRAME_START * SENDS_MAX + number]

    # --- to the log and back

    def _store(self, connection: Connection, data: memoryview, began: int) -> int:
        """Stores the messages in the columns that native code has left to the store, as many sends as fit, and has them
        answered; how many messages."""
        sends, cells = self.native, self._cells
        count, places = sends.messages, sends.places
        if sends.transactional and (count := self._before_the_ended(count)) == 0:
            return 0
        frames = b""

        def of_queues(row: int) -> list[int]:
            return cells[row * SENDS_MAX : row * SENDS_MAX + places].tolist()

        def write(mapped_file: MappedFile, queue_offsets: Sequence[int], store_timestamp: int) -> Written:
            nonlocal frames
            for cell, offset in enumerate(queue_offsets, NEXT_OFFSET * SENDS_MAX):
                cells[cell] = offset
            out, position, base = mapped_file.array, mapped_file.wrote_position, mapped_file.file_from_offset
            done, size, frames = sends.store(out, position, base, data, count, store_timestamp)
            return Written(
                done,
                size,
                cells[SIZE * SENDS_MAX],
                of_queues(QUEUE_MESSAGES),
                of_queues(QUEUE_BYTES),
                of_queues(QUEUE_PUTS),
            )

        names = self.native.queues
        put = self.broker.store.async_put_many([names[queue] for queue in of_queues(TOUCHED)], write)
        if put is None:
            return 0
        appended, flush = put
        done = appended.written.records
        for queue in of_queues(TOUCHED):
            self.broker.store.commit_log.learn_topic(names[queue][0])
        if sends.transactional:
            self._note_transactions(done, flush)
        self._answer(connection, frames, began, done, flush)
        return done

    def _before_the_ended(self, count: int) -> int:
        """How many of the first `count` messages come before a commit of what has ended already."""
        ended_as = self._transactions.ended_as
        kinds, offsets = self.columns[[KIND, HALF_QUEUE_OFFSET], :count].tolist()
        for number, (kind, offset) in enumerate(zip(kinds, offsets, strict=True)):
            if kind == COMMIT and ended_as((0, offset)) is not None:
                return number
        return count

    def _note_transactions(self, done: int, flush: PutMessageFuture | None) -> None:
        """Takes note of the half messages and commits in the first `done` columns, which are in the log."""
        transactions, names = self._transactions, self.native.queues
        rows = self.columns[[KIND, REAL_QUEUE, HALF_QUEUE_OFFSET, BORN_TIMESTAMP], :done].tolist()
        commits = []
        for kind, queue, offset, born_timestamp in zip(*rows, strict=True):
            if kind == HALF:
                transactions.prepared(names[queue][0])
            elif kind == COMMIT:
                transactions.end((0, offset), TransactionState.COMMITTED)
                commits.append((offset, names[queue][0], born_timestamp))

        def safe() -> None:
            is_stored = flush is None or flush.result().status in STORED
            for offset, topic, born_timestamp in commits:
                if is_stored:
                    transactions.delete_prepared(0, offset, topic, born_timestamp, committed=True)
                else:
                    transactions.reopen((0, offset))

        if flush is None:
            safe()
        elif commits:
            flush.add_loop_callback(asyncio.get_running_loop(), safe)

    # --- answers

    def _answer(
        self, connection: Connection, frames: bytes, began: int, done: int, flush: PutMessageFuture | None
    ) -> None:
        """Answers the sends of the first `done` columns, which are in the log: when they are as safe as they have to
        be."""
        rpcs = self._rpcs(done)
        if flush is None:
            self._answer_now(connection, frames, began, rpcs)
        else:
            later = asyncio.get_running_loop().create_future()
            connection.stop_waits_for(later)
            self._answer_later(_Unflushed(flush, later, [(connection, frames, began, rpcs)]))

    def _answer_later(self, unflushed: _Unflushed) -> None:
        """The answers when the flush is done."""
        flush, later, answers = unflushed.flush, unflushed.later, unflushed.answers

        def safe() -> None:
            later.set_result(None)
            result = flush.result()
            for connection, frames, began, rpcs in answers:
                if result.is_ok:
                    self._answer_now(connection, frames, began, rpcs)
                else:
                    for answer in self._failed(frames, result):
                        connection.send(answer)

        flush.add_loop_callback(later.get_loop(), safe)

    def _answer_flushed(
        self, connection: Connection, frames: bytes, end: int, began: int, rpcs: Rpcs
    ) -> None:
        """The answers when the disk has the log up to `end`. There is one flush for all that is stored in one iteration
        of the event loop."""
        unflushed = self._unflushed
        if unflushed is None:
            loop = asyncio.get_running_loop()
            flush = PutMessageFuture(PutMessageResult(PutMessageStatus.PUT_OK), end)
            unflushed = self._unflushed = _Unflushed(flush, loop.create_future(), [])
            connection.stop_waits_for(unflushed.later)
            loop.call_soon(self._ask_for_flush)
        unflushed.flush.next_offset = end
        unflushed.answers.append((connection, frames, began, rpcs))

    def _ask_for_flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, None
        assert unflushed is not None
        self._answer_later(unflushed)
        self.broker.store.submit_flush(unflushed.flush)

    def _answer_now(self, connection: Connection, frames: bytes, began: int, rpcs: Rpcs) -> None:
        connection.write_now(frames)
        if rpcs:
            self._record(rpcs, time.monotonic_ns() - began)

    def _record(self, rpcs: Rpcs, elapsed_ns: int) -> None:
        assert self.latencies is not None
        for code, oneway, count in rpcs:
            self.latencies.record(Rpc(code, ResponseCode.SUCCESS, False, oneway), elapsed_ns, count)

    def _rpcs(self, done: int) -> Rpcs:
        """The requests of the first `done` columns if they are measured; those that fail later are rare enough."""
        requests: Rpcs = () if self.latencies is None else self.native.requests(done)
        return requests

    def _failed(self, frames: bytes, result: PutMessageResult) -> Iterator[RemotingCommand]:
        """The answers in place of those that say that all is well: the messages are in the log, but not safe."""
        start, end = 0, len(frames)
        while stop := frame_end(memoryview(frames), start, end):
            answer = decode_frame(memoryview(frames), start, stop)
            start = stop
            if not answer.ext_fields:  # a commit's
                failed = answer_to_commit(result)
            else:
                failed = self._processor.answer(PutMessageResult(result.status, None, result.reason), 0, None)
                if (code := STORED.get(result.status)) is not None:
                    failed = RemotingCommand(
                        code, flag=RESPONSE_FLAG, remark=result.reason or None, ext_fields=answer.ext_fields
                    )
            failed.opaque = answer.opaque
            yield failed

    # --- what is known of the broker

    def _keep_up(self) -> None:
        """Updates what depends on the broker's settings and topics, if these have changed."""
        sends, config = self.native, self.broker.config
        version = self.broker.topic_config_manager.data_version
        if (
            config is not sends.config
            or version is not sends.topics_version
            or version.counter != sends.topics_counter
        ):
            sends.config, sends.topics_version, sends.topics_counter = config, version, version.counter
            self._prepare()

    def _prepare(self) -> None:
        """Everything from the settings; no queue is known."""
        broker = self.broker
        store_host = host_bytes(broker.store_host)
        fields = region_fields(broker.config)
        extra = properties_to_bytes({**fields, PROPERTY_CLUSTER: broker.config.broker_cluster_name})
        template = encode_record(b"", 0, 0, 0, 0, 0, 0, 0, bytes(8), 0, store_host, 0, 0, b"", b"")
        halves = 0 if broker.config.reject_transaction_message else HALVES_MAX
        store_config = broker.store_config
        signed = self._signers is not None
        self.record_max = min(store_config.max_message_size, store_config.mapped_file_size_commit_log)
        answer, holes = self._split_answer()
        end_answer, end_holes = _split(RemotingCommand.create_response())
        self.tables = tables = _SendTables(
            [
                ROWS * SENDS_MAX,
                QUEUE_SIZE * QUEUES_MAX,
                4 * QUEUES_MAX,
                _hashes(*names_with(Policy.SEND | Policy.ONLY_HALF)),
                _hashes(*names_with(Policy.SEND | Policy.HALF)),
                halves * OF_COLUMNS,
                NAMES_MAX,
                HEAD_ROOM,
                2 * LETTERS,
                holes,
                end_holes,
                ACCESS_SIZE,
                SIGNER_SIZE * SIGNERS_MAX * signed,
                SIGNER_SLOTS_MAX * signed,
                ALLOWED_SLOTS * signed,
                2,
                SCRATCH_SIZE * (2 if signed else 1) + NEW_ROOM,
                TOPICS_SIZE,
                np.frombuffer(template[:HEAD_SIZE], np.uint8),
                np.frombuffer(extra, np.uint8),
                answer,
                end_answer,
                SENDS_MAX * (len(answer) + ANSWER_MORE_MAX),
                SIGNER_NAMES_SIZE * signed,
                SHAPES_SIZE,
                NEW_KEY_SIZE * NEW_KEYS_MAX,
            ]
        )
        if self._signers is not None:
            self._signers.prepare(tables)
        self.columns = tables[COLUMNS].reshape(ROWS, SENDS_MAX)
        self._cells = tables[COLUMNS].data
        self._new_keys = tables[NEW_KEYS].data
        self.native.use(tables.numbers, tables.octets, self.record_max)
        self.native.add_queue(TRANS_HALF_TOPIC.encode(), HALF_QUEUE_ID, (TRANS_HALF_TOPIC, 0))

    def _split_answer(self) -> tuple[Bytes, Int64s]:
        """The answer to a send without what differs, and its holes (see write_answers)."""
        place = AppendMessageResult(AppendMessageStatus.PUT_OK, int(_MSG_ID, 16), 0, self.broker.store_host)
        answer = self._processor.answer(PutMessageResult(PutMessageStatus.PUT_OK, place), 0, _UNIQ_KEY)
        answer.ext_fields.update(queueId=_QUEUE_ID, queueOffset=_QUEUE_OFFSET)
        return _split(answer)

    def _learn(self, number: int) -> bool:
        """True if sends to the queue of the `number`-th in the columns may take the fast path; if so, remembers it."""
        start, length = self.columns[[TOPIC_START, TOPIC_LENGTH], number].tolist()
        queue_id = int(self.columns[QUEUE_ID, number])
        encoded = self.tables[TEXT][start : start + length].tobytes()
        topic = encoded.decode()
        if not self._is_usual(topic, queue_id):
            return False
        queue = encoded, queue_id, (topic, queue_id)
        if not self.native.add_queue(*queue):  # all are forgotten, and learnt again
            self._prepare()
            self.native.add_queue(*queue)
        return True

    def _learn_signer(self, connection: Connection, host: int, why: int, number: int) -> bool:
        """True if the kernel knows now what it did not know of the `number`-th in the columns: who signed it, or that
        they may send it."""
        assert self._signers is not None
        if why == UNDECIDED:
            queue = int(self.columns[REAL_QUEUE, number])
            return self._signers.allow(connection, host, queue, self.native.queues[queue][0])
        start, length = self.columns[[TOPIC_START, TOPIC_LENGTH], number].tolist()
        return self._signers.sign_in(connection, self.tables[TEXT][start : start + max(0, length)].tobytes())

    def _is_usual(self, topic: str, queue_id: int) -> bool:
        broker = self.broker
        config, topics = broker.config, broker.topic_config_manager
        topic_config = topics.select_topic_config(topic)
        return (
            topic_config is not None
            and broker.store.commit_log.is_known_topic(topic)
            and topic not in NOT_ALLOWED_SEND_TOPICS
            and topic not in topics.unsettled
            and topic not in broker.topic_queue_mapping_manager.table
            and not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
            and has_usual_attributes(topic_config)
            and topic_config.topic_filter_type is TopicFilterType.SINGLE_TAG
            and queue_id < max(topic_config.write_queue_nums, topic_config.read_queue_nums)
            and config.broker_permission & PERM_WRITE != 0
            and config.start_accept_send_request_time_stamp <= broker.clock_ms()
        )

    # --- loading

    def load(self) -> bool:
        """Loads native code, once; True if there is any."""
        if self.native is None and (produce := native.module("produce")) is not None:
            self.native = produce.NativeSends(self.broker.store.commit_log.fast_put.native)
            self._prepare()
        return self.native is not None


def host_number(connection: Connection) -> int | None:
    """The client's address as the eight bytes of a record, None for IPv6."""
    host = host_bytes(born_host(connection))
    return int.from_bytes(host, "big", signed=True) if len(host) == 8 else None


def _split(answer: RemotingCommand) -> tuple[Bytes, Int64s]:
    """The frame of an answer without what differs, and its holes (see write_answer)."""
    answer.opaque = int(_OPAQUE)
    frame = encode_frame(answer)
    holes: list[int] = []
    parts, taken = b"", 0
    for position, mark, hole in sorted((frame.find(m.encode()), m, h) for m, h in _HOLES.items()):
        if position >= 0:
            parts += frame[taken:position]
            taken = position + len(mark)
            holes += [len(parts), hole]
    return np.frombuffer(parts + frame[taken:], np.uint8), np.array(holes, np.int64)


def _hashes(*names: str) -> Int64s:
    return np.array([_hash(name.encode()) for name in names], np.uint64).view(np.int64)


def _hash(name: bytes) -> int:
    """As native.prim.hash_bytes."""
    code, last = len(name), len(name) // 8
    for step in range(last + 1):
        code ^= int.from_bytes(name[8 * step : 8 * step + 8], "little")
        code = code * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        code ^= code >> 32
    return code
