"""A real RocketMQ for tests: name server and broker in one small process of their own.

    with mqlake.testing.RocketMQ() as rocketmq:
        rocketmq.namesrv              "127.0.0.1:40123", for any RocketMQ client
        rocketmq.topic("orders")      a topic name that no other test has

Under pytest the fixture `rocketmq` is there without any import (mqlake.testing.plugin). Other test suites start
`mqlake serve --ephemeral --json` themselves: docs/testing.md.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from typing import Self

from mqlake.base.children import die_with_parent
from mqlake.errors import MqlakeError

__all__ = ["RocketMQ"]

START_S = 60.0
STOP_S = 30.0
_numbers = itertools.count(1)


class RocketMQ:
    """`mqlake serve --ephemeral` on free ports of the loopback, from `start` to `stop`, or for a `with`.

    Start it in the main thread: it ends with the thread that started it, so that a killed test run leaves nothing.
    """

    namesrv: str
    """Address of the name server, which clients are given."""
    broker: str
    """Address of the broker."""
    grpc: str | None
    """Address for RocketMQ 5's gRPC clients; None without `pip install 'mqlake[grpc]'`."""

    def __init__(self, **settings: object) -> None:
        """`settings`: of broker.conf, such as `enablePropertyFilter="true"`."""
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115

    @property
    def pid(self) -> int:
        """Id of the process. Only while it runs."""
        assert self._process is not None, "it is not running"
        return self._process.pid

    def topic(self, prefix: str = "topic") -> str:
        """A topic name that no other call gives, in this process or in another one; the broker creates it at the first
        send."""
        return f"{prefix}-{os.getpid()}-{next(_numbers)}"

    def start(self) -> None:
        """Returns when it serves. Raises MqlakeError with what the process said if it does not."""
        command = [sys.executable, "-m", "mqlake", "serve", "--ephemeral", "--json"]
        command += [f"--set={key}={value}" for key, value in self._settings.items()]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            preexec_fn=die_with_parent(),
        )
        self._process = process
        assert process.stdout is not None
        limit = threading.Timer(START_S, process.kill)
        limit.start()
        try:
            line = process.stdout.readline()
        finally:
            limit.cancel()
        if not line:
            self.stop()
            raise MqlakeError(f"mqlake serve --ephemeral did not start: {self.log().strip()[-2000:]}")
        found = json.loads(line)
        self.namesrv, (self.broker, *_), self.grpc = found["namesrv"], found["brokers"], found["grpc"]

    def stop(self) -> None:
        """Stops it and deletes its files; does nothing if it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        with process, contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def log(self) -> str:
        """Returns the log of the process so far: warnings and errors."""
        self._stderr.seek(0)
        return self._stderr.read()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._stderr.close()
