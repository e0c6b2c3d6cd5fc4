"""The time limit of requests whose caller names none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DefaultTimeouts:
    request_s: float = 3.0
    """RocketMQ's default for a send, and for connecting."""
    transaction_s: float = 5.0
    """MetaQ's for a command of a transaction."""

    def of(self, timeout_s: float | None) -> float:
        """`timeout_s`, or the default for None."""
        return self.request_s if timeout_s is None else timeout_s


DEFAULT_TIMEOUTS = DefaultTimeouts()
"""Read when a request is made, so that a program may change it for all its clients."""
