from __future__ import annotations

import asyncio

import pytest

from mqlake.base import json_config
from mqlake.broker.config import BrokerConfig
from mqlake.broker.state.topic_config import TopicConfigManager, alter_attributes
from mqlake.errors import ConfigError, FormatError
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.loop import run
from tests.waiting import until_async


def make(tmp_path, on_change=lambda topics: None, **settings) -> TopicConfigManager:
    config = BrokerConfig(broker_name="broker-a", **settings)
    manager = TopicConfigManager(str(tmp_path / "topics.json"), lambda: config)
    manager.on_change = on_change
    manager.init()
    manager.load()
    return manager


def queues(config: TopicConfig) -> tuple[int, int, int]:
    return config.read_queue_nums, config.write_queue_nums, config.perm


def test_the_built_in_topics_are_rocketmqs(tmp_path):
    table = make(tmp_path, trace_topic_enable=True).topic_config_table
    assert {topic: queues(config) for topic, config in table.items()} == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
        "BenchmarkTest": (1024, 1024, 6),
        "DefaultCluster": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "RMQ_SYS_TRACE_TOPIC": (1, 1, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "rmq_sys_wheel_timer": (1, 1, 6),
    }


def test_a_send_makes_a_topic_after_its_pattern(tmp_path):
    manager = make(tmp_path)
    made = manager.create_topic_in_send_message_method("T", "TBW102", "h:1", 4, 2)
    assert (queues(made), made.topic_sys_flag) == ((4, 4, 6), 2)
    assert queues(manager.create_topic_in_send_message_method("Many", "TBW102", "h:1", 100, 0)) == (8, 8, 6)
    assert queues(manager.create_topic_in_send_message_method("None", "TBW102", "h:1", -5, 0)) == (0, 0, 6)
    assert manager.create_topic_in_send_message_method("T", "nobody", "h:1", 1, 0) is made
    assert manager.create_topic_in_send_message_method("U", "nobody", "h:1", 1, 0) is None
    assert manager.create_topic_in_send_message_method("U", "T", "h:1", 1, 0) is None


def test_no_topic_makes_itself_when_that_is_off(tmp_path):
    make(tmp_path).persist()  # a file that still has TBW102
    manager = make(tmp_path, auto_create_topic_enable=False)
    assert manager.create_topic_in_send_message_method("T", "TBW102", "h:1", 4, 0) is None
    assert manager.select_topic_config("T") is None


def test_retry_topics(tmp_path):
    manager = make(tmp_path)
    made = manager.create_topic_in_send_message_back_method("%RETRY%G", 1, 6, 0)
    assert queues(made) == (1, 1, 6)
    counter = manager.data_version.counter
    assert manager.create_topic_in_send_message_back_method("%RETRY%G", 9, 2, 0) is made
    assert manager.data_version.counter == counter
    assert manager.create_topic_in_send_message_back_method("%RETRY%G", 1, 6, 0, is_order=True).order


def test_the_file_is_rocketmqs_and_survives(tmp_path):
    manager = make(tmp_path)
    manager.update_topic_config(
        TopicConfig(topic_name="T", order=True, attributes={"+message.type": "FIFO"}, perm=4)
    )
    content = json_config.loads((tmp_path / "topics.json").read_bytes())
    assert content["topicConfigTable"]["T"] == {
        "attributes": {"message.type": "FIFO"},
        "order": True,
        "perm": 4,
        "readQueueNums": 16,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 16,
    }
    assert content["dataVersion"]["counter"] == 1
    again = make(tmp_path)
    assert again.topic_config_table == manager.topic_config_table
    assert again.data_version == manager.data_version
    again.delete_topic_config("T")
    again.delete_topic_config("T")
    assert again.data_version.counter == 2
    assert make(tmp_path).select_topic_config("T") is None


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "topics.json").write_text('{"topicConfigTable":[]}')
    with pytest.raises(FormatError, match=r"topics\.json"):
        make(tmp_path)


def test_batch_topics(tmp_path):
    manager = make(tmp_path)
    manager.update_topic_config(TopicConfig(topic_name="B", attributes={"+queue.type": "BatchCQ"}))
    assert manager.is_batch_topic("B")
    assert not manager.is_batch_topic("TBW102") and not manager.is_batch_topic("unknown")


def test_ordered_topics_of_the_name_server(tmp_path):
    manager = make(tmp_path)
    manager.create_topic_in_send_message_back_method("T", 1, 6, 0)
    manager.update_order_topic_config({"T": "broker-a:1", "elsewhere": "broker-b:1"})
    assert manager.is_order_topic("T") and not manager.is_order_topic("elsewhere")
    assert make(tmp_path).is_order_topic("T")


@pytest.mark.parametrize(
    ("current", "edits", "result"),
    [
        (None, {"+message.type": "FIFO"}, {"message.type": "FIFO"}),
        (None, {"+queue.type": "BatchCQ"}, {"queue.type": "BatchCQ"}),
        ({"message.type": "FIFO"}, {"+message.type": "DELAY"}, {"message.type": "DELAY"}),
        ({"message.type": "FIFO"}, {"-message.type": ""}, {}),
        ({"queue.type": "BatchCQ"}, {}, {"queue.type": "BatchCQ"}),
    ],
)
def test_attributes_are_edited(current, edits, result):
    assert alter_attributes(current, edits) == result


@pytest.mark.parametrize(
    ("current", "edits", "words"),
    [
        (None, {"message.type": "FIFO"}, "needed"),
        (None, {"+": "x"}, "needed"),
        (None, {"+color": "red"}, "not known"),
        (None, {"+message.type": "red"}, "it can be DELAY, FIFO"),
        (None, {"-message.type": ""}, "a new topic has no attributes"),
        ({}, {"-message.type": ""}, "is not set"),
        ({}, {"+queue.type": "BatchCQ"}, "cannot be changed"),
        (None, {"+cleanup.policy": "COMPACTION"}, "it can be DELETE"),
        ({"message.type": "FIFO"}, {"+message.type": "DELAY", "-message.type": ""}, "twice"),
    ],
)
def test_edits_that_cannot_be(current, edits, words):
    with pytest.raises(ConfigError, match=words):
        alter_attributes(current, edits)


def test_all_of_a_list_or_none(tmp_path):
    manager = make(tmp_path)
    with pytest.raises(ConfigError):
        manager.update_topic_config_list(
            [TopicConfig(topic_name="A"), TopicConfig(topic_name="B", attributes={"+x": "1"})]
        )
    assert manager.select_topic_config("A") is None
    manager.update_topic_config_list([TopicConfig(topic_name="A"), TopicConfig(topic_name="B")])
    assert make(tmp_path).topic_config_table.keys() >= {"A", "B"}


def test_a_new_topic_is_settled_when_it_is_on_disk_and_known(tmp_path):
    async def scene() -> None:
        known = asyncio.get_running_loop().create_future()
        told = []

        def on_change(topics):
            told.extend(topic.topic_name for topic in topics)
            return known if "T" in told else None

        manager = make(tmp_path, on_change)
        manager.create_topic_in_send_message_method("U", "TBW102", "h:1", 4, 0)
        settled = manager.unsettled["U"]
        await settled
        assert '"U"' in (tmp_path / "topics.json").read_text()
        manager.create_topic_in_send_message_method("T", "TBW102", "h:1", 4, 0)
        await until_async(lambda: told == ["U", "T"])
        assert "T" in manager.unsettled
        settled = manager.unsettled["T"]
        known.set_result(None)
        await settled
        await asyncio.sleep(0)
        assert '"T"' in (tmp_path / "topics.json").read_text()
        assert not manager.unsettled

    run(scene())


def test_topics_that_come_together_are_written_and_told_once(tmp_path):
    async def scene() -> None:
        told = []

        def on_change(topics):
            told.append([topic.topic_name for topic in topics])

        manager = make(tmp_path, on_change)
        names = [f"T{number}" for number in range(2000)]
        for name in names:
            manager.create_topic_in_send_message_method(name, "TBW102", "h:1", 4, 0)
        assert len(set(manager.unsettled.values())) == 1
        await manager.unsettled["T0"]
        assert told == [names] and not manager.unsettled
        assert manager._copies == 1, "one write of the whole table"
        assert '"T1999"' in (tmp_path / "topics.json").read_text()

    run(scene())


def test_a_disk_that_refuses_is_tried_again(tmp_path, caplog):
    async def scene() -> None:
        manager = make(tmp_path)
        (tmp_path / "topics.json.tmp").mkdir()
        manager.create_topic_in_send_message_method("T", "TBW102", "h:1", 4, 0)
        await manager.unsettled["T"]
        assert manager.dirty and "cannot be written" in caplog.text
        (tmp_path / "topics.json.tmp").rmdir()
        await manager.persist_in_background()
        assert '"T"' in (tmp_path / "topics.json").read_text()

    run(scene())
