"""Waiting for processes that are busy for a second of processor time, say so, and live on."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from bench import idle

BUSY = """\
import sys, time
print(end="(", flush=True)
while time.process_time() < 1: pass
print(end=")", flush=True)
sys.stdin.read()
"""
NESTED = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"


@pytest.mark.parametrize("program", [BUSY, NESTED], ids=["a child", "a child's child"])
@pytest.mark.nightly
def test_a_busy_process_is_waited_for(program: str) -> None:
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.fileno()
        assert os.read(said, 1) == b"("
        idle.wait_until_idle()
        assert select.select([said], [], [], 0)[0], "it is busy still"
        process.communicate()


def test_it_ends_where_something_is_always_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "PATIENCE_S", 0.1)
    monkeypatch.setattr(idle, "BUSY", 0)
    idle.wait_until_idle()
