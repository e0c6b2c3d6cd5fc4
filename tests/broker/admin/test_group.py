from __future__ import annotations

from mqlake.client.api.broker_api import BrokerAPI
from mqlake.remoting.bodies.admin import GroupForbidden, SubscriptionGroupConfig, SubscriptionGroupList
from mqlake.remoting.bodies.client import MessageRequestMode, SetMessageRequestModeRequestBody
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.admin import (
    GetSubscriptionGroupConfigRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from tests.broker.live import Peer, on_a_broker


def test_a_group_is_made_told_and_deleted(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = BrokerAPI(peer.client), peer.address
        await api.create_subscription_group(at, SubscriptionGroupConfig(group_name="G", retry_max_times=3))
        assert (await api.get_subscription_group_config(at, "G")).retry_max_times == 3
        assert (await api.get_all_subscription_group_config(at))["G"].retry_max_times == 3
        offsets = peer.controller.broker.consumer_offset_manager
        offsets.commit_offset("h", "G", "T", 0, 5)
        await api.delete_subscription_group(at, "G", clean_offset=False)
        assert "G" not in await api.get_all_subscription_group_config(at)
        assert offsets.query_offset("G", "T", 0) == 5
        await api.delete_subscription_group(at, "G", clean_offset=True)  # there is none: no error
        assert offsets.query_offset("G", "T", 0) == -1

    on_a_broker(tmp_path, scene)


def test_groups_that_may_not_be(tmp_path):
    async def scene(peer: Peer) -> None:
        bad = SubscriptionGroupList(
            group_config_list=[
                SubscriptionGroupConfig(group_name="good"),
                SubscriptionGroupConfig(group_name="not good"),
            ]
        )
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        answer = await peer.ask(code, body=bad.to_json())
        assert answer.code == ResponseCode.INVALID_PARAMETER and "not good" in answer.remark
        assert not peer.controller.broker.subscription_group_manager.contains_subscription_group("good")

        header = GetSubscriptionGroupConfigRequestHeader(group="unknown")
        answer = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    on_a_broker(tmp_path, scene, autoCreateSubscriptionGroup="false")


def test_reading_is_forbidden_and_allowed_again(tmp_path):
    async def scene(peer: Peer) -> None:
        async def readable(wanted: bool | None) -> bool | None:
            header = UpdateGroupForbiddenRequestHeader(group="G", topic="T", readable=wanted)
            answer = await peer.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
            return GroupForbidden.from_json(answer.body_bytes()).readable

        assert [await readable(each) for each in (None, False, None, True, None)] == [
            True,
            False,
            False,
            True,
            True,
        ]

    on_a_broker(tmp_path, scene)


def test_how_a_group_gets_its_messages(tmp_path):
    async def scene(peer: Peer) -> None:
        async def mode(**fields: object) -> ResponseCode | int:
            body = SetMessageRequestModeRequestBody(**{"topic": "T", "consumer_group": "G", **fields})  # type: ignore[arg-type]
            answer = await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.to_json())
            return answer.code

        async def modes() -> bytes:
            return (await peer.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body_bytes()

        assert await mode() == ResponseCode.TOPIC_NOT_EXIST
        await peer.send("T")
        assert await modes() == b'{"messageRequestModeMap":{}}'
        assert await mode(consumer_group="H", mode=MessageRequestMode.POP) == ResponseCode.SUCCESS
        assert await mode(topic="%RETRY%G") == ResponseCode.NO_PERMISSION
        assert await mode(consumer_group="no/group") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert await mode() == ResponseCode.SUCCESS
        assert await modes() == (
            b'{"messageRequestModeMap":{"T":{"G":'
            b'{"consumerGroup":"G","mode":"PULL","popShareQueueNum":0,"topic":"T"},"H":'
            b'{"consumerGroup":"H","mode":"POP","popShareQueueNum":0,"topic":"T"}}}}'
        )

    on_a_broker(tmp_path, scene)

    async def again(peer: Peer) -> None:
        modes = peer.controller.broker.message_request_mode_manager.modes.message_request_mode_map
        assert modes["T"]["G"].mode is MessageRequestMode.PULL
        assert modes["T"]["H"].mode is MessageRequestMode.POP

    on_a_broker(tmp_path, again)
