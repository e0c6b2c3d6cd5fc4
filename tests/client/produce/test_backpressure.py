"""Turns: never more in flight than allowed, in the order of the calls, whoever gives up."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.client.produce.backpressure import Turns

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 12)),
        st.tuples(st.just("give back"), st.integers(0, 5)),
        st.tuples(st.just("give up"), st.integers(0, 5)),
        st.tuples(st.just("both"), st.integers(0, 5)),
    ),
    max_size=40,
)


@given(number=st.integers(1, 4), limit=st.integers(1, 20), steps=STEPS)
def test_against_a_plain_queue(number: int, limit: int, steps: list[tuple[str, int]]) -> None:
    async def main() -> None:
        turns = Turns(number, limit)
        calls: list[tuple[int, asyncio.Task[None]]] = []
        waiting: list[int] = []
        holding: list[int] = []

        def model_goes_on() -> None:
            while waiting:
                sizes = [calls[each][0] for each in holding]
                if holding and (len(holding) >= number or sum(sizes) + calls[waiting[0]][0] > limit):
                    return
                holding.append(waiting.pop(0))

        async def settle() -> None:
            for _ in range(4):
                await asyncio.sleep(0)

        for step, value in steps:
            given_back = given_up = None
            if step == "take":
                waiting.append(len(calls))
                calls.append((value, asyncio.ensure_future(turns.take(value))))
            if step in ("give back", "both") and holding:
                given_back = holding.pop(value % len(holding))
                turns.give_back(calls[given_back][0])
            if step in ("give up", "both") and waiting:
                given_up = waiting.pop(value % len(waiting))
                calls[given_up][1].cancel()
            model_goes_on()
            await settle()
            assert turns.in_flight == len(holding)
            assert turns.bytes_in_flight == sum(calls[each][0] for each in holding)
            done = {i for i, (_, task) in enumerate(calls) if task.done() and not task.cancelled()}
            assert done >= set(holding) and not done & set(waiting)
        for _, task in calls:
            task.cancel()
        await asyncio.gather(*(task for _, task in calls), return_exceptions=True)

    asyncio.run(main())


def test_one_that_is_larger_than_all_may_go_alone() -> None:
    async def main() -> None:
        turns = Turns(9, 10)
        await turns.take(1000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(turns.take(1), 0.01)
        turns.give_back(1000)
        await turns.take(1)

    asyncio.run(main())
