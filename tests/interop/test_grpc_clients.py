"""RocketMQ's official gRPC clients, from their registries, through everything that they can do with mqlake.

`make test` runs the Python client, which uses every RPC, with signed requests, and `make test-all` those of Java,
Node.js and Go, too, which share a broker and are built once. The Rust client, and RocketMQ's own proxy in place of
mqlake, run on demand (MQLAKE_CAMPAIGN=1). The results are in docs/grpc.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mqlake.auth.config import Credentials
from mqlake.auth.model import Action, Policy, PolicyType, UserType
from mqlake.auth.signed_client import SignedRemotingClient
from mqlake.client.api.access_api import AccessAPI
from mqlake.client.config import ClientConfig
from mqlake.remoting.loop import run
from tests.auth.people import entry
from tests.interop.brokers import FOR_TESTS, MqlakeBroker, Server
from tests.interop.grpc_scenarios import PROGRAM_S, PROGRAMS, SETTINGS, check, outcome, prepare
from tests.interop.java_proxy import ClusterProxy, JavaProxy
from tests.parts import needed

Program = Callable[[], list[str | Path]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    with MqlakeBroker(tmp_path_factory.mktemp("grpc"), SETTINGS, grpc=True) as started:
        yield started


ADMIN = Credentials("admin", "admin-secret")
ACCESS_CONTROL = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    """A broker with access control, and a user for each program, who may use its own topics and groups."""
    settings = {**SETTINGS, **ACCESS_CONTROL}
    with MqlakeBroker(tmp_path_factory.mktemp("guarded"), settings, grpc=True) as started:

        async def users() -> None:
            async with SignedRemotingClient(ADMIN) as client:
                api = AccessAPI(client)
                for name in ("python", "go"):
                    await api.create_user(started.address, name, f"{name}-secret", UserType.NORMAL)
                    entries = (
                        entry(f"Topic:{name}*", Action.PUB, Action.SUB),
                        entry(f"Group:{name}*", Action.SUB),
                    )
                    await api.update_acl(started.address, name, [Policy(PolicyType.CUSTOM, entries)])

        run(users())
        yield started


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProxy]:
    # a busy machine needs more than a second from the half message to its commit: the broker asks meanwhile, is told to
    # commit, and stores a message twice that is committed twice
    settings = {**SETTINGS, "transactionTimeOut": "10000"}
    with JavaProxy(tmp_path_factory.mktemp("rocketmq"), settings) as started:
        yield started


def _run(command: list[str | Path], cwd: Path, what: str) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{what}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


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
    maven = needed("maven")
    sources = place / "src" / "main" / "java" / "Peer.java", place / "pom.xml"
    jar = place / "target" / "client.jar"
    compiled = place / "target" / "classes" / "Peer.class"
    newest = max(source.stat().st_mtime for source in sources)
    if not jar.exists() or not compiled.exists() or compiled.stat().st_mtime < newest:
        _run([maven, "-q", "-B", "process-classes"], place, "the Java client does not build")
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={place / 'target'}"]
    return ["java", *options, "-cp", f"{jar}:{place / 'target' / 'classes'}", "Peer"]


def node_client() -> list[str | Path]:
    return node_program(PROGRAMS / "node")


def node_program(place: Path) -> list[str | Path]:
    """The command of peer.js there, with the packages of its package.json."""
    target = place / "target"
    target.mkdir(exist_ok=True)
    if not (target / "node_modules").exists():
        shutil.copy(place / "package.json", target)
        npm = needed("npm")
        _run([npm, "install", "--no-audit", "--no-fund"], target, "the Node.js client cannot be installed")
    shutil.copy(place / "peer.js", target)
    return [needed("node"), target / "peer.js"]


def go_client() -> list[str | Path]:
    place = PROGRAMS / "go"
    go = needed("go")
    program = place / "target" / "peer"
    _run([go, "build", "-buildvcs=false", "-o", program, "."], place, "the Go client does not build")
    return [program]


def rust_client() -> list[str | Path]:
    place = PROGRAMS / "rust"
    cargo = needed("cargo")
    _run([cargo, "build", "--quiet", "--locked"], place, "the Rust client does not build")
    return [place / "target" / "debug" / "peer"]


@contextlib.contextmanager
def mqlake_proxy(namesrv: str, log: Path, *arguments: str) -> Iterator[str]:
    """Its endpoint."""
    command = [
        sys.executable,
        "-m",
        "mqlake",
        "proxy",
        "--port=0",
        "--host=127.0.0.1",
        "-n",
        namesrv,
        *arguments,
    ]
    server = Server(command, r"gRPC +(\S+)", log, {})
    try:
        yield server.match[1]
    finally:
        server.end(signal.SIGTERM)


ALL = [python_client, node_client, go_client, java_client, rust_client]


ON_DEMAND = (
    pytest.mark.campaign,
    pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it"),
)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, broker: MqlakeBroker
) -> Iterator[dict[Program, Future[dict[str, Any]]]]:
    """What the programs of the chosen tests saw. They run at once, as they mostly wait: for delays and retries."""
    name = test_an_official_client_does_all_it_can.__name__
    on_demand = "MQLAKE_CAMPAIGN" in os.environ
    chosen = [
        each
        for each in request.session.items
        if getattr(each, "originalname", "") == name
        and (on_demand or not each.get_closest_marker("campaign"))
    ]
    programs: list[Program] = [each.callspec.params["program"] for each in chosen]  # type: ignore[attr-defined]

    def run_one(program: Program) -> dict[str, Any]:
        prefix = name_of(program)
        prepare(ClientConfig(namesrv_addr=broker.namesrv), prefix)
        return outcome(program(), broker.grpc, prefix)

    with ThreadPoolExecutor(len(programs)) as threads:
        yield {program: threads.submit(run_one, program) for program in programs}


def name_of(program: Program) -> str:
    return program.__name__.partition("_")[0]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(java_client, marks=pytest.mark.java),
        node_client,
        go_client,
        pytest.param(rust_client, marks=ON_DEMAND),
    ],
)
@pytest.mark.nightly
def test_an_official_client_does_all_it_can(
    broker: MqlakeBroker, program: Program, outcomes: dict[Program, Future[dict[str, Any]]]
):
    name = name_of(program)
    check(outcomes[program].result(), ClientConfig(namesrv_addr=broker.namesrv), name, name)


@pytest.mark.parametrize("program", [python_client, pytest.param(go_client, marks=ON_DEMAND)])
def test_an_official_client_that_signs_does_all_it_may(guarded: MqlakeBroker, program: Program):
    name = name_of(program)
    where = ClientConfig(
        namesrv_addr=guarded.namesrv, access_key=ADMIN.access_key, secret_key=ADMIN.secret_key
    )
    prepare(where, name)
    signed = {**os.environ, "ROCKETMQ_ACCESS_KEY": name, "ROCKETMQ_SECRET_KEY": f"{name}-secret"}
    check(outcome(program(), guarded.grpc, name, env=signed), where, name, name)
    assert "user inner" not in guarded.log.read_text(), "the broker signs its own requests, and may do all"
    # the client says of a refusal only that it got no route, the broker why
    for environment, prefix, why in (
        (signed, "another", f"user {name}, .* has no permission to access Topic:another"),
        (dict(os.environ), name, "no user, .*: authentication header is incorrect"),
        (signed | {"ROCKETMQ_SECRET_KEY": "wrong"}, name, f"user {name}, .*: check signature failed"),
    ):
        may_not(program(), guarded.grpc, prefix, environment)
        assert re.search(f"access refused: .*{why}", guarded.log.read_text())


def may_not(command: list[str | Path], endpoint: str, prefix: str, env: dict[str, str]) -> None:
    """Runs a program that may not even begin."""
    done = subprocess.run(
        [*command, endpoint, prefix], env=env, capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    assert done.returncode != 0 and not done.stdout.startswith("{")


@pytest.mark.java
@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
@pytest.mark.parametrize("program", ALL)
def test_the_same_against_rocketmqs_own_proxy(rocketmq: JavaProxy, program: Program):
    """What the programs expect of mqlake is what they get from RocketMQ."""
    where = ClientConfig(namesrv_addr=rocketmq.namesrv)
    through_rocketmqs(rocketmq.grpc, where, name_of(program), program)


def through_rocketmqs(address: str, where: ClientConfig, prefix: str, program: Program) -> None:
    """Its proxy."""
    client = name_of(program)
    prepare(where, prefix, client)
    only = ["N"] if program is node_client else []  # with several topics its producer hangs for five minutes
    seen = outcome(program(), address, prefix, *only)
    assert seen["transactions"] in (["commit"], ["commit", "orphan"])
    seen["transactions"] = ["commit", "orphan"]  # RocketMQ's did not ask about the orphan within 90 s
    check(seen, where, prefix, client)


@pytest.mark.java
@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
@pytest.mark.parametrize("program", ALL)
def test_mqlakes_proxy_in_front_of_rocketmqs_broker(rocketmq: JavaProxy, program: Program, tmp_path: Path):
    prefix = f"through{program.__name__.partition('_')[0]}"
    where = ClientConfig(namesrv_addr=rocketmq.namesrv)
    with mqlake_proxy(rocketmq.namesrv, tmp_path / "proxy.log") as address:
        through(address, where, prefix, program)


@pytest.fixture(scope="module")
def rocketmqs_proxy(broker: MqlakeBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProxy]:
    with ClusterProxy(tmp_path_factory.mktemp("proxy"), broker.namesrv) as started:
        yield started


@pytest.mark.java
@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
@pytest.mark.parametrize("program", ALL)
def test_rocketmqs_proxy_in_front_of_mqlakes_broker(
    rocketmqs_proxy: ClusterProxy, broker: MqlakeBroker, program: Program
):
    prefix = f"behind{program.__name__.partition('_')[0]}"
    through_rocketmqs(rocketmqs_proxy.grpc, ClientConfig(namesrv_addr=broker.namesrv), prefix, program)


def through(address: str, where: ClientConfig, prefix: str, program: Program) -> None:
    client = name_of(program)
    prepare(where, prefix, client)
    check(outcome(program(), address, prefix), where, prefix, client)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Two brokers, with one endpoint in front of them, and a proxy as another."""
    directory = tmp_path_factory.mktemp("pair")
    command = [sys.executable, "-m", "mqlake", "serve", "--json", "--brokers=2", "--store", str(directory)]
    command += ["--port=0", "--namesrv-port=0", "--grpc-port=0", "--host=127.0.0.1"]
    command += [f"--set={key}={value}" for key, value in {**FOR_TESTS, **SETTINGS}.items()]
    serve = Server(command, r"(\{.*\"brokers\".*\})", directory / "serve.log", {})
    try:
        found = json.loads(serve.match[1])
        with mqlake_proxy(found["namesrv"], directory / "proxy.log") as address:
            yield {"namesrv": found["namesrv"], "serve": found["grpc"], "proxy": address}
    finally:
        serve.end(signal.SIGTERM)


@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
@pytest.mark.parametrize("endpoint", ["serve", "proxy"])
@pytest.mark.parametrize("program", ALL)
def test_an_official_client_with_two_brokers(pair: dict[str, str], program: Program, endpoint: str):
    prefix = f"{endpoint}{program.__name__.partition('_')[0]}"
    through(pair[endpoint], ClientConfig(namesrv_addr=pair["namesrv"]), prefix, program)
