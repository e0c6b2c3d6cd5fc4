"""Renewal: a receipt handle that the server renews for its client."""

from __future__ import annotations

from mqlake.message import ReceiptHandle

FIRST_INVISIBLE_MS = 60_000
"""Invisible time of a message that was received with auto_renew."""


class Renewal:
    """The receipt handle of one message."""

    __slots__ = ("attempt", "count", "ended", "failures", "first", "group", "handle", "topic")

    def __init__(self, group: str, topic: str, handle: ReceiptHandle, attempt: int) -> None:
        self.group = group
        self.topic = topic
        self.first = handle
        """The one that the client has."""
        self.handle = handle
        """The one that is good now."""
        self.attempt = attempt
        self.count = 0
        self.failures = 0
        self.ended = False
        """The client has acknowledged the message, or asked for something else."""
