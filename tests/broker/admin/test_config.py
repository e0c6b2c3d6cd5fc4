from __future__ import annotations

import json

import pytest

from mqlake.base.java_properties import format_properties
from mqlake.broker.admin.config import human_readable_byte_count
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.errors import ResponseError
from mqlake.remoting.codes import RequestCode, ResponseCode
from tests.broker.live import Peer, on_a_broker


def test_settings_are_told_and_changed(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at, controller = BrokerAPI(peer.client), peer.address, peer.controller
        told = await api.get_broker_config(at)
        assert (told["brokerName"], told["fileReservedTime"], told["autoCreateTopicEnable"]) == (
            "broker-a",
            "72",
            "true",
        )
        await api.update_broker_config(
            at,
            {
                "autoCreateTopicEnable": "false",
                "autoCreateSubscriptionGroup": "false",
                "fileReservedTime": "5",
                "transactionCheckInterval": "70",
                "useServerSideResetOffset": "false",
            },
        )
        assert controller.broker.config.transaction_check_interval == 70
        assert not controller.broker.config.use_server_side_reset_offset
        controller.broker.consumer_offset_manager.assign_reset_offset("T", "G", 0, 1)
        assert not controller.broker.consumer_offset_manager.has_offset_reset("T", "G", 0)
        assert not controller.broker.config.auto_create_topic_enable
        assert not controller.broker.subscription_group_manager.auto_create
        assert controller.broker.store.config.file_reserved_time == 5
        told = await api.get_broker_config(at)
        assert (told["fileReservedTime"], told["autoCreateTopicEnable"]) == ("5", "false")
        assert (told["sendMessageThreadPoolNums"], told["haMaxGapNotInSync"]) == ("4", "268435456"), "Java's"
        answer = await peer.send("Unknown")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"brokerConfigPath": "/x"}, 16, "black list"),
        ({"configBlackList": ""}, 16, "black list"),
        ({"secret": "x"}, 16, "black list"),
        ({"fileReservdTime": "1"}, 29, "did you mean 'fileReservedTime'?"),
        ({"fileReservedTime": "soon"}, 29, "a whole number is needed"),
        ({"longPollingEnable": "maybe"}, 29, "true or false"),
        ({"mappedFileSizeCommitLog": "1024"}, 29, "cannot be changed"),
        ({"brokerName": "b"}, 29, "only read at the start"),
        ({"authenticationEnabled": "true"}, 16, "can only be set in the broker.conf"),
        ({"fileReservedTime": "1", "inSyncReplicas": "2"}, 29, "only read at the start"),
        ({"brokerRole": "SYNC_MASTER"}, 29, "only read at the start"),
        ({"longPollingEnable": "false", "brokerName": "b"}, 29, "only read at the start"),
    ],
)
def test_settings_that_cannot_be_changed(tmp_path, settings, code, words):
    async def scene(peer: Peer) -> None:
        before = (peer.controller.broker.config, peer.controller.broker.store_config.to_mapping())
        with pytest.raises(ResponseError) as refused:
            await BrokerAPI(peer.client).update_broker_config(peer.address, settings)
        assert refused.value.code == code and words in refused.value.remark
        assert (peer.controller.broker.config, peer.controller.broker.store_config.to_mapping()) == before

    on_a_broker(tmp_path, scene, configBlackList="configBlackList;brokerConfigPath;secret")


def test_changes_are_kept_in_the_broker_conf(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=broker-a\nfileReservedTime=72\n")

    async def scene(peer: Peer) -> None:
        body = format_properties(
            {"fileReservedTime": "8", "brokerName": "b", "sendMessageThreadPoolNums": "4"}
        )
        answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body.encode())
        assert answer.code == ResponseCode.SUCCESS
        assert answer.remark == (
            "from the next start on: brokerName; without effect here: sendMessageThreadPoolNums"
        )
        assert peer.controller.broker.config.broker_name == "broker-a"
        assert peer.controller.broker.store_config.file_reserved_time == 8

    on_a_broker(tmp_path, scene, brokerConfigPath=str(conf))
    assert conf.read_text() == "brokerName=b\nfileReservedTime=8\nsendMessageThreadPoolNums=4\n"
    assert (tmp_path / "broker.conf.bak").read_text() == "brokerName=broker-a\nfileReservedTime=72\n"


def test_figures(tmp_path):
    async def scene(peer: Peer) -> None:
        await peer.send("T")
        await peer.send("T", properties="DELAY\x0118")
        await peer.dispatched()
        peer.controller.schedule_message_service.offset_table[18] = 0
        info = await BrokerAPI(peer.client).get_broker_runtime_info(peer.address)
        assert info["brokerVersionDesc"] == "V5_3_3"
        assert info["putMessageTimesTotal"] == "2"
        assert info["scheduleMessageOffset_18"] == "0,1"
        assert 0 <= float(info["commitLogDiskRatio"]) <= 1
        assert int(info["earliestMessageTimeStamp"]) > 0
        assert info["commitLogDirCapacity"].startswith("Total : ")
        assert "sendRefusal" not in info
        peer.controller.broker.store.running_flags.make_logics_queue_error("index: No space", "the index")
        info = await BrokerAPI(peer.client).get_broker_runtime_info(peer.address)
        assert info["sendRefusal"] == "writing the index failed: index: No space"
        peer.controller.broker.store.running_flags.clear_logics_queue_error()

    on_a_broker(tmp_path, scene)


def test_what_is_never_on_here(tmp_path):
    async def scene(peer: Peer) -> None:
        # what RocketMQ 5.3.3 answers with its defaults
        told = await peer.ask(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
        assert json.loads(told.body_bytes()) == {
            "runtimeTable": {},
            "configTable": {},
            "cgColdReadThreshold": 3145728,
            "globalColdReadThreshold": 104857600,
            "globalAcc": 0,
        }
        for code in (RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON):
            assert (await peer.ask(code, body=b"G")).code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")],
)
def test_sizes_for_people(count, text):
    assert human_readable_byte_count(count) == text


def test_what_waits_for_the_next_start_is_listed_until_it_is_set_back(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=broker-a\n")

    async def scene(peer: Peer) -> None:
        api = BrokerAPI(peer.client)
        assert await api.get_pending_settings(peer.address) == {}
        remark = await api.update_broker_config(
            peer.address, {"brokerName": "b", "inSyncReplicas": "2", "fileReservedTime": "8"}
        )
        assert remark == "from the next start on: brokerName, inSyncReplicas"
        assert await api.get_pending_settings(peer.address) == {"brokerName": "b", "inSyncReplicas": "2"}
        assert (await api.get_broker_config(peer.address))["brokerName"] == "broker-a"
        await api.update_broker_config(peer.address, {"brokerName": "broker-a"})
        assert await api.get_pending_settings(peer.address) == {"inSyncReplicas": "2"}

    on_a_broker(tmp_path, scene, brokerConfigPath=str(conf))
