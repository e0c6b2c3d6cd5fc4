"""PullLog: what goes wrong in a group's pulls: once for a queue, once for a broker that is away, then once a minute.

A broker that is away fails the pulls of all its queues, each once a second.
"""

from __future__ import annotations

import logging

from mqlake.base.throttled_log import ThrottledLog
from mqlake.errors import MqlakeError, ResponseError
from mqlake.remoting.bodies.topic import MessageQueue

logger = logging.getLogger(__name__)


class PullLog:
    """The log of one consumer, which pulls or pops (`verb`)."""

    def __init__(self, group: str, verb: str = "pull") -> None:
        self._what = f"group {group}: {verb} of"
        self._failing: dict[str | MessageQueue, ThrottledLog] = {}

    def failed(self, queue: MessageQueue, error: MqlakeError) -> None:
        """Logs at WARNING, unless it said so within the last minute."""
        key = queue if isinstance(error, ResponseError) else queue.broker_name
        log = self._failing.setdefault(key, ThrottledLog(logger, logging.WARNING))
        log.failed(f"{self._what} {queue}: {error}")

    def worked(self, queue: MessageQueue) -> None:
        """Logs it if the queue's pulls, or all of its broker's, had failed before."""
        for key in (queue.broker_name, queue) if self._failing else ():
            if (log := self._failing.pop(key, None)) is not None:
                log.worked(f"{self._what} {queue}: works again")
