from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import BadCrcError, BadLengthError, FormatError, TruncatedRecordError
from mqlake.metaq.formats.record import (
    HEADER_SIZE,
    MessageIterator,
    check_record,
    checksum,
    decode_header,
    decode_payload,
    encode_payload,
    encode_record,
    message_flag,
)
from mqlake.metaq.message import Message, Partition

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
MESSAGES = st.builds(
    Message, st.just("t"), st.binary(max_size=100), st.none() | st.text(max_size=20), INT32, INT64
)

# written by the Java broker 1.4.6.2
JAVA_PLAIN = bytes.fromhex("00000007 154677bc b41a7ba585c00000 00000000") + b"hello-0"
JAVA_ATTRIBUTE = (
    bytes.fromhex("00000011 3cb7d9cc b41a7ba58b400000 00000001 00000006") + b"attr-1" + b"hello-1"
)


def as_record(message: Message) -> bytes:
    return encode_record(encode_payload(message.data, message.attribute), message.id, message_flag(message))


def test_bytes_of_the_java_broker() -> None:
    messages = list(MessageIterator("test", JAVA_PLAIN + JAVA_ATTRIBUTE, Partition(0, 1)))
    assert [(m.data, m.attribute, m.flag, m.id) for m in messages] == [
        (b"hello-0", None, 0, -0x4BE5845A7A400000),
        (b"hello-1", "attr-1", 1, -0x4BE5845A74C00000),
    ]
    assert b"".join(map(as_record, messages)) == JAVA_PLAIN + JAVA_ATTRIBUTE
    assert messages[0].partition == Partition(0, 1)


def test_the_checksum_has_31_bits() -> None:
    assert checksum(b"abc") == 891568578
    assert checksum(b"") == 0
    assert all(checksum(bytes([i])) >= 0 for i in range(256))


def test_bit_0_of_the_flag_says_whether_there_is_an_attribute() -> None:
    assert message_flag(Message("t", b"")) == 0 and message_flag(Message("t", b"", "")) == 1
    assert message_flag(Message("t", b"", None, 7)) == 6 and message_flag(Message("t", b"", "a", 6)) == 7
    assert encode_payload(b"data", "é") == b"\0\0\0\x02\xc3\xa9data"
    assert encode_payload(b"data", "") == b"\0\0\0\0data" and encode_payload(b"data", None) == b"data"


@given(st.lists(MESSAGES, max_size=6), st.data())
def test_round_trip_and_a_cut_anywhere(messages: list[Message], data: st.DataObject) -> None:
    raw = b"".join(map(as_record, messages))
    cut = data.draw(st.integers(0, len(raw)))
    iterator = MessageIterator("t", raw[:cut])
    found = list(iterator)
    assert [(m.data, m.attribute, m.id, m.flag) for m in found] == [
        (m.data, m.attribute, m.id, message_flag(m)) for m in messages[: len(found)]
    ]
    assert iterator.offset == sum(len(as_record(m)) for m in messages[: len(found)]) <= cut
    if len(found) < len(messages):
        assert cut < iterator.offset + len(as_record(messages[len(found)]))


@given(MESSAGES, st.data())
def test_one_wrong_bit_of_the_payload_is_found(message: Message, data: st.DataObject) -> None:
    raw = bytearray(as_record(message))
    if len(raw) > HEADER_SIZE:
        position = data.draw(st.integers(HEADER_SIZE, len(raw) - 1))
        raw[position] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(BadCrcError):
            check_record(raw, 0, len(raw))
        with pytest.raises(BadCrcError):
            next(MessageIterator("t", bytes(raw)))


def test_what_is_no_record() -> None:
    with pytest.raises(TruncatedRecordError):
        decode_header(JAVA_PLAIN[:19])
    with pytest.raises(TruncatedRecordError):
        check_record(JAVA_PLAIN, 0, 26)
    with pytest.raises(TruncatedRecordError):
        check_record(JAVA_PLAIN, 0, 19)
    for read in (lambda raw: check_record(raw, 0, 20), lambda raw: next(MessageIterator("t", raw))):
        with pytest.raises(BadLengthError):
            read(b"\xff" * 20)
    assert check_record(bytes(40), 20, 40).length == 0  # zeros are empty messages, as in the original


@pytest.mark.parametrize("payload", [b"", b"\0\0\0", b"\0\0\0\2a", b"\xff\xff\xff\xff"])
def test_an_attribute_that_does_not_fit(payload: bytes) -> None:
    """A consumer gets the payload as it is, and what is behind it."""
    with pytest.raises(FormatError):
        decode_payload(payload, 1)
    assert decode_payload(payload, 2) == (None, payload)
    found = list(MessageIterator("t", encode_record(payload, 1, 1) + encode_record(b"next", 2, 0)))
    assert [(m.data, m.attribute) for m in found] == [(payload, None), (b"next", None)]


def test_an_attribute_that_is_not_utf_8() -> None:
    assert decode_payload(b"\0\0\0\1\xffx", 1) == ("\ufffd", b"x")
