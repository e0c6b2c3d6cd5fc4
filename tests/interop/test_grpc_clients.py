"""RocketMQ's official gRPC clients, from their registries, through everything that they can do with mqlake.

`make test` runs the Python client, which uses every RPC; the others, and RocketMQ's own proxy in place of mqlake, run
on demand (MQLAKE_CAMPAIGN=1). The results are in docs/grpc.md.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.brokers import Broker, MqlakeBroker, Server
from tests.interop.grpc_scenarios import PROGRAMS, SETTINGS, check, outcome, prepare
from tests.interop.java_proxy import JavaProxy

Program = Callable[[], list[str | Path]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    with MqlakeBroker(tmp_path_factory.mktemp("grpc"), SETTINGS, grpc=True) as started:
        yield started


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProxy]:
    with JavaProxy(tmp_path_factory.mktemp("rocketmq"), SETTINGS) as started:
        yield started


def _run(command: list[str | Path], cwd: Path, what: str) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{what}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def _needed(command: str, install: str) -> str:
    path = shutil.which(command)
    assert path is not None, f"{command} is needed for its client: {install}"
    return path


def python_client() -> list[str | Path]:
    """In an environment of its own: its package is named as that of the C++ client."""
    place = PROGRAMS / "python"
    environment = place / "target"
    python = environment / "bin" / "python"
    if not (environment / "done").exists():
        venv.create(environment, with_pip=True, clear=True)
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "-r", "requirements.txt"], place, "the Python client cannot be installed")
        (environment / "done").touch()
    return [python, place / "peer.py"]


def java_client() -> list[str | Path]:
    place = PROGRAMS / "java"
    maven = _needed("mvn", "apt-get install maven")
    source = place / "src" / "main" / "java" / "Peer.java"
    jar = place / "target" / "client.jar"
    compiled = place / "target" / "classes" / "Peer.class"
    if not jar.exists() or not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
        _run([maven, "-q", "-B", "process-classes"], place, "the Java client does not build")
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={place / 'target'}"]
    return ["java", *options, "-cp", f"{jar}:{place / 'target' / 'classes'}", "Peer"]


def node_client() -> list[str | Path]:
    place = PROGRAMS / "node"
    target = place / "target"
    target.mkdir(exist_ok=True)
    if not (target / "node_modules").exists():
        shutil.copy(place / "package.json", target)
        npm = _needed("npm", "apt-get install npm")
        _run([npm, "install", "--no-audit", "--no-fund"], target, "the Node.js client cannot be installed")
    shutil.copy(place / "peer.js", target)
    return [_needed("node", "apt-get install nodejs"), target / "peer.js"]


def go_client() -> list[str | Path]:
    place = PROGRAMS / "go"
    go = _needed("go", "apt-get install golang-go")
    program = place / "target" / "peer"
    _run([go, "build", "-buildvcs=false", "-o", program, "."], place, "the Go client does not build")
    return [program]


ON_DEMAND = (
    pytest.mark.campaign,
    pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it"),
)


@pytest.mark.parametrize(
    "program",
    [
        python_client,
        pytest.param(java_client, marks=(pytest.mark.java, *ON_DEMAND)),
        pytest.param(node_client, marks=ON_DEMAND),
        pytest.param(go_client, marks=ON_DEMAND),
    ],
)
def test_an_official_client_does_all_it_can(broker: Broker, program: Program):
    prefix = program.__name__.partition("_")[0]
    assert isinstance(broker, MqlakeBroker)
    prepare(broker.namesrv, prefix)
    check(outcome(program(), broker.grpc, prefix), broker.namesrv, prefix)


@pytest.mark.java
@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
@pytest.mark.parametrize("program", [python_client, node_client, go_client, java_client])
def test_the_same_against_rocketmqs_own_proxy(rocketmq: JavaProxy, program: Program):
    """What the programs expect of mqlake is what they get from RocketMQ."""
    prefix = program.__name__.partition("_")[0]
    prepare(rocketmq.namesrv, prefix)
    check(outcome(program(), rocketmq.grpc, prefix), rocketmq.namesrv, prefix)


@pytest.mark.java
@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
def test_mqlakes_proxy_in_front_of_rocketmqs_broker(rocketmq: JavaProxy):
    command = [
        sys.executable,
        "-m",
        "mqlake",
        "proxy",
        "--port=0",
        "--host=127.0.0.1",
        "-n",
        rocketmq.namesrv,
    ]
    log = PROGRAMS / "python" / "target" / "proxy.log"
    program = python_client()
    server = Server(command, r"gRPC +(\S+)", log, {})
    try:
        prepare(rocketmq.namesrv, "through")
        check(outcome(program, server.match[1], "through"), rocketmq.namesrv, "through")
    finally:
        server.end(signal.SIGTERM)
