from __future__ import annotations

import pytest

from mqlake.client.api.broker_api import BrokerAPI
from mqlake.errors import ResponseError
from mqlake.formats.compression import compress_body
from mqlake.message import Message, MessageSysFlag, decode_message_id
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.consume import QueryMessageRequestHeader
from tests.broker.live import Peer, on_a_broker, send_header


def test_messages_come_unpacked(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = BrokerAPI(peer.client), peer.address
        flag = MessageSysFlag.COMPRESSED_FLAG | MessageSysFlag.COMPRESSION_ZLIB_TYPE
        packed = compress_body(b"long " * 1000, flag)
        await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header("T", sys_flag=flag), packed)
        sent = await api.send_message(at, Message("T", b"plain", keys="k"), 0, "PG")
        assert sent.queue_offset == 1
        await peer.dispatched()

        messages, place = await api.pull_message(at, "T", 0, 0, 10)
        assert [message.body for message in messages] == [b"long " * 1000, b"plain"]
        assert (place.min_offset, place.max_offset, place.next_begin_offset) == (0, 2, 2)
        assert await api.pull_message(at, "T", 0, 2, 10) == ([], place)
        _, offset = decode_message_id(sent.msg_id)
        assert (await api.view_message(at, offset)).body == b"plain"

        (found,) = await api.query_message(at, "T", "k", 10)
        assert found.body == b"plain"
        assert await api.query_message(at, "T", "none", 10) == []

    on_a_broker(tmp_path, scene)


def test_refusals_are_errors(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = BrokerAPI(peer.client), peer.address
        with pytest.raises(ResponseError) as refused:
            await api.pull_message(at, "Nowhere", 0, 0, 1)
        assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST
        with pytest.raises(ResponseError):
            await api.view_message(at, 10**9)
        request = QueryMessageRequestHeader(topic="T", key="k", max_num=1, begin_timestamp=0, end_timestamp=1)
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, request)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND

    on_a_broker(tmp_path, scene)
