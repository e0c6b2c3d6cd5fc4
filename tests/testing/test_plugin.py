"""The fixture `rocketmq` in a test suite of somebody else, with xdist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mqlake.testing
from mqlake.client import Message
from mqlake.client.blocking import Producer, PullConsumer
from mqlake.errors import MqlakeError
from mqlake.testing import RocketMQ
from tests.waiting import until

MIB = 1 << 20
SUITE = """
import pytest
from mqlake.client import Message
from mqlake.client.blocking import Producer

@pytest.mark.parametrize("number", range(4))
def test_sends(rocketmq, number):
    with Producer("group", rocketmq.namesrv) as producer:
        result = producer.send(Message(rocketmq.topic("orders"), b"1 apple"))
    assert result.queue_offset == 0
    print("pid", rocketmq.pid)
"""


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def on_disk(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*"))


def test_each_worker_has_a_broker_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "-rP"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    pids = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("pid ")}
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_it_is_small_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with RocketMQ(enablePropertyFilter="true") as rocketmq:
        (directory,) = tmp_path.iterdir()
        topic = rocketmq.topic()
        assert topic != rocketmq.topic()
        with Producer("sender", rocketmq.namesrv) as producer:
            for number in range(600):
                producer.send(Message(topic, b"%d" % number))
            producer.send(Message(topic, bytes(3 * MIB)))
        with PullConsumer("reader", rocketmq.namesrv) as consumer:
            queues = consumer.fetch_message_queues(topic)
            until(lambda: sum(consumer.max_offset(queue) for queue in queues) == 601)
        assert resident(rocketmq.pid) < 100 * MIB
        assert on_disk(directory) < 20 * MIB
        assert "ERROR" not in rocketmq.log()
    assert list(tmp_path.iterdir()) == []
    rocketmq.stop()


def test_it_says_why_it_did_not_start() -> None:
    with pytest.raises(MqlakeError, match="did you mean 'maxMessageSize'"):
        RocketMQ(maxMesageSize="1").start()
    assert mqlake.testing.__all__ == ["RocketMQ"]
