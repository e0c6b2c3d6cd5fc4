"""Slaves as processes: mqlake's, and RocketMQ's own, of a master that tests/interop/brokers.py starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mqlake.remoting.bodies.admin import HARuntimeInfo
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.loop import run
from tests.interop.brokers import FOR_TESTS, JavaBroker, OneProcess, Server
from tests.interop.java_peer import ROCKETMQ_VERSION
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until

FILE_SIZE = 1 << 20
QUICK = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "haSendHeartbeatInterval": 500,
    "haHousekeepingInterval": 5000,
    "slaveReadEnable": "true",
}
"""Of master and slave: small files, so that they roll, and heartbeats that a test can wait for."""
AS_SLAVE = {**QUICK, "brokerRole": "SLAVE", "brokerId": 1}


class MqlakeSlave(OneProcess):
    """`mqlake broker` as the slave of `name`, which the name server knows."""

    def __init__(self, directory: Path, namesrv: str, name: str, config: Mapping[str, Any] | None = None):
        directory.mkdir(parents=True, exist_ok=True)
        self.namesrv, self.store = namesrv, directory / "store"
        self._port = free_ports(4) + 2
        self.address = f"127.0.0.1:{self._port}"
        self._log = directory / "slave.log"
        self._config = {
            **FOR_TESTS,
            **AS_SLAVE,
            "brokerName": name,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": self._port,
            "haListenPort": self._port + 1,
            "storePathRootDir": self.store,
            **(config or {}),
        }

    def start(self) -> None:
        command = [sys.executable, "-m", "mqlake", "broker", "--json", "--host", "127.0.0.1"]
        command += ["-n", self.namesrv, *(f"--set={key}={value}" for key, value in self._config.items())]
        self._server = Server(command, r'"broker"', self._log, {})


class JavaSlave(JavaBroker):
    """RocketMQ's broker as the slave of `name`; it registers with `namesrv` and starts none of its own."""

    def __init__(
        self,
        directory: Path,
        namesrv: str,
        name: str,
        config: Mapping[str, Any] | None = None,
        version: str = ROCKETMQ_VERSION,
    ) -> None:
        config = {**AS_SLAVE, "brokerName": name, "namesrvAddr": namesrv, **(config or {})}
        super().__init__(directory, config, version=version)
        self.namesrv, self.store = namesrv, directory / "store"

    def start(self) -> None:
        self._broker = self._java("org.apache.rocketmq.broker.BrokerStartup", "broker.conf", self._jvm)
        run(self._registered())


def ha_status(address: str) -> HARuntimeInfo:
    """907, as mqadmin asks it."""

    async def ask() -> bytes:
        async with RemotingClient() as client:
            request = RemotingCommand.create_request(RequestCode.GET_BROKER_HA_STATUS)
            return (await client.call(address, request, PATIENCE_S)).body_bytes()

    return HARuntimeInfo.from_json(run(ask()))


def caught_up(master: str) -> HARuntimeInfo:
    """Waits until the master has a slave that lacks nothing."""

    def status() -> HARuntimeInfo | None:
        found = ha_status(master)
        slaves = found.ha_connection_info
        return found if slaves and all(slave.diff == 0 for slave in slaves) else None

    found = until(status, "the slave has all of its master's log")
    assert found is not None
    return found


def log_bytes(store: Path) -> bytes:
    """The whole log, without what was allocated and not written."""
    files = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")
