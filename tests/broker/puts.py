"""A store's put with a test in front of it, which says what becomes of the messages that it means."""

from __future__ import annotations

from collections.abc import Callable

from mqlake.message import MessageExtBrokerInner
from mqlake.store.results import PutMessageFuture, PutMessageResult, PutMessageStatus, wake_all

Put = Callable[[MessageExtBrokerInner], PutMessageFuture]


class Puts:
    """`refuse`: the status with which messages are not stored. `holds`: answers wait for let_go()."""

    def __init__(
        self, put: Put, meant: Callable[[MessageExtBrokerInner], bool] = lambda message: True
    ) -> None:
        self._put = put
        self._meant = meant
        self.refuse: PutMessageStatus | None = None
        self.holds = False
        self.held: list[PutMessageFuture] = []
        self.asked: list[bytes] = []
        """Bodies of the messages that were meant."""

    def __call__(self, message: MessageExtBrokerInner) -> PutMessageFuture:
        if not self._meant(message):
            return self._put(message)
        self.asked.append(bytes(message.body))
        if self.refuse is None:
            result = self._put(message).result()
        else:
            result = PutMessageResult(self.refuse, reason="refused by the test")
        if not self.holds:
            return PutMessageFuture(result)
        self.held.append(PutMessageFuture(result, next_offset=1))
        return self.held[-1]

    def let_go(self, status: PutMessageStatus = PutMessageStatus.PUT_OK) -> None:
        """Answers those that wait."""
        held, self.held = self.held, []
        wake_all([waiter for future in held for waiter in future.finish(status)])
