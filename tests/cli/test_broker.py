from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import pytest

from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.loop import run
from tests.broker.live import send_header
from tests.ports import free_port, listens_on_all
from tests.waiting import PATIENCE_S

CONF = """\
brokerName=broker-z
brokerIP1=127.0.0.1
listenPort=0
mappedFileSizeCommitLog=1048576
sendMessageThreadPoolNums=4
brokrName=oops
"""


EXPOSED = (
    "listening on every address of this machine, open to anyone who can reach it; "
    "--host 127.0.0.1 keeps others out"
)


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mqlake", "broker", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_text(f"{CONF}storePathRootDir={tmp_path / 'store'}\n")
    return str(path)


@pytest.mark.parametrize("ends_with", ["SIGTERM", "EOF"])
def test_a_broker_conf_is_taken_as_it_is(conf, ends_with):
    arguments = ["-c", conf, *(["--until-eof"] if ends_with == "EOF" else [])]
    process = start(*arguments)
    try:
        line = process.stdout.readline()
        assert line.startswith("broker broker-z listens on 0.0.0.0:"), process.communicate()[1]
        port = line.strip().rpartition(":")[2]

        async def send() -> int:
            async with RemotingClient() as client:
                request = RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"x")
                return (await client.call(f"127.0.0.1:{port}", request, PATIENCE_S)).code

        assert run(send()) == 0
        if ends_with == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)  # which closes its stdin
        assert process.returncode == 0, errors
        said = [
            f"{conf}: without effect here: sendMessageThreadPoolNums",
            f"{conf}: unknown configuration key 'brokrName'; did you mean 'brokerName'?",
            "this broker registers with no name server; set namesrvAddr, or use -n",
        ]
        if ends_with == "SIGTERM":
            said.append(EXPOSED)
        assert errors.splitlines() == said
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
def test_where_it_listens_is_what_it_says(conf, host):
    metrics_port = free_port()
    metrics = ["--set", "metricsExporterType=PROM", "--set", f"metricsPromExporterPort={metrics_port}"]
    process = start("-c", conf, "--json", *metrics, *(["--host", host] if host else []))
    try:
        place = json.loads(process.stdout.readline())
        address, _, port = place["listens"].rpartition(":")
        assert address == (host or "0.0.0.0")
        assert listens_on_all(int(port)) is (host is None)
        assert listens_on_all(metrics_port) is (host is None)
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (EXPOSED in errors) is (host is None)
        (said,) = [line for line in errors.splitlines() if line.startswith("metrics: ")]
        assert f"http://127.0.0.1:{metrics_port}/metrics" in said
        assert ("on every address of this machine" in said) is (host is None)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_it_says_registered_only_when_it_is(conf):
    nobody = f"127.0.0.1:{free_port()}"
    process = start("-c", conf, "-n", nobody)
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[0].startswith("broker broker-z listens on "), process.communicate()[1]
        assert lines[1].startswith("its data is in /") and lines[1].endswith(" (storePathRootDir)\n")
        assert lines[2] == f"not registered yet with {nobody}; trying again\n"
    finally:
        process.kill()
        process.communicate()


def test_it_prints_what_holds(conf):
    process = start("-c", conf, "-p", "--set", "flushDiskType=SYNC_FLUSH", "-n", "h:1;h:2")
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    lines = dict(line.split("=", 1) for line in printed.splitlines())
    assert lines["brokerName"] == "broker-z"
    assert lines["flushDiskType"] == "SYNC_FLUSH"
    assert lines["namesrvAddr"] == "h:1;h:2"
    assert lines["autoCreateTopicEnable"] == "true"
    assert lines["mappedFileSizeCommitLog"] == "1048576"


def test_a_port_that_is_taken_is_named_with_its_setting(conf):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("-c", conf, "--host=127.0.0.1", f"--set=listenPort={port}")
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert f"127.0.0.1:{port}: Address already in use; use --set listenPort=PORT to choose" in errors


def test_what_cannot_be_used_is_one_line(conf):
    process = start("-c", conf, "-n", "nowhere")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert errors.startswith("Error: namesrvAddr=nowhere") and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "allAckInSyncStateSet=true"], "allAckInSyncStateSet=true: only false is allowed"),
        (["--set", "brokrName=b"], "unknown configuration key 'brokrName'; did you mean 'brokerName'?"),
    ],
)
def test_what_it_would_be_dangerous_to_ignore_is_one_line(conf, arguments, words):
    process = start("-c", conf, *arguments)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert f"Error: {words}" in errors and errors.count("\n") == 1


def test_programs_read_where_it_is_and_what_holds(conf):
    process = start("-c", conf, "--json", "--until-eof", "-n", "127.0.0.1:1")
    place = json.loads(process.stdout.readline())
    assert process.communicate(timeout=PATIENCE_S)[0] == "" and process.returncode == 0
    assert place["address"].startswith("127.0.0.1:")
    assert (place["broker"], place["namesrv"]) == ("broker-z", ["127.0.0.1:1"])
    printed, _ = start("-c", conf, "-p", "--json").communicate(timeout=PATIENCE_S)
    assert json.loads(printed)["mappedFileSizeCommitLog"] == 1048576


def test_a_slave_needs_an_id_of_its_own(conf):
    process = start("-c", conf, "--set", "brokerRole=SLAVE", "--until-eof")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0 and "a slave (brokerRole=SLAVE) needs another one" in errors
