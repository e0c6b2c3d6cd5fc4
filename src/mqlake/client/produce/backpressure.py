"""Turns: back-pressure for sends. A limited number of sends and bytes is in flight; the others wait in order.

A send that waits for its turn costs the broker nothing and cannot time out. With all of them in flight at once those at
the end of a broker's queue would be given up while it works on the others.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    def __init__(self, number: int, size: int) -> None:
        """`size`: bytes. Whatever the limits, one send may be in flight."""
        self._number, self._size = number, size
        self.in_flight = 0
        self.bytes_in_flight = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def take(self, size: int) -> None:
        """Waits for the turn of a send of `size` bytes; `give_back` has to follow."""
        if not self._waiting and self._has_room(size):
            self._begin(size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size))
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # it came in the moment of the cancellation
                self.give_back(size)
            else:
                turn.cancel()
                self._call_next()
            raise

    def give_back(self, size: int) -> None:
        self.in_flight -= 1
        self.bytes_in_flight -= size
        self._call_next()

    def _has_room(self, size: int) -> bool:
        return self.in_flight == 0 or (
            self.in_flight < self._number and self.bytes_in_flight + size <= self._size
        )

    def _begin(self, size: int) -> None:
        self.in_flight += 1
        self.bytes_in_flight += size

    def _call_next(self) -> None:
        while self._waiting:
            turn, size = self._waiting[0]
            if not turn.done():
                if not self._has_room(size):
                    return
                self._begin(size)
                turn.set_result(None)
            self._waiting.popleft()  # those that gave up are passed over
