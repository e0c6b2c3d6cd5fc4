"""The other end of a server of writers (tests.crash.server, tests.metaq.crash.server): a process that forks them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


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
        self._process.wait(60)
        self._process.stdout.close()
