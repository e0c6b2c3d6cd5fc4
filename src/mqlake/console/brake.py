"""Brake: who guesses secrets waits longer and longer, from one address or from many.

    a user from one network     5 tries free, then pauses of 1, 2, 4, ... s, at most 5 min
    a user from anywhere       20 tries free, then at most 1 min
    one network, any user      20 tries free, then at most 1 min
    everything together       100 tries free, then half a second each

A try counts when it begins, so that many at once are no way around it; a success takes it back. A network from which
a user has logged in is asked for its own failures alone: who guesses elsewhere does not lock that user out. What is
remembered is bounded, and what is put out first is what has not been tried for longest.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

KEYS_MAX = 10_000
FORGOTTEN_S = 3600.0
"""Without another try."""
NAME_MAX = 100
"""Characters of a user's name that count."""

logger = logging.getLogger(__name__)

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Limit:
    free: int
    pause_s: float
    """Pause after the first try that is not free; it doubles with each."""
    pause_max_s: float


_LIMITS = {
    "user and network": _Limit(5, 1.0, 300.0),
    "user": _Limit(20, 1.0, 60.0),
    "network": _Limit(20, 1.0, 60.0),
    "all": _Limit(100, 0.5, 0.5),
}


@dataclass(slots=True)
class _Tries:
    count: int = 0
    open_at: float = 0.0
    last: float = 0.0


class Brake:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tries: OrderedDict[Key, _Tries] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Users, and networks from which they have logged in."""

    def begin(self, user: str, address: str) -> float:
        """Seconds until a try is taken; 0: this one is, and it counts until `passed` or `undone` takes it back."""
        now = self._clock()
        keys = self._keys(user, address)
        wait_s = max((self._tries[key].open_at - now for key in keys if key in self._tries), default=0.0)
        if wait_s > 0:
            return wait_s
        for key in keys:
            self._count(key, now)
        return 0.0

    def passed(self, user: str, address: str) -> None:
        """The secret was right."""
        self.undone(user, address)
        here = (user[:NAME_MAX], network_of(address))
        self._tries.pop(("user and network", *here), None)
        self._known[here] = None
        self._known.move_to_end(here)
        if len(self._known) > KEYS_MAX:
            self._known.popitem(last=False)

    def undone(self, user: str, address: str) -> None:
        """Nobody could say whether the secret was right."""
        for key in self._keys(user, address):
            tries = self._tries.get(key)
            if tries is not None and tries.count:
                tries.count -= 1
                tries.open_at = 0.0

    def _keys(self, user: str, address: str) -> list[Key]:
        user, network = user[:NAME_MAX], network_of(address)
        own = ("user and network", user, network)
        if (user, network) in self._known:
            return [own]
        return [own, ("user", user, ""), ("network", "", network), ("all", "", "")]

    def _count(self, key: Key, now: float) -> None:
        tries = self._tries.setdefault(key, _Tries())
        if now - tries.last > FORGOTTEN_S:
            tries.count = 0
        limit = _LIMITS[key[0]]
        tries.count, tries.last = tries.count + 1, now
        if tries.count == limit.free and key[0] != "all":
            logger.warning("logins are slowed down after %d failures of %s%s", tries.count, *_words(key))
        if tries.count >= limit.free:
            doubled = min(tries.count - limit.free, 30)
            tries.open_at = now + min(limit.pause_max_s, limit.pause_s * 2**doubled)
        self._tries.move_to_end(key)
        if len(self._tries) > KEYS_MAX:
            self._put_one_out()

    def _put_one_out(self) -> None:
        oldest = next(key for key in self._tries if key[0] != "all")
        del self._tries[oldest]


def _words(key: Key) -> tuple[str, str]:
    _, user, network = key
    return (f"user {user!r}" if user else "any user"), (f" from {network}" if network else "")


def network_of(address: str) -> str:
    """An IPv4 address itself, and the /64 of an IPv6 address: whoever has one of them has them all."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:NAME_MAX]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
