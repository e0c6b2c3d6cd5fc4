"""What a pull brings becomes messages: any number, compressed or not, batches unwrapped, damage named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.client.records import decode_messages
from mqlake.client.results import PullResult, PullStatus
from mqlake.errors import BadCrcError, FormatError
from mqlake.formats.batch import encode_messages
from mqlake.formats.compression import compress_body
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


def test_damage_is_named() -> None:
    data = bytearray(record(b"good") + record(b"damaged"))
    data[len(record(b"good")) + 90] ^= 1
    with pytest.raises(BadCrcError) as error:
        decode_messages(bytes(data), "b")
    assert error.value.offset == len(record(b"good"))
    with pytest.raises(FormatError):
        decode_messages(record(b"x")[:-1], "b")
    with pytest.raises(FormatError, match="unpacked"):
        decode_messages(record(b"no zlib", 0x301), "b")


def test_offsets_of_static_topics_are_shifted() -> None:
    queue = MessageQueue(topic="T", broker_name="b", queue_id=3)
    result = PullResult(PullStatus.FOUND, queue, 108, 100, 200, 0, 100, record(b"x", 0, 7))
    assert [message.queue_offset for message in result.messages()] == [107]
    assert result.messages(read_body=False)[0].body == b""
