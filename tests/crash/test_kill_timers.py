"""Timers are killed at every step of enqueue, roll, dequeue and recall, twice in a row: nothing is lost or early, no
recall is undone, and what the commit log has is not delivered again."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.killer import CALLS
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.crash

POINTS = [
    *("write timer log", "flush timer log", "create timer log", "write wheel", "flush wheel"),
    *("write timercheck", "flush timercheck", "flush", "append", "write queue"),
]
CAMPAIGN = int(os.environ.get("MQLAKE_CAMPAIGN", "0"))


def ends(rng: random.Random, point: str) -> list[Any]:
    moments = ["before", "after"] if point in CALLS else ["half"]
    if point == "append":
        return [point, "half", rng.randrange(1, 250)]
    rare = point in ("create timer log", "flush timer log")
    return [point, rng.choice(moments), rng.randrange(1, 3 if rare else 14)]


def run_cases(directory: Path, cases: list[list[Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.timer_victim", str(directory)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S + 20 * len(cases),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(done.stdout)
    for case, result in zip(cases, results, strict=True):
        assert not result["wrong"], f"{case}: {result}\n{done.stderr[-2000:]}"
    return list(results)


def test_a_kill_at_each_step(tmp_path: Path) -> None:
    rng = random.Random(14)
    cases = [[ends(rng, point), ends(rng, rng.choice(POINTS))] for point in POINTS]
    results = run_cases(tmp_path, cases)
    assert sum(result["killed"][0] for result in results) >= len(POINTS) - 2


@pytest.mark.skipif(not CAMPAIGN, reason="MQLAKE_CAMPAIGN=N runs N stores")
def test_campaign(tmp_path: Path) -> None:
    rng = random.Random()
    cases = [[ends(rng, rng.choice(POINTS)) for _ in range(3)] for _ in range(CAMPAIGN)]
    results = run_cases(tmp_path, cases)
    assert sum(sum(result["killed"]) for result in results) > CAMPAIGN
