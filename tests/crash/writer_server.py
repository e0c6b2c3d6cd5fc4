"""A server of writers, both ends: a process that has all imported forks them, so each starts at once.

A job is a line of JSON on stdin: what to write where (`child` knows), and `kill_after_ms`, when to die; the answer on
stdout is the writer's wait status.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.waiting import PATIENCE_S


def serve_writers(child: Callable[[dict[str, Any]], None]) -> None:
    """In the server: runs `child(job)` in a process of its own for each job, until stdin ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                child(job)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        if job["kill_after_ms"] is not None:
            time.sleep(job["kill_after_ms"] / 1000)
            os.kill(pid, signal.SIGKILL)
        print(os.waitpid(pid, 0)[1], flush=True)


class WriterServer:
    """A module that runs as a server of writers, asked for one writer at a time."""

    def __init__(self, module: str, log: str) -> None:
        with open(log, "ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self.log = log
        assert self._answer() == "ready"

    def run(self, **job: Any) -> int:
        """Runs one writer; its exit status, -9 when it was killed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return os.waitstatus_to_exitcode(int(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server of writers ended: {self.last_words()}")
        return line.strip()

    def last_words(self) -> str:
        with open(self.log) as log:
            return log.read()[-3000:]

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()
