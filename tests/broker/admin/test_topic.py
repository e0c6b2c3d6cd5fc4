from __future__ import annotations

import json
import shutil

import pytest

from mqlake.broker.admin.topic import QUEUES_MAX, parse_attributes
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.errors import ResponseError
from mqlake.remoting.bodies.topic import CreateTopicListRequestBody, MessageQueue, TopicConfig
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.admin import CreateTopicRequestHeader
from tests.broker.live import Peer, on_a_broker


def test_a_topic_is_made_changed_told_and_deleted(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = BrokerAPI(peer.client), peer.address
        config = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
        config.attributes = {"+message.type": "FIFO"}
        await api.create_topic(at, config)
        told = await api.get_topic_config(at, "T")
        assert (told.read_queue_nums, told.attributes) == (2, {"message.type": "FIFO"})
        on_disk = json.loads((tmp_path / "store/config/topics.json").read_text())
        assert on_disk["topicConfigTable"]["T"]["readQueueNums"] == 2

        config.read_queue_nums, config.attributes = 3, {"+message.type": "NORMAL"}
        await api.create_topic(at, config)
        assert (await api.get_all_topic_config(at))["T"].read_queue_nums == 3

        await peer.send("T", queue_id=1)
        await peer.dispatched()
        stats = (await api.get_topic_stats_info(at, "T")).offset_table
        assert len(stats) == 3
        second = stats[MessageQueue(topic="T", broker_name="broker-a", queue_id=1)]
        assert (second.min_offset, second.max_offset) == (0, 1) and second.last_update_timestamp > 0

        peer.controller.broker.consumer_offset_manager.commit_offset("h", "G", "T", 1, 1)
        await api.delete_topic_in_broker(at, "T")
        assert peer.controller.broker.store.consume_queues.queues("T") == {}
        assert peer.controller.broker.consumer_offset_manager.offset_table == {}
        assert not (tmp_path / "store/consumequeue/T").exists()
        on_disk = json.loads((tmp_path / "store/config/topics.json").read_text())
        assert "T" not in on_disk["topicConfigTable"]
        with pytest.raises(ResponseError) as gone:
            await api.get_topic_stats_info(at, "T")
        assert gone.value.code == ResponseCode.TOPIC_NOT_EXIST

    on_a_broker(tmp_path, scene)


def test_a_topic_that_cannot_be_kept_is_no_success(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = BrokerAPI(peer.client), peer.address
        topics = tmp_path / "store/config/topics.json"
        topics.unlink(missing_ok=True)
        (topics / "in the way").mkdir(parents=True)
        topic = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
        for _ in range(2):  # asked for again it is nothing new, and still not kept
            with pytest.raises(ResponseError, match=r"not kept.*topics\.json") as refused:
                await api.create_topic(at, topic)
            assert refused.value.code == ResponseCode.SYSTEM_ERROR
        assert (await peer.send("T")).code == 0  # sends go on
        shutil.rmtree(topics)
        await api.create_topic(at, topic)
        assert "T" in json.loads(topics.read_text())["topicConfigTable"]

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"topic": "a/b"}, 29, "contains '/'"),
        ({"topic": "x" * 128}, 29, "128 characters"),
        ({"topic": "TBW102"}, 29, "is conflict with system topic"),
        ({"topic": "%LMQ%a"}, 29, "no light queues"),
        ({"topic": "DefaultCluster"}, 29, "is conflict with system topic"),
        ({"read_queue_nums": -1}, 29, "readQueueNums is -1"),
        ({"write_queue_nums": QUEUES_MAX + 1}, 29, "writeQueueNums is 65537"),
        ({"perm": 8}, 29, "perm is 8"),
        ({"topic_filter_type": "SOME"}, 29, "SINGLE_TAG or MULTI_TAG"),
        ({"attributes": "+message.type=MIXED"}, 29, "MIXED"),
        ({"attributes": "+colour=red"}, 1, "not known"),
        ({"attributes": "colour=red"}, 1, r"+name=value or -name"),
        ({"attributes": "+message.type=FIFO,+message.type=FIFO"}, 1, "given twice"),
    ],
)
def test_what_no_topic_may_be(tmp_path, fields, code, words):
    header = {
        "topic": "T",
        "default_topic": "TBW102",
        "read_queue_nums": 1,
        "write_queue_nums": 1,
        "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
    }

    async def scene(peer: Peer) -> None:
        before = set(peer.controller.broker.topic_config_manager.topic_config_table)
        request = CreateTopicRequestHeader(**{**header, **fields})
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, request)
        assert (answer.code, words in answer.remark) == (code, True), answer.remark
        assert set(peer.controller.broker.topic_config_manager.topic_config_table) == before

    on_a_broker(tmp_path, scene)


def test_a_list_of_topics_is_made_as_a_whole_or_not(tmp_path):
    async def scene(peer: Peer) -> None:
        async def make(*names: str) -> int:
            body = CreateTopicListRequestBody(
                topic_config_list=[TopicConfig(topic_name=name) for name in names]
            )
            return (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body.to_json())).code

        table = peer.controller.broker.topic_config_manager.topic_config_table
        assert await make("A", "b/d") == ResponseCode.INVALID_PARAMETER
        assert "A" not in table
        assert await make("A", "B") == ResponseCode.SUCCESS
        assert {"A", "B"} <= table.keys()

    on_a_broker(tmp_path, scene)


def test_pop_retry_topics_go_with_their_topic(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = BrokerAPI(peer.client), peer.address
        for name in ("T", "%RETRY%G_T", "%RETRY%G"):
            await api.create_topic(at, TopicConfig(topic_name=name))
        peer.controller.broker.consumer_offset_manager.commit_offset("h", "G", "T", 0, 0)
        await api.delete_topic_in_broker(at, "T")
        left = peer.controller.broker.topic_config_manager.topic_config_table.keys()
        assert "%RETRY%G" in left and not {"T", "%RETRY%G_T"} & left

    on_a_broker(tmp_path, scene)


def test_system_topics_are_told(tmp_path):
    async def scene(peer: Peer) -> None:
        topics = await BrokerAPI(peer.client).get_system_topic_list(peer.address)
        assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"} <= topics

    on_a_broker(tmp_path, scene)


def test_attributes_of_a_header():
    assert parse_attributes("") == {}
    assert parse_attributes("+a=b=c,-d") == {"+a": "b=c", "-d": ""}
    for text in ("a", "+a", "-a=b"):
        with pytest.raises(ResponseError):
            parse_attributes(text)
