from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mqlake.remoting import yielding
from mqlake.remoting.loop import run


def steps(done: list[str], count: int) -> Iterator[None]:
    for number in range(count):
        done.append(str(number))
        yield


def test_all_at_once():
    done: list[str] = []
    yielding.at_once(steps(done, 3))
    assert done == ["0", "1", "2"]


def test_others_come_between_turns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(yielding, "TURN_S", 0.0)  # each step is a turn

    async def scene() -> None:
        done: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_soon(done.append, "other")
        await yielding.in_turns(steps(done, 3))
        assert done == ["0", "other", "1", "2"]

    run(scene())


def test_short_work_is_one_turn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(yielding, "TURN_S", 3600.0)

    async def scene() -> None:
        done: list[str] = []
        asyncio.get_running_loop().call_soon(done.append, "other")
        await yielding.in_turns(steps(done, 3))
        assert done == ["0", "1", "2"]

    run(scene())
