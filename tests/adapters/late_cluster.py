"""LateCluster: a name server and a broker in processes of their own, each started when a test says so."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Self

from tests.interop.brokers import FOR_TESTS, MQLAKE, Server, write_config
from tests.ports import free_ports


class LateCluster:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._broker_port = free_ports(4) + 2
        self.namesrv = f"127.0.0.1:{self._broker_port + 1}"
        self._running: dict[str, Server] = {}

    def start_name_server(self) -> None:
        port = self.namesrv.rpartition(":")[2]
        command = ["namesrv", "--host", "127.0.0.1", "-p", port, f"--kv-path={self._directory / 'kv.json'}"]
        self._start("namesrv", command)

    def start_broker(self) -> None:
        config = self._directory / "broker.conf"
        store = {"storePathRootDir": self._directory / "store", "listenPort": self._broker_port}
        write_config(config, {**FOR_TESTS, **store, "namesrvAddr": self.namesrv, "timerWheelEnable": "true"})
        self._start("broker", ["broker", "--host", "127.0.0.1", "-c", str(config)])

    def _start(self, name: str, command: list[str]) -> None:
        log = self._directory / f"{name}.log"
        self._running[name] = Server([*MQLAKE, *command, "--json"], r"\{", log, {})

    def kill(self) -> None:
        """Both."""
        while self._running:
            self._running.popitem()[1].end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
