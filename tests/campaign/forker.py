"""Starts brokers quickly: a process that has all imported forks them. Its children die with it.

in   {"args": ["broker", ...], "log": path, "end": [point, moment, n]}      a line of JSON each
out  the pid
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.crash import killer

PR_SET_PDEATHSIG = 1


class Forker:
    """The other end, in the campaign."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.campaign.forker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def fork(self, args: Sequence[str], log: Path, end: Sequence[Any] = ()) -> int:
        """The pid of a new `mqlake ARGS`, which writes what it says to `log`. `end`: where it dies (killer.arm)."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps({"args": list(args), "log": str(log), "end": list(end)}) + "\n")
        stdin.flush()
        return int(stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def runs(pid: int) -> bool:
    """True if the process is there; one that has ended is reaped by the kernel."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _child(args: list[str], log: str, end: list[Any]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if end:
        killer.arm(*end)
    from mqlake.cli.main import main

    sys.argv = ["mqlake", *args]
    main()


def _serve() -> None:
    # what a broker imports when it starts
    import mqlake.broker.controller
    import mqlake.cli.broker
    import mqlake.namesrv.server  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                _child(job["args"], job["log"], job["end"])
            finally:
                sys.stdout.flush()
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    _serve()
