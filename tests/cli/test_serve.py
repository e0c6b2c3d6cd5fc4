from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mqlake.base.rendering import size_text
from mqlake.cli.main import cli
from mqlake.cli.options import SMALL_STORE
from mqlake.cli.serve import _set_apart, note_small_disk
from mqlake.errors import ResponseError
from mqlake.formats.columns import whole_records
from mqlake.formats.record import decode_records
from mqlake.remoting.bodies.route import TopicRouteData
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.namesrv import GetRouteInfoRequestHeader
from mqlake.remoting.loop import run
from mqlake.store.archive.manifest import read_manifest
from mqlake.store.archive.target import Target
from mqlake.store.config import MessageStoreConfig
from tests.broker.live import pull_header, send_header
from tests.disks import statvfs_of
from tests.ports import free_port, free_ports, listens_on_all
from tests.store.small_store import SETTINGS, contents, fill, flip, log_file, pretend_crash
from tests.waiting import PATIENCE_S, until

MQLAKE = [sys.executable, "-m", "mqlake"]


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*MQLAKE, "serve", "--store", str(directory), "--port=0", "--namesrv-port=0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return json.loads(line)


def stopped(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> str:
    """What it says on stderr, told to stop; it ends with 0."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return errors


def refused(directory: Path, *arguments: str) -> str:
    """The line on stderr of a command line that cannot be; in this process, as it starts nothing."""
    ports = ["--port=0", "--namesrv-port=0"]
    result = CliRunner().invoke(cli, ["serve", "--store", str(directory), *ports, *arguments])
    assert result.exit_code == 2 and result.stdout == "", result.output
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


async def ask(address: str, code: int, header: object = None, body: bytes | None = None) -> RemotingCommand:
    async with RemotingClient() as client:
        return await client.call(address, RemotingCommand.create_request(code, header, body), PATIENCE_S)


def send(address: str, topic: str, body: bytes, queue_id: int = 0) -> RemotingCommand:
    return run(ask(address, RequestCode.SEND_MESSAGE_V2, send_header(topic, queue_id=queue_id), body))


def route(namesrv: str, topic: str) -> TopicRouteData:
    """Once the name server has it, which may be a while after the answer of the broker that made it."""

    def known() -> RemotingCommand | None:
        with contextlib.suppress(ResponseError):
            return run(
                ask(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
            )
        return None

    return TopicRouteData.from_json(until(known, f"the route of {topic}").body_bytes())


def test_it_says_what_to_try_next_and_stops_cleanly(tmp_path):
    with serving(tmp_path / "data") as process:
        lines = [process.stdout.readline().split(maxsplit=1) for _ in range(6)]
        assert [name for name, _ in lines] == ["name", "broker", "gRPC", "data", "durability", "try"]
        assert "flushDiskType=ASYNC_FLUSH" in lines[4][1]
        namesrv, broker = lines[0][1].split()[-1], lines[1][1].strip()
        assert f"mqlake produce -n {namesrv}" in lines[5][1]
        assert send(broker, "T", b"x").code == 0
        assert route(namesrv, "T").broker_datas[0].broker_addrs == {0: broker}
        assert stopped(process) == ""
    assert not (tmp_path / "data" / "broker-0" / "abort").exists()


def test_what_was_sent_is_there_after_a_kill(tmp_path):
    with serving(tmp_path, "--json", "--set=flushDiskType=SYNC_FLUSH") as process:
        [broker] = ready(process)["brokers"]
        assert send(broker, "T", b"kept").code == 0
        process.kill()
    with serving(tmp_path, "--json") as process:
        [broker] = ready(process)["brokers"]

        async def pull() -> RemotingCommand:
            return await ask(broker, RequestCode.PULL_MESSAGE, pull_header("T"))

        assert b"kept" in run(pull()).body_bytes()
        stopped(process)


def test_a_lost_machine_comes_back_from_its_archive(tmp_path):
    """Killed and its disk gone, a broker elsewhere has what was archived, and reads old messages there."""
    url, count = f"file://{tmp_path}/archive", 60
    settings = [
        f"--set={key}={value}" for key, value in {**SETTINGS, "archive": url, "archiveInterval": 1}.items()
    ]
    with serving(tmp_path / "old", "--json", *settings) as process:
        [broker] = ready(process)["brokers"]
        for number in range(count):
            send(broker, "T", b"%d " % number + bytes(500))

        def archived() -> bool:
            manifest = read_manifest(Target(url))
            return manifest is not None and sum(each.records for each in manifest.objects) >= count

        until(archived, "all is archived")
        process.kill()
    shutil.rmtree(tmp_path / "old")
    with serving(tmp_path / "new", "--json", "--from-archive", *settings) as process:
        [broker] = ready(process)["brokers"]
        found: list[bytes] = []
        while len(found) < count:
            answer = run(ask(broker, RequestCode.PULL_MESSAGE, pull_header("T", len(found))))
            assert answer.ext_fields["minOffset"] == "0"
            body = answer.body_bytes()
            places = whole_records(np.frombuffer(body, np.uint8), 64)
            found += [message.body for message in decode_records(body, places)]
        assert [int(each.split()[0]) for each in found] == list(range(count))
        assert "is not in it" in stopped(process)
    assert len(list((tmp_path / "new" / "broker-0" / "commitlog").iterdir())) <= 3
    assert "set archive to the place" in refused(tmp_path / "none", "--from-archive")


def test_brokers_share_nothing_and_what_a_file_says_once_is_made_different_for_each(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b\nnamesrvAddr=127.0.0.1:1\nmetricsExporterType=PROM\n")
    with serving(
        tmp_path, "--json", "--brokers=2", f"-c{conf}", "--set=metricsPromExporterPort=0"
    ) as process:
        where = ready(process)

        def known() -> set[str]:
            found = route(where["namesrv"], "SELF_TEST_TOPIC")
            return {each.broker_name for each in found.queue_datas}

        until(lambda: known() == {"b-0", "b-1"}, "both are registered")
        assert len(set(where["brokers"])) == 2
        for broker in where["brokers"]:
            assert send(broker, "T", b"x").code == 0
        stopped(process)
    for name in ("broker-0", "broker-1"):
        assert (tmp_path / name / "commitlog").exists() and not (tmp_path / name / "abort").exists()


def test_metrics_of_several_brokers_have_a_port_each():
    of_brokers = [{"brokerName": "broker-0"}, {"brokerName": "broker-1"}]
    _set_apart(of_brokers, {}, {}, 5557)
    assert [each["metricsPromExporterPort"] for each in of_brokers] == ["5557", "5558"]
    assert [each["brokerName"] for each in of_brokers] == ["broker-0", "broker-1"]


def test_the_vip_port_is_named_when_it_is_taken(tmp_path):
    port = free_ports(4)
    with socket.create_server(("127.0.0.1", port)):
        with serving(tmp_path / "data", f"--port={port + 2}") as process:
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 2
            assert f"127.0.0.1:{port}: Address already in use" in errors and "VIP port" in errors
        assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("option", ["--port", "--namesrv-port", "--grpc-port", "--console-port"])
def test_a_port_that_is_taken_is_named_with_its_option_and_nothing_is_made(tmp_path, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        errors = refused(tmp_path / "data", f"{option}={port}")
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; use {option} to choose" in errors
    assert not (tmp_path / "data").exists()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_broker_that_dies_is_started_again_and_the_others_go_on(tmp_path):
    with serving(tmp_path, "--json", "--brokers=2", "--set=flushDiskType=SYNC_FLUSH") as process:
        where = ready(process)
        brokers = where["brokers"]
        assert send(brokers[0], "T", b"kept").code == 0
        victim, other = children_of(process.pid)
        os.kill(victim, signal.SIGKILL)
        said = process.stderr.readline()
        assert said.startswith(
            f"broker-0 (process {victim}) ended with status -9; 1 still running, restarting it"
        )
        assert send(brokers[1], "T", b"x").code == 0

        def address() -> str:
            known = {each.broker_name: each for each in route(where["namesrv"], "T").broker_datas}
            return known["broker-0"].broker_addrs[0] if "broker-0" in known else ""

        until(lambda: address() not in ("", brokers[0]), "it has another port")
        again = address()

        async def pull() -> RemotingCommand:
            return await ask(again, RequestCode.PULL_MESSAGE, pull_header("T"))

        assert b"kept" in run(pull()).body_bytes()
        assert len(children_of(process.pid)) == 2 and other in children_of(process.pid)
        stopped(process)


def test_a_broker_that_cannot_start_ends_it(tmp_path):
    (tmp_path / "broker-1").write_text("no directory")
    with serving(tmp_path, "--json", "--brokers=2") as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert errors.splitlines()[-1] == "Error: a broker ended before it was ready"
        assert "restarting" not in errors


def test_brokers_end_with_the_process_that_started_them(tmp_path):
    with serving(tmp_path, "--json", "--brokers=2") as process:
        ready(process)
        children = children_of(process.pid)
        assert len(children) == 2
        process.kill()
        process.wait()

        def gone() -> bool:
            return not any(_runs(child) for child in children)

        until(gone)
    for name in ("broker-0", "broker-1"):
        assert not (tmp_path / name / "abort").exists()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "listenPort=many"], "listenPort"),
        (["--set", "nothing"], "key=value"),
        (["--set", "authorizationEnabled=true"], "needs authenticationEnabled"),
        (["--set", "brokrName=x"], "did you mean 'brokerName'?"),
        (["--host", "192.0.2.1"], "address; --host takes an address of this machine"),
        (["--brokers=2", "--set=listenPort=1"], "cannot share"),
        (["--brokers=2", "--set=storePathCommitLog=/nowhere"], "cannot share"),
        (["--store=."], "itself a store"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path, monkeypatch, arguments, words):
    (tmp_path / "commitlog").mkdir()
    monkeypatch.chdir(tmp_path)
    tmp_path = tmp_path / "data"
    assert words in refused(tmp_path, *arguments)


def test_a_file_is_no_data_directory(tmp_path):
    """It would fail at the first file in it, with an error of the system about a path that nobody has typed."""
    (tmp_path / "file").touch()
    result = CliRunner().invoke(cli, ["serve", "--store", str(tmp_path / "file")])
    assert result.exit_code == 2 and "is a file" in result.stderr


def test_it_says_where_it_listens_beside_what_it_advertises(tmp_path):
    """An address of a NAT cannot be called from here, and was the only one shown."""
    with serving(tmp_path, "--advertise=localhost:443") as process:
        lines = [process.stdout.readline().split() for _ in range(2)]
        name, listens, *more = lines[1]
        assert (name, " ".join(more)) == ("broker", "for clients localhost:443")
        assert send(listens.removesuffix(","), "T", b"x").code == 0
        stopped(process)


def test_another_start_takes_the_sizes_of_the_files(tmp_path):
    """Of the master, of a slave that is there, and of one that comes new."""
    small = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    with serving(tmp_path, "--json", *small) as process:
        [broker] = ready(process)["brokers"]
        assert send(broker, "T", b"x").code == 0
        stopped(process)
    wrong = refused(tmp_path, "--set=mappedFileSizeCommitLog=1m", "--set=maxHashSlotNum=7")
    assert "mappedFileSizeCommitLog=16384 and not 1048576, maxHashSlotNum=" in wrong
    with serving(tmp_path, "--json", "--replicas=1") as process:
        assert len(ready(process)["brokers"]) == 2
        copied = tmp_path / "broker-0-slave-1" / "commitlog" / f"{0:020d}"
        until(copied.exists, "the slave has the message")
        stopped(process)
    for name in ("broker-0", "broker-0-slave-1"):
        assert {file.stat().st_size for file in (tmp_path / name / "commitlog").iterdir()} == {16384}


def test_a_disk_that_is_too_small_is_named_at_the_start(tmp_path, capsys):
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path / "not" / "yet"))
    small = dataclasses.replace(
        config, mapped_file_size_commit_log=16 << 20, max_hash_slot_num=100_000, max_index_num=400_000
    )
    note_small_disk(small)
    assert (
        capsys.readouterr().err == ""
        and size_text(small.new_store_size) == "40.0 MiB"
        and "41 MiB" in SMALL_STORE
    )
    note_small_disk(config, brokers=1 << 40)
    assert f"{tmp_path}: " in (text := capsys.readouterr().err) and SMALL_STORE in text
    os.makedirs(config.commit_log_dir)  # a broker that has not had a message yet has no file
    note_small_disk(config, brokers=1 << 40)
    assert "new stores take" in capsys.readouterr().err
    Path(config.commit_log_dir, f"{0:020d}").touch()  # its sizes are what they are
    note_small_disk(config, brokers=1 << 40)
    assert "the next commit log file takes" in (text := capsys.readouterr().err) and SMALL_STORE not in text


def test_a_new_store_on_a_disk_without_room_for_its_index_is_named(tmp_path, capsys, monkeypatch):
    """The warning counted a file of the log alone: the first message was stored, every later one refused."""
    monkeypatch.setattr(os, "statvfs", statvfs_of(blocks=100, free=96, available=96))
    config = MessageStoreConfig(store_path_root_dir=str(tmp_path))
    note_small_disk(dataclasses.replace(config, mapped_file_size_commit_log=16 << 20))
    assert "a new store takes" in capsys.readouterr().err


def test_a_damaged_log_is_refused_and_nothing_changes(tmp_path):
    store = fill(tmp_path / "store", count=20)
    settings = {**SETTINGS, "storePathRootDir": store}
    flip(log_file(store), 100)
    pretend_crash(store)
    before, there = contents(store), sorted(store.rglob("*"))
    given = (f"--set={key}={value}" for key, value in settings.items())
    with serving(tmp_path / "data", *given) as process:
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, ""), errors
    assert f"{log_file(store)}: corrupt at byte 0: " in errors and "mqlake store repair" in errors
    assert contents(store) == before
    assert sorted(store.rglob("*")) == there


@pytest.mark.parametrize("brokers", [1, 2])
def test_flushed_messages_that_are_gone_need_a_word(tmp_path, brokers):
    """Also from a broker in a process of its own."""
    store = fill(tmp_path / "data" / "broker-0", count=120)
    log_file(store, -1).write_bytes(bytes(SETTINGS["mappedFileSizeCommitLog"]))
    given = [f"--brokers={brokers}", *(f"--set={key}={value}" for key, value in SETTINGS.items())]
    with serving(tmp_path / "data", *given) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and "messages are gone from the end of the log" in errors
    assert "--accept-loss" in errors
    with serving(tmp_path / "data", *given, "--accept-loss", "--json") as process:
        ready(process)
    assert (store / "config" / "lostQueueEnds.json").exists()


def test_a_store_that_is_in_use(tmp_path):
    with serving(tmp_path, "--json") as first:
        ready(first)
        with serving(tmp_path) as second:
            _, errors = second.communicate(timeout=PATIENCE_S)
            assert second.returncode == 1 and errors.startswith("Error: ")
        stopped(first)


@pytest.mark.parametrize("host", [None, "0.0.0.0"])
def test_it_is_for_this_machine_unless_told_otherwise(tmp_path, host):
    metrics_port = free_port()
    metrics = ["--set=metricsExporterType=PROM", f"--set=metricsPromExporterPort={metrics_port}"]
    with serving(tmp_path / "data", "--json", *metrics, *(["--host", host] if host else [])) as process:
        where = ready(process)
        ports = [int(address.rpartition(":")[2]) for address in (where["namesrv"], *where["brokers"])]
        assert [listens_on_all(port) for port in (*ports, metrics_port)] == [host is not None] * 3
        assert ("listening on every address" in stopped(process)) is (host is not None)


def test_settings_of_a_file_and_of_the_command_line(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "autoCreateTopicEnable=false\nbrokerClusterName=C\nlistenPort=1\nisolateLogEnable=true\nbindAddress=0.0.0.0\n"
    )
    given = [f"--config={conf}", "--set", "brokerClusterName=D", "--set", "traceOn=false"]
    with serving(tmp_path / "data", "--json", *given) as process:
        where = ready(process)
        config = run(ask(where["brokers"][0], RequestCode.GET_BROKER_CONFIG))
        assert b"traceOn=false\n" in config.body
        known = route(where["namesrv"], "SELF_TEST_TOPIC")
        assert known.broker_datas[0].cluster == "D"
        assert not listens_on_all(int(where["brokers"][0].rpartition(":")[2]))
        assert stopped(process, signal.SIGINT) == (
            f"{conf}: without effect here: isolateLogEnable\n"
            f"{conf}: bindAddress=0.0.0.0 is ignored; --host is 127.0.0.1\n"
        )


def test_a_master_with_slaves_that_can_take_its_place(tmp_path):
    """One command makes a cluster; `admin` shows how far the slaves are, and promotes one."""

    def admin(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*MQLAKE, "admin", *arguments, "-n", namesrv, "--json"],
            capture_output=True,
            text=True,
            check=False,
        )

    role = ["--set=brokerRole=SYNC_MASTER", "--set=inSyncReplicas=2", "--set=slaveTimeout=60000"]
    with serving(tmp_path, "--json", "--replicas=2", *role) as process:
        where = ready(process)
        namesrv, (master, slave, _) = where["namesrv"], where["brokers"]
        assert send(master, "T", b"kept twice").code == 0

        def replicas() -> list[dict[str, object]]:
            return json.loads(admin("cluster", "list").stdout)

        until(lambda: [each["brokerId"] for each in replicas()] == [0, 1, 2])
        until(lambda: [each["lagBytes"] for each in replicas()[0]["replicas"]["slaves"]] == [0, 0])
        links = json.loads(admin("broker", "ha").stdout)
        assert {(link["brokerId"], link["peerRole"]) for link in links} == {
            (0, "slave"),
            (1, "master"),
            (2, "master"),
        }
        refused = admin("broker", "promote", "-b", slave, "--yes")
        assert refused.returncode == 1 and "still answers" in refused.stderr
        promoted = admin("broker", "promote", "-b", slave, "--yes", "--force")
        assert promoted.returncode == 0, promoted.stderr
        assert send(slave, "T", b"after").code == 0
        stopped(process)
    assert (tmp_path / "broker-0-slave-2" / "commitlog").is_dir()


def test_what_a_broker_that_serves_little_does_not_need_is_not_loaded() -> None:
    program = """
import sys
import mqlake.cli.main, mqlake.cli.broker, mqlake.cli.serve
import mqlake.broker.controller, mqlake.namesrv.server
print(*sorted({"http.server", "importlib.metadata", "importlib.resources", "difflib", "shutil", "numba", "lark",
               "prometheus_client", "grpc", "mqlake.broker.metrics.exporter", "mqlake.store.check.verify_queues"}
              & sys.modules.keys()))
print(sum(isinstance(vars(kind).get("__dataclass_fields__"), dict)
          for base in (mqlake.remoting.headers.codec.CommandHeader, mqlake.remoting.bodies.codec.JsonBody)
          for kind in base.__subclasses__()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, made = done.stdout.splitlines()
    assert (loaded, int(made)) == ("", 0)
