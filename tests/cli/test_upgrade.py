"""A data directory of an earlier version, as `mqlake serve` left it when it was killed, with today's.

tests/golden/mqlake-a088b9a.tar.xz is what that commit wrote: 300 messages in Orders of which the group billing consumed
150, and one that waits for two hours.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from mqlake.client import Message
from mqlake.client.blocking import Admin, Producer
from tests import golden
from tests.cli.test_serve import MQLAKE, ready, serving
from tests.waiting import PATIENCE_S

EARLIER = Path(__file__).parents[1] / "golden" / "mqlake-a088b9a.tar.xz"
COUNT, CONSUMED = 300, 150
SETTINGS = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 20000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "diskCheckEnable": "false",
}
"""The sizes it was made with."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    golden.extract(EARLIER, tmp_path)
    return tmp_path / "data"


def mqlake(*arguments: str) -> str:
    done = subprocess.run([*MQLAKE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_directory_of_an_earlier_version_is_taken_over(data: Path) -> None:
    store = str(data / "broker-0")
    assert json.loads(mqlake("store", "verify", "--json", store))["findings"] == []
    options = ["--json", "--grpc-port=-1", *(f"--set={key}={value}" for key, value in SETTINGS.items())]
    with serving(data, *options) as process:
        namesrv = str(ready(process)["namesrv"])
        with Producer("upgrade", namesrv) as producer:
            producer.send(Message("Orders", b"order of today"))
        with Admin(namesrv) as admin:
            stats = admin.examine_consume_stats("billing", "Orders").offset_table.values()
        assert sum(at.consumer_offset for at in stats) == CONSUMED
        bodies = mqlake("consume", "-n", namesrv, "Orders", "--exit-at-end").splitlines()
        assert sorted(bodies) == sorted([*(f"order {n}" for n in range(COUNT)), "order of today"])
        rest = mqlake("consume", "-n", namesrv, "Orders", "--group", "billing", "--exit-at-end").splitlines()
        assert len(rest) == COUNT - CONSUMED + 1 and len(set(rest)) == len(rest)
        [found] = mqlake("consume", "-n", namesrv, "SCHEDULE_TOPIC_XXXX", "--exit-at-end").splitlines()
        assert found == "in two hours"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert json.loads(mqlake("store", "verify", "--json", store))["findings"] == []
