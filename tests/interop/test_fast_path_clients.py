"""Sends of real clients take the fast path: Java's, Go's, C++'s (librocketmq), Node's (ali-ons), Rust's
(rocketmq-client-rust, on demand) and mqlake's own."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.client import Message
from mqlake.client.blocking import Admin, Producer
from tests.interop import test_broker_cpp_client as cpp
from tests.interop import test_broker_go_client as go
from tests.interop.brokers import MqlakeBroker
from tests.interop.java_client import JavaClients, message
from tests.interop.test_broker_cpp_client import home
from tests.interop.test_broker_go_client import peer
from tests.interop.test_grpc_clients import ON_DEMAND, node_program
from tests.parts import needed
from tests.waiting import PATIENCE_S, until

__all__ = ["home", "peer"]

COUNT = 40
TOPICS = "Unusual", "Go", "Java", "Python", "Cpp", "Node", "Rust", "RustCommitted"
NODE = Path(__file__).parent / "node"
RUST = Path(__file__).parent / "rust"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    with MqlakeBroker(tmp_path_factory.mktemp("broker"), counts=True) as broker:
        with Admin(broker.namesrv) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, queues=4)
        yield broker


def stored(broker: MqlakeBroker, topic: str) -> int:
    with Admin(broker.namesrv) as admin:
        return sum(queue.max_offset for queue in admin.examine_topic_stats(topic).offset_table.values())


def assert_all_are_fast(broker: MqlakeBroker, topic: str, count: int) -> None:
    until(lambda: stored(broker, topic) == count, f"{count} messages in {topic}")
    assert len(broker.slow_sends(topic)) <= 1, "the first message of a topic may be"


def test_a_slow_send_is_seen(broker: MqlakeBroker) -> None:
    later = Message("Unusual", b"later")
    later.delay_time_level = 18
    with Producer("PG", broker.namesrv) as producer:
        producer.send(later)
    assert len(broker.slow_sends("Unusual")) == 1


def test_python(broker: MqlakeBroker) -> None:
    with Producer("PG", broker.namesrv) as producer:
        for n in range(COUNT):
            producer.send(Message("Python", b"%d" % n, tags="a", keys=f"key-{n}"))
        producer.send_batch([Message("Python", b"%d" % n) for n in range(COUNT)])
    assert_all_are_fast(broker, "Python", 2 * COUNT)


@pytest.mark.nightly
def test_go(broker: MqlakeBroker, peer: Path) -> None:
    go.run(peer, "send", broker.namesrv, "Go", COUNT)
    assert_all_are_fast(broker, "Go", COUNT)


def test_java(broker: MqlakeBroker, java_clients: JavaClients) -> None:
    messages = [message(b"%d" % n, tags="a", keys=f"key-{n}") for n in range(COUNT)]
    with java_clients.producer(broker) as producer:
        for how in ("sync", "async", "oneway", "batch"):
            producer.send("Java", how, messages)
    assert_all_are_fast(broker, "Java", 4 * COUNT)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="no registry has librocketmq for other machines")
def test_cpp(broker: MqlakeBroker, home: dict[str, str]) -> None:
    cpp.run(home, "produce", broker.namesrv, "Cpp", COUNT, COUNT)
    assert_all_are_fast(broker, "Cpp", 2 * COUNT + 1)


def test_node(broker: MqlakeBroker) -> None:
    """Which gives its messages no UNIQ_KEY: the first one has the broker make some."""
    command = [*node_program(NODE), broker.namesrv, "Node", str(COUNT)]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    assert_all_are_fast(broker, "Node", COUNT)


@pytest.fixture(scope="module")
def rust() -> Path:
    """Its program. Its 300 crates take minutes of CPU, so what it writes is also in test_fast_send.py."""
    subprocess.run([needed("cargo"), "build", "--quiet", "--locked", "--release"], cwd=RUST, check=True)
    return RUST / "target" / "release" / "remoting-rust-peer"


@ON_DEMAND[0]
@ON_DEMAND[1]
def test_rust(broker: MqlakeBroker, rust: Path) -> None:
    def run(*arguments: object) -> list[str]:
        done = subprocess.run(
            [rust, *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S
        )
        return done.stdout.splitlines()

    assert len(run("send", broker.namesrv, "Rust", COUNT)) == 2 * COUNT + 1
    assert_all_are_fast(broker, "Rust", 4 * COUNT)
    run("commit", broker.namesrv, "RustCommitted", COUNT)
    assert_all_are_fast(broker, "RustCommitted", COUNT)
    consumed = [
        json.loads(line) for line in run("consume", broker.namesrv, "GID_rust_all", "Rust", 4 * COUNT)
    ]
    assert sorted((each["tags"], int(each["body"])) for each in consumed) == [
        (how, n) for how in ("async", "batch", "oneway", "sync") for n in range(COUNT)
    ]
    assert all((each["keys"], each["number"]) == (f"key-{each['body']}", each["body"]) for each in consumed)
