"""What a pull brings becomes messages: any number, compressed or not, batches unwrapped, damage named."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.client.records import decode_message, decode_messages
from mqlake.client.results import PullResult, PullStatus
from mqlake.errors import FormatError, UndecodableMessageError
from mqlake.formats.batch import encode_messages
from mqlake.formats.compression import compress_body, decompress_body
from mqlake.formats.record import encode_record
from mqlake.message import Message, MessageSysFlag, crc32, host_bytes, properties_to_bytes
from mqlake.remoting.bodies.topic import MessageQueue

HOST = host_bytes(("127.0.0.1", 1))


def record(
    body: bytes, sys_flag: int = 0, offset: int = 0, properties: dict[str, str] | None = None
) -> bytes:
    text = properties_to_bytes(properties or {})
    return encode_record(body, crc32(body), 3, 0, offset, 0, sys_flag, 1, HOST, 2, HOST, 0, 0, b"T", text)


@given(st.lists(st.tuples(st.binary(max_size=300), st.sampled_from([0, 0x101, 0x201, 0x301, 0x1]))))
def test_bodies_come_as_they_were(bodies: list[tuple[bytes, int]]) -> None:
    data = b"".join(
        record(compress_body(body, flag) if flag else body, flag, i) for i, (body, flag) in enumerate(bodies)
    )
    found = decode_messages(data, "b")
    assert [message.body for message in found] == [body for body, _ in bodies]
    assert [message.queue_offset for message in found] == list(range(len(bodies)))
    assert all(m.message_queue == MessageQueue(topic="T", broker_name="b", queue_id=3) for m in found)


def test_an_inner_batch_is_unwrapped() -> None:
    flag = MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG
    inner = encode_messages([Message("T", b"a", "x"), Message("T", b"b")])
    data = record(inner, flag, 10) + record(b"c", 0, 12)
    found = decode_messages(data, "b")
    assert [(m.body, m.queue_offset, m.tags, m.broker_name) for m in found] == [
        (b"a", 10, "x", "b"),
        (b"b", 11, None, "b"),
        (b"c", 12, None, "b"),
    ]


BOMB = zlib.compress(bytes(1 << 20))
INNER = MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG
BAD = [
    (record(b"no zlib", 0x301, 1), "cannot be unpacked"),
    (record(b"no lz4", 0x101, 1), "cannot be unpacked"),
    (record(b"no zstd", 0x201, 1), "cannot be unpacked"),
    (record(b"", 0x201, 1), "cannot be unpacked"),
    (record(b"unknown", 0x501, 1), "compression type 5 is not one of 0 to 3"),
    (record(zlib.compress(b"x" * 100)[:-5], 0x301, 1), "ends too early"),
    (record(BOMB, 0x301, 1), "unpacks to more than 65536 bytes"),
    (record(b"no batch", INNER, 1, {"INNER_NUM": "1"}), "bytes"),
    (record(zlib.compress(b"no batch"), INNER | 0x301, 1, {"INNER_NUM": "1"}), "bytes"),
    (record(b"crc", 0, 1).replace(b"crc", b"cra"), "body CRC"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_what_cannot_be_decoded_hides_nothing_else(bad: bytes, reason: str) -> None:
    data = record(b"before", 0, 0) + bad + record(zlib.compress(b"after"), 0x301, 2)
    found = decode_messages(data, "b", max_body_size=1 << 16)
    assert [message.queue_offset for message in found] == [0, 1, 2]
    assert (found[0].body, found[2].body) == (b"before", b"after")
    assert [bool(message.undecodable) for message in found] == [False, True, False]
    assert reason in found[1].undecodable
    assert bad[88:].startswith(found[1].body), "as it is stored"
    with pytest.raises(UndecodableMessageError, match="topic T, broker b, queue 3, queue offset 1 ") as error:
        raise found[1].undecodable_error()
    assert (error.value.queue_offset, error.value.next_offset) == (1, 2)


def test_a_message_that_came_back_is_named_where_it_was_read() -> None:
    """It shows the topic it was sent to; at queue 3, offset 1 of that one lies another message."""
    (message,) = decode_messages(record(b"crc", 0, 1).replace(b"crc", b"cra"), "b")
    message.show_topic("namespace%Orders")
    message.show_topic("Orders")
    assert (message.topic, message.read_topic) == ("Orders", "T")
    error = message.undecodable_error()
    assert error.topic == "Orders" and "of topic T, broker b, queue 3, queue offset 1 " in str(error)


def test_one_message_that_is_handed_over() -> None:
    assert decode_message(record(b"x"), "b").body == b"x"
    with pytest.raises(UndecodableMessageError, match="cannot be unpacked"):
        decode_message(record(b"no zlib", 0x301), "b")
    with pytest.raises(FormatError, match="2 messages where one was expected"):
        decode_message(record(b"x") * 2, "b")


@pytest.mark.parametrize("position", [3, 7, 86, 92])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_bytes_that_are_no_record(position: int, number: int) -> None:
    """As a broker may have them that gives out what it finds. The next record is found again."""
    records = [record(b"body", 0, offset) for offset in (10, 11, 12)]
    damaged = bytearray(records[number])
    damaged[position] ^= 0x10
    records[number] = bytes(damaged)
    queue = MessageQueue(topic="T", broker_name="b", queue_id=3)
    result = PullResult(PullStatus.FOUND, queue, 13, 0, 20, 0, 0, b"".join(records))
    found = result.decode()
    assert [message.queue_offset for message in found] == [10, 11, 12]
    assert [message.body for message in found if not message.undecodable] == [b"body"] * 2
    bad = found[number]
    assert bad.body == damaged and (bad.topic, bad.queue_id, bad.broker_name) == ("T", 3, "b")
    assert "no record" in bad.undecodable and bad.undecodable_error().msg_id == ""
    with pytest.raises(UndecodableMessageError, match=f"queue offset {10 + number} "):
        result.messages()


def test_an_unreadable_offset_lies_between_its_neighbours() -> None:
    damaged = bytearray(record(b"body", 0, 11))
    damaged[3] ^= 0x10
    damaged[20:28] = b"\xff" * 8
    good = record(b"body", 0, 10), record(b"body", 0, 17)
    for data, following, expected in (
        (good[0] + damaged + good[1], 18, [10, 11, 17]),
        (damaged + good[1], 18, [16, 17]),
        (good[0] + damaged, 18, [10, 11]),
        (bytes(damaged), 18, [17]),
        (bytes(damaged), None, [0]),
    ):
        found = decode_messages(bytes(data), "b", following=following)
        assert [message.queue_offset for message in found] == expected


def test_an_inner_batch_that_cannot_be_unwrapped_is_passed_as_a_whole() -> None:
    (message,) = decode_messages(record(b"no batch", INNER, 5, {"INNER_NUM": "7"}), "b")
    assert message.undecodable and message.undecodable_error().next_offset == 12
    for count in ("", "x", "-1", "0", "99999999999"):
        (message,) = decode_messages(record(b"no batch", INNER, 5, {"INNER_NUM": count}), "b")
        assert message.next_offset == 6


@given(
    st.lists(st.sampled_from([0, 0x101, 0x201, 0x301, INNER]), min_size=1, max_size=6),
    st.data(),
)
def test_any_bytes_are_messages_or_named(kinds: list[int], data: st.DataObject) -> None:
    """Random changes to what a pull brought: nothing is raised, nothing comes in another's place, what was not changed
    is there unless its neighbour's length swallowed it."""
    parts = []
    for number, kind in enumerate(kinds):
        body = b"%d" % number * 40
        if kind == INNER:
            stored = encode_messages([Message("T", body)])
        else:
            stored = compress_body(body, kind) if kind else body
        parts.append(record(stored, kind, number, {"INNER_NUM": "1"} if kind == INNER else None))
    whole = b"".join(parts)
    changed = bytearray(whole)
    places = data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=6))
    for place in places:
        changed[place] = data.draw(st.integers(0, 255))
    found = decode_messages(bytes(changed), "b", max_body_size=1 << 16, following=len(kinds))
    for message in found:
        assert isinstance(message.undecodable, str)
        if message.undecodable:
            assert str(message.undecodable_error()).endswith(f"cannot be decoded: {message.undecodable}")
    bounds = [sum(map(len, parts[:number])) for number in range(len(parts) + 1)]
    hit = {n for n in range(len(parts)) for place in places if bounds[n] <= place < bounds[n + 1]}
    bodies = [message.body for message in found if not message.undecodable]
    for number in range(len(kinds)):
        if number not in hit and number - 1 not in hit:
            assert bodies.count(b"%d" % number * 40) == 1


@given(st.binary(max_size=200), st.integers(0, 0xFFF), st.sampled_from([0, 0x100, 0x200, 0x300]), st.data())
def test_a_mutated_body_unpacks_or_is_a_format_error(
    body: bytes, size_max: int, kind: int, data: st.DataObject
) -> None:
    changed = bytearray(compress_body(body, kind | 1))
    for _ in range(data.draw(st.integers(0, 4))):
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    flag = kind | 1 | data.draw(st.sampled_from([0, 0, 0x400]))
    try:
        assert len(decompress_body(bytes(changed), flag, size_max)) <= size_max
    except FormatError as error:
        assert error.reason


def test_offsets_of_static_topics_are_shifted() -> None:
    queue = MessageQueue(topic="T", broker_name="b", queue_id=3)
    result = PullResult(PullStatus.FOUND, queue, 108, 100, 200, 0, 100, record(b"x", 0, 7))
    assert [message.queue_offset for message in result.messages()] == [107]
    assert result.messages(read_body=False)[0].body == b""
