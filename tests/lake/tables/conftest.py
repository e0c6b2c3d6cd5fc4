"""A process that forks runs which may be killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

Runs = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def runs() -> Iterator[Runs]:
    """Runs the cases at the same time, see tests.lake.tables.victim."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.lake.tables.victim"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def run(*cases: dict[str, Any]) -> list[dict[str, Any]]:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(cases) + "\n")
        process.stdin.flush()
        answers: list[dict[str, Any]] = json.loads(process.stdout.readline())
        return answers

    yield run
    process.stdin.close()
    assert process.wait(60) == 0
