"""Messages that read their fields when they are asked for, against those that decode_record makes at once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.formats.record import (
    HEADS,
    HOST_FLAGS,
    SYS_FLAG_POSITION,
    decode_record,
    decode_records,
    encode_record,
)
from mqlake.message import MessageExt, crc32

HOSTS = st.sampled_from([bytes(7) + b"\1", bytes(range(20))])
NAMES = sorted({*MessageExt.__slots__, "topic", "body", "flag", "properties"} - {"_record"})


def a_record(body: bytes = b"body", properties: bytes = b"TAGS\x01a\x02KEYS\x01k1 k2\x02") -> bytes:
    host = bytes([10, 0, 0, 1, 0, 0, 1, 2])
    return encode_record(body, crc32(body), 1, 2, 3, 4, 0, 5, host, 6, host, 7, 8, b"Topic", properties)


def unread(record: bytes) -> MessageExt:
    (message,) = decode_records(record, [place(record)])
    return message


def place(record: bytes, start: int = 0) -> tuple[int, int, int]:
    """Start and end of the body, and the end, of a record at `start`."""
    body_start = start + HEADS[record[SYS_FLAG_POSITION + 3] & HOST_FLAGS].size
    return body_start, body_start + len(decode_record(record).body), start + len(record)


def fields(message: MessageExt) -> dict[str, Any]:
    return {name: getattr(message, name) for name in NAMES}


@given(
    data=st.data(),
    body=st.binary(max_size=50),
    topic=st.binary(max_size=100),
    properties=st.binary(max_size=50),
    hosts=st.tuples(HOSTS, HOSTS),
    version=st.sampled_from([1, 2]),
)
def test_each_field_in_any_order(
    data: st.DataObject,
    body: bytes,
    topic: bytes,
    properties: bytes,
    hosts: tuple[bytes, bytes],
    version: int,
) -> None:
    record = encode_record(
        body, crc32(body), 1, 2, 3, 4, 0, 5, hosts[0], 6, hosts[1], 7, 8, topic, properties, version
    )
    expected, message = decode_record(record), unread(record)
    for name in data.draw(st.permutations(NAMES)):
        assert getattr(message, name) == getattr(expected, name), name
    assert type(message) is MessageExt


def test_records_that_lie_back_to_back() -> None:
    records = [a_record(b"x" * size) for size in (0, 1, 1000)]
    places = [place(record, len(b"".join(records[:n]))) for n, record in enumerate(records)]
    messages = list(decode_records(b"".join(records), places))
    assert [message.body for message in messages] == [b"", b"x", b"x" * 1000]
    assert [fields(message) for message in messages] == [fields(decode_record(record)) for record in records]
    assert list(decode_records(b"", [])) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_is_set_before_any_is_read(name: str) -> None:
    message, expected = unread(a_record()), decode_record(a_record())
    value: Any = {"own": "1"} if name == "properties" else b"own" if name == "body" else 77
    for one in (message, expected):
        setattr(one, name, value)
    assert fields(message) == fields(expected)


@pytest.mark.parametrize("first", ["", "body", "topic"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_in_any_state(first: str, copied: Callable[[MessageExt], MessageExt]) -> None:
    message = unread(a_record())
    if first:
        getattr(message, first)
    twin = copied(message)
    assert fields(twin) == fields(message) == fields(decode_record(a_record()))
    assert type(twin) is type(message) is MessageExt
    twin.queue_id = 99
    assert message.queue_id == 1


def test_it_goes_by_the_name_of_a_plain_one() -> None:
    message = unread(a_record())
    assert isinstance(message, MessageExt) and type(message).__name__ == "MessageExt"
    assert repr(message) == repr(decode_record(a_record()))
    message = unread(a_record())
    assert (message.tags, message.keys, message.msg_id) == ("a", "k1 k2", decode_record(a_record()).msg_id)


@pytest.mark.parametrize("first", ["", "body", "topic"])
def test_what_no_message_has(first: str) -> None:
    message = unread(a_record())
    if first:
        getattr(message, first)
    with pytest.raises(AttributeError, match="no_such_field"):
        message.no_such_field  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError):
        message.no_such_field = 1  # type: ignore[attr-defined]
    assert not hasattr(MessageExt("T"), "_record")


def test_the_records_are_given_up() -> None:
    message = unread(a_record())
    assert message._record == (a_record(), 0)
    assert message.body == b"body"
    assert message._record == (a_record(), 0)  # whoever looks at bodies alone pays for nothing else
    assert message.properties == {"TAGS": "a", "KEYS": "k1 k2"}
    assert not hasattr(message, "_record")
