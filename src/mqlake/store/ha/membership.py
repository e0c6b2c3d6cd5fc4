"""Membership: which replicas must have a message before it is acknowledged, and until when this broker may do so.

    required      those in the in-sync set, in every form that the consensus service may hold it, without this broker
    lease         until when nobody else can have become master, on this broker's own clock
    confirmed     end of what all of them have had at one time: what was acknowledged or shown lies before it

    confirm(acks, log_end, now) ──▶ acknowledge everything before it; NOTHING when the lease is over

Whoever may be elected is in the set, so a message that all of it have outlives every election; that holds without any
clock. The lease keeps a master that was cut off from taking messages that nobody could ever confirm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping

from mqlake.store.ha.protocol import Clock

Member = tuple[int, int]
"""A replica's id, and the number of its store."""
NOTHING = -1
NEVER = float("-inf")


def boot_time() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Membership:
    """`own`: this replica. Everything may be called from any thread."""

    def __init__(self, own: Member, clock: Clock = boot_time) -> None:
        self.own = own
        self.clock = clock
        self.epoch = 0
        """Epoch of the master whose log this is: this broker's while it leads, else of the one it follows."""
        self.confirmed = 0
        """Never falls while this broker leads."""
        self.refusal = "no master is elected"
        """Why this broker takes no messages while it does not lead."""
        self._leads = False
        self._paused = ""
        self._required: frozenset[Member] = frozenset()
        self._lease_until = NEVER
        self._lock = threading.Lock()

    # --- from who talks to the service

    def lead(self, epoch: int, lease_until: float, log_end: int) -> None:
        """This broker is master: its log up to `log_end` is where the epoch begins, and is in question no longer."""
        with self._lock:
            self._leads, self.epoch, self.confirmed = True, epoch, log_end
            self._required, self._lease_until, self._paused = frozenset(), lease_until, ""

    def renew(self, lease_until: float) -> None:
        with self._lock:
            self._lease_until = max(self._lease_until, lease_until)

    def require(self, members: Collection[Member]) -> None:
        """From now on everything that is acknowledged is at all of `members`; when this returns, what was acknowledged
        before is counted in `confirmed`."""
        with self._lock:
            self._required = frozenset(members) - {self.own}

    def pause(self, why: str) -> None:
        """No message is taken; what was taken is acknowledged. Empty: messages are taken again."""
        self._paused = why

    def stop(self, why: str) -> None:
        """No message is taken or acknowledged any more."""
        with self._lock:
            self.refusal = why
            self._lease_until = NEVER

    def follow(self, epoch: int) -> None:
        """This broker follows the master of `epoch`."""
        with self._lock:
            self._leads, self.epoch, self._lease_until = False, epoch, NEVER
            self.refusal = f"this broker is a slave of the master of epoch {epoch}"

    # --- from who has messages

    @property
    def leads(self) -> bool:
        return self._leads

    @property
    def members(self) -> frozenset[Member]:
        """This broker with those that it waits for."""
        return self._required | {self.own}

    def lease_left(self, now: float) -> float:
        """Seconds."""
        return max(0.0, self._lease_until - now)

    def why_not(self, now: float) -> str:
        """Why no message may be taken; empty when one may."""
        if self._leads and now < self._lease_until:
            return self._paused
        if self._leads and self._lease_until > NEVER:
            return (
                f"the lease of this master (epoch {self.epoch}) is over: the failover service does not answer"
            )
        return self.refusal

    def confirm(self, acks: Mapping[Member, int], log_end: int, now: float) -> int:
        """The end of what may be acknowledged: this broker has everything before `log_end`, each other replica what
        `acks` says."""
        with self._lock:
            if not self._leads or now >= self._lease_until:
                return NOTHING
            reached = min((acks.get(member, NOTHING) for member in self._required), default=log_end)
            self.confirmed = max(self.confirmed, min(reached, log_end))
            return self.confirmed
