"""Servers and clients on both event loops; each is closed at the end, and nothing may be left in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mqlake.remoting.loop import loop_factory

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": loop_factory()}
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[name for name, factory in LOOPS.items() if factory is not None])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a loop of its own; an exception in a callback fails the test."""

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        failures: list[dict[str, Any]] = []

        async def guarded() -> Any:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
            async with asyncio.timeout(120):
                result = await main
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, left
            return result

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            result = runner.run(guarded())
        assert not failures, failures
        return result

    return run
