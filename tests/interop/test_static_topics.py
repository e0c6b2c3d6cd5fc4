"""Static topics in a cluster of RocketMQ's brokers and mqlake's: either makes a topic, the other goes on with it.

A queue moves from a broker of one kind to one of the other, so that each has to read the older part from the other; the
name server is mqlake's in one cluster and RocketMQ's in the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.remoting.bodies.topic import TopicConfigAndQueueMapping, TopicQueueMappingSerializeWrapper
from tests.interop.brokers import FOR_TESTS, JavaBroker, MqlakeBroker, Server
from tests.interop.java_client import JavaClients, message
from tests.interop.test_admin_live import JavaAdmin
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.java

JAVA, MQLAKE = "broker-java", "broker-mqlake"


class Mixed:
    """Two brokers under one name server."""

    def __init__(self, namesrv: str, java: JavaBroker, stores: dict[str, Path]) -> None:
        self.namesrv, self.java, self.stores = namesrv, java, stores

    def admin(self, *args: str) -> Any:
        """What `mqlake admin` says."""
        command = ["admin", *args, "-n", self.namesrv, "--timeout", str(PATIENCE_S), "--json"]
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0, (args, result.output)
        return json.loads(result.stdout)


def java_config(namesrv: str | None) -> dict[str, Any]:
    return {"brokerName": JAVA, **({} if namesrv is None else {"namesrvAddr": namesrv})}


@pytest.fixture(scope="module", params=["mqlake", "java"])
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    """`param`: whose name server it is."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "mqlake":
        with MqlakeBroker(directory / "mqlake", {"brokerName": MQLAKE}) as ours:
            java = JavaBroker(directory / "java", java_config(ours.namesrv))
            java.namesrv = ours.namesrv
            with java:
                yield _ready(ours.namesrv, java, directory / "mqlake/store/broker-0")
        return
    with JavaBroker(directory / "java", java_config(None)) as java:
        store = directory / "mqlake"
        settings = {
            **FOR_TESTS,
            "brokerName": MQLAKE,
            "brokerIP1": "127.0.0.1",
            "listenPort": free_ports(4) + 2,
            "storePathRootDir": store,
        }
        command = [
            sys.executable,
            "-m",
            "mqlake",
            "broker",
            "--json",
            "--host=127.0.0.1",
            f"-n{java.namesrv}",
        ]
        command += [f"--set={key}={value}" for key, value in settings.items()]
        server = Server(command, r"\{", directory / "mqlake.log", {})
        try:
            yield _ready(java.namesrv, java, store)
        finally:
            server.end(15)


def _ready(namesrv: str, java: JavaBroker, store: Path) -> Mixed:
    mixed = Mixed(namesrv, java, {JAVA: java.directory / "store", MQLAKE: store})
    until(lambda: _known(mixed), "both are registered")
    return mixed


def _known(mixed: Mixed) -> bool:
    return {each["broker"] for each in mixed.admin("cluster", "list")} >= {JAVA, MQLAKE}


@pytest.fixture(scope="module")
def java_admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaAdmin]:
    with JavaAdmin(tmp_path_factory.mktemp("admin")) as tool:
        yield tool


def mqlake(*args: str, given: str = "") -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "mqlake", *args]
    done = subprocess.run(command, input=given, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def mqadmin(tool: JavaAdmin, mixed: Mixed, command: str) -> str:
    (printed,) = tool.tools(mixed, [command.split()])  # type: ignore[arg-type]
    assert "mapping data is written to file" in printed, printed
    return printed


def mapping(mixed: Mixed, name: str, topic: str) -> dict[str, Any]:
    """As it is on that broker's disk."""
    text = (mixed.stores[name] / "config/topicQueueMapping.json").read_bytes()
    return TopicQueueMappingSerializeWrapper.from_json(text).topic_queue_mapping_info_map[topic].to_value()


def group_offsets(mixed: Mixed, group: str, topic: str) -> tuple[int, int]:
    """The group's and the broker's, for a topic of one queue."""
    progress = mixed.admin("group", "progress", group)
    (row,) = (each for each in progress["queues"] if each["topic"] == topic)
    return row["consumerOffset"], row["brokerOffset"]


def committed(mixed: Mixed, group: str, topic: str, expected: tuple[int, int]) -> bool:
    """False also while the group has committed nothing of the topic, and its progress does not name it."""
    progress = mixed.admin("group", "progress", group)["queues"]
    return (topic, *expected) in [
        (each["topic"], each["consumerOffset"], each["brokerOffset"]) for each in progress
    ]


@pytest.mark.parametrize(
    ("made_by", "first", "second"),
    [
        ("mqadmin", JAVA, MQLAKE),
        ("mqlake", MQLAKE, JAVA),
        ("mqadmin", MQLAKE, JAVA),
        ("mqlake", JAVA, MQLAKE),
    ],
)
def test_a_queue_moves_between_brokers_of_the_two_kinds(
    mixed: Mixed, java_admin: JavaAdmin, java_clients: JavaClients, made_by: str, first: str, second: str
) -> None:
    topic = java_clients.new_name(f"Static-{made_by}")
    if made_by == "mqadmin":
        mqadmin(java_admin, mixed, f"updateStaticTopic -t {topic} -qn 2 -b {first}")
    else:
        mixed.admin("topic", "static", topic, "-q", "2", "-b", first)
    with java_clients.producer(mixed) as producer:
        sent = producer.send(topic, "sync", [message(b"%d" % n) for n in range(10)])
        assert {each["status"] for each in sent} == {"SEND_OK"}
    if made_by == "mqadmin":
        mixed.admin("topic", "remap", topic, "-b", second)  # the other tool goes on
    else:
        mqadmin(java_admin, mixed, f"remappingStaticTopic -t {topic} -b {second}")
    for name in (JAVA, MQLAKE):
        ours = mapping(mixed, name, topic)
        assert [item["bname"] for item in ours["hostedQueues"][0]] == [first, second]
    mqlake("produce", topic, "-n", mixed.namesrv, given="".join(f"{n}\n" for n in range(10, 20)))
    found = java_clients.all_of(mixed, topic, 20)
    bodies = sorted(int(each["body"]) for queue in found.values() for each in queue)
    assert bodies == list(range(20))
    for queue in found.values():
        offsets = [each["queueOffset"] for each in queue]
        assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] >= 10_000
    consumed = mqlake("consume", topic, "--from", "earliest", "-e", "--json", "-n", mixed.namesrv)
    lines = [json.loads(line) for line in consumed.splitlines()]
    assert sorted((each["queueId"], each["queueOffset"]) for each in lines) == sorted(
        (queue_id, each["queueOffset"]) for queue_id, queue in found.items() for each in queue
    )
    status = mixed.admin("topic", "status", topic)["queues"]
    assert {each["queueId"]: each["maxOffset"] for each in status} == {
        queue_id: queue[-1]["queueOffset"] + 1 for queue_id, queue in found.items()
    }


def test_groups_go_on_where_they_were_when_a_queue_has_moved(mixed: Mixed, java_clients: JavaClients) -> None:
    """The offset is kept by a broker of one kind, and asked for at one of the other."""
    for first, second in ((JAVA, MQLAKE), (MQLAKE, JAVA)):
        topic, group = java_clients.new_name("Static-group"), java_clients.new_name("GID_static")
        mixed.admin("topic", "static", topic, "-q", "1", "-b", first)
        with java_clients.producer(mixed) as producer:
            producer.send(topic, "sync", [message(b"%d" % n) for n in range(5)])
        with java_clients.push(mixed, group, topic, **{"from": "FIRST"}) as consumer:
            assert sorted(int(each["body"]) for each in consumer.take(5)) == list(range(5))
            # one that shuts down before its listener has returned would never commit the last offset
            until(partial(committed, mixed, group, topic, (5, 5)), "the offset is committed")
        mixed.admin("topic", "remap", topic, "-b", second)
        assert group_offsets(mixed, group, topic) == (5, 10_000)
        with java_clients.producer(mixed) as producer:
            producer.send(topic, "sync", [message(b"%d" % n) for n in range(5, 10)])
        with java_clients.push(mixed, group, topic, **{"from": "FIRST"}) as consumer:
            assert sorted(int(each["body"]) for each in consumer.take(5)) == list(range(5, 10))


def test_rocketmq_reads_the_file_that_mqlake_writes(
    tmp_path: Path, mixed: Mixed, java_admin: JavaAdmin
) -> None:
    topic = "StaticFile"
    known = mixed.admin("topic", "list")
    if topic not in known:
        mixed.admin("topic", "static", topic, "-q", "3", "-b", MQLAKE)
    written = mixed.stores[MQLAKE] / "config"
    ours = mapping(mixed, MQLAKE, topic)
    config = tmp_path / "java/store/config"
    config.mkdir(parents=True)
    for name in ("topicQueueMapping.json", "topics.json"):
        (config / name).write_bytes((written / name).read_bytes())
    with JavaBroker(tmp_path / "java", {"brokerName": MQLAKE}) as broker:
        told = java_admin.call(broker, "examineTopicConfig", broker.address, topic)
        found = TopicConfigAndQueueMapping.from_value(told).mapping_detail
        assert found is not None and found.to_value() == ours
