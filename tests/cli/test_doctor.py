"""`mqlake doctor` beside machines that lack something, stores in every state, and a real broker."""

from __future__ import annotations

import json
import os
import resource
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mqlake.cli import doctor
from mqlake.cli.doctor import Status, disk, machine, ports
from mqlake.cli.main import cli
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store
from mqlake.testing import RocketMQ
from tests.disks import statvfs_of
from tests.ports import free_port

SETTINGS = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 100, "maxIndexNum": 400}
HOST = ("127.0.0.1", 1)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["doctor", *map(str, arguments)])


def checks(result: Result) -> dict[str, dict[str, str]]:
    return {check["check"]: check for check in json.loads(result.stdout)}


def make_store(root: Path) -> Path:
    with open_store(root, SETTINGS) as store:
        for number in range(3):
            put = store.put_message(
                MessageExtBrokerInner("T", b"%d" % number, born_host=HOST, store_host=HOST)
            )
            assert put.is_ok
    return root


def test_a_cluster_that_works_and_its_stores(tmp_path: Path) -> None:
    make_store(tmp_path / "broker-0")
    (make_store(tmp_path / "broker-1") / "abort").touch()
    with RocketMQ() as rocketmq:
        result = run("-n", rocketmq.namesrv, "--store", tmp_path, "--json")
        found = checks(result)
        assert found[f"name server {rocketmq.namesrv}"]["found"] == "knows 1 broker"
        assert found["broker broker-0"] == {
            "status": "ok",
            "check": "broker broker-0",
            "found": f"{rocketmq.broker} answers",
            "todo": "",
        }
    closed, left = (found[f"store {tmp_path}/broker-{number}"] for number in range(2))
    assert closed["status"] == "ok" and closed["found"].startswith("3 messages in 1 topic, ")
    assert closed["found"].endswith("; closed")
    assert left["status"] == "warning" and left["found"].endswith("; not closed")


def test_a_damaged_store_is_a_problem(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    (root / "commitlog" / f"{1 << 20:020}").write_bytes(b"short")
    result = run("-n", f"127.0.0.1:{free_port()}", "--store", root)
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if f"store {root}" in line and "disk" not in line]
    assert line.startswith("problem") and line.endswith(f"mqlake store verify {root}")


def test_nothing_there_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run()
    assert "start one with `mqlake serve`" in result.stdout
    assert "problem" not in result.stdout
    assert f"disk of {tmp_path}" in result.stdout


def test_a_data_directory_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    """A misspelt one would pass for a sound one."""
    (tmp_path / "file").touch()
    for name, text in (("none", "there is no such directory"), ("file", "a store is a directory")):
        result = run("--store", tmp_path / name, "--json")
        found = checks(result)[f"store {tmp_path / name}"]
        assert result.exit_code == 1 and (found["status"], found["found"]) == ("problem", text)


def test_a_name_server_that_was_asked_for_has_to_answer() -> None:
    address = f"127.0.0.1:{free_port()}"
    result = run("-n", address, "--json")
    assert checks(result)[f"name server {address}"]["status"] == "problem" and result.exit_code == 1


def test_a_machine_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (64, 1024))
    monkeypatch.setattr(doctor, "clock_is_kept", lambda: False)
    monkeypatch.setattr(doctor.native, "module", lambda _: None)
    found = {check.name: check for check in machine()}
    for name, todo in (
        ("open files", "ulimit -n 65536"),
        ("clock", "chrony"),
        ("native code", "C compiler"),
    ):
        assert found[name].status is Status.WARNING and todo in found[name].todo
    monkeypatch.setattr("mqlake.NO_NATIVE", True)  # a compiler would not help
    assert "unset MQLAKE_NO_NATIVE" in {check.name: check for check in machine()}["native code"].todo
    monkeypatch.undo()
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (64, resource.RLIM_INFINITY))
    monkeypatch.setattr(doctor, "clock_is_kept", lambda: True)
    found = {check.name: check for check in machine()}
    assert found["open files"].found == "unlimited" and found["clock"].status is Status.OK
    assert not any(check.todo for check in found.values() if check.status is Status.OK)


@pytest.mark.parametrize(
    ("free", "status", "todo"),
    [
        (25, Status.OK, ""),
        (24, Status.WARNING, "diskMaxUsedSpaceRatio"),
        (10, Status.WARNING, "diskMaxUsedSpaceRatio"),
        (9, Status.PROBLEM, "brokers refuse messages"),
    ],
)
def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: Status, todo: str) -> None:
    """The broker deletes and refuses above these shares, not at them."""
    monkeypatch.setattr(os, "statvfs", statvfs_of(blocks=100, free=free, available=free))
    check = disk(str(tmp_path))
    assert check.status is status and todo in check.todo
    assert check.found == f"{100 - free}.0 % used, {free} MiB free"


def test_a_disk_too_small_for_a_new_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", statvfs_of(blocks=100, free=50, available=50))
    assert "mappedFileSizeCommitLog" in disk(str(tmp_path), needed=51 << 20).todo
    assert disk(str(tmp_path), needed=50 << 20).status is Status.OK


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    assert disk(str(tmp_path)).found == "not writable"


def test_ports_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken, free = server.getsockname()[1], free_port()
        monkeypatch.setattr(doctor, "SERVE_PORTS", (("name server", taken), ("broker", free)))
        used, unused = ports()
    assert used.status is Status.WARNING and used.found == "Address already in use"
    assert used.todo.endswith("--namesrv-port")
    assert unused.status is Status.OK


def test_a_broker_that_clients_cannot_reach() -> None:
    check = doctor._reachable("broker b", f"127.0.0.1:{free_port()}", "")
    assert check.status is Status.PROBLEM and "brokerIP1" in check.todo


def test_a_broker_that_refuses_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answered, so all was well, while its index could not be written and every send was refused."""

    async def runtime_info(*_: object) -> dict[str, str]:
        return {"sendRefusal": "writing the index failed: No space left on device"}

    monkeypatch.setattr(BrokerAPI, "get_broker_runtime_info", runtime_info)
    with RocketMQ() as rocketmq:
        result = run("-n", rocketmq.namesrv, "--json")
    check = checks(result)["broker broker-0"]
    assert check["status"] == "problem" and "refuses messages: writing the index failed" in check["found"]
    assert result.exit_code == 1


def test_the_clock_can_be_asked() -> None:
    assert doctor.clock_is_kept() in (True, False)
