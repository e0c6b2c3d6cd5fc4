"""HeldMessages: popped messages in hand, kept from others while they are, and settled once.

    receive ─▶ hold ─▶ renewed after each third of its invisible time ─▶ ack      done
                                                                      ├▶ back     others may have it
                                                                      └▶ dead     a dead letter of the group

A process that dies renews nothing, so others get what it had when the time is over; one that works for long keeps it.
Used on the client's event loop alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from mqlake.base.background import BackgroundWork
from mqlake.client.consume.simple_consumer import SimpleConsumer
from mqlake.client.records import MessageClientExt
from mqlake.errors import MqlakeError

logger = logging.getLogger(__name__)

RETRY_S = 1.0


def _nothing() -> None:
    pass


@dataclass(eq=False)
class Held:
    message: MessageClientExt
    consumer: SimpleConsumer
    renew_at: float
    settled: Callable[[], None]
    changing: asyncio.Task[None] | None = None


class HeldMessages:
    """`start` before the first message, `close` in the end: what is in hand then goes back."""

    def __init__(self, invisible_s: float) -> None:
        self.invisible_s = invisible_s
        self._held: set[Held] = set()
        self._renewing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._renewing = asyncio.ensure_future(self._renew())

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        await asyncio.gather(*map(self.back, list(self._held)))

    async def kept(
        self, receiving: Coroutine[Any, Any, list[Held]], late: Callable[[list[Held]], None] | None = None
    ) -> list[Held]:
        """Returns the messages that `receiving` brings in hand. It goes on when nobody waits for it any more, and
        what comes then is given to `late`, or goes back: it is not kept from others for all of its invisible time."""
        task = asyncio.ensure_future(receiving)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:

            def came_late(task: asyncio.Task[list[Held]]) -> None:
                if not task.cancelled() and task.exception() is None:
                    (late or self._back_later)(task.result())

            task.add_done_callback(came_late)
            raise

    def _back_later(self, found: Iterable[Held]) -> None:
        for held in found:
            held.consumer.client.in_background(self.back(held))

    def hold(
        self,
        consumer: SimpleConsumer,
        messages: Iterable[MessageClientExt],
        settled: Callable[[], None] = _nothing,
    ) -> list[Held]:
        """Takes in hand messages just received for `invisible_s`. `settled` is called when one is no longer in hand."""
        renew_at = time.monotonic() + self.invisible_s / 3
        found = [Held(message, consumer, renew_at, settled) for message in messages]
        self._held.update(found)
        return found

    def _let_go(self, held: Held) -> bool:
        """False if it was settled before."""
        if held not in self._held:
            return False
        self._held.discard(held)
        held.settled()
        return True

    async def ack(self, held: Held) -> None:
        """A second try when the first one fails; the message comes again after both."""
        if not self._let_go(held):
            return
        if held.changing is not None:
            await asyncio.gather(held.changing, return_exceptions=True)
        for again in (True, False):
            try:
                await held.consumer.ack(held.message)
                return
            except MqlakeError as error:
                if not again:
                    logger.warning(
                        "%s comes again, as it could not be acknowledged: %s", held.message.msg_id, error
                    )
                    return
            await asyncio.sleep(RETRY_S)

    async def back(self, held: Held, after_s: float = 0.0) -> None:
        if not self._let_go(held):
            return
        try:
            await held.consumer.change_invisible_duration(held.message, after_s)
        except MqlakeError as error:
            logger.info("%s comes again when its time is over: %s", held.message.msg_id, error)

    async def dead(self, held: Held) -> None:
        if not self._let_go(held):
            return
        try:
            await held.consumer.forward_to_dead_letters(held.message)
        except MqlakeError as error:
            logger.warning(
                "%s comes again, as it could not become a dead letter: %s", held.message.msg_id, error
            )

    async def _renew(self) -> None:
        third = self.invisible_s / 3
        work = BackgroundWork("messages stay with who works on them", logger)
        while True:
            await asyncio.sleep(third / 4)
            async with work.round():
                now = time.monotonic()
                for held in [each for each in self._held if each.renew_at <= now]:
                    held.renew_at = now + third
                    held.changing = asyncio.ensure_future(self._stay_invisible(held))

    async def _stay_invisible(self, held: Held) -> None:
        try:
            await held.consumer.change_invisible_duration(held.message, self.invisible_s)
        except MqlakeError as error:
            logger.warning("%s may be given to others as well: %s", held.message.msg_id, error)
