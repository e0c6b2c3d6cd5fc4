"""PullLog: what goes wrong in a group's pulls: once for a queue, once for a broker that is away, then once a minute.

A broker that is away fails the pulls of all its queues, each once a second. A topic that no broker has is looked for
once a second, too; that of a group's dead letters may be missing for months.
"""

from __future__ import annotations

import logging

from mqlake.base.throttled_log import ThrottledLog
from mqlake.errors import MqlakeError, ResponseError, TopicNotFoundError
from mqlake.message import RETRY_GROUP_TOPIC_PREFIX
from mqlake.remoting.bodies.topic import MessageQueue

logger = logging.getLogger(__name__)


class PullLog:
    """The log of one consumer, which pulls or pops (`verb`)."""

    def __init__(self, group: str, verb: str = "pull") -> None:
        self._group = group
        self._what = f"group {group}: {verb} of"
        self._failing: dict[str | MessageQueue, ThrottledLog] = {}
        self._missing: dict[str, ThrottledLog] = {}

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

    def missing(self, topic: str, error: TopicNotFoundError) -> None:
        """Logs at INFO that no broker has a topic, unless it said so within the last minute.

        That of a retry topic is normal, and logged at DEBUG: a broker makes it for the first message.
        """
        level = logging.DEBUG if topic.startswith(RETRY_GROUP_TOPIC_PREFIX) else logging.INFO
        log = self._missing.setdefault(topic, ThrottledLog(logger, level))
        log.failed(f"group {self._group}: {error}")

    def found(self, topic: str) -> None:
        """A topic that is missing from now on is logged at once."""
        self._missing.pop(topic, None)
