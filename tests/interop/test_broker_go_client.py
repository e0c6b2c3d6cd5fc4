"""RocketMQ's Go client (rocketmq-client-go/v2) sends and consumes. Its source is tests/interop/go."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop.brokers import any_broker
from tests.parts import needed

PROJECT = Path(__file__).parent / "go"
COUNT = 40


@pytest.fixture(scope="module")
def peer() -> Path:
    """The Go program; the compiler itself sees to it that nothing is compiled twice."""
    go = needed("go")
    program = PROJECT / "target" / "peer"
    done = subprocess.run(
        [go, "build", "-buildvcs=false", "-o", program, "."],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"the Go peer does not build:\n{done.stderr[-4000:]}"
    return program


def run(peer: Path, *arguments: object) -> list[dict[str, Any]]:
    done = subprocess.run(
        [peer, *map(str, arguments)], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.nightly
def test_go_sends_and_consumes(peer: Path, tmp_path: Path):
    with any_broker(tmp_path) as broker:
        results = run(peer, "send", broker.namesrv, "GoTopic", COUNT)
        everything = run(peer, "consume", broker.namesrv, "GID_go_all", "GoTopic", "*", COUNT)
        odd = run(peer, "consume", broker.namesrv, "GID_go_odd", "GoTopic", "odd", COUNT // 2)

    assert [result["status"] for result in results] == [0] * (COUNT // 2 + 1)
    assert sorted(int(each["body"]) for each in everything) == list(range(COUNT))
    assert sorted(int(each["body"]) for each in odd) == list(range(1, COUNT, 2))
    for each in everything:
        number = int(each["body"])
        assert (each["tags"], each["keys"], each["number"]) == (
            ["even", "odd"][number % 2],
            f"key{number}",
            str(number),
        )
    for queue_id in {each["queueId"] for each in everything}:
        queue = [each for each in everything if each["queueId"] == queue_id]
        assert sorted(each["queueOffset"] for each in queue) == list(range(len(queue)))
        in_order = sorted(queue, key=lambda each: int(each["queueOffset"]))
        # the batch came last, and into one queue
        assert [int(each["body"]) for each in in_order] == sorted(
            (int(each["body"]) for each in queue), key=lambda number: (number % 2, number)
        )
