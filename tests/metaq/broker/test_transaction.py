"""The states of a transaction, with a store that only notes what it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from mqlake.errors import StoreFencedError, XAError
from mqlake.metaq.broker.transaction import (
    LocalTransaction,
    Transaction,
    TransactionState,
    XACode,
    XATransaction,
)
from mqlake.metaq.formats.transaction_id import LocalTransactionId, TransactionId, XATransactionId

LOCAL = LocalTransactionId("s", 1)
XID = XATransactionId(1, b"g", b"b", "q")


class Notes:
    def __init__(self, failing: bool = False) -> None:
        self.asked: list[object] = []
        self.failing = failing

    async def _note(self, *what: object) -> None:
        self.asked.append(what)
        if self.failing:
            raise StoreFencedError("broken")

    def prepare(self, _: TransactionId) -> Awaitable[None]:
        return self._note("prepare")

    def commit(self, _: TransactionId, was_prepared: bool) -> Awaitable[None]:
        return self._note("commit", was_prepared)

    def rollback(self, _: TransactionId) -> Awaitable[None]:
        return self._note("rollback")


def made(
    kind: type[Transaction], *, in_use: bool, failing: bool = False
) -> tuple[Transaction, Notes, list[object]]:
    notes, finished = Notes(failing), []
    xid = LOCAL if kind is LocalTransaction else XID
    transaction = kind(xid, notes, finished.append)  # type: ignore[arg-type]
    if in_use:
        transaction.set_in_use()
    return transaction, notes, finished


def wait(step: Awaitable[object]) -> object:
    async def run() -> object:
        return await step

    return asyncio.run(run())


def test_local() -> None:
    transaction, notes, finished = made(LocalTransaction, in_use=True)
    assert transaction.state is TransactionState.IN_USE
    with pytest.raises(XAError, match="Prepare not implemented") as caught:
        transaction.prepare()
    assert caught.value.code == XACode.XAER_RMERR
    wait(transaction.commit(True))
    assert notes.asked == [("commit", False)] and finished == [LOCAL]
    transaction, notes, finished = made(LocalTransaction, in_use=True)
    wait(transaction.rollback())
    assert notes.asked == [("rollback",)] and transaction.state is TransactionState.FINISHED


def test_nothing_in_it_needs_no_store() -> None:
    for kind in (LocalTransaction, XATransaction):
        transaction, notes, finished = made(kind, in_use=False)
        wait(transaction.rollback())
        assert notes.asked == [] and finished == [transaction.xid]
    transaction, notes, finished = made(XATransaction, in_use=False)
    assert wait(transaction.prepare()) is XACode.XA_RDONLY and finished == [XID] and notes.asked == []


def test_two_phases() -> None:
    transaction, notes, finished = made(XATransaction, in_use=True)
    with pytest.raises(XAError, match="has not been prepared") as caught:
        transaction.commit(False)
    assert caught.value.code == XACode.XAER_PROTO and transaction.state is TransactionState.IN_USE
    assert wait(transaction.prepare()) is XACode.XA_OK and transaction.state is TransactionState.PREPARED
    with pytest.raises(XAError, match="Cannot call prepare now"):
        transaction.prepare()
    transaction.set_in_use()
    assert transaction.state is TransactionState.PREPARED
    wait(transaction.commit(False))
    assert notes.asked == [("prepare",), ("commit", True)] and finished == [XID]
    transaction, notes, _ = made(XATransaction, in_use=True)
    wait(transaction.commit(True))
    assert notes.asked == [("commit", False)]
    transaction, notes, _ = made(XATransaction, in_use=True)
    wait(transaction.prepare())
    wait(transaction.rollback())
    assert notes.asked == [("prepare",), ("rollback",)]


def test_a_commit_that_the_disk_refuses_is_the_managers_to_ask_about() -> None:
    transaction, _, _ = made(XATransaction, in_use=True, failing=True)
    with pytest.raises(XAError, match="the next start of the broker decides") as caught:
        wait(transaction.commit(True))
    assert caught.value.code == XACode.XAER_RMERR


def test_the_clock_stops_at_the_end() -> None:
    async def run() -> None:
        rang: list[int] = []
        for end in ("commit", "rollback", "prepare"):
            transaction, _, _ = made(XATransaction, in_use=True)
            transaction.timeout = asyncio.get_running_loop().call_later(0.01, rang.append, 1)
            await (transaction.commit(True) if end == "commit" else getattr(transaction, end)())
        await asyncio.sleep(0.03)
        assert rang == []

    asyncio.run(run())
