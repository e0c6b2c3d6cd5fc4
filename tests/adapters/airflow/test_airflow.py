"""The provider in a real Airflow, in an environment of its own, over a real broker.

`MQLAKE_AIRFLOW` names a Python that has Airflow; without it the newest that the docs name is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake.client import Message
from mqlake.client.blocking import Producer, SimpleConsumer
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.remoting.bodies.client import ConsumeFromWhere
from tests.interop.brokers import Broker

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[3]
AIRFLOW = ("apache-airflow==3.3.2", "apache-airflow-providers-common-messaging==2.1.2")
FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


def uv() -> str:
    return shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment with Airflow and this tree's mqlake-client."""
    place = tmp_path_factory.mktemp("airflow")
    build = [uv(), "build", "--quiet", "--wheel", "--out-dir", str(place), str(ROOT / "packaging" / "client")]
    subprocess.run(build, check=True)
    [wheel] = place.glob("*.whl")
    if found := os.environ.get("MQLAKE_AIRFLOW"):
        install = [uv(), "pip", "install", "--quiet", "--reinstall-package", "mqlake-client"]
        subprocess.run([*install, "--python", found, str(wheel)], check=True)
        return found
    made = place / "venv"
    subprocess.run([uv(), "venv", "--quiet", "--python", sys.executable, str(made)], check=True)
    found = str(made / "bin" / "python")
    subprocess.run(
        [uv(), "pip", "install", "--quiet", "--python", found, *AIRFLOW, f"{wheel}[airflow]"], check=True
    )
    return found


class Airflow:
    def __init__(self, python: str, home: Path, namesrv: str) -> None:
        self.python, self.home = python, home
        self.environment = {
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW_CONN_ROCKETMQ_DEFAULT": f"rocketmq://{namesrv}",
            "AIRFLOW_CONN_AWAY": "rocketmq://127.0.0.1:1",  # nobody listens there, and no other test will
        }
        (home / "dags").mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("orders_dag.py"), home / "dags")
        self._run("-m", "airflow", "db", "migrate")
        self._run("-m", "airflow", "dags", "reserialize")

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.python, *arguments],
            env=self.environment,
            cwd=self.home,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    def scene(self, name: str) -> Any:
        said = self._run(str(Path(__file__).with_name("scene.py")), name)
        [line] = [line for line in said.splitlines() if line.startswith("FOUND ")]
        return json.loads(line.removeprefix("FOUND "))


@pytest.fixture(scope="module")
def airflow(
    python: str, mqlake_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Airflow]:
    yield Airflow(python, tmp_path_factory.mktemp("home") / "airflow", mqlake_broker.namesrv)


def send(broker: Broker, *messages: Message) -> None:
    with Producer("shop", broker.namesrv) as producer:
        for message in messages:
            producer.send(message)


def test_dags_wait_for_messages_and_send_them(airflow: Airflow, mqlake_broker: Broker) -> None:
    send(
        mqlake_broker,
        Message("Orders", b"old", tags="old", properties={"amount": "1"}),
        Message("Orders", "größer".encode(), tags="new", keys="order-1", properties={"amount": "5"}),
        Message("Orders", b"much", tags="old", properties={"amount": "11"}),
    )
    found = airflow.scene("dag_runs")
    assert found["state"] == "success"
    deferred, looking = found["seen"]
    assert (deferred["body"], deferred["tags"], deferred["keys"]) == ("größer", "new", "order-1")
    assert (looking["body"], looking["properties"]["amount"]) == ("much", "11")
    with SimpleConsumer("answers", mqlake_broker.namesrv, FIRST) as consumer:
        consumer.subscribe("Answers")
        [answer] = consumer.receive(await_s=30)
    assert (answer.body.decode(), answer.keys) == ("größer packed", "answer-1")


def test_airflow_finds_the_provider_and_its_queue(airflow: Airflow) -> None:
    found = airflow.scene("what_is_known")
    assert found["provider"]
    assert found["hook"] == "mqlake.adapters.airflow.hook.RocketHook"
    assert "mqlake.adapters.airflow.queue.RocketMessageQueueProvider" in found["queues"]
    trigger, given = found["scheme"]
    assert trigger == "mqlake.adapters.airflow.trigger.RocketMessageTrigger"
    assert (given["topic"], given["sql"], given["once"]) == ("Orders", "a > 1", False)
    trigger, given = found["address"]
    assert (given["topic"], given["name_servers"]) == ("Orders", "10.0.0.1:9876")
    assert found["test"][0] is True and "127.0.0.1" in found["test"][1]
    assert found["away"][0] is False and "cannot connect" in found["away"][1]


def test_a_trigger_has_event_after_event(airflow: Airflow, mqlake_broker: Broker) -> None:
    send(mqlake_broker, *(Message("Bytes", bytes([255, number])) for number in range(3)))
    found = airflow.scene("event_trigger")
    assert {(each["body_encoding"], each["body"]) for each in found} == {
        ("base64", "/wA="),
        ("base64", "/wE="),
        ("base64", "/wI="),
    }
