"""An epoch of the sink `rocketmq` reaches the topic once: half messages, one durable decision, then their ends.

    tasks     rows ─▶ half messages, unseen by consumers        another attempt of a task: others, unseen, too
    driver    1  how far the target queues are            ┐
              2  decision: these half messages, this epoch ├─▶ CHECKPOINT/rocketmq-sink/decision
              3  END_TRANSACTION commit for each, queue by queue, in the order of the rows
              4  the decision is carried out              ──▶ CHECKPOINT/rocketmq-sink/decision

The decision is the one moment at which an epoch happens. Whoever dies before it has done nothing: the half messages
stay half. Whoever dies after it leaves a decision that the next commit() carries out first, whatever epoch it comes
with: a committed message names its half message (PREPARED TRANSACTION OFFSET), so those that are in the queues already,
from where these ended in step 1, are left alone. An epoch that is decided is recognised when it comes again, and the
half messages of the new attempt are rolled back.

The file is one JSON object:

    {"batchId": 7, "done": false, "queues": [{"topic": "T", "broker": "b", "queueId": 0, "begin": 120,
     "halves": [[5, 81234, "7F0000…"], …]}]}         half queue offset, physical offset, UNIQ_KEY
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from mqlake.base.durable import make_dirs, write_durably
from mqlake.client import MessageQueue
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.produce.transaction_producer import LocalTransactionState, TransactionMQProducer
from mqlake.client.results import SendResult, SendStatus
from mqlake.errors import FormatError, MqlakeError, OffsetOutOfRangeError, StoreCorruptError
from mqlake.lake.live.cluster import Cluster, Live, Queue, scans_of
from mqlake.message import Message, MessageSysFlag, create_message_id, decode_message_id

logger = logging.getLogger(__name__)

DIRECTORY = "rocketmq-sink"
END_TIMEOUT_S = 15.0
SETTLE_S = 3.0
"""A broker drops an END_TRANSACTION that has waited so long (waitTimeMillsInTransactionQueue); one that a driver sent
before it died counts within that time or never."""
_NO_HOST = ("0.0.0.0", 0)


class Half(NamedTuple):
    """A half message, and how its broker calls it."""

    half_offset: int
    """In the half queue."""
    physical_offset: int
    uniq_key: str


@dataclass
class QueueHalves:
    """The messages of an epoch for one queue, in the order of its rows. `begin`: the queue's end before the epoch."""

    queue: Queue
    begin: int = 0
    halves: list[Half] = field(default_factory=list)


@dataclass
class Decision:
    batch_id: int
    queues: list[QueueHalves]
    done: bool = False

    def to_json(self) -> bytes:
        queues = [
            {
                "topic": each.queue.topic,
                "broker": each.queue.broker,
                "queueId": each.queue.queue_id,
                "begin": each.begin,
                "halves": each.halves,
            }
            for each in self.queues
        ]
        return json.dumps({"batchId": self.batch_id, "done": self.done, "queues": queues}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Decision:
        """FormatError."""
        try:
            value = json.loads(text)
            queues = [
                QueueHalves(
                    Queue(str(each["topic"]), str(each["broker"]), int(each["queueId"])),
                    int(each["begin"]),
                    [Half(int(a), int(b), str(key)) for a, b, key in each["halves"]],
                )
                for each in value["queues"]
            ]
            return cls(int(value["batchId"]), queues, bool(value["done"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(0, f"no decision: {error!r}") from None


class DecisionFile:
    """The last decision of a query, in its checkpoint: a local directory, or a place that fsspec opens."""

    def __init__(self, checkpoint: str) -> None:
        if checkpoint.startswith("file:"):
            checkpoint = checkpoint.removeprefix("file:").replace("//", "", 1)
        # Hadoop's name for what everybody else calls s3
        checkpoint = checkpoint.replace("s3a://", "s3://", 1)
        self._remote = "://" in checkpoint
        self.path = (
            f"{checkpoint.rstrip('/')}/{DIRECTORY}/decision"
            if self._remote
            else os.path.join(checkpoint, DIRECTORY, "decision")
        )

    def read(self) -> Decision | None:
        """StoreCorruptError, OSError."""
        try:
            text = self._read()
        except FileNotFoundError:
            return None
        try:
            return Decision.from_json(text)
        except FormatError as error:
            raise StoreCorruptError(self.path, 0, error.reason) from None

    def write(self, decision: Decision) -> None:
        """Returns when it is durable. OSError."""
        text = decision.to_json()
        if not self._remote:
            make_dirs(os.path.dirname(self.path))
            write_durably(self.path, text)
            return
        fs, path = self._file_system()
        fs.makedirs(os.path.dirname(path), exist_ok=True)
        fs.pipe_file(f"{path}.tmp", text)
        fs.mv(f"{path}.tmp", path)

    def _read(self) -> bytes:
        if self._remote:
            fs, path = self._file_system()
            fs.invalidate_cache()
            return bytes(fs.cat_file(path))
        with open(self.path, "rb") as file:
            return file.read()

    def _file_system(self) -> tuple[Any, str]:
        import fsspec.core

        fs, inside = fsspec.core.url_to_fs(self.path)
        return fs, inside


class Epochs:
    """The driver's part in the epochs of one query. In a `with`; RemotingError and its like, OSError,
    StoreCorruptError for a decision that cannot be read or carried out."""

    def __init__(self, cluster: Cluster, checkpoint: str) -> None:
        self.file = DecisionFile(checkpoint)
        self._live = Live(cluster)
        self._group = cluster.group

    def __enter__(self) -> Self:
        self._live.__enter__()
        self._producer = transaction_producer(self._live.client, self._group)
        self._live.run(self._producer.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._live.run(self._producer.close())
        finally:
            self._live.__exit__(kind, error, trace)

    def commit(self, batch_id: int, sent: Iterable[QueueHalves]) -> None:
        """Brings an epoch's messages into their queues, unless they were brought there before."""
        known = self.file.read()
        if known is not None and not known.done:
            self._finish(known)
        halves = together(sent)
        if known is not None and batch_id <= known.batch_id:
            logger.info("epoch %d was committed before; this attempt of it is rolled back", batch_id)
            self._roll_back(halves)
        elif halves:
            self._begin(halves)
            decision = Decision(batch_id, halves)
            self.file.write(decision)
            self._end(halves, LocalTransactionState.COMMIT_MESSAGE)
            self._done(decision)

    def abort(self, sent: Iterable[QueueHalves]) -> None:
        """Rolls back what no decision names."""
        known = self.file.read()
        decided = {half for each in known.queues for half in each.halves} if known is not None else set()
        halves = together(sent)
        for each in halves:
            each.halves = [half for half in each.halves if half not in decided]
        self._roll_back(halves)

    def _roll_back(self, halves: list[QueueHalves]) -> None:
        """Rolls half messages back. If that fails, no consumer sees them either: a failure is only logged."""
        try:
            self._end(halves, LocalTransactionState.ROLLBACK_MESSAGE)
        except MqlakeError as error:
            logger.warning("half messages that are not needed are left to the broker: %s", error)

    def _begin(self, halves: list[QueueHalves]) -> None:
        live = self._live
        known = set(live.queues({each.queue.topic for each in halves}))
        for each in halves:
            if each.queue not in known:
                raise OffsetOutOfRangeError(f"{each.queue}: there is no such queue (any more)")
        bounds = live.bounds([each.queue for each in halves])
        for each in halves:
            each.begin = bounds[each.queue][1]

    def _finish(self, decision: Decision) -> None:
        """Carries out what is left of a decision."""
        logger.warning("epoch %d was decided and not finished; it is finished now", decision.batch_id)
        time.sleep(SETTLE_S)
        left = []
        for each in decision.queues:
            committed = self._committed(each)
            halves = [half for half in each.halves if half.physical_offset not in committed]
            left.append(QueueHalves(each.queue, each.begin, halves))
        self._end(left, LocalTransactionState.COMMIT_MESSAGE)
        self._done(decision)

    def _committed(self, epoch: QueueHalves) -> set[int]:
        """Physical offsets of the half messages whose messages are in the queue, from `begin` on."""
        live, queue = self._live, epoch.queue
        live.queues([queue.topic])
        low, high = live.bounds([queue])[queue]
        if epoch.begin < low:
            raise OffsetOutOfRangeError(
                f"{queue}: an epoch was decided at offset {epoch.begin} and not finished, and the broker has deleted "
                f"everything before {low} since: it cannot be known which of its messages are there. To have the "
                f"whole epoch written again, delete {self.file.path}"
            )
        found: set[int] = set()
        for records, _ in live.pull(queue, epoch.begin, high):
            for _, scan in scans_of(records):
                kind = scan.sys_flag & MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
                committed = np.asarray(kind == MessageSysFlag.TRANSACTION_COMMIT_TYPE)
                found.update(np.asarray(scan.prepared_transaction_offset)[committed].tolist())
        return found

    def _end(self, halves: list[QueueHalves], state: LocalTransactionState) -> None:
        """Ends all of them: queues side by side, the messages of a queue one after the other, so in their order.
        When one fails, the other queues go on to their end first."""

        async def of_queue(each: QueueHalves) -> None:
            queue = MessageQueue(
                topic=each.queue.topic, broker_name=each.queue.broker, queue_id=each.queue.queue_id
            )
            for half in each.halves:
                await self._end_one(_sent(queue, half), state)

        async def all_queues() -> None:
            for failure in await asyncio.gather(*map(of_queue, halves), return_exceptions=True):
                if failure is not None:
                    raise failure

        self._live.run(all_queues())

    async def _end_one(self, sent: SendResult, state: LocalTransactionState) -> None:
        await self._producer.end_transaction(sent, state, timeout_s=END_TIMEOUT_S)

    def _done(self, decision: Decision) -> None:
        self.file.write(Decision(decision.batch_id, [], done=True))


def transaction_producer(client: MQClientInstance, group: str) -> TransactionMQProducer:
    """For half messages whose end the decision says: a broker that checks one gets "unknown", and asks again."""
    return TransactionMQProducer(group, client, _Undecided())


class _Undecided:
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    def check_local_transaction(self, message: Message) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW


def half_of(sent: SendResult) -> tuple[MessageQueue, Half]:
    """The target queue of a half message, and its id."""
    half = Half(sent.queue_offset, decode_message_id(sent.offset_msg_id)[1], sent.msg_id)
    return sent.message_queue, half


def by_queue(halves: Iterable[tuple[MessageQueue, Half]]) -> list[QueueHalves]:
    """The half messages that a task has sent, by queue, in the order of its rows."""
    queues: dict[MessageQueue, QueueHalves] = {}
    for where, half in halves:
        found = queues.get(where)
        if found is None:
            found = queues[where] = QueueHalves(Queue(where.topic, where.broker_name, where.queue_id))
        found.halves.append(half)
    return list(queues.values())


def together(sent: Iterable[QueueHalves]) -> list[QueueHalves]:
    """The half messages of all tasks, by queue: the first task's first."""
    queues: dict[Queue, QueueHalves] = {}
    for each in sent:
        queues.setdefault(each.queue, QueueHalves(each.queue)).halves.extend(each.halves)
    return [queues[queue] for queue in sorted(queues)]


def _sent(queue: MessageQueue, half: Half) -> SendResult:
    # only the offset in it is looked at
    place = create_message_id(_NO_HOST, half.physical_offset)
    return SendResult(
        SendStatus.SEND_OK, half.uniq_key, place, queue, half.half_offset, transaction_id=half.uniq_key
    )
