"""MessageProducer: sends messages, single or in transactions.

    producer.send_message ─▶ selector ─▶ partition ─▶ its broker ─▶ SendResult

A message is sent once: without an answer it is unknown whether it is stored, and the caller decides.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from mqlake.base.arguments import checked
from mqlake.base.clock import now_ms
from mqlake.errors import (
    ConfigError,
    RemotingConnectError,
    RemotingError,
    ResponseError,
    TransactionError,
    XAError,
)
from mqlake.metaq.client.session import MetaSession
from mqlake.metaq.formats.command import (
    ANY_PARTITION,
    BooleanCommand,
    HttpStatus,
    PutCommand,
    TransactionCommand,
    TransactionType,
)
from mqlake.metaq.formats.record import checksum, encode_payload, message_flag
from mqlake.metaq.formats.transaction_id import (
    LocalTransactionId,
    TransactionId,
    XATransactionId,
    parse_transaction_id,
)
from mqlake.metaq.message import Message, Partition, check_topic, check_types
from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS

logger = logging.getLogger(__name__)

_XA_ERROR = re.compile(r"XAException:code=(-?\d+),msg=(.*)", re.DOTALL)

PartitionSelector = Callable[[str, Sequence[Partition], Message], Partition]
"""Called with a topic, its partitions and a message."""

_sessions = itertools.count(1)


def round_robin() -> PartitionSelector:
    """One partition after the other, beginning with the second, as in the original."""
    counter = itertools.count(1)
    return lambda topic, partitions, message: partitions[next(counter) % len(partitions)]


def random_partition(_: str, partitions: Sequence[Partition], __: Message) -> Partition:
    return random.choice(partitions)


def by_key(key: Callable[[Message], bytes]) -> PartitionSelector:
    """Messages with the same key go to the same partition, as long as their number does not change."""
    return lambda topic, partitions, message: partitions[checksum(key(message)) % len(partitions)]


@dataclass(frozen=True, slots=True)
class SendResult:
    success: bool
    partition: Partition | None = None
    offset: int = -1
    """The message's offset in the partition; -1 in a transaction."""
    message_id: int = 0
    error_message: str = ""
    """The broker's; `403` if the partition is closed."""


@checked
class MessageProducer:
    """Created by a session; `publish` a topic before sending to it."""

    def __init__(self, session: MetaSession, selector: PartitionSelector | None = None) -> None:
        self._session = session
        self._selector = selector or round_robin()
        self._topics: dict[str, tuple[list[Partition], dict[int, str]]] = {}
        self._loop = asyncio.get_running_loop()
        self._refreshes: set[asyncio.Task[None]] = set()
        self._watches: dict[str, Callable[[object], None]] = {}
        self._closed = False
        self._session_id = f"{os.getpid()}-{now_ms()}-{next(_sessions)}"
        self._transactions = itertools.count(1)
        session.on_new_session(self._refresh_all)

    async def publish(self, topic: str) -> None:
        """Looks up the topic's partitions, and follows changes. IllegalTopicError, RemotingError."""
        check_topic(topic)
        if topic not in self._topics and not self._session.server_url:
            self._watches[topic] = lambda _: self._changed(topic)
            await self._refresh(topic)
        self._topics.setdefault(topic, ([], {}))

    async def _refresh(self, topic: str) -> None:
        self._topics[topic] = await self._session.publish_partitions(topic, self._watches[topic])

    def _changed(self, topic: str) -> None:
        """A watch of the topic has fired; called in a thread of ZooKeeper's client."""

        def refresh() -> None:
            if not self._closed:
                task = asyncio.ensure_future(self._refresh_quietly(topic))
                self._refreshes.add(task)
                task.add_done_callback(self._refreshes.discard)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(refresh)

    async def _refresh_quietly(self, topic: str) -> None:
        try:
            await self._refresh(topic)
        except RemotingError as error:
            logger.warning("%s: the new partitions are not known: %s", topic, error)

    def _refresh_all(self) -> None:
        for topic in self._watches:
            self._changed(topic)

    def partitions(self, topic: str) -> list[Partition]:
        """The topic's current partitions. ConfigError if it is not published."""
        if topic not in self._topics:
            raise ConfigError(f"{topic!r} is not published; call publish() first")
        return list(self._topics[topic][0])

    def _select(self, message: Message) -> tuple[str, Partition]:
        """(address, partition). TypeError for a message with a value of the wrong type."""
        check_types(message)
        partitions = self.partitions(message.topic)
        if self._session.server_url:
            return self._session.server_url, Partition(0, ANY_PARTITION)
        if not partitions:
            raise RemotingConnectError(message.topic, "no broker takes messages of this topic now")
        chosen = self._selector(message.topic, partitions, message)
        return self._topics[message.topic][1][chosen.broker_id], chosen

    async def send_message(self, message: Message, timeout_s: float | None = None) -> SendResult:
        """Sends a message once and sets its id and partition. ConfigError, RemotingError."""
        address, partition = self._select(message)
        return await self._put(address, partition, message, None, DEFAULT_TIMEOUTS.of(timeout_s))

    async def _put(
        self,
        address: str,
        partition: Partition,
        message: Message,
        transaction: TransactionId | None,
        timeout_s: float,
    ) -> SendResult:
        payload = encode_payload(message.data, message.attribute)
        command = PutCommand(
            message.topic,
            partition.partition,
            payload,
            message_flag(message),
            checksum(payload),
            transaction,
            self._session.remoting.next_opaque(),
        )
        answer = await self._session.remoting.ask(address, command, timeout_s)
        if answer.code == HttpStatus.FORBIDDEN:
            return SendResult(False, partition, error_message=str(int(HttpStatus.FORBIDDEN)))
        if answer.code != HttpStatus.SUCCESS:
            return SendResult(False, partition, error_message=answer.message)
        identity, number, offset = map(int, answer.message.split(" "))
        stored = Partition(partition.broker_id, number)
        if not message.read_only:
            message.id, message.partition = identity, stored
        return SendResult(True, stored, offset, identity)

    def begin_transaction(self, timeout_s: int = 0) -> ProducerTransaction:
        """A local transaction, which begins at the broker with its first message. `timeout_s` 0: no timeout."""
        identity = LocalTransactionId(self._session_id, next(self._transactions))
        return ProducerTransaction(self, identity, timeout_s)

    def begin_xa_transaction(self, xid: XATransactionId, timeout_s: int = 0) -> ProducerXATransaction:
        """A branch `xid` of a transaction that a transaction manager coordinates."""
        return ProducerXATransaction(self, xid, timeout_s)

    async def recover_xa(self, unique_qualifier: str) -> list[ProducerXATransaction]:
        """The prepared transactions of a resource, on all brokers of the published topics.

        TransactionError, RemotingError.
        """
        found = []
        for address in sorted(
            {each for _, addresses in self._topics.values() for each in addresses.values()}
        ):
            remoting = self._session.remoting
            command = TransactionCommand(
                None, self._session_id, TransactionType.RECOVER, 0, unique_qualifier, remoting.next_opaque()
            )
            answer = _expect_success(await remoting.ask(address, command, DEFAULT_TIMEOUTS.transaction_s))
            for key in filter(None, answer.message.split("\r\n")):
                xid = parse_transaction_id(key)
                if isinstance(xid, XATransactionId):
                    found.append(ProducerXATransaction(self, xid, prepared_at=address))
        return found

    async def shutdown(self) -> None:
        self._closed = True
        self._session.remove_new_session(self._refresh_all)
        self._session.forget(self)
        for task in list(self._refreshes):
            task.cancel()
        await asyncio.gather(*self._refreshes, return_exceptions=True)


@checked
class ProducerTransaction:
    """Messages for one broker, all or none. `async with` commits, or rolls back after an exception."""

    def __init__(self, producer: MessageProducer, identity: TransactionId, timeout_s: int) -> None:
        self._producer = producer
        self._identity = identity
        self._timeout_s = timeout_s
        self._address = ""
        self._broker_id = -1
        self._ended = False

    async def send_message(self, message: Message, timeout_s: float | None = None) -> SendResult:
        """Sends to a partition of the first message's broker. TransactionError, RemotingError."""
        self._require_open()
        address, partition = self._producer._select(message)
        if partition.partition == ANY_PARTITION:
            raise TransactionError("a transaction needs a session with ZooKeeper, which knows the partitions")
        if not self._address:
            await self._command(address, TransactionType.BEGIN, self._timeout_s)
            self._address, self._broker_id = address, partition.broker_id
        elif partition.broker_id != self._broker_id:
            partition = self._on_its_broker(message)
        return await self._producer._put(
            self._address, partition, message, self._identity, DEFAULT_TIMEOUTS.of(timeout_s)
        )

    def _on_its_broker(self, message: Message) -> Partition:
        own = [each for each in self._producer.partitions(message.topic) if each.broker_id == self._broker_id]
        if not own:
            raise TransactionError(
                f"broker {self._broker_id}, on which the transaction began, does not take {message.topic!r}"
            )
        return self._producer._selector(message.topic, own, message)

    async def commit(self) -> None:
        """TransactionError if the broker refuses. After a RemotingError the outcome is unknown."""
        await self._end(TransactionType.COMMIT_ONE_PHASE)

    async def rollback(self) -> None:
        await self._end(TransactionType.ROLLBACK)

    async def _end(self, kind: TransactionType) -> None:
        self._require_open()
        self._ended = True
        if self._address:  # else the broker does not know it
            await self._command(self._address, kind)

    def _require_open(self) -> None:
        if self._ended:
            raise TransactionError(f"transaction {self._identity} has ended")

    async def _command(self, address: str, kind: TransactionType, timeout_s: int = 0) -> BooleanCommand:
        remoting, identity = self._producer._session.remoting, self._identity
        qualifier = identity.unique_qualifier if isinstance(identity, XATransactionId) else None
        command = TransactionCommand(
            identity, self._producer._session_id, kind, timeout_s, qualifier, remoting.next_opaque()
        )
        return _expect_success(await remoting.ask(address, command, DEFAULT_TIMEOUTS.transaction_s))

    async def __aenter__(self) -> ProducerTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            await (self.commit() if error is None else self.rollback())


@checked
class ProducerXATransaction(ProducerTransaction):
    """`prepare`, then `commit` or `rollback`; or `commit` in one phase."""

    def __init__(
        self, producer: MessageProducer, xid: XATransactionId, timeout_s: int = 0, *, prepared_at: str = ""
    ) -> None:
        """`prepared_at`: the broker on which it is prepared."""
        super().__init__(producer, xid, timeout_s)
        self.xid = xid
        self._address = prepared_at
        self._prepared = bool(prepared_at)

    async def send_message(self, message: Message, timeout_s: float | None = None) -> SendResult:
        if self._prepared:
            raise TransactionError(f"{self.xid} is prepared and takes no more messages")
        return await super().send_message(message, timeout_s)

    async def prepare(self) -> bool:
        """False if it had no messages and has therefore ended. XAError, RemotingError."""
        self._require_open()
        if not self._address:
            self._ended = True
            return False
        answer = await self._command(self._address, TransactionType.PREPARE)
        self._prepared = answer.message == "0"
        self._ended = not self._prepared
        return self._prepared

    async def commit(self) -> None:
        """XAError, RemotingError."""
        await self._end(
            TransactionType.COMMIT_TWO_PHASE if self._prepared else TransactionType.COMMIT_ONE_PHASE
        )


def _expect_success(answer: BooleanCommand) -> BooleanCommand:
    if answer.code != HttpStatus.SUCCESS:
        found = _XA_ERROR.fullmatch(answer.message)
        if found is not None:
            raise XAError(int(found[1]), found[2])
        raise TransactionError(answer.message or str(ResponseError(answer.code)))
    return answer
