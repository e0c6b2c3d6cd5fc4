"""Forks brokers' stores that are killed. One process with everything imported, so a writer starts at once.

A job is a line of JSON on stdin: where to write, and when to die; the answer on stdout is the writer's wait status.
What a writer was told is safe it notes in a file: a write() that has returned outlives the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

from mqlake.metaq.broker.transaction_store import JournalTransactionStore
from mqlake.metaq.config import MetaConfig, SystemConfig
from mqlake.metaq.formats.command import PutCommand
from mqlake.metaq.formats.record import encode_record
from mqlake.metaq.formats.transaction_id import LocalTransactionId, TransactionId, XATransactionId
from mqlake.metaq.store.group_commit import GroupCommitService
from mqlake.metaq.store.manager import MessageStoreManager
from mqlake.metaq.store.message_store import Location
from tests.crash.killer import Countdown, _call
from tests.crash.writer_server import serve_writers

TOPICS = {"t": {"numPartitions": "3"}}


def config_of(job: dict[str, Any]) -> MetaConfig:
    return MetaConfig(
        SystemConfig(data_path=job["root"], unflush_threshold=0, max_segment_size=2000), topics=TOPICS
    )


def arm(call: str, part: str, moment: str, n: int) -> None:
    """Dies at the n-th call of os.`call` that touches a path with `part` in it."""
    setattr(os, call, _call(getattr(os, call), part, moment, Countdown(n)))


def write_messages(job: dict[str, Any], acks: int) -> None:
    """Messages `<partition>:<number>` into three partitions; each is noted when its callback says so."""
    service = GroupCommitService()
    manager = MessageStoreManager(config_of(job), group_commit=service)
    manager.load()

    def noting(partition: int, number: int) -> Callable[[Location | None, Exception | None], None]:
        def callback(location: Location | None, error: Exception | None) -> None:
            assert location is not None, error
            os.write(acks, b"%d:%d\n" % (partition, number))

        return callback

    for i in range(job["count"]):
        for partition, start in enumerate(job["starts"]):
            number = start + i
            body = b"%d:%d:" % (partition, number) + b"x" * (number * 37 % 300)
            store = manager.get_or_create("t", partition)
            store.append(encode_record(body, number + 1, 0), noting(partition, number))
    manager.close()
    service.close()


def write_transactions(job: dict[str, Any], acks: int) -> None:
    """Transactions of messages `<number>:<i>` over all partitions, several at a time, plain messages between them.

    Number n is rolled back when n % 5 == 0, prepared first when n % 3 == 0, and left prepared when n % 7 == 0. Noted
    are `committed n`, `prepared n` and, before it happens, `rolled n`.
    """
    asyncio.run(_write_transactions(job, acks))


async def _write_transactions(job: dict[str, Any], acks: int) -> None:
    loop = asyncio.get_running_loop()
    service = GroupCommitService(lambda batch: loop.call_soon_threadsafe(batch))
    manager = MessageStoreManager(config_of(job), group_commit=service)
    manager.load()
    store = JournalTransactionStore(job["root"], manager, file_size_max=3000)
    store.recover()

    def note(text: str) -> None:
        os.write(acks, f"{text}\n".encode())

    async def one(number: int) -> None:
        xid: TransactionId = LocalTransactionId("s", number)
        if number % 3 == 0 or number % 7 == 0:
            xid = XATransactionId(1, b"g", str(number).encode(), "q")
        for i in range(number % 4 + 2):
            body = b"%d:%d:" % (number, i) + b"x" * (number * 31 % 200)
            partition = (number + i) % 3
            put = PutCommand("t", partition, body, 0, -1, xid, 0)
            store.add_message(manager.get_or_create("t", partition), number * 10 + i + 1, put)
            if i % 2:
                await asyncio.sleep(0)
        if isinstance(xid, XATransactionId):
            await store.prepare(xid)
            note(f"prepared {number}")
        if number % 7 == 0:
            return
        if number % 5 == 0:
            note(f"rolled {number}")
            await store.rollback(xid)
            return
        await store.commit(xid, isinstance(xid, XATransactionId))
        note(f"committed {number}")

    async def plain() -> None:
        for i in range(job["count"]):
            manager.get_or_create("t", i % 3).append(encode_record(b"plain", 10**9 + i, 0))
            await asyncio.sleep(0.001)

    async def some(first: int) -> None:
        for number in range(first, job["starts"][0] + job["count"], 4):
            await one(number)
            if number % 11 == 0:
                store.make_checkpoint()

    await asyncio.gather(plain(), *(some(job["starts"][0] + i) for i in range(4)))
    store.close()
    manager.close()
    service.close()


WRITERS = {"messages": write_messages, "transactions": write_transactions}


def child(job: dict[str, Any]) -> None:
    logging.disable(logging.CRITICAL)
    if job["point"]:
        arm(*job["point"])
    acks = os.open(job["acks"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    WRITERS[job["writer"]](job, acks)


if __name__ == "__main__":
    serve_writers(child)
