from __future__ import annotations

import base64

import pytest

from mqlake.errors import MessageError
from mqlake.message.recall import RecallHandle, decode_recall_handle


def test_a_handle_is_javas() -> None:
    """Of a live run of RocketMQ 5.5.0."""
    text = "v1 TD broker-a 1795310562001 01AABBCCDDEEFF00010B13DDB900000006"
    handle = decode_recall_handle(base64.urlsafe_b64encode(text.encode()).decode())
    assert handle == RecallHandle("TD", "broker-a", 1795310562001, "01AABBCCDDEEFF00010B13DDB900000006")
    assert base64.urlsafe_b64decode(handle.encode()).decode() == text


@pytest.mark.parametrize("text", ["", "v1 T b 5", "v2 T b 5 K", "v1 T b x K"])
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(MessageError, match="recall handle is invalid"):
        decode_recall_handle(base64.urlsafe_b64encode(text.encode()).decode())


@pytest.mark.parametrize("handle", ["", "!", "äöü", "dj"])
def test_what_is_no_base64_is_refused(handle: str) -> None:
    with pytest.raises(MessageError, match="recall handle is invalid: use the one that the send"):
        decode_recall_handle(handle)
