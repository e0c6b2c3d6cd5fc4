"""Access control of RPCs."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.message_factory import GetMessageClass

from mqlake.auth.model import Action
from mqlake.proxy.access import needs_of
from mqlake.proxy.service import SERVICE
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import ClientType, Code
from tests.proxy.live import Peer, consumer_settings, message, on_a_broker, producer_settings, resource
from tests.waiting import until_async

pytestmark = pytest.mark.usefixtures("each_server")

PROVIDERS = "org.apache.rocketmq.auth"
AUTH = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationMetadataProvider": f"{PROVIDERS}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{PROVIDERS}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": '{"username":"root","password":"secret1234"}',
}


def test_only_who_signs_may(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        answer = await peer.send(message("T"))
        assert (answer.status.code, answer.status.message) == (Code.UNAUTHORIZED, "datetime is null.")
        (answer,) = await peer.stream("ReceiveMessage", v2.ReceiveMessageRequest())
        assert answer.status.code == Code.UNAUTHORIZED
        _, answer = await peer.settle(producer_settings("T"))
        assert answer.status.code == Code.UNAUTHORIZED
        peer.sign("root", "wrong")
        answer = await peer.send(message("T"))
        assert (answer.status.code, answer.status.message) == (Code.UNAUTHORIZED, "check signature failed.")
        peer.sign("root", "secret1234")
        whole = peer.metadata["authorization"]
        for wrong in (
            whole[:-38],
            whole[:-2],
            whole + "00",
        ):  # the first byte, all but the last, and one more
            peer.metadata["authorization"] = wrong
            answer = await peer.send(message("T"))
            assert (answer.status.code, answer.status.message) == (
                Code.UNAUTHORIZED,
                "check signature failed.",
            )
        peer.sign("nobody", "secret1234")
        assert (await peer.send(message("T"))).status.code == Code.UNAUTHORIZED
        assert peer.count("T") == 0
        peer.sign("root", "secret1234")
        assert (await peer.send(message("T"))).status.code == Code.OK
        _, answer = await peer.settle(consumer_settings("G", "T"))
        assert answer.status.code == Code.OK
        for hours_ago, code in (
            (14, Code.OK),
            (-14, Code.OK),
            (25, Code.UNAUTHORIZED),
            (-25, Code.UNAUTHORIZED),
        ):
            # a captured signature, and clients that sign their local time
            peer.sign("root", "secret1234", hours_ago)
            assert (await peer.send(message("T"))).status.code == code
        await until_async(lambda: peer.count("T") == 3)

    on_a_broker(tmp_path, scene, **AUTH)


T, G = resource("T"), resource("G")
QUEUE = {"message_queue": {"topic": {"name": "T"}}}
PUB, SUB = {("Topic", Action.PUB)}, {("Topic", Action.SUB)}
GROUP = {("Group", Action.SUB)}


@pytest.mark.parametrize(
    ("request_", "needs"),
    [
        (v2.SendMessageRequest(messages=[message("T")]), PUB),
        (v2.EndTransactionRequest(topic=T), PUB),
        (v2.RecallMessageRequest(topic=T), PUB),
        (v2.QueryRouteRequest(topic=T), PUB | SUB),
        (v2.QueryAssignmentRequest(topic=T, group=G), SUB | GROUP),
        (v2.ReceiveMessageRequest(group=G, **QUEUE), SUB | GROUP),
        (v2.PullMessageRequest(group=G, **QUEUE), SUB | GROUP),
        (v2.UpdateOffsetRequest(group=G, **QUEUE), SUB | GROUP),
        (v2.GetOffsetRequest(group=G, **QUEUE), SUB | GROUP),
        (v2.QueryOffsetRequest(**QUEUE), SUB),
        (v2.AckMessageRequest(topic=T, group=G), SUB | GROUP),
        (v2.ChangeInvisibleDurationRequest(topic=T, group=G), SUB | GROUP),
        (v2.ForwardMessageToDeadLetterQueueRequest(topic=T, group=G), SUB | GROUP),
        (v2.SyncLiteSubscriptionRequest(topic=T, group=G), SUB | GROUP),
        (v2.HeartbeatRequest(group=G, client_type=ClientType.SIMPLE_CONSUMER), GROUP),
        (v2.HeartbeatRequest(group=G, client_type=ClientType.PRODUCER), set()),
        (v2.NotifyClientTerminationRequest(group=G), GROUP),
        (producer_settings("T"), PUB),
        (consumer_settings("G", "T"), SUB | GROUP),
    ],
)
def test_what_each_rpc_needs(request_: v2.SendMessageRequest, needs: set[tuple[str, Action]]):
    found = {(one.resource.type.text, action) for one in needs_of(request_) for action in one.actions}
    assert found == needs


def test_no_rpc_is_forgotten():
    """A new one, with a topic and a group, would need nothing."""
    for method in SERVICE.methods:
        request = GetMessageClass(method.input_type)()
        for field in method.input_type.fields:
            if field.name in ("topic", "group") and field.message_type is not None:
                getattr(request, field.name).name = "x"
            elif field.name == "message_queue":
                request.message_queue.topic.name = "x"
        if request.ByteSize() and method.name != "Heartbeat":
            assert list(needs_of(request)), method.name
