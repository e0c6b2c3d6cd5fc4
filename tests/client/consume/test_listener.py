"""Listeners: async ones on the loop, plain ones in threads, and what comes of them."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from mqlake.client.consume.listener import ConsumeContext, ConsumeResult, ListenerRunner
from mqlake.client.records import MessageClientExt
from mqlake.remoting.bodies.topic import MessageQueue

CONTEXT = ConsumeContext(MessageQueue(topic="T", broker_name="b", queue_id=0))


def calls(*bodies: bytes) -> list[Any]:
    return [([MessageClientExt("T", body)], CONTEXT) for body in bodies]


def answer(body: bytes) -> ConsumeResult | None:
    if body == b"raise":
        raise ValueError("no")
    return {b"later": ConsumeResult.LATER, b"success": ConsumeResult.SUCCESS}.get(body)


threads: set[int] = set()


def plain(messages: list[MessageClientExt], _: ConsumeContext) -> ConsumeResult | None:
    threads.add(threading.get_ident())
    return answer(messages[0].body)


async def on_the_loop(messages: list[MessageClientExt], _: ConsumeContext) -> ConsumeResult | None:
    threads.add(threading.get_ident())
    return answer(messages[0].body)


class Callable:
    async def __call__(
        self, messages: list[MessageClientExt], context: ConsumeContext
    ) -> ConsumeResult | None:
        return await on_the_loop(messages, context)


@pytest.mark.parametrize(("listener", "is_async"), [(plain, False), (on_the_loop, True), (Callable(), True)])
def test_what_comes_of_calls(listener: Any, is_async: bool) -> None:
    async def main() -> None:
        threads.clear()
        runner = ListenerRunner(listener, "G", 1)
        assert runner.is_async is is_async
        success, later = ConsumeResult.SUCCESS, ConsumeResult.LATER
        assert await runner.run(calls(b"none", b"later", b"success", b"raise", b"x")) == [
            success,
            later,
            success,
            later,
            success,
        ]
        assert (threads == {threading.get_ident()}) is is_async
        assert await runner.run_raising(*calls(b"later")[0]) is later
        with pytest.raises(ValueError, match="no"):
            await runner.run_raising(*calls(b"raise")[0])
        runner.close()

    asyncio.run(main())


@pytest.mark.parametrize("listener", [plain, on_the_loop])
def test_a_failing_listener_is_logged_with_its_traceback(
    listener: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """At the usual level: without it nobody finds the line that failed."""

    came_back = calls(b"raise")
    came_back[0][0][0].show_topic("Orders")
    came_back[0][0][0].reconsume_times = 2

    async def main() -> None:
        runner = ListenerRunner(listener, "G", 1)
        await runner.run(came_back)
        runner.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    place = "T/0@0 (of Orders, delivery 3)"  # where it was read, and what it is
    assert f"group G: the listener failed at {place}: ValueError: no" in caplog.text
    (record,) = caplog.records
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)
