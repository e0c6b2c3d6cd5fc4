"""Work of one request that takes longer than one turn of the event loop.

    for each step … TURN_S is over ─▶ everyone else's requests ─▶ the next steps …

A step must leave everything in a state that other requests may see.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from mqlake.remoting.peer import TURN_S


def at_once(steps: Iterable[object]) -> None:
    """Runs all steps now; for work that is known to be short."""
    for _ in steps:
        pass


async def in_turns(steps: Iterable[object]) -> None:
    """Runs all steps, and lets other requests run whenever TURN_S is over."""
    turn_ends = time.monotonic() + TURN_S
    for _ in steps:
        if time.monotonic() >= turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.monotonic() + TURN_S
