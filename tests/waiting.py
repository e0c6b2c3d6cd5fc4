"""How tests wait: for a condition, as long as a busy machine may take, and what was waited for is told.

    until(lambda: broker.address in known, "the name server knows the broker")
    await until_async(lambda: len(found) == 3)
    for _ in trying("the broker answers"): ...

A wait that is over in milliseconds on a quiet machine costs no more; the limit is only how long a fault takes to show.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

PATIENCE_S = 180.0
"""For what comes at once on a quiet machine; another may be four times slower and have much else to do."""
PAUSE_S = 0.01
PAUSE_MAX_S = 1.0

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "", timeout_s: float = PATIENCE_S) -> T:
    """Waits until `condition()` holds; what it gave. `what`: what is waited for, in words."""
    deadline = time.monotonic() + timeout_s
    while True:
        asked = time.monotonic()
        if found := condition():
            return found
        assert time.monotonic() < deadline, _never(condition, what, timeout_s)
        time.sleep(_pause(time.monotonic() - asked))


async def until_async(
    condition: Callable[[], T | Awaitable[T]], what: str = "", timeout_s: float = PATIENCE_S
) -> T:
    """`until` on an event loop, which goes on meanwhile; the condition may be a coroutine function."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        asked = loop.time()
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert loop.time() < deadline, _never(condition, what, timeout_s)
        await asyncio.sleep(_pause(loop.time() - asked))


def _pause(asking_s: float) -> float:
    """Asking takes a third of the time at most: what is waited for needs the processor, too."""
    return min(max(PAUSE_S, 2 * asking_s), PAUSE_MAX_S)


def trying(what: str, timeout_s: float = PATIENCE_S) -> Iterator[int]:
    """`for _ in trying("…"):` in place of `while True:`: goes on until the loop is left, or so long that it never is.

    Yields the number of the try, from 0 on. `what`: what is waited for, in words.
    """
    deadline = time.monotonic() + timeout_s
    for number in itertools.count():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        yield number


def _never(condition: Callable[[], object], what: str, timeout_s: float) -> str:
    if not what:
        try:
            what = inspect.getsource(condition).strip()
        except (OSError, TypeError):
            what = repr(condition)
    return f"not within {timeout_s:g} s: {what}"
