"""The states of one transaction.

    START ──put──▶ IN_USE ──prepare (XA)──▶ PREPARED
      └───────commit, rollback─┴─────────────────┴──▶ FINISHED

A method changes the state at once and returns an awaitable for the work on the disk. A call that is not allowed
raises XAError with the original's code and text; a finished transaction is no longer found.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mqlake.errors import MqlakeError, XAError
from mqlake.metaq.broker.transaction_store import JournalTransactionStore
from mqlake.metaq.formats.transaction_id import LocalTransactionId, TransactionId, XATransactionId

T = TypeVar("T")


class XACode(enum.IntEnum):
    """XAException.errorCode, and answers to a prepare."""

    XA_OK = 0
    XA_RDONLY = 3
    XA_HEURRB = 6
    XA_HEURCOM = 7
    XA_HEURHAZ = 8
    XA_RBOTHER = 104
    XAER_RMERR = -3
    XAER_NOTA = -4
    XAER_PROTO = -6


class TransactionState(enum.Enum):
    START = "start"
    IN_USE = "in use"
    PREPARED = "prepared"
    FINISHED = "finished"


class Transaction:
    """Base of local and XA transactions; `on_finished` is called at the end."""

    def __init__(
        self, xid: TransactionId, store: JournalTransactionStore, on_finished: Callable[[TransactionId], None]
    ) -> None:
        self.xid = xid
        self.state = TransactionState.START
        self.timeout: asyncio.TimerHandle | None = None
        self._store = store
        self._on_finished = on_finished

    def set_in_use(self) -> None:
        if self.state is TransactionState.START:
            self.state = TransactionState.IN_USE

    def prepare(self) -> Awaitable[XACode]:
        raise NotImplementedError

    def commit(self, one_phase: bool) -> Awaitable[None]:
        raise NotImplementedError

    def rollback(self) -> Awaitable[None]:
        had_messages = self.state is not TransactionState.START
        self._finish()
        return self._store.rollback(self.xid) if had_messages else _nothing(None)

    def _finish(self) -> None:
        if self.timeout is not None:
            self.timeout.cancel()
        self.state = TransactionState.FINISHED
        self._on_finished(self.xid)

    async def _store_commit(self, was_prepared: bool) -> None:
        try:
            await self._store.commit(self.xid, was_prepared)
        except (MqlakeError, OSError) as error:
            raise XAError(
                XACode.XAER_RMERR, f"STORE COMMIT FAILED: {error}; the next start of the broker decides"
            ) from error


class LocalTransaction(Transaction):
    xid: LocalTransactionId

    def prepare(self) -> Awaitable[XACode]:
        raise XAError(XACode.XAER_RMERR, "Prepare not implemented on Local Transactions.")

    def commit(self, one_phase: bool) -> Awaitable[None]:
        self._finish()
        return self._store_commit(was_prepared=False)


class XATransaction(Transaction):
    xid: XATransactionId

    def prepare(self) -> Awaitable[XACode]:
        if self.state is TransactionState.START:
            self._finish()
            return _nothing(XACode.XA_RDONLY)
        if self.state is not TransactionState.IN_USE:
            raise XAError(XACode.XAER_PROTO, "Cannot call prepare now.")
        self.state = TransactionState.PREPARED
        if self.timeout is not None:
            self.timeout.cancel()
        return self._store_prepare()

    async def _store_prepare(self) -> XACode:
        await self._store.prepare(self.xid)
        return XACode.XA_OK

    def commit(self, one_phase: bool) -> Awaitable[None]:
        was_prepared = self.state is TransactionState.PREPARED
        if not was_prepared and not one_phase:
            raise XAError(
                XACode.XAER_PROTO,
                "Cannot do 2 phase commit if the transaction has not been prepared.",
            )
        self._finish()
        return self._store_commit(was_prepared)


async def _nothing(result: T) -> T:
    """For operations without work on the disk."""
    return result
