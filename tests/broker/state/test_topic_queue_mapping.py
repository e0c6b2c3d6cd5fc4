from __future__ import annotations

import json

import pytest

from mqlake.broker.state.topic_queue_mapping import TopicQueueMappingManager
from mqlake.errors import MappingError
from mqlake.remoting.bodies.topic import DataVersion, LogicQueueMappingItem, TopicQueueMappingDetail

# as RocketMQ 5.3.3 writes it, numbers as keys without quotes
ROCKETMQS = """{
\t"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1700000000000},
\t"topicQueueMappingInfoMap":{"T":{
\t\t"bname":"a","currIdMap":{},"dirty":false,"epoch":1700000000001,
\t\t"hostedQueues":{0:[{"bname":"a","endOffset":-1,"gen":0,"logicOffset":0,"queueId":3,"startOffset":0,
\t\t\t"timeOfEnd":-1,"timeOfStart":-1}]},
\t\t"scope":"__global__","topic":"T","totalQueues":2}}
}"""


def manager_at(path) -> TopicQueueMappingManager:
    manager = TopicQueueMappingManager(str(path), "a")
    manager.load()
    return manager


def test_what_rocketmq_wrote_is_read_and_written_again(tmp_path):
    path = tmp_path / "topicQueueMapping.json"
    path.write_text(ROCKETMQS)
    manager = manager_at(path)
    detail = manager.table["T"]
    assert (detail.epoch, detail.total_queues) == (1700000000001, 2)
    assert detail.hosted_queues == {0: [LogicQueueMappingItem(bname="a", queue_id=3)]}
    assert manager.data_version == DataVersion(counter=2, timestamp=1700000000000)
    assert manager.infos(["T", "Other"])["T"].curr_id_map == {0: 3} and len(manager.infos(["Other"])) == 0
    manager.persist()
    again = manager_at(path)
    assert (again.table, again.data_version) == (manager.table, manager.data_version)
    assert '"hostedQueues":{0:[' in path.read_text().replace("\t", "").replace("\n", "")


def test_changes_count_and_are_kept(tmp_path):
    path = tmp_path / "topicQueueMapping.json"
    manager = manager_at(path)
    item = LogicQueueMappingItem(bname="a")
    manager.update(TopicQueueMappingDetail(topic="T", bname="a", epoch=5, hosted_queues={0: [item]}))
    counter = manager.data_version.counter
    with pytest.raises(MappingError, match="epoch"):
        manager.update(TopicQueueMappingDetail(topic="T", bname="a", epoch=4))
    with pytest.raises(MappingError, match="for the broker b"):
        manager.update(TopicQueueMappingDetail(topic="T", bname="b", epoch=6))
    assert manager.data_version.counter == counter
    manager.update(TopicQueueMappingDetail(topic="T", bname="a", epoch=4), force=True)
    manager.set_queues("T", {})
    manager.delete("Other")
    assert manager.data_version.counter == counter + 2 and manager.dirty
    manager.persist()
    assert manager_at(path).table["T"].hosted_queues == {}
    manager.delete("T")
    manager.persist()
    assert json.loads(path.read_text())["topicQueueMappingInfoMap"] == {}


def test_a_slave_takes_over_what_its_master_has(tmp_path):
    manager = manager_at(tmp_path / "topicQueueMapping.json")
    detail = TopicQueueMappingDetail(topic="T", bname="a", epoch=5)
    version = DataVersion(counter=9, timestamp=3)
    manager.take_over({"T": detail}, version)
    assert manager.table == {"T": detail} and manager.data_version == version and manager.dirty
    version.next_version()
    assert manager.data_version.counter == 9  # a copy
