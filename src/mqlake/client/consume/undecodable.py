"""Handling of messages that cannot be decoded: `ConsumerConfig.on_undecodable`.

    "raise"     a pull consumer gives out what precedes it, then poll() raises UndecodableMessageError, until it is
                skipped by seek(); other queues go on. A push consumer, which has no caller to raise to, logs an error
                and has the broker keep the message among the group's dead letters
    "skip"      a warning in the log, and the queue goes on
    "raw"       it is given out with its body as it is stored, and `message.undecodable` says why
    function    def on_undecodable(message) -> message to give out | None to skip it; what it raises counts as "raise"

Each is decided on once, when the message has been pulled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from mqlake.client.records import MessageClientExt
from mqlake.errors import UndecodableMessageError

logger = logging.getLogger(__name__)

OnUndecodable = Literal["raise", "skip", "raw"] | Callable[[MessageClientExt], MessageClientExt | None]
CHOICES = ("raise", "skip", "raw")

Delivery = MessageClientExt | UndecodableMessageError


def apply_policy(
    messages: Sequence[MessageClientExt], on_undecodable: OnUndecodable, group: str
) -> list[Delivery]:
    """Messages to deliver, with errors in place of those that have to be raised."""
    given: list[Delivery] = []
    for message in messages:
        if not message.undecodable or on_undecodable == "raw":
            given.append(message)
        elif on_undecodable == "raise":
            given.append(message.undecodable_error())
        elif on_undecodable == "skip":
            logger.warning("group %s: skipped: %s", group, message.undecodable_error())
        else:
            assert callable(on_undecodable)
            given += _asked(message, on_undecodable)
    return given


def _asked(
    message: MessageClientExt, function: Callable[[MessageClientExt], MessageClientExt | None]
) -> list[Delivery]:
    try:
        instead = function(message)
    except Exception as error:
        undecodable = message.undecodable_error()
        undecodable.__cause__ = error
        return [undecodable]
    return [] if instead is None else [instead]


def delivered_message(given: Delivery) -> MessageClientExt:
    """The message, also of an error."""
    if isinstance(given, UndecodableMessageError):
        message = given.message
        assert isinstance(message, MessageClientExt)
        return message
    return given
