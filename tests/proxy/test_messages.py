"""Stored records as gRPC clients receive them."""

from __future__ import annotations

import gzip
import hashlib
import zlib

from hypothesis import given
from hypothesis import strategies as st

from mqlake.client.records import decode_messages
from mqlake.formats.record import encode_record
from mqlake.message import crc32, host_bytes, properties_to_bytes
from mqlake.proxy.messages import sent_message
from mqlake.proxy.v2.definition_pb2 import DigestType, Encoding, Message, MessageType, Resource

TOPIC = Resource(name="T")
TEXT = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20
)


def sent(body: bytes, *, sys_flag: int = 0, crc: int | None = None, **properties: str) -> Message:
    record = encode_record(
        body=body,
        body_crc=crc32(body) if crc is None else crc,
        queue_id=3,
        flag=0,
        queue_offset=7,
        physical_offset=99,
        sys_flag=sys_flag,
        born_timestamp=1_700_000_000_123,
        born_host=host_bytes(("10.0.0.1", 1)),
        store_timestamp=1_700_000_000_456,
        store_host=host_bytes(("10.0.0.2", 2)),
        reconsume_times=2,
        prepared_transaction_offset=0,
        topic=b"%RETRY%G_T",
        properties=properties_to_bytes(properties),
    )
    (decoded,) = decode_messages(record, "b")
    return sent_message(decoded, TOPIC, attempt=3, receipt_handle="h")


def test_everything_that_clients_insist_on_is_there():
    message = sent(b"body", UNIQ_KEY="id", TAGS="t", KEYS="a b", __SHARDINGKEY="g", color="green", PGROUP="T")
    system = message.system_properties
    assert (message.topic.name, message.body, dict(message.user_properties)) == (
        "T",
        b"body",
        {"color": "green"},
    )
    assert (system.message_id, system.tag, list(system.keys), system.message_group) == (
        "id",
        "t",
        ["a", "b"],
        "g",
    )
    assert (system.queue_id, system.queue_offset, system.delivery_attempt, system.receipt_handle) == (
        3,
        7,
        3,
        "h",
    )
    assert (system.born_timestamp.seconds, system.born_timestamp.nanos) == (1_700_000_000, 123_000_000)
    assert (system.born_host, system.store_host) == ("10.0.0.1:1", "10.0.0.2:2")
    assert (system.body_encoding, system.message_type) == (Encoding.IDENTITY, MessageType.FIFO)
    assert (system.body_digest.type, system.body_digest.checksum) == (
        DigestType.MD5,
        hashlib.md5(b"body").hexdigest().upper(),
    )


def test_without_a_client_id_the_offset_id_is_the_id():
    assert sent(b"x").system_properties.message_id == "0A000002000000020000000000000063"


def test_bodies_are_sent_in_an_encoding_that_all_clients_know():
    for body, sys_flag in ((zlib.compress(b"plain"), 1), (gzip.compress(b"plain"), 1), (b"plain", 0)):
        message = sent(body, sys_flag=sys_flag)
        assert (message.body, message.system_properties.body_encoding) == (b"plain", Encoding.IDENTITY)


def test_a_client_notices_a_damaged_body():
    for sys_flag in (0, 1):
        system = sent(b"body", sys_flag=sys_flag, crc=1).system_properties
        digest = system.body_digest
        assert (digest.type, digest.checksum) == (DigestType.CRC32, "00000001-DAMAGED")
        assert system.body_encoding == Encoding.IDENTITY


def test_a_body_that_is_no_gzip_keeps_the_label_that_its_producer_gave_it():
    """As IDENTITY a consumer would take it for plain, which its producer said it is not."""
    message = sent(b"hello", sys_flag=1)
    system = message.system_properties
    assert (message.body, system.body_encoding) == (b"hello", Encoding.GZIP)
    md5 = hashlib.md5(b"hello").hexdigest().upper()
    assert (system.body_digest.type, system.body_digest.checksum) == (DigestType.MD5, md5)


@given(
    st.dictionaries(
        TEXT | st.sampled_from(["TIMER_DELIVER_MS", "_SYS_MSG_PRIORITY_", "DLQ_ORIGIN_TOPIC"]), TEXT
    )
)
def test_no_properties_are_too_odd(properties: dict[str, str]):
    message = sent(b"x", **properties)
    assert message == Message.FromString(message.SerializeToString())
