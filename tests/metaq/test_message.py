from __future__ import annotations

import pytest

from mqlake.errors import FormatError, MessageError
from mqlake.metaq.message import Message, Partition, check_types


def test_a_read_only_message_can_only_be_refused() -> None:
    message = Message("t", b"x")
    message.attribute = "a"
    message.set_read_only()
    for name, value in (("data", b"y"), ("topic", "u"), ("attribute", None), ("id", 3), ("read_only", False)):
        with pytest.raises(MessageError, match=name):
            setattr(message, name, value)
    message.rollback_only = True
    assert message.rollback_only and message.data == b"x"


def test_an_empty_attribute_is_one() -> None:
    assert Message("t", b"", "").has_attribute
    assert not Message("t", b"").has_attribute


def test_partitions_as_text() -> None:
    assert str(Partition(3, 12)) == "3-12"
    assert Partition.parse("3-12") == Partition(3, 12)
    for text in ("", "3", "-3", "a-1", "1-", "1-2-3", "1--2", "١-2"):
        with pytest.raises(FormatError):
            Partition.parse(text)


def test_text_that_utf_8_cannot_hold_is_refused_by_its_field() -> None:
    """Without it the encoder of commands would raise an error that names no field."""
    for message, name in [(Message("t\ud800", b"x"), "topic"), (Message("t", b"x", "\udcff"), "attribute")]:
        with pytest.raises(MessageError, match=f"{name} holds"):
            check_types(message)
