"""Celery with real workers in processes of their own: results, retries, eta, chords, control, events, and kills.

Without it the transport could satisfy kombu's interface and still lose what Celery builds on it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord
from kombu.exceptions import OperationalError

import mqlake.adapters.kombu  # noqa: F401 - makes rocketmq:// known
from tests.adapters.late_cluster import LateCluster
from tests.interop.brokers import Broker
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[3]


class Worker:
    """`celery worker` with two processes."""

    def __init__(
        self, broker: Broker | LateCluster, directory: Path, name: str, *, at_once: bool = True
    ) -> None:
        """`at_once`: it is waited for."""
        self.name = name
        self.log = directory / f"{name}.log"
        environment = {
            **os.environ,
            "BROKER": f"rocketmq://{broker.namesrv}",
            "BACKEND": f"file://{directory}",
            "PYTHONPATH": str(ROOT),
        }
        command = [
            "-m",
            "celery",
            "-A",
            "tests.adapters.kombu.tasks",
            "worker",
            "-c",
            "2",
            "-l",
            "INFO",
            "-n",
            name,
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                env=environment,
                cwd=directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if at_once:
            self.says(" ready.")

    def says(self, text: str, times: int = 1) -> None:
        """Waits for it."""
        until(
            lambda: self.log.read_text().count(text) >= times or self.process.poll() is not None,
            f"worker {self.name}: {text}",
        )
        assert self.process.poll() is None, self.log.read_text()

    def kill(self) -> None:
        """All of its processes at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE_S)
            finally:
                if self.process.poll() is None:
                    self.kill()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("celery")


@pytest.fixture(scope="module")
def worker(broker: Broker, directory: Path) -> Iterator[Worker]:
    worker = Worker(broker, directory, f"one-{type(broker).__name__}@host")
    yield worker
    worker.stop()


@pytest.fixture
def app(broker: Broker, directory: Path, worker: Worker) -> Iterator[Celery]:
    assert worker.process.poll() is None, worker.log.read_text()
    app = Celery("asking", broker=f"rocketmq://{broker.namesrv}", backend=f"file://{directory}")
    app.conf.task_send_sent_event = True
    yield app
    app.close()


def call(app: Celery, task: str, *arguments: Any, **options: Any) -> Any:
    return app.send_task(f"tests.adapters.kombu.tasks.{task}", arguments, **options)


def test_tasks_retries_and_chords(app: Celery) -> None:
    results = [call(app, "add", i, i) for i in range(20)]
    assert [result.get(timeout=PATIENCE_S) for result in results] == [2 * i for i in range(20)]
    assert call(app, "third_time").get(timeout=PATIENCE_S) == 2

    def signature(task: str, *arguments: Any) -> Any:
        return app.signature(f"tests.adapters.kombu.tasks.{task}", arguments)

    joined = chord([signature("add", i, 1) for i in range(5)])(signature("total"))
    assert joined.get(timeout=PATIENCE_S) == 15


def test_results_by_rpc(broker: Broker, directory: Path) -> None:
    app = Celery("rpc", broker=f"rocketmq://{broker.namesrv}", backend="rpc://")
    by_rpc = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "tests.adapters.kombu.tasks",
            "worker",
            "-P",
            "solo",
            "-Q",
            "by.rpc",
            "-n",
            "rpc@host",
            "-l",
            "WARNING",
        ],
        env={**os.environ, "BROKER": f"rocketmq://{broker.namesrv}", "PYTHONPATH": str(ROOT)},
        cwd=directory,
    )
    try:
        results = [call(app, "add", i, 1, queue="by.rpc") for i in range(10)]
        assert [result.get(timeout=PATIENCE_S) for result in results] == list(range(1, 11))
    finally:
        by_rpc.terminate()
        by_rpc.wait()
        app.close()


def test_a_countdown_waits_in_the_broker(app: Celery, worker: Worker) -> None:
    begun = time.time()
    result = call(app, "add", 1, 2, countdown=4)
    received = f"add[{result.id}] received"
    assert result.get(timeout=PATIENCE_S) == 3
    assert time.time() >= begun + 3
    line = next(line for line in worker.log.read_text().splitlines() if received in line)
    at = time.mktime(time.strptime(line[1:20], "%Y-%m-%d %H:%M:%S"))
    assert at >= begun + 2  # the worker did not hold it


def test_control_and_events(app: Celery) -> None:
    seen: set[str] = set()
    ready, done = threading.Event(), threading.Event()

    def listen() -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": lambda event: seen.add(event["type"])})
            consumer = receiver.itercapture(limit=None, timeout=PATIENCE_S)
            ready.set()
            for _ in consumer:
                if done.is_set():
                    return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    ready.wait(PATIENCE_S)
    inspect = app.control.inspect(timeout=5)
    name = until(lambda: next(iter(inspect.ping() or {}), ""))
    assert name.startswith("one-")
    queues = until(lambda: (inspect.active_queues() or {}).get(name), "its queues")
    assert "celery" in {queue["name"] for queue in queues}
    app.control.rate_limit("tests.adapters.kombu.tasks.add", "1000/m")

    def heard() -> bool:
        call(app, "add", 1, 1).get(timeout=PATIENCE_S)
        return {"task-sent", "task-received", "task-succeeded", "worker-heartbeat"} <= seen

    until(heard, "the events of a task")
    done.set()
    app.control.rate_limit("tests.adapters.kombu.tasks.add", "0")
    listener.join(PATIENCE_S)


def test_a_killed_worker_loses_no_task(app: Celery, broker: Broker, directory: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    killed = [Worker(broker, directory, f"killed-{i}-{type(broker).__name__}@host") for i in range(2)]
    numbers = {str(i) for i in range(300)}
    for number in sorted(numbers):
        call(app, "note", str(notes), number, ignore_result=True)
        if number in ("150", "220"):
            killed.pop().kill()
    until(lambda: numbers <= set(notes.read_text().split()), "every task done once at least")
    assert len(notes.read_text().split()) <= len(numbers) + 2 * (
        2 * 2 + 2
    )  # what both had in hand may come again


def test_a_worker_waits_for_a_broker_that_comes_after_the_name_server(tmp_path: Path) -> None:
    """At its start, and when all was restarted while it ran; who sends meanwhile gets kombu's error."""

    def asking() -> Celery:
        return Celery("late", broker=f"rocketmq://{cluster.namesrv}", backend=f"file://{tmp_path}")

    with LateCluster(tmp_path / "cluster") as cluster:
        cluster.start_name_server()
        worker = Worker(cluster, tmp_path, "patient@host", at_once=False)
        try:
            worker.says("no master is registered")
            cluster.start_broker()
            worker.says(" ready.")
            with asking() as app:
                assert call(app, "add", 1, 1).get(timeout=PATIENCE_S) == 2
            cluster.kill()
            cluster.start_name_server()
            with asking() as app:
                with pytest.raises(OperationalError):
                    call(app, "add", 1, 2, retry=False)
                cluster.start_broker()
                assert call(app, "add", 1, 3).get(timeout=PATIENCE_S) == 4
        finally:
            worker.kill()
