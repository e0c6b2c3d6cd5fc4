import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import (
    BadLengthError,
    FormatError,
    MessageError,
    PropertiesTooLargeError,
    TruncatedRecordError,
)
from mqlake.formats.batch import ITEM_SIZE_MIN, decode_messages, encode_messages, unwrap_inner_batch
from mqlake.message import Message, MessageExt, MessageSysFlag, bytes_to_properties

NAMES = st.text(st.characters(codec="ascii", exclude_characters="\x01\x02"), min_size=1)
MESSAGES = st.builds(
    Message,
    st.just("T"),
    st.binary(),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    properties=st.dictionaries(NAMES, NAMES, max_size=3),
)


def test_layout():
    assert ITEM_SIZE_MIN == 22
    blob = encode_messages([Message("T", b"body", flag=9, properties={"a": "b"})])
    assert blob == bytes.fromhex("0000001E 00000000 00000000 00000009 00000004") + b"body\0\x04a\x01b\x02"


@given(st.lists(MESSAGES))
def test_round_trip(messages):
    blob = encode_messages(messages)
    for buf in blob, memoryview(bytearray(blob)):
        items = decode_messages(buf)
        assert [(item.flag, item.body) for item in items] == [(m.flag, m.body) for m in messages]
        assert [bytes_to_properties(item.properties) for item in items] == [m.properties for m in messages]


@given(st.lists(MESSAGES, min_size=1, max_size=3))
def test_truncated_at_every_point(messages):
    blob = encode_messages(messages)
    whole = {len(encode_messages(messages[:count])) for count in range(len(messages))}
    for length in set(range(len(blob))) - whole:
        with pytest.raises(TruncatedRecordError):
            decode_messages(blob[:length])


@given(st.lists(MESSAGES, min_size=1, max_size=3), st.data())
def test_mutations_raise_format_errors_only(messages, data):
    blob = bytearray(encode_messages(messages))
    pos = data.draw(st.integers(0, len(blob) - 1))
    blob[pos] ^= data.draw(st.integers(1, 255))
    try:
        decode_messages(blob)
    except FormatError as e:
        assert 0 <= e.offset <= len(blob)


@given(st.binary(max_size=100))
def test_any_bytes(data):
    try:
        items = decode_messages(data)
    except FormatError:
        return
    assert sum(ITEM_SIZE_MIN + len(item.body) + len(item.properties) for item in items) == len(data)


@pytest.mark.parametrize(
    ("pos", "fmt", "value"),
    [
        (0, ">i", 21),
        (0, ">i", -1),
        (0, ">i", 29),
        (16, ">i", -1),
        (16, ">i", 9),
        (16, ">i", 3),
        (24, ">h", -1),
    ],
)
def test_lengths_that_contradict(pos, fmt, value):
    blob = bytearray(encode_messages([Message("T", b"body", properties={"a": "b"})]))
    struct.pack_into(fmt, blob, pos, value)
    with pytest.raises(BadLengthError):
        decode_messages(blob)


def test_what_does_not_fit():
    with pytest.raises(PropertiesTooLargeError):
        encode_messages([Message("T", properties={"a": "x" * 32766})])
    with pytest.raises(MessageError):
        encode_messages([Message("T", flag=1 << 31)])


class TestInnerBatch:
    def test_unwrap(self):
        blob = encode_messages([Message("T", b"1", "A", flag=5), Message("T", b"2", "B")])
        flags = MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG
        outer = MessageExt(
            "T",
            blob,
            queue_id=3,
            sys_flag=flags,
            queue_offset=100,
            physical_offset=4096,
            born_timestamp=1,
            store_timestamp=2,
            store_host=("127.0.0.1", 10911),
        )
        first, second = unwrap_inner_batch(outer)
        assert (first.body, first.tags, first.flag, first.queue_offset) == (b"1", "A", 5, 100)
        assert (second.body, second.tags, second.flag, second.queue_offset) == (b"2", "B", 0, 101)
        for message in first, second:
            assert (message.topic, message.queue_id, message.physical_offset) == ("T", 3, 4096)
            assert message.msg_id == outer.msg_id
            assert (message.born_timestamp, message.store_timestamp) == (1, 2)

    def test_a_plain_message_stays_alone(self):
        message = MessageExt("T", b"not a batch")
        assert unwrap_inner_batch(message) == [message]

    def test_a_body_that_is_none(self):
        with pytest.raises(FormatError):
            unwrap_inner_batch(MessageExt("T", b"not a batch", sys_flag=MessageSysFlag.NEED_UNWRAP_FLAG))
