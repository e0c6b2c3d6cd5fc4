"""`mqlake replica`: of a broker of its own process; resumed, limited, stopped by what cannot be followed."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mqlake.cli.main import cli
from mqlake.client import Message
from mqlake.client.blocking import Producer
from mqlake.store.check.diff import diff_stores
from mqlake.store.read_only import ReadOnlyStore
from tests.interop.brokers import MqlakeBroker
from tests.store.small_store import fill
from tests.waiting import PATIENCE_S, until

MQLAKE = [sys.executable, "-m", "mqlake"]


class Master(MqlakeBroker):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, {"haListenPort": 0, "mappedFileSizeCommitLog": 1 << 20})
        self.store = directory / "store" / "broker-0"

    def send(self, count: int, first: int = 0) -> None:
        with Producer("PG", self.namesrv) as producer:
            for number in range(first, first + count):
                producer.send(Message("T", b"%d" % number * 100, keys=f"k{number}"))

    def fill_file(self) -> None:
        """More than a file of the log holds; random bytes are not compressed."""
        with Producer("PG", self.namesrv) as producer:
            for _ in range(25):
                producer.send(Message("T", os.urandom(64 << 10)))


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with Master(tmp_path_factory.mktemp("master")) as broker:
        broker.send(300)
        yield broker


def mqlake(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*MQLAKE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def here(*arguments: object) -> Result:
    """A command that starts nothing, in this process."""
    return CliRunner().invoke(cli, [*map(str, arguments)])


def status(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(here("replica", "status", "--store", directory, "--json").stdout)
    return found


def end_of(store: Path) -> int:
    with ReadOnlyStore(store) as opened:
        return opened.max_phy_offset


def test_it_catches_up_is_resumed_and_follows(tmp_path: Path, master: Master) -> None:
    replica = tmp_path / "replica"
    once = mqlake("replica", "--of", master.address, "--store", replica, "--once")
    assert once.returncode == 0, once.stderr
    assert "in step" in once.stdout
    found = diff_stores(str(master.store), str(replica))
    assert found.is_equal and found.compared_units >= 300
    following = subprocess.Popen(
        [*MQLAKE, "replica", "--of", "broker-0", "-n", master.namesrv, "--store", str(replica), "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["master"] == "DefaultCluster/broker-0"
        master.send(100, 300)
        until(lambda: end_of(replica) == end_of(master.store))
        until(lambda: status(replica)["inStep"])
        assert status(replica)["running"]
        # no client is sent to it
        listed = here("admin", "cluster", "list", "-n", master.namesrv, "--json")
        assert [broker["brokerId"] for broker in json.loads(listed.stdout)] == [0]
        following.kill()
        following.wait()
        shown = here("replica", "status", "--store", replica)
        assert shown.exit_code == 1 and "not running" in shown.stdout
        assert re.search(r"queues and index +up to [\d,]+ \(lag ", shown.stdout)
        master.send(50, 400)
        again = mqlake("replica", "--of", master.address, "--store", replica, "--once", "--bandwidth", "50m")
        assert again.returncode == 0, again.stderr
        assert diff_stores(str(master.store), str(replica)).is_equal
    finally:
        following.kill()
        following.wait()
        following.stdout.close()


def test_a_replica_of_another_master_is_left_as_it_is(tmp_path: Path, master: Master) -> None:
    """Its topics and queues would be replaced before the logs are compared."""
    (tmp_path / "replica.json").write_text('{"master": "Berlin/orders"}')
    refused = here("replica", "--of", master.address, "--store", tmp_path)
    assert refused.exit_code == 2 and "is a replica of Berlin/orders" in refused.stderr
    assert "is DefaultCluster/broker-0" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["replica.json"]


def test_from_now_begins_with_the_newest_file(tmp_path: Path, master: Master) -> None:
    master.fill_file()
    replica = tmp_path / "replica"
    done = mqlake("replica", "--of", master.address, "--store", replica, "--once", "--from-now")
    assert done.returncode == 0, done.stderr
    end = end_of(master.store)
    assert status(replica)["minOffset"] == end - end % (1 << 20) > 0
    assert diff_stores(str(master.store), str(replica), prefix=True).is_equal


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"mappedFileSizeCommitLog": 16384}, "mappedFileSizeCommitLog"), ({}, "would have to be cut")],
)
def test_a_store_that_is_no_copy_of_this_master_is_left_as_it_is(
    tmp_path: Path, master: Master, settings: dict[str, int], words: str
) -> None:
    other = fill(tmp_path / "other", 0, 100, **{"mappedFileSizeCommitLog": 1 << 20, **settings})
    before = end_of(other)
    refused = subprocess.Popen(
        [*MQLAKE, "replica", "--of", master.address, "--store", str(other)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert refused.stderr is not None
        lines = iter(refused.stderr.readline, "")
        assert any(words in line for line in lines)
    finally:
        refused.send_signal(signal.SIGTERM)
        refused.communicate(timeout=PATIENCE_S)
    assert end_of(other) == before
    assert end_of(master.store) > 0


def test_once_ends_when_it_can_never_catch_up(tmp_path: Path, master: Master) -> None:
    other = fill(tmp_path / "other", 0, 100, mappedFileSizeCommitLog=1 << 20)
    done = mqlake("replica", "--of", master.address, "--store", other, "--once")
    assert done.returncode == 1
    assert "Error: not caught up: this slave's log is not its master's" in done.stderr
    assert "in step" not in done.stdout
    assert status(other)["trouble"] == "diverged"


def test_queues_that_cannot_be_written_are_trouble(tmp_path: Path, master: Master) -> None:
    """The log has room, the first file of the index has none: no file may be as large."""
    replica = tmp_path / "replica"
    limited = subprocess.Popen(
        [*MQLAKE, "replica", "--of", master.address, "--store", str(replica)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20)),
    )
    try:
        assert limited.stderr is not None
        said = "writing the index failed: [Errno 27] File too large: "
        line = next(line for line in iter(limited.stderr.readline, "") if line.startswith(said))
        assert str(replica / "index") in line
        assert status(replica)["trouble"] == "disk"
        assert end_of(replica) == end_of(master.store)
    finally:
        limited.send_signal(signal.SIGTERM)
        limited.communicate(timeout=PATIENCE_S)
    again = mqlake("replica", "--of", master.address, "--store", replica, "--once")
    assert again.returncode == 0, again.stderr
    assert diff_stores(str(master.store), str(replica)).is_equal


def test_what_is_no_master_is_said(tmp_path: Path, master: Master) -> None:
    nobody = here("replica", "--of", "127.0.0.1:1", "--store", tmp_path / "r")
    assert nobody.exit_code == 1 and "127.0.0.1:1" in nobody.stderr
    namesrv = here("replica", "--of", master.namesrv, "--store", tmp_path / "r")
    assert namesrv.exit_code != 0 and "no RocketMQ broker" in namesrv.stderr
    unknown = here("replica", "--of", "broker-9", "-n", master.namesrv, "--store", tmp_path / "r")
    assert unknown.exit_code != 0 and "there are broker-0" in unknown.stderr
    assert here("replica", "status", "--store", tmp_path).exit_code != 0
    (tmp_path / "replica.json").write_text('{"pid": ')
    broken = here("replica", "status", "--store", tmp_path)
    assert broken.exit_code == 2 and "replica.json" in broken.stderr and "delete it" in broken.stderr
    assert here("replica").exit_code == 2
