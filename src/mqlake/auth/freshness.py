"""Freshness: when a signed request was made, for a broker that refuses old ones.

    send            bornTimestamp (`g` in V2 and batches), one of the signed fields
    gRPC            x-mq-date-time, which is all that is signed
    other requests  say no time

Within its time a captured request can still be sent again.
"""

from __future__ import annotations

import datetime

from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand

BORN_TIMESTAMP_NAMES = {
    RequestCode.SEND_MESSAGE: "bornTimestamp",
    RequestCode.SEND_MESSAGE_V2: "g",
    RequestCode.SEND_BATCH_MESSAGE: "g",
    RequestCode.SEND_REPLY_MESSAGE: "bornTimestamp",
    RequestCode.SEND_REPLY_MESSAGE_V2: "g",
}
"""Request code → the field with the client's time in ms."""


def born_at(command: RemotingCommand) -> int | None:
    """When a send was made, in ms; None if it does not say."""
    try:
        return int(command.ext_fields[BORN_TIMESTAMP_NAMES[RequestCode(command.code)]])
    except (KeyError, ValueError, TypeError):
        return None


def time_of(date_time: str) -> int | None:
    """ms of gRPC's x-mq-date-time, which is `20260822T101500Z` or RFC 3339; None if it is neither."""
    try:
        parsed = datetime.datetime.fromisoformat(date_time)
        if parsed.tzinfo is None:
            parsed = parsed.replace(tzinfo=datetime.UTC)
        return int(parsed.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def is_fresh(made_at: int | None, now: int, age_max_s: int) -> bool:
    """True if it was made at most so many seconds before or after `now` (ms): clocks of clients differ."""
    return made_at is not None and abs(now - made_at) <= age_max_s * 1000
