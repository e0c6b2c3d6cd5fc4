"""MQFaultStrategy: brokers that were slow or failed are left out for a while.

The slower the answer, the longer; a failure counts as half a minute. The table is RocketMQ's.
"""

from __future__ import annotations

import time

LATENCY_MAX_S = (0.05, 0.1, 0.55, 1.8, 3.0, 5.0, 15.0)
NOT_AVAILABLE_S = (0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0)


class MQFaultStrategy:
    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def succeeded(self, broker_name: str, latency_s: float) -> None:
        self._leave_out(broker_name, _not_available_s(latency_s))

    def failed(self, broker_name: str) -> None:
        self._leave_out(broker_name, NOT_AVAILABLE_S[-1])

    def _leave_out(self, broker_name: str, duration_s: float) -> None:
        if duration_s:
            self._until[broker_name] = time.monotonic() + duration_s
        else:
            self._until.pop(broker_name, None)

    def not_available(self) -> set[str]:
        """Names of the brokers to leave out now."""
        now = time.monotonic()
        return {broker for broker, until in self._until.items() if until > now}


def _not_available_s(latency_s: float) -> float:
    for limit, duration in zip(reversed(LATENCY_MAX_S), reversed(NOT_AVAILABLE_S), strict=True):
        if latency_s >= limit:
            return duration
    return 0.0
