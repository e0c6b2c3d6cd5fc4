"""A broker with its name server, as processes: mqlake's, or RocketMQ's own (5.3.3).

    with MqlakeBroker(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as broker:
        broker.namesrv                  where its clients go
        broker.kill(); broker.start()   on the same ports, with what the first one left

MQLAKE_TEST_BROKER=java makes `any_broker` one of RocketMQ's: what a test expects can then be seen to hold there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from mqlake.errors import ResponseError
from mqlake.remoting.bodies.route import ClusterInfo
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.loop import run
from tests.interop.java_peer import ROCKETMQ_VERSION, TEST_JVM, class_options
from tests.ports import free_ports
from tests.waiting import PATIENCE_S

START_S = 2 * PATIENCE_S
UNHURRIED = {
    # a machine with much to do is no reason to refuse
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": 60_000,
}
SMALL_STORE = {
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 20 * 30_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}
"""Files of a size for tests, and SQL92 allowed."""
FOR_TESTS = {**UNHURRIED, **SMALL_STORE}
_COUNTING = """
import sys

from mqlake.broker.controller import BrokerController
from mqlake.broker.requests.send_message import SendMessageProcessor


async def start(self, start=BrokerController.start, **more):
    for path in self.server.fast_paths[:2]:
        path.load()  # else after some hundred requests
    await start(self, **more)


def process(self, connection, request, header, process=SendMessageProcessor._process):
    print("slow send:", request.code, header.topic, request.ext_fields, file=sys.stderr, flush=True)
    return process(self, connection, request, header)


BrokerController.start, SendMessageProcessor._process = start, process
"""
_UNHURRIED = (
    "from mqlake.broker.services import registration as r; "
    f"r.REGISTER_START_WAIT_S = r.REGISTER_WAIT_S = {PATIENCE_S}; "
    "from mqlake.cli.main import main; main()"
)
MQLAKE = [sys.executable, "-c", _UNHURRIED]
_MQLAKE_COUNTING = [sys.executable, "-c", _COUNTING + _UNHURRIED]
"""The command line, with brokers that wait for their name server as long as a slow machine takes: whoever creates a
topic finds it there."""


class Server:
    """A process that says on its stdout when it is ready."""

    def __init__(self, command: Sequence[str], ready: str, log: Path, env: Mapping[str, str]) -> None:
        """`ready`: a pattern; `match` is what it found. The whole output goes to `log`."""
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, **env}, text=True
            )
        assert self.process.stdout is not None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()
        self.match = self._wait_for(re.compile(ready))

    def _read(self, stdout: IO[str]) -> None:
        with self.log.open("a") as log, stdout:
            for line in stdout:
                log.write(line)
                log.flush()
                self._lines.put(line)
        self._lines.put(None)

    def _wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        said = ""
        with contextlib.suppress(queue.Empty):
            while (line := self._lines.get(timeout=START_S)) is not None:
                said += line
                if found := pattern.search(said):
                    return found
        self.end(signal.SIGKILL)
        raise RuntimeError(f"{self.process.args!r} did not start:\n{self.log.read_text()[-4000:]}")

    def end(self, number: int) -> int:
        """Sends the signal; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


class Broker:
    """What the tests see of either."""

    namesrv: str
    """Address of its name server."""
    address: str

    @property
    def pid(self) -> int:
        """The process that serves messages."""
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def end(self, number: int) -> None:
        """The broker gets the signal, and is waited for."""
        raise NotImplementedError

    def resident(self) -> int:
        """Bytes of memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def cpu_seconds(self) -> float:
        """Of all its threads, the kernel's part included."""
        # clock_getcpuclockid(3), which Python does not have: ~pid and, in the last bits, the scheduler's clock
        return time.clock_gettime(~self.pid << 3 | 2)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        self.end(signal.SIGTERM)

    def close(self) -> None:
        self.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()  # of two processes one may run
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in config.items()))


class OneProcess(Broker):
    """A broker that is `_server`, which start() sets."""

    _server: Server | None = None

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.process.pid

    def end(self, number: int) -> None:
        assert self._server is not None
        self._server.end(number)

    def close(self) -> None:
        if self._server is not None:
            self.kill()


class MqlakeBroker(OneProcess):
    """`mqlake serve`: name server and broker in one process."""

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any] | None = None,
        *,
        small: bool = True,
        grpc: bool = False,
        counts: bool = False,
    ) -> None:
        """`small`: files of a size for tests, else of the default sizes. `grpc`: serve gRPC clients, at `grpc`.
        `counts`: its fast paths are ready from the start, and it tells of each send that takes none."""
        self._command = _MQLAKE_COUNTING if counts else MQLAKE
        self.grpc = f"127.0.0.1:{free_ports(1)}" if grpc else ""
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "serve.log"
        self.config = {**(FOR_TESTS if small else {}), **(config or {})}
        self._port = free_ports(4) + 2
        self.address, self.namesrv = f"127.0.0.1:{self._port}", f"127.0.0.1:{self._port + 1}"

    def start(self) -> None:
        command = [*self._command, "serve", "--json"]
        command += ["--store", str(self._directory / "store")]
        command += ["--port", str(self._port), "--namesrv-port", str(self._port + 1)]
        command += ["--grpc-port", self.grpc.rpartition(":")[2] or "-1"]
        command += [f"--set={key}={value}" for key, value in self.config.items()]
        self._server = Server(command, r'"brokers"', self.log, {})

    def slow_sends(self, topic: str) -> list[str]:
        """To the topic, of a broker that counts."""
        begins = f"slow send: [0-9]+ {re.escape(topic)} "
        return [line for line in self.log.read_text().splitlines() if re.match(begins, line)]


class JavaBroker(Broker):
    """RocketMQ's broker and name server, by their own main classes, a JVM each."""

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any] | None = None,
        *,
        small: bool = True,
        jvm: Sequence[str] = TEST_JVM,
        version: str = ROCKETMQ_VERSION,
    ) -> None:
        """`small`: files of a size for tests, else of the default sizes. `version`: of RocketMQ."""
        self.directory, self._jvm, self._version = directory, jvm, version
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_ports(4) + 2
        self.namesrv = f"127.0.0.1:{self.port + 1}"
        self.address = f"127.0.0.1:{self.port}"
        store = directory / "store"
        write_config(
            directory / "broker.conf",
            {
                "brokerIP1": "127.0.0.1",
                "brokerName": "java-broker",
                "namesrvAddr": self.namesrv,
                "listenPort": self.port,
                "haListenPort": free_ports(1),
                "storePathRootDir": store,
                "storePathCommitLog": store / "commitlog",
                "timerWheelEnable": "false",
                "registerNameServerPeriod": 10_000,
                # its thread asks the time without a pause until the first such interval is over, by default 3 s
                "transactionMetricFlushInterval": 300,
                **(FOR_TESTS if small else {}),
                **(config or {}),
            },
        )
        write_config(
            directory / "namesrv.conf",
            {"listenPort": self.port + 1, "kvConfigPath": directory / "kvConfig.json"},
        )
        self._namesrv: Server | None = None
        self._broker: Server | None = None

    def _java(self, main: str, config: str, jvm: Sequence[str]) -> Server:
        home = self.directory / main.rpartition(".")[2]
        home.mkdir(exist_ok=True)
        command = [
            "java",
            *jvm,
            f"-Duser.home={home}",
            f"-Djava.io.tmpdir={home}",
            f"-Dmqlake.peer.log={home / 'java.log'}",
            *class_options(self._version),
            main,
            "-c",
            str(self.directory / config),
        ]
        return Server(command, "boot success", home / "stdout.log", {"ROCKETMQ_HOME": str(home)})

    @property
    def pid(self) -> int:
        assert self._broker is not None
        return self._broker.process.pid

    def start(self) -> None:
        if self._namesrv is None:
            self._namesrv = self._java("org.apache.rocketmq.namesrv.NamesrvStartup", "namesrv.conf", TEST_JVM)
        self._broker = self._java("org.apache.rocketmq.broker.BrokerStartup", "broker.conf", self._jvm)
        run(self._registered())

    async def _registered(self) -> None:
        """Until its name server knows it.

        The broker registers as it starts, with those name servers that it has found to be there, which it looks for
        meanwhile: mostly with none, and the next time is 10 s later. A change of its permission registers at once; one
        with access control refuses that, and is waited for.
        """
        async with RemotingClient() as client, asyncio.timeout(START_S):
            while not await self._is_known(client):
                change = RemotingCommand.create_request(
                    RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=6"
                )
                with contextlib.suppress(ResponseError):
                    await client.call(self.address, change, START_S)
                await asyncio.sleep(0.05)

    async def _is_known(self, client: RemotingClient) -> bool:
        request = RemotingCommand.create_request(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await client.call(self.namesrv, request, START_S)
        known = ClusterInfo.from_json(answer.body_bytes()).broker_addr_table
        return any(self.address in data.broker_addrs.values() for data in known.values())

    def end(self, number: int) -> None:
        assert self._broker is not None
        self._broker.end(number)

    def close(self) -> None:
        for server in (self._broker, self._namesrv):
            if server is not None:
                server.end(signal.SIGKILL)


def any_broker(directory: Path, config: Mapping[str, Any] | None = None) -> Broker:
    """mqlake's, or the one that MQLAKE_TEST_BROKER names."""
    kind = {"java": JavaBroker, "mqlake": MqlakeBroker}[os.environ.get("MQLAKE_TEST_BROKER", "mqlake")]
    return kind(directory, config)
