"""TestRocketBroker chooses subscribers as brokers do. Without it a test in memory could pass and the service fail."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from faststream import Context
from faststream.exceptions import SubscriberNotFound

from mqlake.adapters.faststream import RocketBroker, TestRocketBroker

Received = Annotated[Any, Context("message")]


def test_tags_sql_groups_batches_and_transactions() -> None:
    broker = RocketBroker(group="shop", logger=None)
    got: list[tuple[str, Any]] = []

    def subscribe(name: str, topic: str, **options: Any) -> None:
        @broker.subscriber(topic, **options)
        async def handler(body: Any) -> None:
            got.append((name, body))

    subscribe("tags", "T", tags="a || b", group="tags")
    subscribe("sql", "T", sql="price BETWEEN 3 AND 5", group="sql")
    subscribe("one of two", "T", group="both")
    subscribe("one of two", "T", group="both")
    subscribe("list", "T", batch=True, group="list")

    async def scene() -> None:
        async with TestRocketBroker(broker) as memory:
            await memory.publish(1, "T", tag="a", headers={"price": 4})
            await memory.publish(2, "T", tag="c")
            await memory.publish_batch(3, 4, topic="T", tag="b")
            expected = [
                *(("tags", number) for number in (1, 3, 4)),
                ("sql", 1),
                *(("one of two", number) for number in (1, 2, 3, 4)),
                ("list", [1]),
                ("list", [2]),
                ("list", [3, 4]),
            ]
            assert sorted(got, key=str) == sorted(expected, key=str)
            got.clear()
            with pytest.raises(ZeroDivisionError):
                async with memory.transaction():
                    await memory.publish("never", "T")
                    raise ZeroDivisionError
            async with memory.transaction():
                await memory.publish("kept", "T")
                assert not got
            assert ("one of two", "kept") in got and ("list", ["kept"]) in got

    asyncio.run(scene())


def test_requests_and_publishers() -> None:
    broker = RocketBroker(logger=None)

    @broker.publisher("Out", tag="x")
    @broker.subscriber("In")
    async def double(body: int, message: Received) -> int:
        assert message.raw_message.message.keys == "k"
        return 2 * body

    async def scene() -> None:
        async with TestRocketBroker(broker) as memory:
            assert await (await memory.request(4, "In", keys="k")).decode() == 8
            double.mock.assert_called_once_with(4)
            with pytest.raises(SubscriberNotFound):
                await memory.request(1, "Nowhere")

    asyncio.run(scene())


def test_the_programs_of_the_guide_run() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "faststream.md").read_text()
    names: dict[str, Any] = {}
    for program in re.findall(r"^```python\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE):
        exec(program, names)
    asyncio.run(names["test_pack"]())
