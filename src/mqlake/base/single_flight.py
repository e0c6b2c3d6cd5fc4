"""SingleFlight: one call at a time for each key; callers that come meanwhile share its result.

routes = SingleFlight(ask_name_server)
route = await routes("TopicA")
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class SingleFlight(Generic[Value]):
    """Used on one event loop. `call`: what is awaited for a key."""

    def __init__(self, call: Callable[[str], Coroutine[Any, Any, Value]]) -> None:
        self._call = call
        self._in_flight: dict[str, asyncio.Task[Value]] = {}

    async def __call__(self, key: str) -> Value:
        """Raises what the call raises. A caller that is cancelled does not cancel the call of the others."""
        task = self._in_flight.get(key)
        if task is None:
            task = self._in_flight[key] = asyncio.ensure_future(self._call(key))
            task.add_done_callback(lambda task: self._ended(key, task))
        return await asyncio.shield(task)

    def _ended(self, key: str, task: asyncio.Task[Value]) -> None:
        del self._in_flight[key]
        if not task.cancelled():
            task.exception()  # raised to the callers that still wait, if any do

    @property
    def in_flight(self) -> list[asyncio.Task[Value]]:
        return list(self._in_flight.values())
