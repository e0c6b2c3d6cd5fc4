"""Administration both ways: RocketMQ's admin tool against our broker, `mqlake admin` against RocketMQ's broker.

The same scenario is run with either tool, and the same questions are put to either broker by RocketMQ's tool: the
answers have to be the same, all but times and rates.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mqlake.auth.config import AuthConfig
from mqlake.base.settings import settings_of
from mqlake.broker.config import KEYS as BROKER_KEYS
from mqlake.cli.main import cli
from mqlake.client import Message
from mqlake.client.blocking import Producer
from mqlake.remoting.bodies.codec import load_json
from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker
from tests.interop.java_client import JavaProducer, message
from tests.interop.java_peer import JavaPeerError
from tests.interop.java_wire import JavaLines
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.java

PATIENTLY = ("--timeout", str(PATIENCE_S))
BROKER_NAME = "broker-0"
CLUSTER = "DefaultCluster"
SETTINGS = {
    "brokerName": BROKER_NAME,
    # without it RocketMQ's broker cannot delete a topic
    "timerWheelEnable": "true",
    "mappedFileSizeTimerLog": 1 << 20,
}


class JavaAdmin(JavaLines):
    """RocketMQ's admin tool in a JVM."""

    MAIN = "mqlake.admin.Main"

    def call(self, broker: Broker, method: str, *args: Any, types: list[str] | None = None) -> Any:
        """What a method of DefaultMQAdminExt gives: messages, or its result in JSON."""
        answer = self.request("call", namesrv=broker.namesrv, method=method, args=list(args), types=types)
        return answer["messages"] if "messages" in answer else load_json(answer["json"].encode())

    def tools(self, broker: Broker, commands: list[list[str]]) -> list[str]:
        """What each of the commands of mqadmin prints."""
        lines = [[command, "-n", broker.namesrv, *args] for command, *args in commands]
        printed: list[str] = self.request("tools", commands=lines)["printed"]
        for number, text in enumerate(printed):
            # two have named their clients by the same millisecond, or there was no answer in the tool's own 3 s
            if re.search("has created already|RemotingTimeoutException|RemotingTooMuchRequest", text):
                (printed[number],) = self.request("tools", commands=[lines[number]])["printed"]
        return printed


@pytest.fixture(scope="module")
def java_admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaAdmin]:
    with JavaAdmin(tmp_path_factory.mktemp("admin")) as tool:
        yield tool


@pytest.fixture(scope="module")
def mqlake_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with MqlakeBroker(tmp_path_factory.mktemp("mqlake"), SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def java_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with JavaBroker(tmp_path_factory.mktemp("java"), SETTINGS) as broker:
        until(lambda: mqlake(broker, "cluster", "list"), "the broker is registered")
        yield broker


def mqlake(broker: Broker, *args: str) -> Any:
    """What `mqlake admin … --json` prints."""
    result = CliRunner().invoke(
        cli, ["admin", *args, *PATIENTLY, "--json"], env={"NAMESRV_ADDR": broker.namesrv}
    )
    assert result.exit_code == 0, (args, result.output)
    return json.loads(result.stdout)


def mqlake_error(broker: Broker, *args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["admin", *args, *PATIENTLY], env={"NAMESRV_ADDR": broker.namesrv})
    return result.exit_code, result.output


# --- the scenario, told once and done with either tool


class JavaOperator:
    def __init__(self, tool: JavaAdmin, producer: JavaProducer, broker: Broker) -> None:
        self.tool, self.producer, self.broker = tool, producer, broker

    def create_topic(self, topic: str, queues: int) -> None:
        config = {"topicName": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
        self.tool.call(self.broker, "createAndUpdateTopicConfig", self.broker.address, config)

    def topics(self) -> set[str]:
        return set(self.tool.call(self.broker, "fetchAllTopicList")["topicList"])

    def send(self, topic: str, body: str, key: str) -> str:
        sent = message(body.encode(), keys=key, queueId=1)
        (result,) = self.producer.send(topic, "queue", [sent])
        return str(result["msgId"])

    def by_key(self, topic: str, key: str) -> list[tuple[str, str]]:
        try:
            found = self.tool.call(
                self.broker,
                "queryMessage",
                topic,
                key,
                64,
                0,
                2**62,
                types=["String", "String", "int", "long", "long"],
            )
        except JavaPeerError as error:
            assert "no message" in str(error)
            return []
        return [(each["msgId"], each["body"]) for each in found]

    def by_id(self, topic: str, message_id: str) -> str:
        return str(self.tool.call(self.broker, "viewMessage", topic, message_id)[0]["body"])

    def offset_id(self, topic: str, message_id: str) -> str:
        (found,) = mqlake(self.broker, "message", "by-unique-key", topic, "-i", message_id)
        return str(found["msgId"])

    def create_group(self, group: str) -> None:
        config = {"groupName": group}
        self.tool.call(self.broker, "createAndUpdateSubscriptionGroupConfig", self.broker.address, config)

    def reset(self, group: str, topic: str, timestamp: int) -> dict[int, int]:
        table = self.tool.call(
            self.broker,
            "resetOffsetByTimestamp",
            topic,
            group,
            timestamp,
            True,
            types=["String", "String", "long", "boolean"],
        )
        return {dict(queue)["queueId"]: offset for queue, offset in table.items()}

    def progress(self, group: str, topic: str) -> dict[int, tuple[int, int]]:
        table = self.tool.call(self.broker, "examineConsumeStats", group, topic)["offsetTable"]
        return {
            dict(queue)["queueId"]: (each["brokerOffset"], each["consumerOffset"])
            for queue, each in table.items()
        }

    def delete_group(self, group: str) -> None:
        self.tool.call(
            self.broker,
            "deleteSubscriptionGroup",
            self.broker.address,
            group,
            True,
            types=["String", "String", "boolean"],
        )

    def delete_topic(self, topic: str) -> None:
        self.tool.call(self.broker, "deleteTopic", topic, CLUSTER)


class MqlakeOperator:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def create_topic(self, topic: str, queues: int) -> None:
        mqlake(self.broker, "topic", "create", topic, "-c", CLUSTER, "-q", str(queues))

    def topics(self) -> set[str]:
        return set(mqlake(self.broker, "topic", "list"))

    def send(self, topic: str, body: str, key: str) -> str:
        sent = mqlake(
            self.broker, "message", "send", topic, "-p", body, "-k", key, "-b", BROKER_NAME, "-q", "1"
        )
        return str(sent["uniqKey"])

    def by_key(self, topic: str, key: str) -> list[tuple[str, str]]:
        found = mqlake(self.broker, "message", "by-key", topic, "-k", key)
        return [(each["uniqKey"], _text(each["body"])) for each in found]

    def by_id(self, topic: str, message_id: str) -> str:
        return _text(mqlake(self.broker, "message", "view", message_id, "-t", topic)["body"])

    def offset_id(self, topic: str, message_id: str) -> str:
        (found,) = mqlake(self.broker, "queryMsgByUniqueKey", "-t", topic, "-i", message_id)
        return str(found["msgId"])

    def create_group(self, group: str) -> None:
        mqlake(self.broker, "group", "create", group)

    def reset(self, group: str, topic: str, timestamp: int) -> dict[int, int]:
        rows = mqlake(self.broker, "group", "reset-offset", group, "-t", topic, "-s", str(timestamp), "--yes")
        return {row["queueId"]: row["offset"] for row in rows}

    def progress(self, group: str, topic: str) -> dict[int, tuple[int, int]]:
        rows = mqlake(self.broker, "consumerProgress", "-g", group, "-t", topic)["queues"]
        return {row["queueId"]: (row["brokerOffset"], row["consumerOffset"]) for row in rows}

    def delete_group(self, group: str) -> None:
        mqlake(self.broker, "group", "delete", group, "--clean-offset", "--yes")

    def delete_topic(self, topic: str) -> None:
        mqlake(self.broker, "topic", "delete", topic, "--yes")


def _text(body: str) -> str:
    return base64.b64decode(body).decode()


@pytest.fixture(params=["java tool, mqlake broker", "mqlake tool, java broker"])
def operator(request: pytest.FixtureRequest) -> Iterator[JavaOperator | MqlakeOperator]:
    if request.param.startswith("java tool"):
        broker = request.getfixturevalue("mqlake_broker")
        with request.getfixturevalue("java_clients").producer(broker) as producer:
            yield JavaOperator(request.getfixturevalue("java_admin"), producer, broker)
    else:
        yield MqlakeOperator(request.getfixturevalue("java_broker"))


def test_a_topics_life(operator):
    topic, group = "Orders", "GID_orders"
    operator.create_topic(topic, 2)
    until(lambda: topic in operator.topics(), "the topic is in the list")
    before = int(time.time() * 1000)
    ids = [operator.send(topic, f"body-{n}", f"key-{n}") for n in range(3)]

    until(lambda: operator.by_key(topic, "key-2"), "the message can be found by its key")
    assert operator.by_key(topic, "key-1") == [(ids[1], "body-1")]
    assert operator.by_id(topic, ids[0]) == "body-0"
    assert operator.by_id(topic, operator.offset_id(topic, ids[2])) == "body-2"

    operator.create_group(group)
    assert operator.reset(group, topic, before) == {0: 0, 1: 0}
    assert operator.progress(group, topic) == {0: (0, 0), 1: (3, 0)}
    assert operator.reset(group, topic, -1) == {0: 0, 1: 3}
    assert operator.progress(group, topic) == {0: (0, 0), 1: (3, 3)}

    operator.delete_group(group)
    operator.delete_topic(topic)
    until(lambda: topic not in operator.topics(), "the topic is gone")
    status, output = mqlake_error(operator.broker, "topic", "status", topic)
    assert (status, output.strip()) == (1, f"Error: unknown topic {topic!r}")


# --- the same questions to both brokers

TOPIC, GROUP, OTHER_GROUP = "Asked", "GID_asked", "GID_other"
ASKED_QUEUE = {"topic": TOPIC, "brokerName": BROKER_NAME, "queueId": 0}
TIMES_AND_RATES = {
    "lastUpdateTimestamp",
    "lastTimestamp",
    "timestamp",
    "dataVersion",
    "topicPutTps",
    "consumeTps",
    "minTimeStamp",
    "minTimeStampStr",
    "maxTimeStamp",
    "maxTimeStampStr",
    "consumeTimeStamp",
    "consumeTimeStampStr",
    "delayTime",
    "brokerAddr",
    "sum",
    "tps",
    "avgpt",
    "masterCommitLogMaxOffset",
    "haClientRuntimeInfo",
}
ADDRESS = object()
QUESTIONS: dict[str, tuple[Any, ...]] = {
    "topic stats": ("examineTopicStats", TOPIC),
    "topic config": ("examineTopicConfig", ADDRESS, TOPIC),
    "group config": ("examineSubscriptionGroupConfig", ADDRESS, GROUP),
    "all groups": ("getAllSubscriptionGroup", ADDRESS, 5000),
    "consume stats": ("examineConsumeStats", GROUP),
    "consume stats of a topic": ("examineConsumeStats", GROUP, TOPIC),
    "consume stats of the broker": ("fetchConsumeStatsInBroker", ADDRESS, False, 5000),
    "who consumes": ("queryTopicConsumeByWho", TOPIC),
    "what is consumed": ("queryTopicsByConsumer", GROUP),
    "subscription": ("querySubscription", GROUP, TOPIC),
    "time span": ("queryConsumeTimeSpan", TOPIC, GROUP),
    "counter": ("viewBrokerStatsData", ADDRESS, "TOPIC_PUT_NUMS", TOPIC),
    "queue": ("queryConsumeQueue", ADDRESS, TOPIC, 0, 0, 10, None),
    "first offset": ("minOffset", ASKED_QUEUE),
    "last offset": ("maxOffset", ASKED_QUEUE),
    "offset at a time": ("searchOffset", ASKED_QUEUE, 0),
    "offset at a time to come": ("searchOffset", ASKED_QUEUE, 2**62),
    "reading forbidden": ("updateAndGetGroupReadForbidden", ADDRESS, GROUP, TOPIC, False),
    "reading allowed": ("updateAndGetGroupReadForbidden", ADDRESS, GROUP, TOPIC, True),
    "clone": ("cloneGroupOffset", GROUP, OTHER_GROUP, TOPIC, True),
    "the clone's stats": ("examineConsumeStats", OTHER_GROUP, TOPIC),
    "one queue's reset": ("resetOffsetByQueueId", ADDRESS, GROUP, TOPIC, 0, 1),
    "stats behind it": ("examineConsumeStats", GROUP, TOPIC),
    "clean queues": ("cleanExpiredConsumerQueueByAddr", ADDRESS),
    "clean topics": ("cleanUnusedTopicByAddr", ADDRESS),
    "delete expired": ("deleteExpiredCommitLogByAddr", ADDRESS),
    "replicas": ("getBrokerHAStatus", ADDRESS),
    "a list of topics": (
        "createAndUpdateTopicConfigList",
        ADDRESS,
        [{"topicName": "Listed", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}],
    ),
    "of the list": ("examineTopicConfig", ADDRESS, "Listed"),
}
REFUSED: dict[str, tuple[Any, ...]] = {
    "a group without a retry topic": ("examineConsumeStats", "GID_none"),
    "no such topic's stats": ("examineTopicStats", "Nowhere"),
    "no such topic's config": ("examineTopicConfig", ADDRESS, "Nowhere"),
    "group offline": ("examineConsumerConnectionInfo", GROUP, ADDRESS),
    "no such producers": ("examineProducerConnectionInfo", "GID_none", TOPIC),
    "no such counter": ("viewBrokerStatsData", ADDRESS, "TOPIC_PUT_NUMS", "Nowhere"),
    "no such queue": ("queryConsumeQueue", ADDRESS, TOPIC, 7, 0, 10, None),
    "no such consumer": ("getConsumerRunningInfo", GROUP, "nobody", False),
    "no such group's reset": ("resetOffsetByTimestamp", TOPIC, "GID_none", 0, True),
    "a reset behind the end": ("resetOffsetByQueueId", ADDRESS, GROUP, TOPIC, 0, 99),
    "an illegal name": (
        "createAndUpdateTopicConfig",
        ADDRESS,
        {"topicName": "a/b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
    ),
    "a system topic": (
        "createAndUpdateTopicConfig",
        ADDRESS,
        {"topicName": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
    ),
    "an unknown attribute": (
        "createAndUpdateTopicConfig",
        ADDRESS,
        {"topicName": "x", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "attributes": {"+no": "1"}},
    ),
    "a setting on the black list": ("updateBrokerConfig", ADDRESS, {"configBlackList": "x"}),
}
TYPES = {
    "examineTopicStats": ["String"],
    "examineConsumeStats": ["String", "String"],
    "resetOffsetByTimestamp": ["String", "String", "long", "boolean"],
    "examineConsumerConnectionInfo": ["String", "String"],
}


@pytest.fixture(scope="module")
def asked(mqlake_broker: Broker, java_broker: Broker) -> tuple[Broker, Broker]:
    """Both, with the same topic, messages and group."""
    for broker in (mqlake_broker, java_broker):
        mqlake(broker, "topic", "create", TOPIC, "-q", "2")
        mqlake(broker, "group", "create", GROUP)
        for group in (GROUP, OTHER_GROUP):  # as a consumer's first heartbeat does
            mqlake(broker, "topic", "create", f"%RETRY%{group}", "-q", "1")
        for n in range(3):
            mqlake(broker, "message", "send", TOPIC, "-p", f"body-{n}", "-k", f"key-{n}")

        def stored(broker: Broker = broker) -> bool:
            queues = mqlake(broker, "topic", "status", TOPIC)["queues"]
            return sum(queue["maxOffset"] for queue in queues) == 3

        until(stored, "the messages are in their queue")
        mqlake(broker, "group", "reset-offset", GROUP, "-t", TOPIC, "-s", "earliest", "--yes")
    return mqlake_broker, java_broker


def ask(tool: JavaAdmin, broker: Broker, question: tuple[Any, ...]) -> Any:
    method, *args = question
    args = [broker.address if arg is ADDRESS else arg for arg in args]
    types = TYPES.get(method)
    return tool.call(broker, method, *args, types=types[: len(args)] if types else None)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: "…" if key in TIMES_AND_RATES else without_times(each)
            for key, each in value.items()
            if key not in ("groupTopicMap", "physicOffset", "physicSize")
        }
    if isinstance(value, list):
        return sorted((without_times(each) for each in value), key=repr)
    return value


def test_both_answer_the_same(java_admin, asked):
    ours, theirs = asked
    for name, question in QUESTIONS.items():
        expected = without_times(ask(java_admin, theirs, question))
        assert without_times(ask(java_admin, ours, question)) == expected, name


def test_both_refuse_the_same(java_admin, asked):
    for name, question in REFUSED.items():
        codes = []
        for broker in asked:
            with pytest.raises(JavaPeerError) as refused:
                ask(java_admin, broker, question)
            code = re.search(r"CODE: (\d+)", str(refused.value))
            assert code is not None, f"{name}: {refused.value}"
            codes.append(code[1])
        assert codes[0] == codes[1], name


def test_figures_and_settings_have_the_same_names(java_admin, asked):
    ours, theirs = asked
    for method in ("fetchBrokerRuntimeStats", "getBrokerConfig"):
        answers = [java_admin.call(broker, method, broker.address) for broker in (ours, theirs)]
        tables = [answer.get("table", answer) for answer in answers]
        names, expected = ({re.sub("_/.*", "", key) for key in table} for table in tables)
        if method == "fetchBrokerRuntimeStats":
            assert expected - names == set()
        else:
            # those of access control are not in the answer: they cannot change while the broker runs
            own = {key for key, known in BROKER_KEYS.acted_on.items() if known.own} - settings_of(
                AuthConfig
            ).keys()
            unset_there = {"brokerConfigPath", "haMasterAddress"}
            assert names - expected == own | unset_there, "RocketMQ keeps the path elsewhere"
            assert expected - names <= {"rocketmqHome"}, "all of RocketMQ's"
    java_admin.call(ours, "updateBrokerConfig", ours.address, {"fileReservedTime": "48"})
    assert java_admin.call(ours, "getBrokerConfig", ours.address)["fileReservedTime"] == "48"


MQADMIN = {
    "clusterList": rf"{CLUSTER}\s+{BROKER_NAME}\s+0\s+ADDRESS\s+V5_3_3",
    f"topicStatus -t {TOPIC}": rf"{BROKER_NAME}\s+0\s+0\s+3",
    f"topicRoute -t {TOPIC}": r'"writeQueueNums":\s*2',
    f"topicClusterList -t {TOPIC}": CLUSTER,
    f"statsAll -t {TOPIC}": rf"{TOPIC}\s+{GROUP}",
    "brokerStatus -b ADDRESS": r"putMessageTimesTotal\s*: \d",
    "brokerConsumeStats -b ADDRESS": r"Diff Total: \d",
    "getBrokerConfig -b ADDRESS": "fileReservedTime",
    f"consumerProgress -g {GROUP} -t {TOPIC}": rf"{TOPIC}\s+{BROKER_NAME}\s+0\s+3\s",
    f"getConsumerConfig -g {GROUP}": rf"groupName\s*=\s*{GROUP}",
    f"queryMsgByKey -t {TOPIC} -k key-1": r"[0-9A-F]{32}\s+0\s+1",
    f"queryMsgByOffset -t {TOPIC} -b {BROKER_NAME} -i 0 -o 2": r"Keys:\s+\[key-2\]",
    f"queryCq -t {TOPIC} -q 0 -i 0 -c 2 -b ADDRESS": "max: 3, min: 0",
    "haStatus -b ADDRESS": "#MasterAddr",
    "getColdDataFlowCtrInfo -b ADDRESS": '"runtimeTable":{}',
    "removeColdDataFlowCtrGroupConfig -b ADDRESS -g G": "remove broker cold read threshold success",
    f"setConsumeMode -b ADDRESS -t {TOPIC} -g {GROUP} -m POP -q 2": "set consume mode to ADDRESS success",
    f"setConsumeMode -b ADDRESS -t {TOPIC} -g {GROUP} -m PULL": "set consume mode to ADDRESS success",
    "exportPopRecord -b ADDRESS": f"Export broker records, brokerName={BROKER_NAME}, brokerAddr=ADDRESS, dryRun=false",
    "resetMasterFlushOffset -b ADDRESS -o 0": "reset master flush offset to 0 success",
    "setCommitLogReadAheadMode -b ADDRESS -m 1": "set commitlog readahead mode success, mode: 1",
    "setCommitLogReadAheadMode -b ADDRESS -m 0": "set commitlog readahead mode success, mode: 0",
    f"checkRocksdbCqWriteProgress -c {CLUSTER}": "writes no consume queues to RocksDB",
    f"haStatus -c {CLUSTER}": "#MasterAddr",
    "clusterList -m": rf"{CLUSTER}\s+{BROKER_NAME}\s+\d+\s+\d+\s+\d+\s+\d+",
    f"brokerStatus -c {CLUSTER}": r"ADDRESS\s+brokerVersionDesc\s*: V5_3_3",
    f"getBrokerConfig -c {CLUSTER}": "fileReservedTime",
    "getNamesrvConfig": r"listenPort\s*=\s*\d",
    "topicList": TOPIC,
    "topicList -c": rf"{CLUSTER}\s+{TOPIC}",
    f"topicRoute -t {TOPIC} -l": rf"{BROKER_NAME}\s",
    "statsAll": rf"{TOPIC}\s+{GROUP}",
    "consumerProgress": rf"{GROUP}\s+0\s+OFFLINE",
    f"allocateMQ -t {TOPIC} -i 10.0.0.1,10.0.0.2": '"10.0.0.2":\\[{"brokerName":"broker-0","queueId":1',
    f"printMsg -t {TOPIC}": "KEYS=key-2",
    f"sendMessage -t {TOPIC} -p by-mqadmin -b {BROKER_NAME} -i 1": "SEND_OK",
}

MQADMIN_REFUSED = {
    "updateColdDataFlowCtrGroupConfig -b ADDRESS -g G -v 1024": "reading it does not delay other requests here",
}


BODIES = Path("/tmp/rocketmq/msgbodys")
"""Where mqadmin writes the body of each message that it shows."""


@pytest.mark.skipif(
    BODIES.exists() and not os.access(BODIES, os.W_OK), reason=f"mqadmin's {BODIES} is another user's"
)
def test_mqadmin(java_admin, asked):
    """RocketMQ's commands, as they are typed, against our broker."""
    ours = asked[0]
    all_of_them = {**MQADMIN, **MQADMIN_REFUSED}
    commands = [command.replace("ADDRESS", ours.address).split() for command in all_of_them]
    for command, expected, printed in zip(
        all_of_them, all_of_them.values(), java_admin.tools(ours, commands), strict=True
    ):
        assert re.search(expected.replace("ADDRESS", re.escape(ours.address)), printed), (command, printed)
        assert command in MQADMIN_REFUSED or "\tat org.apache" not in printed, (command, printed)


# --- with clients that are connected


def test_a_consumer_is_asked_and_set_back(java_admin, java_clients, mqlake_broker):
    broker, topic, group = mqlake_broker, "Consumed", "GID_consumed"
    mqlake(broker, "topic", "create", topic, "-q", "1")
    with (
        java_clients.producer(broker) as producer,
        java_clients.push(broker, group, topic, fromFirst=True) as consumer,
    ):
        (sent, *_) = producer.send(topic, "sync", [message(b"one"), message(b"two")])
        assert sorted(each["body"] for each in consumer.take(2)) == [b"one", b"two"]

        (client,) = mqlake(broker, "group", "connections", group)["connections"]
        assert (client["language"], client["version"]) == ("JAVA", 479)
        connected = java_admin.call(broker, "examineConsumerConnectionInfo", group)
        assert [each["clientId"] for each in connected["connectionSet"]] == [client["clientId"]]
        assert set(connected["subscriptionTable"]) == {topic, f"%RETRY%{group}"}
        question = ("getConsumerRunningInfo", group, client["clientId"], False)

        def queues_of() -> set[str]:
            return {dict(queue)["topic"] for queue in java_admin.call(broker, *question)["mqTable"]}

        until(lambda: queues_of() == {topic, f"%RETRY%{group}"}, "it has its queues")
        status = mqlake(broker, "group", "status", group)[client["clientId"]]
        assert {queue["topic"] for queue in status["mqTable"]} == {topic, f"%RETRY%{group}"}
        until(
            lambda: any(each["language"] == "JAVA" for each in mqlake(broker, "producer", "list")),
            "the producer's heartbeat",
        )

        result = mqlake(
            broker,
            *("message", "consume", group, "-d", client["clientId"], "-t", topic, "-i", sent["msgId"]),
        )
        assert result["consumeResult"] == "CR_SUCCESS"
        assert [each["body"] for each in consumer.take(3)[2:]] == [b"one"]

        mqlake(broker, "group", "reset-offset", group, "-t", topic, "-s", "earliest", "--yes")
        assert sorted(each["body"] for each in consumer.take(5)[3:]) == [b"one", b"two"]


def test_the_command_in_a_process_of_its_own(mqlake_broker):
    command = [sys.executable, "-m", "mqlake", "admin"]
    listed = subprocess.run(
        [*command, "cluster", "list", "-n", mqlake_broker.namesrv],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert BROKER_NAME in listed.stdout and not listed.stderr
    away = subprocess.run(
        [*command, "cluster", "list", "-n", "127.0.0.1:1"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert away.returncode == 1 and "no name server" in away.stderr and "Traceback" not in away.stderr


def test_the_admin_tool_shows_the_trace_that_the_broker_writes(java_admin: JavaAdmin, tmp_path: Path) -> None:
    with MqlakeBroker(tmp_path / "traced", SETTINGS | {"brokerMessageTraceEnable": "true"}) as broker:
        with Producer("traced-producer", broker.namesrv) as producer:
            message_id = producer.send(Message("Traced", b"12345", keys="k", tags="t")).msg_id
        answer = {}

        def is_stored() -> bool:
            (answer["text"],) = java_admin.tools(broker, [["queryMsgTraceById", "-i", message_id]])
            return "Pub" in answer["text"]

        until(is_stored, "the trace is stored")
        assert re.search(r"Pub +traced-producer +127\.0\.0\.1 .*ms +success", answer["text"])
