from __future__ import annotations

from mqlake.errors import ResponseError
from mqlake.message import string_to_properties
from mqlake.remoting.bodies.client import HeartbeatData, ProducerData
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.produce import ReplyMessageRequestHeader
from tests.broker.live import Peer, on_a_broker, send_header
from tests.broker.mqtrace.test_hooks import recorder_in

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


def reply(client_id: str | None) -> str:
    return f"REPLY_TO_CLIENT\x01{client_id}\x02CORRELATION_ID\x01c1\x02" if client_id else ""


def test_a_reply_is_pushed_to_who_asked_and_stored(tmp_path):
    async def scene(peer: Peer) -> None:
        pushed: list[tuple[ReplyMessageRequestHeader, bytes]] = []

        def receive(_: Connection, command: RemotingCommand) -> RemotingCommand:
            pushed.append((command.decode_header(ReplyMessageRequestHeader), command.body_bytes()))
            return RemotingCommand.create_response()

        async with RemotingClient() as asker:
            asker.processors.register(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, receive)
            heartbeat = HeartbeatData(client_id="asker", producer_data_set=[ProducerData(group_name="P")])
            request = RemotingCommand.create_request(RequestCode.HEART_BEAT, None, heartbeat.to_json())
            await asker.call(peer.address, request, 60)
            for code, v1 in (
                (RequestCode.SEND_REPLY_MESSAGE, True),
                (RequestCode.SEND_REPLY_MESSAGE_V2, False),
            ):
                header = send_header(REPLY_TOPIC, v1=v1, properties=reply("asker"))
                answer = await peer.ask(code, header, b"the answer")
                assert (answer.code, answer.remark) == (0, None)
                assert answer.ext_fields["TRACE_ON"] == "true"
                stored = peer.controller.broker.store.look_message_by_id(answer.ext_fields["msgId"])
                assert (stored.topic, stored.body) == (REPLY_TOPIC, b"the answer")
        for header, body in pushed:
            properties = string_to_properties(header.properties or "")
            assert (properties["CORRELATION_ID"], body) == ("c1", b"the answer")
            assert int(properties["PUSH_REPLY_TIME"]) == header.store_timestamp
            assert header.born_host.startswith("127.0.0.1:")
            assert header.store_host == peer.address
        assert len(pushed) == 2

    on_a_broker(tmp_path, scene)


def test_a_reply_that_reaches_nobody_says_so(tmp_path):
    async def scene(peer: Peer) -> None:
        for client_id, words in (("gone", "<gone> not found"), (None, "REPLY_TO_CLIENT] is null")):
            header = send_header(REPLY_TOPIC, properties=reply(client_id))
            answer = await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"x")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert words in answer.remark

    on_a_broker(tmp_path, scene)


def test_a_reply_that_the_client_refuses(tmp_path):
    async def scene(peer: Peer) -> None:
        async with RemotingClient() as asker:
            heartbeat = HeartbeatData(client_id="asker", producer_data_set=[ProducerData(group_name="P")])
            await asker.call(
                peer.address,
                RemotingCommand.create_request(RequestCode.HEART_BEAT, None, heartbeat.to_json()),
                60,
            )
            header = send_header(REPLY_TOPIC, properties=reply("asker"))
            answer = await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"x")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "not supported" in answer.remark

            asker.processors.register(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, lambda connection, command: connection.abort()
            )
            answer = await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"x")
            assert answer.code == ResponseCode.SYSTEM_ERROR and "lost" in answer.remark

    on_a_broker(tmp_path, scene, storeReplyMessageEnable="false")


def test_hooks_see_a_reply_and_may_refuse_it(tmp_path):
    async def scene(peer: Peer) -> None:
        recorder = recorder_in(peer)
        header = send_header(REPLY_TOPIC, properties=reply("gone"))
        answer = await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"x")
        (before, context), (after, same) = recorder.sends
        assert (before, after, context is same) == ("before", "after", True)
        assert (context.topic, context.code, context.error_msg) == (REPLY_TOPIC, answer.code, answer.remark)
        stored = peer.controller.broker.store.look_message_by_id(answer.ext_fields["msgId"])
        assert (context.msg_id, stored.reconsume_times) == (answer.ext_fields["msgId"], 0)

        def refuse(_context):
            raise ResponseError(ResponseCode.NO_PERMISSION, "not you")

        recorder.send_message_before = refuse
        recorder.sends.clear()
        answer = await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"x")
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not you")
        ((when, context),) = recorder.sends
        assert (when, context.code, context.error_msg) == ("after", answer.code, "not you")

    on_a_broker(tmp_path, scene)


def test_of_a_reply_that_arrived_hooks_see_no_error(tmp_path):
    async def scene(peer: Peer) -> None:
        recorder = recorder_in(peer)
        async with RemotingClient() as asker:
            asker.processors.register(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, lambda *_: RemotingCommand.create_response()
            )
            heartbeat = HeartbeatData(client_id="asker", producer_data_set=[ProducerData(group_name="P")])
            request = RemotingCommand.create_request(RequestCode.HEART_BEAT, None, heartbeat.to_json())
            await asker.call(peer.address, request, 60)
            header = send_header(REPLY_TOPIC, properties=reply("asker"))
            await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"x")
        _, context = recorder.sends[-1]
        assert (context.code, context.error_msg) == (ResponseCode.SUCCESS, "")

    on_a_broker(tmp_path, scene)
