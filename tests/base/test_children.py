"""A child ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from mqlake.base.children import die_with_parent
from tests.waiting import until

PARENT = """
import subprocess, sys
from mqlake.base.children import die_with_parent
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, preexec_fn=die_with_parent())
print(child.pid, flush=True)
input()
"""


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_child_of_a_killed_process_ends() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    until(lambda: not is_alive(child), "the child ends")


def test_a_child_lives_while_its_parent_does() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=die_with_parent(signal.SIGKILL),
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"1\n"
        child.communicate(b"\n")
    assert child.returncode == 0


def test_elsewhere_there_is_no_such_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert die_with_parent() is None
    assert os.getpid()
