"""Patience: what an application begins with is tried again while its cluster is away, for a time.

    until_there(work) ─▶ a name server or broker does not answer, or no broker is registered yet
                            └▶ a line in the log, 0.5 s, 1 s, … 15 s ─▶ again, until `startup_timeout_s` are over

Services are started in any order, and after a restart the name servers are there before the brokers. What trying again
does not mend (a refusal, a topic that may not be made) is raised at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mqlake.errors import (
    BrokerNotFoundError,
    CertificateError,
    MqlakeError,
    NoMasterError,
    NoNameServerError,
    RemotingConnectError,
    RemotingTimeoutError,
)

T = TypeVar("T")
STARTUP_TIMEOUT_S = 60.0
"""The default of the adapters' `startup_timeout_s`."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 15.0
AWAY = (NoNameServerError, NoMasterError, BrokerNotFoundError, RemotingConnectError, RemotingTimeoutError)


def is_away(error: MqlakeError) -> bool:
    """Returns True if the error may end by itself: the cluster, or a part of it, is not there."""
    return isinstance(error, AWAY) and not isinstance(error, CertificateError)


async def until_there(
    work: Callable[[], Awaitable[T]], timeout_s: float | None, say: Callable[[str], object]
) -> T:
    """Returns the result of `work`, which is called again while the cluster is away.

    timeout_s: seconds after which the last error is raised; 0: the first one, None: never.
    say: gets a line for each error that is not raised.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return await work()
        except MqlakeError as error:
            left = wait_s if deadline is None else deadline - time.monotonic()
            if not is_away(error) or left <= 0:
                raise
            pause_s = min(wait_s, left)
            say(f"{error}; trying again in {pause_s:.2g} s")
        await asyncio.sleep(pause_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)
