"""Three etcd members on the loopback, for as long as a `with` lasts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from mqlake.broker.failover.etcd import Etcd
from mqlake.errors import MqlakeError
from tests.parts import needed
from tests.ports import free_ports
from tests.waiting import until


class EtcdCluster:
    def __init__(self, directory: Path, members: int = 3) -> None:
        self.directory = directory
        self.ports = [free_ports(2) for _ in range(members)]
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def client(self, timeout_s: float = 5.0) -> Etcd:
        return Etcd([("127.0.0.1", port) for port in self.ports], timeout_s)

    def __enter__(self) -> EtcdCluster:
        command = needed("etcd")
        peers = ",".join(f"m{number}=http://127.0.0.1:{port + 1}" for number, port in enumerate(self.ports))
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            for number, port in enumerate(self.ports):
                at, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
                options = [f"--name=m{number}", f"--data-dir={self.directory / f'm{number}'}"]
                options += [f"--listen-client-urls={at}", f"--advertise-client-urls={at}"]
                options += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
                options += [f"--initial-cluster={peers}"]
                options += ["--heartbeat-interval=100", "--election-timeout=1000"]
                with (self.directory / f"m{number}.log").open("wb") as log:
                    self.processes.append(
                        subprocess.Popen(
                            [command, *options],
                            stdout=log,
                            stderr=log,
                            env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"},
                        )
                    )
            with contextlib.closing(self.client()) as client:
                until(lambda: _answers(client), "etcd answers")
        except BaseException:
            self.close()
            raise
        return self

    def send_signal(self, member: int, number: int) -> None:
        self.processes[member].send_signal(number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def _answers(client: Etcd) -> bool:
    try:
        client.read("/")
    except MqlakeError:
        return False
    return True
