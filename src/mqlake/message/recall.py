"""The recall handle: what a sender needs to cancel a timer message, as text.

    base64url( "v1 " topic " " broker " " time " " UNIQ_KEY )     time: TIMER_OUT_MS + 1, in the same step

Facts: RecallMessageHandle of RocketMQ 5.3.3.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from mqlake.errors import MessageError

_VERSION = "v1"


class RecallHandle(NamedTuple):
    topic: str
    broker_name: str
    timestamp: int
    """ms since 1970, in the step that the message is due in."""
    uniq_key: str

    def encode(self) -> str:
        text = " ".join((_VERSION, self.topic, self.broker_name, str(self.timestamp), self.uniq_key))
        return base64.urlsafe_b64encode(text.encode()).decode()


def decode_recall_handle(handle: str) -> RecallHandle:
    """MessageError if it is no such handle."""
    try:
        raw = base64.b64decode(handle.encode("ascii"), altchars=b"-_", validate=True)
        version, topic, broker_name, timestamp, uniq_key = raw.decode().split(" ", 4)
        if version != _VERSION:
            raise ValueError(f"version {version!r}")
        return RecallHandle(topic, broker_name, int(timestamp), uniq_key)
    except (ValueError, UnicodeError, binascii.Error) as error:
        text = "recall handle is invalid: use the one that the send of a delayed message returned"
        raise MessageError(text) from error
