"""SendMessage and RecallMessage on a broker."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import Any

import pytest

from mqlake.base.clock import now_ms
from mqlake.proxy.publish import jump_hash, zlib_of_gzip
from mqlake.proxy.v2.definition_pb2 import Code, Encoding, Message, MessageType
from mqlake.proxy.values import duration, timestamp
from tests.proxy.live import Peer, message, on_a_broker

pytestmark = pytest.mark.usefixtures("each_server")


@pytest.mark.parametrize(
    ("key", "buckets"),
    [("g1", [0, 0, 6, 9]), ("order-1", [0, 3, 3, 3]), ("A", [0, 0, 0, 11]), ("user-42", [1, 1, 1, 1])],
)
def test_buckets_are_those_of_rocketmqs_proxy(key: str, buckets: list[int]):
    assert [jump_hash(key, count) for count in (2, 4, 8, 16)] == buckets


def test_a_message_is_stored_as_it_was_sent(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        sent = message("T", b"hello", "id-7", tag="t", keys=["k1", "k2"], trace_context="tc")
        sent.user_properties["color"] = "green"
        sent.system_properties.body_encoding = Encoding.GZIP
        answer = await peer.send(sent)
        assert answer.status.code == Code.OK
        (entry,) = answer.entries
        assert (entry.message_id, entry.transaction_id, entry.status.code) == ("id-7", "", Code.OK)
        (found,) = await peer.records("T", 1)
        assert (found.body, found.tags, found.keys, found.uniq_key) == (b"hello", "t", "k1 k2", "id-7")
        assert found.properties["color"] == "green"
        assert found.properties["PGROUP"] == "T"
        assert found.properties["TRACE_CONTEXT"] == "tc"
        assert found.sys_flag & 1

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize("name", ["", "a name in the header"])
def test_gzip_bodies_can_be_unpacked_by_all_clients(tmp_path: Path, name: str):
    plain = b"hello " * 1000
    packed = io.BytesIO()
    with gzip.GzipFile(name, "wb", fileobj=packed) as file:
        file.write(plain)

    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        encoding = Encoding.GZIP
        sent = message("T", packed.getvalue(), body_encoding=encoding)
        assert (await peer.send(sent)).status.code == Code.OK
        (found,) = await peer.records("T", 1)
        assert found.body == plain
        assert zlib.decompress(zlib_of_gzip(packed.getvalue())) == plain
        codes = [
            (await peer.send(message("T", body, body_encoding=encoding))).status.code
            for body in (packed.getvalue()[:-9], packed.getvalue() + b"x", gzip.compress(bytes(5 << 20)))
        ]
        assert codes == [Code.MESSAGE_CORRUPTED, Code.MESSAGE_CORRUPTED, Code.MESSAGE_BODY_TOO_LARGE]

    on_a_broker(tmp_path, scene)


def test_a_group_keeps_to_one_queue_and_others_take_turns(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("F", "FIFO", 8)
        peer.create_topic("N", queues=8)
        for _ in range(8):
            assert (await peer.send(message("F", message_group="user-42"))).status.code == Code.OK
            assert (await peer.send(message("N"))).status.code == Code.OK
        assert {found.queue_id for found in await peer.records("F", 8)} == {jump_hash("user-42", 8)}
        assert sorted(found.queue_id for found in await peer.records("N", 8)) == list(range(8))

    on_a_broker(tmp_path, scene)


def test_each_message_of_a_request_has_its_entry(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T", queues=1)
        answer = await peer.send(*[message("T", b"%d" % number, f"id-{number}") for number in range(20)])
        assert answer.status.code == Code.OK
        assert [entry.message_id for entry in answer.entries] == [f"id-{number}" for number in range(20)]
        assert [found.body for found in await peer.records("T", 20)] == [
            b"%d" % number for number in range(20)
        ]

    on_a_broker(tmp_path, scene)


LONG = "x" * 20_000
DAY = 24 * 3600 * 1000


def changed(**system: Any) -> Message:
    return message("T", **system)


def with_properties(**properties: str) -> Message:
    made = message("T")
    made.user_properties.update(properties)
    return made


def without_body() -> Message:
    return message("T", b"")


def test_a_lite_message_is_refused_by_the_topics_that_are_for_them_too(tmp_path: Path):
    """Nothing would hand it out: accepted, it would be acknowledged and reach nobody."""

    async def scene(peer: Peer) -> None:
        peer.create_topic("Parent")
        topics = peer.controller.broker.topic_config_manager.topic_config_table
        topics["Parent"].attributes = {"message.type": "LITE"}  # as topics.json of RocketMQ 5.5 says it
        answer = await peer.send(message("Parent", lite_topic="child"))
        assert answer.status.code == Code.NOT_IMPLEMENTED
        assert "lite topics are not supported" in answer.status.message
        inner = message("T")
        peer.create_topic("T")
        inner.user_properties["INNER_MULTI_DISPATCH"] = "%LMQ%a"
        refused = (await peer.send(inner)).status
        assert refused.code == Code.ILLEGAL_MESSAGE_PROPERTY_KEY and "INNER_MULTI_DISPATCH" in refused.message
        assert peer.controller.broker.store.commit_log_files.max_offset == 0

    on_a_broker(tmp_path, scene)


REFUSED = [
    (message("a b"), Code.ILLEGAL_TOPIC),
    (message("TBW102"), Code.ILLEGAL_TOPIC),
    (without_body(), Code.MESSAGE_BODY_EMPTY),
    (message("T", bytes(4 * 1024 * 1024 + 1)), Code.MESSAGE_BODY_TOO_LARGE),
    (changed(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
    (changed(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
    (changed(tag="a\x01b"), Code.ILLEGAL_MESSAGE_TAG),
    (changed(keys=["a", ""]), Code.ILLEGAL_MESSAGE_KEY),
    (changed(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
    (changed(message_group=""), Code.ILLEGAL_MESSAGE_GROUP),
    (changed(message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
    (changed(lite_topic="child"), Code.NOT_IMPLEMENTED),
    (with_properties(KEYS="x"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (with_properties(a="b\x02c"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (with_properties(a=LONG), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (with_properties(**{f"p{number}": "" for number in range(129)}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (changed(delivery_timestamp=timestamp(now_ms() + 2 * DAY)), Code.ILLEGAL_DELIVERY_TIME),
    (
        changed(
            message_type=MessageType.TRANSACTION, orphaned_transaction_recovery_duration=duration(2 * DAY)
        ),
        Code.BAD_REQUEST,
    ),
    (changed(message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (changed(delivery_timestamp=timestamp(now_ms())), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (changed(message_type=MessageType.TRANSACTION), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
]


def test_what_is_refused(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        for bad, code in REFUSED:
            answer = await peer.send(bad)
            assert Code.Name(answer.status.code) == Code.Name(code), answer.status.message
            assert len(answer.status.message) > 15
        assert (await peer.send()).status.code == Code.MESSAGE_CORRUPTED
        assert (await peer.send(message("T"), message("U"))).status.code == Code.MESSAGE_CORRUPTED
        assert await peer.records("T") == []

    on_a_broker(tmp_path, scene)


def test_an_unknown_topic_is_made_or_not_as_the_broker_allows(tmp_path: Path):
    async def allowed(peer: Peer) -> None:
        assert (await peer.send(message("New"))).status.code == Code.OK

    async def forbidden(peer: Peer) -> None:
        assert (await peer.send(message("New"))).status.code == Code.TOPIC_NOT_FOUND

    on_a_broker(tmp_path / "a", allowed)
    on_a_broker(tmp_path / "b", forbidden, autoCreateTopicEnable="false")
