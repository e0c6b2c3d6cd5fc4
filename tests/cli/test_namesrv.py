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
from tests.ports import listens_on_all
from tests.waiting import PATIENCE_S


def start(tmp_path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from mqlake.cli.main import main; main()", "namesrv"]
    return subprocess.Popen(
        [*command, "--kv-path", str(tmp_path / "kvConfig.json"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_when_told(tmp_path, number):
    conf = tmp_path / "namesrv.conf"
    conf.write_text("listenPort=9876\nrocketmqHome=/opt/rocketmq\nlistenPrt=1\n")
    process = start(tmp_path, "--port", "0", "--config", str(conf))
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip().rpartition(":")[2]
        assert f"namesrvAddr=127.0.0.1:{port}" in process.stdout.readline()

        async def ask() -> int:
            async with RemotingClient() as client:
                command = RemotingCommand.create_request(RequestCode.GET_BROKER_CLUSTER_INFO)
                return (await client.call(f"127.0.0.1:{port}", command, PATIENCE_S)).code

        assert run(ask()) == 0
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert "without effect here: rocketmqHome" in errors and "did you mean 'listenPort'" in errors
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_what_cannot_be_used_is_one_line(tmp_path):
    conf = tmp_path / "namesrv.conf"
    conf.write_text("listenPort=many\n")
    process = start(tmp_path, "--config", str(conf))
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (2, "Error: listenPort=many: a whole number is needed\n")


def test_a_port_that_is_taken_is_named_with_its_option(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(tmp_path, f"--port={port}", "--host=127.0.0.1")
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2 and errors.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; use --port to choose" in errors


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
def test_programs_read_where_it_listens(tmp_path, host):
    process = start(tmp_path, "--port", "0", "--json", *(["--host", host] if host else []))
    try:
        assert process.stdout is not None
        place = json.loads(process.stdout.readline())
        port = int(place["namesrv"].removeprefix("127.0.0.1:"))
        assert place["listens"] == f"{host or '0.0.0.0'}:{port}"
        assert listens_on_all(port) is (host is None)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert ("on every address of this machine" in errors) is (host is None)
