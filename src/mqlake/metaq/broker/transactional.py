"""TransactionalCommandProcessor: BEGIN to FORGET, and puts inside a transaction.

Local transactions belong to their connection and are rolled back when it closes; XA transactions belong to the
broker, and prepared ones outlive it. Transactions that time out before they are prepared are rolled back.

An operator may end a prepared transaction in place of its manager (`commit_heuristically` and so on). When the
manager asks, it gets this outcome until it sends FORGET; `heuristic.json` keeps it over restarts. (The original keeps
Java objects in `heuristic.log`, which is neither read nor changed.)
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

import orjson

from mqlake.base.durable import write_durably
from mqlake.errors import FormatError, MqlakeError, TransactionError, XAError
from mqlake.metaq.broker.command_processor import BrokerCommandProcessor, right_checksum
from mqlake.metaq.broker.transaction import (
    LocalTransaction,
    Transaction,
    TransactionState,
    XACode,
    XATransaction,
)
from mqlake.metaq.broker.transaction_store import JournalTransactionStore
from mqlake.metaq.formats.command import (
    ANY_PARTITION,
    HttpStatus,
    PutCommand,
    TransactionCommand,
    TransactionType,
)
from mqlake.metaq.formats.transaction_id import (
    LocalTransactionId,
    TransactionId,
    XATransactionId,
    parse_transaction_id,
)
from mqlake.metaq.wire.connection import Connection

logger = logging.getLogger(__name__)

HEURISTIC_FILE = "heuristic.json"
_ATTRIBUTE = "transactions"
_HEURISTIC = {
    XACode.XA_HEURCOM: "has been heuristically committed.",
    XACode.XA_HEURRB: "has been heuristically rolled back.",
    XACode.XA_HEURHAZ: "has been heuristically completed.",
}


class TransactionalCommandProcessor:
    """On the broker's event loop."""

    def __init__(
        self,
        processor: BrokerCommandProcessor,
        store: JournalTransactionStore,
        *,
        timeout_max_s: int,
    ) -> None:
        self._processor = processor
        self._store = store
        self._timeout_max_s = timeout_max_s
        self.xa_transactions: dict[XATransactionId, XATransaction] = {}
        self.heuristic: dict[XATransactionId, XACode] = {}
        self._heuristic_path = os.path.join(store.journal.directory, HEURISTIC_FILE)
        self._in_flight: set[asyncio.Future[None]] = set()

    def recover(self) -> None:
        """Recovers the transaction store; prepared transactions wait for their manager. OSError."""
        self._load_heuristic()
        for xid in self._store.recover():
            transaction = XATransaction(xid, self._store, self._xa_finished)
            transaction.state = TransactionState.PREPARED
            if xid not in self.heuristic:
                self.xa_transactions[xid] = transaction

    async def close(self) -> None:
        """Waits for operations in flight and makes a checkpoint. OSError."""
        if self._in_flight:
            await asyncio.wait(self._in_flight)
        try:
            self._store.make_checkpoint()
        except MqlakeError as error:
            logger.error("%s", error)
        finally:
            self._store.close()

    # --- requests

    def process_put(self, connection: Connection, command: PutCommand) -> None:
        """A put in a transaction; the offset in its answer is -1."""
        stats, topic, partition = self._processor.stats, command.topic, command.partition
        xid = command.transaction_id
        assert xid is not None
        if self._processor.refuses_closed(connection, command):
            return
        try:
            transaction = self._get(connection, xid)
            if transaction.state not in (TransactionState.START, TransactionState.IN_USE):
                raise TransactionError(
                    f"Transaction '{xid}' takes no more messages: it is {transaction.state.value}"
                )
            transaction.set_in_use()
            if partition == ANY_PARTITION:
                raise TransactionError(f"Invalid partition for transaction command:{partition}")
            command = command._replace(checksum=right_checksum(command))  # for the journal
            message_store = self._processor.manager.get_or_create(topic, partition)
            message_id = self._processor.ids.next_id()
            self._store.add_message(message_store, message_id, command)
        except (MqlakeError, OSError) as error:
            stats.stats_put_failed(topic)
            connection.respond(HttpStatus.INTERNAL_SERVER_ERROR, str(error), command.opaque)
            return
        stats.stats_put(topic)
        connection.respond(HttpStatus.SUCCESS, f"{message_id} {partition} -1", command.opaque)

    def process(self, connection: Connection, command: TransactionCommand) -> None:
        """Answers every type but END; operations on the disk when they are done."""
        kind = command.type
        if kind is TransactionType.END:
            return
        try:
            xid = command.transaction_id
            if kind is TransactionType.RECOVER:
                found = self.prepared_transactions(command.unique_qualifier)
                connection.respond(HttpStatus.SUCCESS, "\r\n".join(map(str, found)), command.opaque)
            elif xid is None:
                raise TransactionError("Null xid")
            elif kind is TransactionType.BEGIN:
                self.begin(connection, xid, command.timeout_s)
                connection.respond(HttpStatus.SUCCESS, "", command.opaque)
            elif kind is TransactionType.FORGET:
                self.forget(xid)
                connection.respond(HttpStatus.SUCCESS, "", command.opaque)
            else:
                self._finish(connection, command, self._step(connection, kind, xid))
        except MqlakeError as error:
            self._refuse(connection, command, error)

    def _step(self, connection: Connection, kind: TransactionType, xid: TransactionId) -> Awaitable[object]:
        stats = self._processor.stats
        if kind is TransactionType.PREPARE:
            return self._get(connection, xid).prepare()
        if kind is TransactionType.ROLLBACK:
            stats.tx_rollback += 1
            return self._get(connection, xid).rollback()
        stats.tx_commit += 1
        return self._get(connection, xid).commit(kind is TransactionType.COMMIT_ONE_PHASE)

    def _finish(self, connection: Connection, command: TransactionCommand, step: Awaitable[object]) -> None:
        async def run() -> None:
            try:
                result = await step
            except (MqlakeError, OSError) as error:
                self._refuse(connection, command, error)
                return
            text = str(int(result)) if isinstance(result, XACode) else ""
            connection.respond(HttpStatus.SUCCESS, text, command.opaque)

        self._start(run())

    def _start(self, work: Awaitable[None]) -> None:
        future = asyncio.ensure_future(work)
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)

    @staticmethod
    def _refuse(connection: Connection, command: TransactionCommand, error: MqlakeError | OSError) -> None:
        text = f"XAException:code={error.code},msg={error}" if isinstance(error, XAError) else str(error)
        connection.respond(HttpStatus.INTERNAL_SERVER_ERROR, text, command.opaque)

    # --- the operations

    def begin(self, connection: Connection, xid: TransactionId, timeout_s: int) -> None:
        """Does nothing if the transaction has already begun."""
        transaction: Transaction
        if isinstance(xid, XATransactionId):
            self._processor.stats.tx_xa_begin += 1
            if xid in self.xa_transactions:
                return
            transaction = self.xa_transactions[xid] = XATransaction(xid, self._store, self._xa_finished)
        else:
            self._processor.stats.tx_begin += 1
            own = _local_transactions(connection)
            if xid in own:
                return
            transaction = own[xid] = LocalTransaction(
                xid, self._store, lambda _: self._forget_local(own, xid)
            )
        if timeout_s > 0:
            timeout_s = min(timeout_s, self._timeout_max_s)
            transaction.timeout = asyncio.get_running_loop().call_later(
                timeout_s, self._timed_out, transaction
            )

    def forget(self, xid: TransactionId) -> None:
        """Ignores an unknown transaction. XAError unless it is an XA transaction."""
        if not isinstance(xid, XATransactionId):
            raise XAError(XACode.XAER_NOTA, f"{xid} is not a valid xid")
        if self.heuristic.pop(xid, None) is not None:
            self._save_heuristic()

    def prepared_transactions(self, unique_qualifier: str | None = None) -> list[XATransactionId]:
        """Returns the prepared transactions of a resource, or all; with those that an operator has ended until their
        manager forgets them."""
        prepared = [
            xid for xid, each in self.xa_transactions.items() if each.state is TransactionState.PREPARED
        ]
        return [
            xid
            for xid in [*prepared, *self.heuristic]
            if unique_qualifier is None or xid.unique_qualifier == unique_qualifier
        ]

    def connection_closed(self, connection: Connection) -> None:
        """Rolls back the connection's local transactions."""
        for transaction in list(_local_transactions(connection).values()):
            self._roll_back(transaction)

    def _timed_out(self, transaction: Transaction) -> None:
        if transaction.state in (TransactionState.START, TransactionState.IN_USE):
            logger.warning("%s has timed out and is rolled back", transaction.xid)
            self._roll_back(transaction)

    def _roll_back(self, transaction: Transaction) -> None:
        async def run() -> None:
            try:
                await rolled_back
            except (MqlakeError, OSError) as error:
                logger.error("%s: %s", transaction.xid, error)

        rolled_back = transaction.rollback()
        self._start(run())

    def _get(self, connection: Connection, xid: TransactionId) -> Transaction:
        if isinstance(xid, LocalTransactionId):
            local = _local_transactions(connection).get(xid)
            if local is None:
                raise TransactionError(f"Local transaction '{xid}' has not been started.")
            return local
        found = self.xa_transactions.get(xid)
        if found is not None:
            return found
        code = self.heuristic.get(xid)
        if code is not None:
            raise XAError(code, f"XA transaction '{xid}' {_HEURISTIC[code]}")
        raise XAError(XACode.XAER_NOTA, f"XA transaction '{xid}' has not been started.")

    @staticmethod
    def _forget_local(own: dict[LocalTransactionId, LocalTransaction], xid: LocalTransactionId) -> None:
        own.pop(xid, None)

    def _xa_finished(self, xid: TransactionId) -> None:
        assert isinstance(xid, XATransactionId)
        self.xa_transactions.pop(xid, None)

    # --- operators

    @property
    def active_transaction_count(self) -> int:
        """Open transactions with messages, prepared or not."""
        return self._store.active_transaction_count

    def make_checkpoint(self) -> None:
        """OSError."""
        self._store.make_checkpoint()

    async def commit_heuristically(self, key: str) -> None:
        """Commits a prepared transaction in place of its manager. TransactionError, OSError."""
        await self._end_heuristically(key, XACode.XA_HEURCOM, lambda transaction: transaction.commit(False))

    async def rollback_heuristically(self, key: str) -> None:
        await self._end_heuristically(key, XACode.XA_HEURRB, lambda transaction: transaction.rollback())

    async def complete_heuristically(self, key: str) -> None:
        """Removes it from the list of prepared ones; its messages stay in the journal."""

        async def nothing(transaction: XATransaction) -> None:
            self.xa_transactions.pop(transaction.xid, None)

        await self._end_heuristically(key, XACode.XA_HEURHAZ, nothing)

    async def _end_heuristically(
        self, key: str, code: XACode, end: Callable[[XATransaction], Awaitable[None]]
    ) -> None:
        try:
            xid = parse_transaction_id(key)
        except FormatError as error:
            raise TransactionError(error.reason) from None
        transaction = self.xa_transactions.get(xid) if isinstance(xid, XATransactionId) else None
        if transaction is None or transaction.state is not TransactionState.PREPARED:
            raise TransactionError(f"there is no prepared transaction {key!r}")
        await end(transaction)
        self.heuristic[transaction.xid] = code
        self._save_heuristic()

    def _save_heuristic(self) -> None:
        write_durably(self._heuristic_path, orjson.dumps({str(x): int(c) for x, c in self.heuristic.items()}))

    def _load_heuristic(self) -> None:
        try:
            with open(self._heuristic_path, "rb") as file:
                kept = orjson.loads(file.read())
            for key, code in kept.items():
                xid = parse_transaction_id(key)
                if isinstance(xid, XATransactionId):
                    self.heuristic[xid] = XACode(code)
        except FileNotFoundError:
            pass
        except (ValueError, AttributeError, FormatError) as error:
            kept = f"{self._heuristic_path}.unreadable"
            os.replace(self._heuristic_path, kept)
            logger.error("%s cannot be read, so the decisions of operators are lost: %s", kept, error)


def _local_transactions(connection: Connection) -> dict[LocalTransactionId, LocalTransaction]:
    found = connection.attributes.setdefault(_ATTRIBUTE, {})
    assert isinstance(found, dict)
    return found
