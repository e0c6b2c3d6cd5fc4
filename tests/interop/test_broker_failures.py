"""What goes away while RocketMQ's clients are at work: a consumer, a broker, a name server; and how brokers are run
in production: two of them with RocketMQ's own files, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner

from mqlake.broker.config import read_settings
from mqlake.broker.controller import BrokerController
from mqlake.broker.state.rebalance_lock import RebalanceLockManager
from mqlake.cli.main import cli
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.remoting.loop import run
from tests.interop.brokers import FOR_TESTS, MQLAKE, Server
from tests.interop.java_client import JavaClients, message
from tests.interop.java_wire import Json
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.java


@dataclass
class Where:
    """What clients need to know."""

    namesrv: str


@contextlib.contextmanager
def mqlake(log: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[tuple[Server, Json]]:
    """An `mqlake` server, and the line of JSON that says where it is."""
    server = Server([*MQLAKE, *arguments, "--json"], r"\{.*\}\n", log, env or {})
    try:
        yield server, json.loads(server.match[0])
    finally:
        server.end(signal.SIGTERM)


def printed(*arguments: str) -> str:
    """What an `mqlake` command prints."""
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, (arguments, result.output)
    return result.stdout


def answers(*arguments: str) -> Any:
    return json.loads(printed(*arguments, "--json"))


def bodies(messages: Sequence[Json]) -> set[bytes]:
    return {each["body"] for each in messages}


# --- a consumer

LOCKED_S = 3.0


@contextlib.contextmanager
def broker_with_short_locks(directory: Path) -> Iterator[Where]:
    """In a thread of this process: RocketMQ's own broker takes the time that a lock lives (60 s) of a JVM property."""
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, Where]] = []
    ready = threading.Event()

    async def main() -> None:
        stop = asyncio.Event()
        namesrv = NamesrvController(
            NamesrvConfig(
                listen_port=0, bind_address="127.0.0.1", kv_config_path=str(directory / "kvConfig.json")
            )
        )
        await namesrv.start()
        where = Where(f"127.0.0.1:{namesrv.port}")
        settings = {
            **{key: str(value) for key, value in FOR_TESTS.items()},
            "listenPort": "0",
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": where.namesrv,
            "storePathRootDir": str(directory / "store"),
        }
        config, store_config, _ = read_settings(settings)
        controller = BrokerController(config, store_config)
        controller.broker.rebalance_lock_manager = RebalanceLockManager(
            lock_max_live_time_ms=int(LOCKED_S * 1000)
        )
        await controller.start()
        running.append((asyncio.get_running_loop(), stop, where))
        ready.set()
        await stop.wait()
        await controller.stop()
        await namesrv.stop()

    thread = threading.Thread(target=lambda: run(main()))
    thread.start()
    assert ready.wait(PATIENCE_S)
    loop, stop, where = running[0]
    try:
        yield where
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def test_an_orderly_consumer_that_vanishes(java_clients: JavaClients, tmp_path: Path):
    """It holds its queues in the middle of a message. Its lock runs out, and the other one goes on where it was."""
    queues, count = 4, 40
    with broker_with_short_locks(tmp_path) as broker:
        java_clients.topic(broker, "Orders", queues)
        with (
            JavaClients(tmp_path / "victim") as victims,
            java_clients.push(broker, "GID_orders", "Orders", orderly=True) as survivor,
            java_clients.producer(broker) as producer,
        ):
            began = time.time()
            victim = victims.push(broker, "GID_orders", "Orders", orderly=True, failures=10_000)
            until(lambda: len(survivor.queues("Orders")) == len(victim.queues("Orders")) == queues // 2)
            of_victim = victim.queues("Orders")
            producer.send("Orders", "ordered", [message(b"%d" % n, shard=n % queues) for n in range(count)])
            # each of its queues stands at the first message, which fails again and again
            until(lambda: {each["queueId"] for each in victim.take(0)} == of_victim)
            os.kill(victims.pid, signal.SIGKILL)
            found = survivor.take(count)
    assert bodies(found) == {b"%d" % n for n in range(count)} and len(found) == count
    for queue_id in range(queues):
        mine = [each for each in found if each["queueId"] == queue_id]
        assert [int(each["body"]) for each in mine] == list(range(queue_id, count, queues))
        if queue_id in of_victim:
            assert mine[0]["receivedAt"] / 1000 >= began + LOCKED_S


# --- a broker


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_brokers_that_share_nothing_lose_one(java_clients: JavaClients, tmp_path: Path):
    """The one send that is under way when its broker is killed may fail: where the connection ends without an error,
    RocketMQ's client waits for the answer until its time is over, and has none left for the other broker."""
    settings = [f"--set={key}={value}" for key, value in FOR_TESTS.items()]
    arguments = ["--port=0", "--namesrv-port=0", f"--store={tmp_path / 'data'}", "--brokers=2", *settings]
    with mqlake(tmp_path / "serve.log", "serve", *arguments) as (server, said):
        broker = Where(said["namesrv"])
        java_clients.topic(broker, "Spread", 2)
        with (
            java_clients.producer(broker, retries=2, timeoutMillis=20_000) as producer,
            java_clients.push(broker, "GID_spread", "Spread") as consumer,
        ):
            sent: list[bytes] = []
            acknowledged: set[bytes] = set()

            def send(count: int) -> set[str]:
                """The brokers that took them."""
                data = [b"%d" % n for n in range(len(sent), len(sent) + count)]
                sent.extend(data)
                results = producer.send("Spread", "sync", [message(each) for each in data])
                taken = [each.get("status") == "SEND_OK" for each in results]
                acknowledged.update(itertools.compress(data, taken))
                return {each["brokerName"] for each in itertools.compress(results, taken)}

            assert send(20) == {"broker-0", "broker-1"} and len(acknowledged) == 20
            assert {each["brokerName"] for each in consumer.take(20)} == {"broker-0", "broker-1"}
            os.kill(children_of(server.process.pid)[0], signal.SIGKILL)
            assert "broker-1" in send(20)
            until(lambda: "broker-0" in send(4))
            assert len(acknowledged) >= len(sent) - 1
            until(lambda: acknowledged <= bodies(consumer.take(0)))
            assert bodies(consumer.take(0)) <= set(sent)


# conf/2m-noslave/broker-a.properties and broker-b.properties of the distribution, and conf/broker.conf
TWO_MASTERS = """\
brokerClusterName=DefaultCluster
brokerName=broker-{}
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
"""
ONE_MASTER = TWO_MASTERS.format("a").replace("=", " = ")


def test_rocketmqs_own_files(java_clients: JavaClients, tmp_path: Path):
    """As they are in its distribution, each on a machine of its own but for the port."""
    with mqlake(tmp_path / "namesrv.log", "namesrv", "-p0", f"--kv-path={tmp_path / 'kv.json'}") as (_, said):
        cluster = Where(said["namesrv"])
        with contextlib.ExitStack() as running:
            for name, text in (("a", ONE_MASTER), ("b", TWO_MASTERS.format("b"))):
                home = tmp_path / name
                home.mkdir()
                (home / "broker.conf").write_text(text)
                arguments = ["broker", f"-c{home / 'broker.conf'}", f"-n{cluster.namesrv}"]
                arguments += ["--set=listenPort=0", "--set=brokerIP1=127.0.0.1"]
                _, place = running.enter_context(
                    mqlake(home / "broker.log", *arguments, env={"HOME": str(home)})
                )
                assert place["broker"] == f"broker-{name}" and (home / "store" / "commitlog").is_dir()
            until(lambda: len(answers("admin", "cluster", "list", "-n", cluster.namesrv)) == 2)
            java_clients.topic(cluster, "Two", 2)
            with (
                java_clients.producer(cluster) as producer,
                java_clients.push(cluster, "GID_two", "Two") as consumer,
            ):
                results = producer.send("Two", "sync", [message(b"%d" % n) for n in range(8)])
                assert {each["brokerName"] for each in results} == {"broker-a", "broker-b"}
                assert bodies(consumer.take(8)) == {b"%d" % n for n in range(8)}
        for name in "ab":
            assert not (tmp_path / name / "store" / "abort").exists()


# --- a name server


def test_name_servers_come_and_go(java_clients: JavaClients, tmp_path: Path):
    """Two of them; at each moment only one is there, or none. Clients that have a route need none."""
    first, second = free_port(), free_port()
    both = Where(f"127.0.0.1:{first};127.0.0.1:{second}")

    def namesrv(port: int) -> contextlib.AbstractContextManager[tuple[Server, Json]]:
        return mqlake(
            tmp_path / f"{port}.log", "namesrv", f"-p{port}", f"--kv-path={tmp_path / f'kv{port}.json'}"
        )

    def topics(port: int) -> list[str]:
        found: list[str] = answers("admin", "topic", "list", f"-n127.0.0.1:{port}")
        return found

    settings = [f"--set={key}={value}" for key, value in FOR_TESTS.items()]
    settings += [
        f"--set=storePathRootDir={tmp_path / 'store'}",
        "--set=listenPort=0",
        "--set=brokerIP1=127.0.0.1",
    ]
    # none is there at the start
    with mqlake(tmp_path / "broker.log", "broker", f"-n{both.namesrv}", *settings):
        with namesrv(second):
            until(lambda: answers("admin", "cluster", "list", f"-n127.0.0.1:{second}"))
            # our tools do not mind the one that is away, but what changes name servers has to reach all of them
            answers("admin", "topic", "create", "Named", "-q2", f"-n127.0.0.1:{second}")
            assert answers("produce", "Named", "-m", "one", "-n", both.namesrv)["sent"] == 1
            # -e ends at what the queues have: the message is there once it is dispatched
            until(lambda: printed("consume", "Named", "-n", both.namesrv, "-e", "-f", "%s\n") == "one\n")
            with namesrv(first):
                until(lambda: "Named" in topics(first))
                producing = java_clients.producer(both)
                consuming = java_clients.push(both, "GID_ns", "Named")
                producing.send("Named", "sync", [message(b"two")])
                consuming.take(2)
        # both have gone
        with producing as producer, consuming as consumer:
            (result,) = producer.send("Named", "sync", [message(b"three")])
            assert result.get("status") == "SEND_OK", result
            assert bodies(consumer.take(3)) == {b"one", b"two", b"three"}
        with namesrv(first):
            until(lambda: "Named" in topics(first))
            assert answers("produce", "Named", "-m", "four", "-n", both.namesrv)["sent"] == 1


# --- TLS


def test_tls_and_nothing_else(java_clients: JavaClients, tmp_path: Path):
    """Java's clients with tls.enable, our tools with --tls; who speaks plainly is closed and told so."""
    certificate = tmp_path / "server.pem"
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    settings = {
        **FOR_TESTS,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": certificate,
        "tls.server.keyPath": certificate,
    }
    arguments = ["--port=0", "--namesrv-port=0", f"--store={tmp_path / 'data'}"]
    arguments += [f"--set={key}={value}" for key, value in settings.items()]
    with mqlake(tmp_path / "serve.log", "serve", *arguments) as (_, said):
        broker = Where(said["namesrv"])
        at = ["-n", broker.namesrv, "--tls"]
        answers("admin", "topic", "create", "Secret", "-q2", *at)
        with (
            java_clients.producer(broker, tls=True) as producer,
            java_clients.push(broker, "GID_secret", "Secret", tls=True) as consumer,
        ):
            (result,) = producer.send("Secret", "sync", [message(b"from java")])
            assert result.get("status") == "SEND_OK", result
            assert answers("produce", "Secret", "-m", "from mqlake", *at)["sent"] == 1
            assert bodies(consumer.take(2)) == {b"from java", b"from mqlake"}
        lines = printed("consume", "Secret", "-e", "-f", "%s\n", *at).splitlines()
        assert sorted(lines) == ["from java", "from mqlake"]
        checked = ["produce", "Secret", "-m", "checked", "-n", broker.namesrv, "--tls-ca"]
        assert answers(*checked, str(tmp_path / "ca.pem"))["sent"] == 1
        for other, why in (("other.pem", "certificate verify failed"), ("none.pem", "No such file")):
            refused = CliRunner().invoke(cli, [*checked, str(tmp_path / other)])
            assert refused.exit_code and why in refused.stderr and "Traceback" not in refused.output
        plain = CliRunner().invoke(cli, ["admin", "cluster", "list", "-n", broker.namesrv])
        assert plain.exit_code == 1 and "Traceback" not in plain.output
        until(lambda: "not TLS, which is required" in (tmp_path / "serve.log").read_text())
