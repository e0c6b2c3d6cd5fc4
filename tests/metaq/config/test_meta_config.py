from __future__ import annotations

import dataclasses
import os
import re
import zlib
from pathlib import Path

import pytest

from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.metaq.config import MetaConfig, SystemConfig
from mqlake.metaq.config.meta_config import EVENTS, topic_values

INI = """
[system]
brokerId=3
numPartitions=2
serverPort=8124
unflushThreshold=0
unflushInterval=10000
maxSegmentSize=1024*1024
maxTransferSize=1024*1024
deletePolicy=delete,24
dataPath={data}
quartzThreadCount=4
acceptPublish=
[zookeeper]
zk.zkConnect=localhost:2181
zk.zkSessionTimeoutMs=6000
[topic=test]
[topic=orders]
numPartitions=8
stat=true
deletePolicy=archive,3m,true
unflushThreshold=5
group.g1=filters.mine:accept
[topic=log-*]
numPartitions=5
[other]
anything=goes
"""


def snake(key: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key)


@pytest.fixture
def ini(tmp_path: Path) -> Path:
    path = tmp_path / "server.ini"
    path.write_text(INI.format(data=tmp_path / "data"))
    return path


def test_what_the_file_says(ini: Path, tmp_path: Path) -> None:
    config = MetaConfig.load(str(ini))
    assert (config.system.broker_id, config.system.server_port, config.system.max_segment_size) == (
        3,
        8124,
        1 << 20,
    )
    assert config.system.accept_publish and config.system.effective_data_log_path == str(tmp_path / "data")
    assert (config.zookeeper.zk_connect, config.zookeeper.zk_session_timeout_ms) == ("localhost:2181", 6000)
    assert config.zookeeper.zk_root == "/meta"
    assert config.topics == ["log-*", "orders", "test"]
    orders, test = config.topic_config("orders"), config.topic_config("test")
    assert (orders.num_partitions, orders.stat, orders.unflush_threshold) == (8, True, 5)
    assert orders.filter_class_names == {"g1": "filters.mine:accept"}
    assert (test.num_partitions, test.delete_policy, test.unflush_threshold) == (2, "delete,24", 0)
    assert test.data_path == str(tmp_path / "data")
    assert config.config_file_checksum == zlib.crc32(ini.read_bytes())
    heard: list[int] = []
    config.add_property_change_listener(
        "configFileChecksum", lambda: heard.append(config.config_file_checksum)
    )
    config.config_file_checksum = 7
    assert heard == [7]
    assert [remark.split()[0] for remark in config.remarks] == ["quartzThreadCount"]


def test_every_key_of_the_original_is_taken(ini: Path) -> None:
    system = {
        "brokerId": 1011,
        "numPartitions": 10,
        "unflushThreshold": 10000,
        "unflushInterval": 100000,
        "maxSegmentSize": 1 << 29,
        "maxTransferSize": 1 << 19,
        "serverPort": 8124,
        "dashboardHttpPort": 8121,
        "hostName": "test.localhost",
        "dataPath": "/data",
        "dataLogPath": "/datalog",
        "appClassPath": "/provided",
        "getProcessThreadCount": 90,
        "putProcessThreadCount": 91,
        "deletePolicy": "delete,999",
        "deleteWhen": "0 0 7 * * ?",
        "quartzThreadCount": 4,
        "maxCheckpoints": 5,
        "checkpointInterval": 1000,
        "maxTxTimeoutTimerCapacity": 7,
        "maxTxTimeoutInSeconds": 8,
        "flushTxLogAtCommit": 2,
        "acceptPublish": False,
        "acceptSubscribe": False,
        "stat": True,
        "updateConsumerOffsets": True,
        "loadMessageStoresInParallel": True,
    }
    zookeeper = {
        "zk.zkRoot": "/other",
        "zk.zkEnable": False,
        "zk.zkConnect": "127.0.0.1:2181",
        "zk.zkSessionTimeoutMs": 29999,
        "zk.zkConnectionTimeoutMs": 40000,
        "zk.zkSyncTimeMs": 5001,
    }
    topic = {
        "numPartitions": 13,
        "unflushThreshold": 14,
        "unflushInterval": 15,
        "dataPath": "/test2",
        "deletePolicy": "delete,77",
        "deleteWhen": "0 0 8 * * ?",
        "acceptPublish": True,
        "acceptSubscribe": True,
        "stat": False,
    }
    sections = {"system": system, "zookeeper": zookeeper, "topic=a": topic, "topic=b": {}}
    ini.write_text(
        "".join(
            f"[{section}]\n" + "".join(f"{key}={value}\n" for key, value in values.items())
            for section, values in sections.items()
        )
    )
    config = MetaConfig.load(str(ini))
    assert dataclasses.asdict(config.system) == {snake(key): value for key, value in system.items()}
    assert dataclasses.asdict(config.zookeeper) == {
        snake(key.removeprefix("zk.")): value for key, value in zookeeper.items()
    }
    a, b = config.topic_config("a"), config.topic_config("b")
    for one, values in ((a, topic), (b, system)):
        assert dataclasses.asdict(one) == {
            "topic": one.topic,
            "filter_class_names": {},
            **{snake(key): values[key] for key in topic},
        }


def test_who_may_put_and_get_is_said_for_all_topics_or_one(ini: Path) -> None:
    text = ini.read_text().replace("acceptPublish=", "acceptSubscribe=false")
    ini.write_text(
        text.replace("[topic=orders]", "[topic=orders]\nacceptPublish=false\nacceptSubscribe=true")
    )
    config = MetaConfig.load(str(ini))
    orders, test = config.topic_config("orders"), config.topic_config("test")
    assert (orders.accept_publish, orders.accept_subscribe) == (False, True)
    assert (test.accept_publish, test.accept_subscribe) == (True, False)
    assert test.filter_class_names == {}


def test_patterns(ini: Path) -> None:
    config = MetaConfig.load(str(ini))
    assert config.accepts("log-a") and config.accepts("log-") and config.accepts("test")
    assert not config.accepts("logs") and not config.accepts("a-log-b")
    for topic in ("log-../../x", "log-\0", "log-" + "x" * 300):
        assert not config.accepts(topic), "a producer does not choose where on the disk it writes"
    assert config.topic_config("log-a").num_partitions == 5
    assert config.topic_config("log-a").topic == "log-a"
    assert config.topic_config("unknown").num_partitions == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("brokerId=3", "brokerID=3", "'brokerID'; did you mean 'brokerId'"),
        ("brokerId=3", "brokerId=", "brokerId must have a value"),
        ("brokerId=3", "brokerId=1024", "brokerId: 1024 is not between 0 and 1023"),
        ("numPartitions=2\n", "", "numPartitions must have a value"),
        ("numPartitions=8", "numPartitions=x", r"\[topic=orders\] numPartitions: 'x' is not a number"),
        ("stat=true", "stats=true", "did you mean 'stat'"),
        ("archive,3m,true", "archive", "how long to keep"),
        ("archive,3m,true", "keep,3", "unknown delete policy 'keep'"),
        ("zk.zkConnect=", "zk.zkconnect=", "did you mean 'zk.zkConnect'"),
        ("zk.zkConnect=localhost:2181", "", "zk.zkConnect must have a value"),
        ("[zookeeper]", "[zoo]", r"section \[zookeeper\] is missing"),
        ("[topic=orders]", "[topic=a b]", "contain white space"),
        ("[topic=orders]", "[topic=../x]", "usable as the name of a directory"),
        ("acceptPublish=", "acceptPublish=perhaps", "neither true nor false"),
        ("acceptPublish=", "deleteWhen=often", "cron expression"),
        ("acceptPublish=", "flushTxLogAtCommit=3", "flushTxLogAtCommit: 3"),
        ("acceptPublish=", "acceptPublish", "line 13"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(ini: Path, old: str, new: str, said: str) -> None:
    text = ini.read_text()
    assert old in text
    ini.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=said) as caught:
        MetaConfig.load(str(ini))
    assert str(caught.value).startswith(str(ini))


def test_a_file_without_topics(ini: Path) -> None:
    ini.write_text(ini.read_text().split("[topic=test]")[0])
    with pytest.raises(ConfigError, match="no \\[topic"):
        MetaConfig.load(str(ini))


def test_gbk_is_read(ini: Path) -> None:
    ini.write_bytes(b"; " + "中文".encode("gbk") + b"\n" + ini.read_bytes())
    assert MetaConfig.load(str(ini)).system.broker_id == 3
    ini.write_bytes(b"; \xff\xff\xff\n" + ini.read_bytes())
    with pytest.raises(ConfigError, match="UTF-8"):
        MetaConfig.load(str(ini))


def touch(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))


def test_reload_takes_topics_only_and_tells(ini: Path) -> None:
    config = MetaConfig.load(str(ini))
    heard: list[str] = []
    for event in EVENTS:
        config.add_property_change_listener(event, lambda event=event: heard.append(event))
    assert not config.reload() and heard == []
    text = ini.read_text()
    touch(ini, text.replace("serverPort=8124", "serverPort=9").replace("numPartitions=2", "numPartitions=50"))
    assert config.reload()
    assert heard == ["configFileChecksum", "unflushInterval"]
    assert config.system.server_port == 8124 and config.topic_config("test").num_partitions == 2
    heard.clear()
    touch(ini, text.replace("numPartitions=8", "numPartitions=9") + "[topic=new]\n")
    assert config.reload()
    assert heard == ["configFileChecksum", "topics", "topicConfigMap", "unflushInterval"]
    assert config.topic_config("orders").num_partitions == 9 and config.accepts("new")
    heard.clear()
    touch(ini, "[topic=x]\nnumPartitoins=1\n")
    assert not config.reload() and heard == [] and config.accepts("orders")
    ini.unlink()
    assert not config.reload()


def test_listeners_come_and_go_and_may_fail(ini: Path) -> None:
    config = MetaConfig.load(str(ini))
    heard: list[int] = []

    def fails() -> None:
        raise RuntimeError

    def listener() -> None:
        heard.append(1)

    config.add_property_change_listener("topics", fails)
    config.add_property_change_listener("topics", listener)
    config.add_topic("added", {"numPartitions": "3"})
    assert heard == [1] and config.topic_config("added").num_partitions == 3
    config.remove_property_change_listener(listener)
    config.add_topic("added2", {})
    assert heard == [1]
    with pytest.raises(UnknownKeyError, match="topics"):
        config.add_property_change_listener("topic", listener)


def test_partitions_closed_and_opened(ini: Path) -> None:
    config = MetaConfig.load(str(ini))
    config.close_partitions("orders", 1, 2)
    assert [config.is_closed("orders", p) for p in range(4)] == [False, True, True, False]
    assert config.closed_partitions() == {"orders": [1, 2]}
    config.open_partitions("orders")
    assert not config.is_closed("orders", 1)
    for topic, start, end in (("nobody", 0, 0), ("orders", 0, 8), ("orders", 2, 1), ("orders", -1, 0)):
        with pytest.raises(ConfigError):
            config.close_partitions(topic, start, end)
    with pytest.raises(ConfigError):
        config.open_partitions("nobody")


def test_made_without_a_file() -> None:
    config = MetaConfig(SystemConfig(broker_id=1), topics=topic_values(["a=4", "b"]))
    assert config.topic_config("a").num_partitions == 4 and config.topic_config("b").num_partitions == 1
    assert not config.reload()
    assert config.system.effective_data_path == os.path.expanduser("~/meta")
    with pytest.raises(ConfigError, match="brokerId"):
        MetaConfig(SystemConfig(broker_id=1024))
    with pytest.raises(ConfigError, match="NAME=PARTITIONS"):
        topic_values(["a=x"])
    with pytest.raises(ConfigError):
        MetaConfig(topics=topic_values([""]))
