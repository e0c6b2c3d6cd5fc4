"""Answers that count every message that was acknowledged before the request.

The end of a queue, the offset at a time, a message by key: all are read from what dispatch has made, which is behind
the log for as long as dispatch gathers, here longer than in RocketMQ while nobody waits for messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Answer, Connection, Processor
from mqlake.store.message_store import DefaultMessageStore

DISPATCH_WAIT_S = 1.0
"""How long a question waits at most; then it is answered with what there is, as by RocketMQ."""


async def when_dispatched(
    store: DefaultMessageStore, ask: Callable[[], Answer | Awaitable[Answer]]
) -> Answer:
    """The answer of `ask()`, called when what the log holds now is dispatched, which is hurried."""
    if store.dispatch_behind_bytes:
        await asyncio.to_thread(store.wait_until_dispatched, DISPATCH_WAIT_S)
    answer = ask()
    return await answer if isinstance(answer, Awaitable) else answer


def after_dispatch(store: DefaultMessageStore, processor: Processor) -> Processor:
    """The processor, asked when what the log held at the request is dispatched."""

    async def answer(connection: Connection, request: RemotingCommand) -> Answer:
        return await when_dispatched(store, lambda: processor(connection, request))

    return answer
