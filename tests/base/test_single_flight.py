"""SingleFlight: callers at the same time share one call; nobody's end or error is another's surprise."""

from __future__ import annotations

import asyncio
import gc

import pytest

from mqlake.base.single_flight import SingleFlight


class Asked:
    """Questions that are answered when the test says so."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.answers: dict[str, asyncio.Future[str]] = {}
        self.get = SingleFlight(self._ask)

    async def _ask(self, key: str) -> str:
        self.keys.append(key)
        answer = self.answers[key] = asyncio.get_running_loop().create_future()
        return await answer

    async def callers(self, *keys: str) -> list[asyncio.Task[str]]:
        tasks = [asyncio.ensure_future(self.get(key)) for key in keys]
        while set(keys) - self.answers.keys():
            await asyncio.sleep(0)
        return tasks


def test_callers_share_a_call_and_a_later_one_asks_again() -> None:
    """Otherwise a thousand sends to a new topic would ask a name server a thousand times."""

    async def scene() -> None:
        asked = Asked()
        tasks = await asked.callers("T", "U", "T", "T")
        asked.answers["T"].set_result("route")
        assert await asyncio.gather(tasks[0], tasks[2], tasks[3]) == ["route"] * 3
        assert asked.keys == ["T", "U"]
        del asked.answers["T"]
        (again,) = await asked.callers("T")
        asked.answers["T"].set_result("changed")
        asked.answers["U"].set_result("other")
        assert await asyncio.gather(again, tasks[1]) == ["changed", "other"]
        assert asked.keys == ["T", "U", "T"] and not asked.get.in_flight

    asyncio.run(scene())


def test_a_caller_that_gives_up_does_not_end_the_call_of_the_others() -> None:
    async def scene() -> None:
        asked = Asked()
        first, second = await asked.callers("T", "T")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        asked.answers["T"].set_result("route")
        assert await second == "route"

    asyncio.run(scene())


def test_an_error_is_each_callers_and_none_of_nobody() -> None:
    """asyncio reports an exception that nobody took: here all callers have given up."""

    async def scene() -> None:
        asked, reports = Asked(), []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        tasks = await asked.callers("T", "T")
        asked.answers["T"].set_exception(OSError("no route"))
        for task in tasks:
            with pytest.raises(OSError, match="no route"):
                await task
        (alone,) = await asked.callers("U")
        alone.cancel()
        await asyncio.wait([alone])
        asked.answers["U"].set_exception(OSError("no route"))
        while asked.get.in_flight:
            await asyncio.sleep(0)
        del tasks, alone, asked
        gc.collect()
        assert reports == []

    asyncio.run(scene())
