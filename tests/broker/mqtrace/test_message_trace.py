"""The broker's own trace: what is in the topic, under which keys, and that it traces no traces."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mqlake.broker.mqtrace import message_trace
from mqlake.formats.trace import MessageType, Pub, SubAfter, SubBefore, Trace, decode_traces
from mqlake.message import TRACE_TOPIC, MessageExt
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.headers.produce import ConsumerSendMsgBackRequestHeader
from tests.broker.live import Peer, on_a_broker

ENABLED = {"brokerMessageTraceEnable": "true"}
PROPERTIES = "KEYS\x01k1 k2\x02TAGS\x01t\x02UNIQ_KEY\x01AC11\x02"


async def trace_messages(peer: Peer) -> list[MessageExt]:
    """All that is in the trace topic when what was gathered is stored."""
    assert peer.controller.message_trace is not None
    peer.controller.message_trace.flush()
    await peer.dispatched()
    store = peer.controller.broker.store
    return list(store.get_message("g", TRACE_TOPIC, 0, 0, 1000).messages())


async def traces(peer: Peer) -> list[Trace]:
    return [trace for message in await trace_messages(peer) for trace in decode_traces(message.body.decode())]


def test_the_life_of_a_message(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        answer = await peer.send("T", b"12345", properties=PROPERTIES)
        await peer.dispatched()
        await peer.pull("T")
        back = ConsumerSendMsgBackRequestHeader(offset=0, group="CG", delay_level=2)
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        pub, before, after = await traces(peer)
        assert isinstance(pub, Pub)
        assert (pub.region_id, pub.group, pub.topic) == ("DefaultRegion", "PG", "T")
        assert (pub.msg_id, pub.tags, pub.keys) == ("AC11", "t", "k1 k2")
        assert (pub.store_host, pub.body_length, pub.msg_type) == (peer.address, 5, MessageType.NORMAL_MSG)
        assert (pub.offset_msg_id, pub.success) == (answer.ext_fields["msgId"], True)
        assert isinstance(before, SubBefore)
        assert (before.group, before.msg_id, before.retry_times, before.keys) == ("CG", "AC11", 0, "k1 k2")
        assert isinstance(after, SubAfter)
        assert (after.msg_id, after.success, after.group) == ("AC11", False, "CG")
        assert after.request_id == before.request_id

    on_a_broker(tmp_path, scene, **ENABLED)


def test_many_are_one_message_found_by_id_and_key(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        for n in range(5):
            await peer.send("T", properties=f"KEYS\x01key-{n}\x02UNIQ_KEY\x01ID{n}\x02")
        (message,) = await trace_messages(peer)
        assert message.properties["KEYS"].split() == [
            text for n in range(5) for text in (f"ID{n}", f"key-{n}")
        ]
        store = peer.controller.broker.store
        for key in ("ID3", "key-3"):
            found = list(store.query_message(TRACE_TOPIC, key, 10, 0, 1 << 62).messages())
            assert [each.body for each in found] == [message.body]

    on_a_broker(tmp_path, scene, **ENABLED)


def test_a_full_batch_and_the_end_store_what_is_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_trace, "BATCH", 3)
    monkeypatch.setattr(message_trace, "GATHER_S", 3600)

    async def scene(peer: Peer) -> None:
        for _ in range(7):
            await peer.send("T")
        await peer.dispatched()
        store = peer.controller.broker.store
        assert store.max_offset_in_queue(TRACE_TOPIC, 0) == 2
        await peer.controller.stop()
        assert store.max_offset_in_queue(TRACE_TOPIC, 0) == 3

    on_a_broker(tmp_path, scene, **ENABLED)


def test_what_is_gathered_is_stored_after_a_while(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        await peer.send("T")
        store = peer.controller.broker.store
        while store.max_offset_in_queue(TRACE_TOPIC, 0) == 0:
            await asyncio.sleep(0.01)

    on_a_broker(tmp_path, scene, **ENABLED)


def test_traces_are_not_traced(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        await peer.send(TRACE_TOPIC, b"of a client")
        await peer.dispatched()
        await peer.pull(TRACE_TOPIC)
        assert [message.body for message in await trace_messages(peer)] == [b"of a client"]

    on_a_broker(tmp_path, scene, **ENABLED)


def test_keys_longer_than_properties_may_be(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        keys = " ".join(f"key-{n:05}" for n in range(3000))
        for _ in range(3):
            assert (await peer.send("T", properties=f"KEYS\x01{keys}\x02")).code == 0
        assert [trace.keys for trace in await traces(peer)] == [keys] * 3
        assert peer.controller.message_trace.lost == 0  # type: ignore[union-attr]

    on_a_broker(tmp_path, scene, **ENABLED)


def test_without_the_setting_there_is_none(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        await peer.send("T")
        assert peer.controller.message_trace is None
        assert TRACE_TOPIC not in peer.controller.broker.topic_config_manager.topic_config_table

    on_a_broker(tmp_path, scene)
