"""Waits end: a fault shows as a failed test, not as a run that hangs."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from tests.waiting import trying, until, until_async


def test_a_wait_for_what_never_comes_fails_and_says_for_what() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.02 s: rain"):
        until(lambda: False, "rain", 0.02)
    with pytest.raises(AssertionError, match=r"not within 0.02 s: snow"):
        asyncio.run(until_async(lambda: False, "snow", 0.02))
    with pytest.raises(AssertionError, match=r"not within 0.02 s: hail"):
        for _ in trying("hail", 0.02):
            pass


def test_tries_are_counted_and_end_where_the_loop_is_left() -> None:
    for number in trying("the fourth"):
        if number == 3:
            break
    assert number == 3


def test_what_is_dear_to_ask_is_asked_less_often() -> None:
    """A query each hundredth of a second would take the processor from what it waits for."""
    asked: list[float] = []

    def slowly() -> bool:
        asked.append(time.monotonic())
        time.sleep(0.05)
        return len(asked) == 3

    until(slowly)
    assert all(later - earlier >= 0.15 for earlier, later in itertools.pairwise(asked))
