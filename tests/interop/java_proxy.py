"""RocketMQ's own gRPC endpoint: its proxy with a broker in the same process, and its name server."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


class JavaProxy(Broker):
    def __init__(
        self, directory: Path, config: Mapping[str, Any] | None = None, *, jvm: Sequence[str] = TEST_JVM
    ) -> None:
        self._directory, self._jvm = (
            directory,
            [option for option in jvm if "maxDirectMemory=0" not in option],
        )
        directory.mkdir(parents=True, exist_ok=True)
        self._ports = free_ports(4)
        grpc, remoting, listen, namesrv = (free_ports(1), free_ports(1), self._ports + 2, free_ports(1))
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
        proxy = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "LOCAL",
            "grpcServerPort": grpc,
            "remotingListenPort": remoting,
            "namesrvAddr": self.namesrv,
            "localServeAddr": "127.0.0.1",
        }
        (directory / "rmq-proxy.json").write_text(json.dumps(proxy))
        self._servers: list[Server] = []

    def _java(self, main: str, ready: str, *arguments: str) -> Server:
        home = self._directory / main.rpartition(".")[2]
        home.mkdir(exist_ok=True)
        command = ["java", *self._jvm, *OPENED, f"-Duser.home={home}", "-cp", class_path(), main, *arguments]
        environment = {"ROCKETMQ_HOME": str(home), "RMQ_PROXY_HOME": str(home)}
        return Server(command, ready, home / "stdout.log", environment)

    @property
    def pid(self) -> int:
        return self._servers[-1].process.pid

    def start(self) -> None:
        place = self._directory
        namesrv = "org.apache.rocketmq.namesrv.NamesrvStartup"
        self._servers.append(self._java(namesrv, "boot success", "-c", str(place / "namesrv.conf")))
        arguments = ["-pm", "local", "-pc", str(place / "rmq-proxy.json"), "-bc", str(place / "broker.conf")]
        main = "org.apache.rocketmq.proxy.ProxyStartup"
        self._servers.append(
            self._java(main, "rocketmq-proxy startup successfully", *arguments, "-n", self.namesrv)
        )

    def end(self, number: int) -> None:
        self._servers[-1].end(number)

    def close(self) -> None:
        for server in self._servers[::-1]:
            server.end(signal.SIGKILL)
