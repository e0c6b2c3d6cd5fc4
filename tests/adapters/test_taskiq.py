"""Taskiq over real brokers: its workers in processes of their own, results, delays, and a worker that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from taskiq import BrokerMessage
from taskiq.exceptions import ResultGetError

from mqlake.adapters.taskiq import RocketBroker, RocketResultBackend
from mqlake.errors import MessageError, NoNameServerError, RemotingError
from tests.adapters.late_cluster import LateCluster
from tests.interop.brokers import Broker
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until, until_async

ROOT = Path(__file__).resolve().parents[2]
APPLICATION = """
import asyncio, os
from mqlake.adapters.taskiq import RocketBroker, RocketResultBackend
broker = RocketBroker(os.environ["NAMESRV"], visibility_timeout_s=12).with_result_backend(
    RocketResultBackend(os.environ["NAMESRV"]))

@broker.task
async def add(x: int, y: int) -> int:
    return x + y

@broker.task
async def fail() -> None:
    raise ValueError("as it should")

@broker.task
async def note(path: str, text: str, pause: float) -> None:
    with open(path, "a") as file:
        file.write(f"begun {text}\\n")
    await asyncio.sleep(pause)
    with open(path, "a") as file:
        file.write(f"done {text}\\n")
"""


class Worker:
    def __init__(self, broker: Broker, directory: Path) -> None:
        (directory / "application.py").write_text(APPLICATION)
        command = [
            "-m",
            "taskiq",
            "worker",
            "application:broker",
            "--workers",
            "1",
            "--max-prefetch",
            "1",
            "--max-async-tasks",
            "8",
        ]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=directory,
            env={**os.environ, "NAMESRV": broker.namesrv, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()


@asynccontextmanager
async def started(broker: Broker) -> AsyncIterator[RocketBroker]:
    tasks = RocketBroker(broker.namesrv).with_result_backend(RocketResultBackend(broker.namesrv))
    await tasks.startup()
    try:
        yield tasks
    finally:
        await tasks.shutdown()


def task(tasks: RocketBroker, name: str):
    async def elsewhere() -> None: ...

    return tasks.register_task(elsewhere, f"application:{name}")


def test_results_errors_and_delays(broker: Broker, tmp_path: Path) -> None:
    async def scene() -> None:
        async with started(broker) as tasks:
            with pytest.raises(ResultGetError):
                await tasks.result_backend.get_result("nobody")
            sent = [await task(tasks, "add").kiq(i, 1) for i in range(10)]
            failing = await task(tasks, "fail").kiq()
            results = [await each.wait_result(timeout=PATIENCE_S) for each in sent]
            assert [each.return_value for each in results] == list(range(1, 11))
            failed = await failing.wait_result(timeout=PATIENCE_S)
            assert failed.is_err and "as it should" in str(failed.error)
            begun = time.time()
            later = await task(tasks, "add").kicker().with_labels(delay=3).kiq(2, 3)
            assert (await later.wait_result(timeout=PATIENCE_S)).return_value == 5
            assert time.time() >= begun + 2
            with pytest.raises(MessageError, match="not a number of seconds"):
                message = BrokerMessage(task_id="1", task_name="t", message=b"", labels={"delay": "soon"})
                await tasks.kick(message)

    with Worker(broker, tmp_path):
        asyncio.run(scene())


def test_what_a_killed_worker_had_is_done_by_another_and_long_tasks_once(
    mqlake_broker: Broker, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.touch()

    async def send(*tasks_: tuple[str, float]) -> None:
        async with started(mqlake_broker) as tasks:
            for text, pause in tasks_:
                await task(tasks, "note").kiq(str(notes), text, pause)

    with Worker(mqlake_broker, tmp_path) as killed:
        asyncio.run(send(("stuck", 1000.0)))
        until(lambda: "begun stuck" in notes.read_text())
        killed.kill()
    with Worker(mqlake_broker, tmp_path) as another:
        until(lambda: notes.read_text().count("begun stuck") == 2, "another worker has it")
        asyncio.run(send(("long", 14.0)))
        until(lambda: "done long" in notes.read_text())
        another.kill()  # it would wait for the stuck task
    assert notes.read_text().count("begun long") == 1  # longer than the visibility timeout: it was renewed


def test_a_cluster_that_is_away() -> None:
    async def scene() -> None:
        with pytest.raises((NoNameServerError, RemotingError)):
            await RocketBroker(f"127.0.0.1:{free_ports(1)}", startup_timeout_s=0).startup()

    asyncio.run(scene())


def test_a_broker_that_comes_after_the_name_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(cluster: LateCluster) -> None:
        broker = RocketBroker(cluster.namesrv, startup_timeout_s=None)
        results: RocketResultBackend[int] = RocketResultBackend(cluster.namesrv, startup_timeout_s=None)
        starting = asyncio.gather(broker.startup(), results.startup())
        await until_async(lambda: caplog.text.count("no master is registered") >= 2 or starting.done())
        await asyncio.to_thread(cluster.start_broker)
        await starting
        await broker.kick(BrokerMessage(task_id="1", task_name="t", message=b"first", labels={}))
        listening = broker.listen()
        assert (await anext(listening)).data == b"first"
        await listening.aclose()
        await results.shutdown()
        await broker.shutdown()

    with LateCluster(tmp_path) as cluster:
        cluster.start_name_server()
        asyncio.run(scene(cluster))


def test_who_stops_listening_leaves_the_rest_to_others(mqlake_broker: Broker) -> None:
    async def scene() -> None:
        names = {"topic": "taskiq-rest", "group": "taskiq-rest"}
        one = RocketBroker(mqlake_broker.namesrv, **names, at_once=4)
        other = RocketBroker(mqlake_broker.namesrv, **names)
        await one.startup()
        await other.startup()
        for number in range(4):
            body = b"%d" % number
            await one.kick(BrokerMessage(task_id=str(number), task_name="t", message=body, labels={}))
        listening = one.listen()
        got = [(await anext(listening))]
        await listening.aclose()
        await got[0].ack()
        found = {got[0].data}

        async def more() -> bool:
            async for each in other.listen():
                found.add(each.data)
                await each.ack()
                return len(found) == 4
            return False

        await until_async(more)
        await one.shutdown()
        await other.shutdown()

    asyncio.run(scene())
