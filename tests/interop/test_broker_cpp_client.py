"""RocketMQ's C++ client (librocketmq, through PyPI's `rocketmq`) sends and consumes: tests/interop/cpp_peer.py."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake.client.blocking import Admin
from mqlake.remoting.bodies.client import ConsumeType, MessageModel
from tests.interop.brokers import Broker, any_broker
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="no registry has librocketmq for other machines"
)

PEER = Path(__file__).parent / "cpp_peer.py"
COUNT, ORDERED = 20, 6
ALL = COUNT + ORDERED + 1

Line = dict[str, Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where the clients leave their logs."""
    return {**os.environ, "HOME": str(tmp_path_factory.mktemp("cpp"))}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with any_broker(tmp_path_factory.mktemp("broker")) as broker:
        with Admin(broker.namesrv) as admin:
            admin.create_topic("Cpp", queues=4)
        yield broker


def run(home: dict[str, str], *arguments: object) -> list[Line]:
    done = subprocess.run(
        [sys.executable, PEER, *map(str, arguments)],
        env=home,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def sent(broker: Broker, home: dict[str, str]) -> list[Line]:
    return run(home, "produce", broker.namesrv, "Cpp", COUNT, ORDERED)


class Pushed:
    """A push consumer that runs."""

    def __init__(self, home: dict[str, str], *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, PEER, "push", *arguments],
            env=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def take(self, count: int) -> list[Line]:
        return [json.loads(self._lines.get(timeout=PATIENCE_S)) for _ in range(count)]

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


@contextlib.contextmanager
def pushed(home: dict[str, str], *arguments: str) -> Iterator[Pushed]:
    consumer = Pushed(home, *arguments)
    try:
        yield consumer
    finally:
        consumer.close()


def check(messages: list[Line]) -> None:
    """All are as they were sent, and each queue has its offsets in turn."""
    names = {"ordered": "ordered", "oneway": "oneway"}
    for each in messages:
        body = each["body"]
        tags = names.get(body.rstrip("0123456789")) or ["even", "odd"][int(body) % 2]
        assert (each["topic"], each["tags"], each["keys"], each["number"]) == (
            "Cpp",
            tags,
            f"key-{body}",
            body,
        )
    for queue_id in {each["queueId"] for each in messages}:
        offsets = [each["queueOffset"] for each in messages if each["queueId"] == queue_id]
        assert offsets == sorted(set(offsets))


def test_every_send_is_answered(sent: list[Line]):
    assert [each["status"] for each in sent] == [0] * (COUNT + ORDERED)
    assert len({each["id"] for each in sent}) == COUNT + ORDERED


@pytest.mark.usefixtures("sent")
def test_a_pull_consumer_gets_all_or_what_has_the_tag(broker: Broker, home: dict[str, str]):
    everything = run(home, "pull", broker.namesrv, "GID_cpp_pull", "Cpp", "*")
    check(everything)
    assert len(everything) == ALL
    odd = run(home, "pull", broker.namesrv, "GID_cpp_pull", "Cpp", "odd")
    assert sorted(int(each["body"]) for each in odd) == list(range(1, COUNT, 2))


@pytest.mark.usefixtures("sent")
def test_push_consumers_get_all(broker: Broker, home: dict[str, str]):
    with (
        pushed(home, broker.namesrv, "GID_cpp", "Cpp", "*") as concurrent,
        pushed(home, broker.namesrv, "GID_cpp_tags", "Cpp", "odd || oneway") as tagged,
        pushed(home, broker.namesrv, "GID_cpp_orderly", "Cpp", "*", "orderly") as orderly,
    ):
        everything, in_order = concurrent.take(ALL), orderly.take(ALL)
        filtered = tagged.take(COUNT // 2 + 1)
        with Admin(broker.namesrv) as admin:
            seen = admin.ask(lambda each: each.examine_consumer_connection_info("GID_cpp_orderly"))
            (connection,) = seen.connection_set
            running = admin.ask(
                lambda each: each.brokers.get_consumer_running_info(
                    broker.address, "GID_cpp_orderly", connection.client_id or ""
                )
            )
    everything.sort(key=lambda each: (each["queueId"], each["queueOffset"]))
    check(everything)
    check(in_order)
    assert {each["body"] for each in everything} == {each["body"] for each in in_order}
    assert len({each["body"] for each in everything}) == ALL
    assert [each["body"] for each in in_order if each["tags"] == "ordered"] == [
        f"ordered{i}" for i in range(ORDERED)
    ]
    assert {each["tags"] for each in filtered} == {"odd", "oneway"}
    assert (seen.consume_type, seen.message_model) == (ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING)
    assert connection.language == "CPP"
    assert {queue.topic for queue in running.mq_table} >= {"Cpp"}
    assert {each.topic for each in running.subscription_set} == {"Cpp", "%RETRY%GID_cpp_orderly"}
