"""RocketMQ's own gRPC endpoint: its proxy with a broker in the same process and its name server, or by itself."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.interop.brokers import Broker, Server, write_config
from tests.interop.grpc_scenarios import PROGRAMS
from tests.interop.java_peer import TEST_JVM, JavaPeerError
from tests.ports import free_ports

PROJECT = PROGRAMS / "java-proxy"
OPENED = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)


def class_path() -> str:
    """Fetched once. Raises JavaPeerError."""
    jars = PROJECT / "target" / "lib"
    if not (jars / "rocketmq-proxy-5.3.3.jar").exists():
        command = ["mvn", "-q", "-B", "package"]
        done = subprocess.run(command, cwd=PROJECT, text=True, capture_output=True, check=False)
        if done.returncode:
            raise JavaPeerError(f"RocketMQ's proxy cannot be fetched:\n{done.stdout[-3000:]}")
    return f"{jars}/*"


def _java(directory: Path, jvm: Sequence[str], main: str, ready: str, *arguments: str) -> Server:
    home = directory / main.rpartition(".")[2]
    home.mkdir(exist_ok=True)
    command = ["java", *jvm, *OPENED, f"-Duser.home={home}", "-cp", class_path(), main, *arguments]
    environment = {"ROCKETMQ_HOME": str(home), "RMQ_PROXY_HOME": str(home)}
    return Server(command, ready, home / "stdout.log", environment)


def _proxy(
    directory: Path, jvm: Sequence[str], mode: str, namesrv: str, grpc: int, *arguments: str
) -> Server:
    config = {
        "rocketMQClusterName": "DefaultCluster",
        "proxyMode": mode.upper(),
        "grpcServerPort": grpc,
        "remotingListenPort": free_ports(1),
        "namesrvAddr": namesrv,
        "localServeAddr": "127.0.0.1",
    }
    path = directory / "rmq-proxy.json"
    path.write_text(json.dumps(config))
    main, ready = "org.apache.rocketmq.proxy.ProxyStartup", "rocketmq-proxy startup successfully"
    return _java(directory, jvm, main, ready, "-pm", mode, "-pc", str(path), "-n", namesrv, *arguments)


class ClusterProxy:
    """RocketMQ's proxy in front of the brokers that a name server knows; `grpc` is its endpoint."""

    def __init__(self, directory: Path, namesrv: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        port = free_ports(1)
        self.grpc = f"127.0.0.1:{port}"
        self._server = _proxy(directory, _jvm(TEST_JVM), "cluster", namesrv, port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.end(signal.SIGKILL)


def _jvm(options: Sequence[str]) -> list[str]:
    return [option for option in options if "maxDirectMemory=0" not in option]


class JavaProxy(Broker):
    def __init__(
        self, directory: Path, config: Mapping[str, Any] | None = None, *, jvm: Sequence[str] = TEST_JVM
    ) -> None:
        self._directory, self._jvm = directory, _jvm(jvm)
        directory.mkdir(parents=True, exist_ok=True)
        self._ports = free_ports(4)
        self._grpc_port, listen, namesrv = free_ports(1), self._ports + 2, free_ports(1)
        grpc = self._grpc_port
        self.grpc, self.address, self.namesrv = (f"127.0.0.1:{port}" for port in (grpc, listen, namesrv))
        store = directory / "store"
        settings = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "java-broker",
            "brokerIP1": "127.0.0.1",
            "listenPort": listen,
            "haListenPort": free_ports(1),
            "namesrvAddr": self.namesrv,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "mappedFileSizeCommitLog": 64 << 20,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            "mappedFileSizeTimerLog": 1 << 20,
            "diskMaxUsedSpaceRatio": 95,
            "recallMessageEnable": "true",
            "registerNameServerPeriod": 10_000,
            **(config or {}),
        }
        write_config(directory / "broker.conf", settings)
        write_config(
            directory / "namesrv.conf", {"listenPort": namesrv, "kvConfigPath": directory / "kvConfig.json"}
        )
        self._servers: list[Server] = []

    @property
    def pid(self) -> int:
        return self._servers[-1].process.pid

    def start(self) -> None:
        place = self._directory
        namesrv = "org.apache.rocketmq.namesrv.NamesrvStartup"
        arguments = ("-c", str(place / "namesrv.conf"))
        self._servers.append(_java(place, self._jvm, namesrv, "boot success", *arguments))
        broker = ("-bc", str(place / "broker.conf"))
        self._servers.append(_proxy(place, self._jvm, "local", self.namesrv, self._grpc_port, *broker))

    def end(self, number: int) -> None:
        self._servers[-1].end(number)

    def close(self) -> None:
        for server in self._servers[::-1]:
            server.end(signal.SIGKILL)
