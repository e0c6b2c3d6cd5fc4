"""Processes of Spark, found and killed; and a broker under load meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from mqlake.client.produce.producer import Producer, ProducerConfig
from mqlake.message import Message
from mqlake.spark.error_messages import WORKER_LATE
from tests.spark.stream_job import Where
from tests.waiting import until

BATCH = 10
PAUSE_S = 0.05
WAIT_S = 900.0


class Load:
    """A producer at work in a `with`: the body of message n is n, some times over."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.count = 0
        """Messages that the broker has."""
        self._namesrv, self._topic = namesrv, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send()))

    async def _send(self) -> None:
        async with Producer("load", self._namesrv, ProducerConfig(send_msg_timeout_s=30)) as producer:
            while not self._stop.is_set():
                numbers = range(self.count, self.count + BATCH)
                await producer.send_batch([Message(self._topic, str(n).encode() * 20) for n in numbers])
                self.count += BATCH
                await asyncio.sleep(PAUSE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


class StreamJob:
    """tests.spark.stream_job in a session of its own, which ends with the `with` by SIGKILL: driver, JVMs, workers."""

    def __init__(self, where: Where, first: str) -> None:
        """Copies; the copy `first` before the others."""
        self._where, self._first = where, first
        self._log = Path(where.scratch) / "output"
        self._start()

    def _start(self) -> None:
        scratch = self._where.scratch
        environment = {**os.environ, "TMPDIR": scratch, "SPARK_HOME": spark_home(scratch)}
        command = [
            sys.executable,
            "-m",
            "tests.spark.stream_job",
            json.dumps(asdict(self._where)),
            self._first,
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=environment
            )

    def executors(self) -> list[int]:
        return executors(self._process.pid)

    def await_batch(self) -> None:
        """Until another batch of the first copy has come through. AssertionError when the job ends instead."""
        before = self._where.batches(self._first)

        def has_come() -> bool:
            if self._process.poll() is not None:
                said = self._log.read_text()
                assert WORKER_LATE in said, said[-4000:]
                self._start()
            return self._where.batches(self._first) > before

        until(has_come, timeout_s=WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def executors(session: int) -> list[int]:
    """Processes of a local cluster's executors, by the session that its driver is in."""
    return [
        pid
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
        if _is_in_session(pid, session) and b"CoarseGrainedExecutorBackend" in _command(pid)
    ]


def _is_in_session(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def spark_home(directory: str) -> str:
    """Spark with a place of its own for what the executors of a local cluster write."""
    home = Path(directory) / "spark"
    if not home.exists():
        home.mkdir()
        for path in Path(pyspark.__file__).parent.iterdir():
            if path.name != "work":
                (home / path.name).symlink_to(path)
    return str(home)
