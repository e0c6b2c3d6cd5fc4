"""PopLongPollingService by itself: who is woken, and when."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from mqlake.broker.pop import polling
from mqlake.broker.pop.polling import ANY_QUEUE, PopLongPollingService, Wait, Waiter
from mqlake.store.dispatch import Arrival
from tests.broker.live import now_ms
from tests.broker.live_broker import run
from tests.waiting import until_async


class Desk:
    """Waiters with names, and those that were executed."""

    def __init__(self, **fields: bool) -> None:
        self.service = PopLongPollingService(now_ms, lambda: 3, lambda: 5, **fields)
        self.service.start()
        self.executed: list[tuple[str, bool]] = []
        self.answers: dict[str, asyncio.Future[None]] = {}

    def wait(self, name: str, key: tuple[str, str, int], ms: int = 60_000, *, more: bool = False) -> Wait:
        answer = self.answers[name] = asyncio.get_running_loop().create_future()

        def execute(_: Waiter, is_over: bool) -> None:
            self.executed.append((name, is_over))
            answer.set_result(None)

        return self.service.wait(Waiter(None, key, now_ms() + ms, answer, execute), lambda: more)

    async def arrive(self, topic: str, queue_id: int = 0) -> list[str]:
        """The names of those that were woken."""
        self.executed.clear()
        await asyncio.to_thread(self.service.on_arrival, Arrival(topic, queue_id, 1, 1, 1))
        for _ in range(5):
            await asyncio.sleep(0)
        return sorted(name for name, _ in self.executed)


def test_one_of_each_group_is_woken():
    async def main() -> None:
        desk = Desk()
        desk.wait("late", ("T", "G", ANY_QUEUE), 60_000)
        desk.wait("soon", ("T", "G", ANY_QUEUE), 50_000)
        desk.wait("queue 1", ("T", "G", 1))
        desk.wait("other", ("T", "H", ANY_QUEUE))
        assert await desk.arrive("U") == []
        assert await desk.arrive("T", 0) == ["other", "soon"]
        assert await desk.arrive("T", 1) == ["late", "queue 1"]
        assert await desk.arrive("T", 1) == []
        assert len(desk.service) == 0

    run(main())


def test_furthest_first():
    async def main() -> None:
        desk = Desk(furthest_first=True)
        desk.wait("late", ("T", "G", ANY_QUEUE), 60_000)
        desk.wait("soon", ("T", "G", ANY_QUEUE), 50_000)
        assert await desk.arrive("T") == ["late"]

    run(main())


def test_retries_wake_the_group():
    async def main() -> None:
        desk = Desk()
        desk.wait("G", ("T_1", "G_2", 3))
        desk.wait("H", ("T_1", "H", ANY_QUEUE))
        assert await desk.arrive("%RETRY%G_2_T_1") == ["G"]
        assert await desk.arrive("%RETRY%H+T_1") == ["H"]

    run(main())


def test_limits():
    async def main() -> None:
        desk = Desk()
        assert [desk.wait("", ("T", "G", 0)) for _ in range(4)] == [Wait.WAITS] * 3 + [Wait.FULL]
        assert [desk.wait("", ("T", "G", 1)) for _ in range(3)] == [Wait.WAITS] * 2 + [Wait.FULL]
        assert desk.wait("", ("U", "G", 1), 0) is Wait.OVER
        assert desk.service.polling_num(("T", "G", 0)) == 3
        desk.service.shutdown()
        assert desk.executed == [("", True)] * 5
        assert desk.wait("", ("T", "G", 1)) is Wait.OVER

    run(main())


def test_what_came_before_the_entry_wakes():
    async def main() -> None:
        desk = Desk()
        assert desk.wait("a", ("T", "G", 0), more=True) is Wait.WAITS
        assert await desk.arrive("U") == ["a"]

    run(main())


def test_time_over():
    async def main() -> None:
        desk = Desk()
        desk.wait("b", ("T", "G", 0), 60)
        desk.wait("a", ("T", "G", 1), 20)
        desk.wait("c", ("T", "G", 1), 60_000)
        while len(desk.executed) < 2:
            await asyncio.sleep(0.005)
        assert desk.executed == [("a", True), ("b", True)]
        assert len(desk.service) == 1
        desk.service.shutdown()

    run(main())


def test_a_client_that_is_gone_is_forgotten_before_its_time_is_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(polling, "GONE_MS", 10)

    async def main() -> None:
        desk = Desk()
        for name in ("gone", "stays"):
            desk.wait(name, ("T", "G", 0))
        gone = weakref.ref(desk.answers.pop("gone"))
        desk.wait("over", ("T", "H", 0), 20)  # the next look is soon
        gone().cancel()  # type: ignore[union-attr]  # as its connection does when it is closed
        await until_async(lambda: gone() is None)
        await until_async(lambda: desk.executed == [("over", True)])
        assert len(desk.service) == 1
        assert await desk.arrive("T") == ["stays"]

    run(main())
