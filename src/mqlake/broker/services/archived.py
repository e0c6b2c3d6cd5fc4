"""Answers that need messages of the archive: what is missing is fetched by a thread, then the answer is made again.

    processor ─▶ NotCachedError: bytes [start, end) ─▶ a thread of the archive's reader fetches them ─▶ processor ─▶ …

A place that does not answer is SYSTEM_BUSY: clients try again later, and no offset of theirs is moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mqlake.errors import ArchiveUnavailableError, ConfigError, MissingPartError, ResponseError
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Answer, Connection, Processor
from mqlake.store.archive.reader import NotCachedError
from mqlake.store.message_store import DefaultMessageStore

ROUNDS = 100
"""Rounds of one answer: as many as a query by key may have messages, and more than a search by time has steps."""


def busy(error: Exception) -> ResponseError:
    return ResponseError(
        ResponseCode.SYSTEM_BUSY,
        f"the messages are in the archive, which cannot be read now; the request may be repeated later: {error}",
    )


async def from_archive(
    store: DefaultMessageStore, ask: Callable[[], Answer | Awaitable[Answer]], missing: NotCachedError
) -> Answer:
    """The answer of `ask()`, which has raised `missing`. ResponseError if the archive cannot be read."""
    loop = asyncio.get_running_loop()
    for _ in range(ROUNDS):
        reader = store.archived
        assert reader is not None
        try:
            await loop.run_in_executor(reader.pool, reader.fetch, missing.start, missing.end)
        except (ArchiveUnavailableError, ConfigError, MissingPartError, OSError) as error:
            raise busy(error) from None
        try:
            answer = ask()
            return await answer if isinstance(answer, Awaitable) else answer
        except NotCachedError as error:
            missing = error
    raise busy(missing)


async def read_ahead(
    store: DefaultMessageStore, topic: str, queue_id: int, offset: int, max_count: int
) -> None:
    """StoreView.read_ahead() by a thread; one of the archive's, where there is one, so that a place that does not
    answer holds up nobody else. ResponseError if the archive cannot be read."""
    pool = None if store.archived is None else store.archived.pool
    try:
        await asyncio.get_running_loop().run_in_executor(
            pool, store.read_ahead, topic, queue_id, offset, max_count
        )
    except ArchiveUnavailableError as error:
        raise busy(error) from None


def with_archive(store: DefaultMessageStore, processor: Processor) -> Processor:
    """The processor, which may raise NotCachedError before it has any effect."""
    if not store.config.archive:
        return processor

    async def answer(connection: Connection, request: RemotingCommand) -> Answer:
        def ask() -> Answer | Awaitable[Answer]:
            return processor(connection, request)

        try:
            found = ask()
            return await found if isinstance(found, Awaitable) else found
        except NotCachedError as error:
            return await from_archive(store, ask, error)

    return answer
