"""ReadReplica: a slave for analytics, which no consumer is sent to.

    master ── log ──▶ BrokerController, brokerRole=SLAVE ──▶ DIR/commitlog, queues, index ──▶ Spark, in place
                        registers with no name server
                        listens on loopback, for `mqlake replica status` and operators
    DIR/replica.json    how far it is, once a second

The master is asked for what a slave has to know: its port for slaves (906), the size of its files (26), where its log
begins and ends (28).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from mqlake.base.clock import now_ms
from mqlake.base.java_properties import parse_properties
from mqlake.base.names import camel_case
from mqlake.base.net import format_address, parse_address
from mqlake.broker.config import read_settings
from mqlake.broker.controller import BrokerController
from mqlake.errors import (
    ConfigError,
    FormatError,
    MqlakeError,
    NotThereError,
    RemotingError,
    RemotingTimeoutError,
    ResponseError,
)
from mqlake.remoting.bodies.topic import KVTable
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.admin import ExchangeHAInfoResponseHeader
from mqlake.store.file_sizes import detect_settings
from mqlake.store.ha.ha_client import Trouble
from mqlake.store.ha.protocol import ReplicationError

STATUS_FILE = "replica.json"
ASK_TIMEOUT_S = 10.0
STATUS_S = 1.0
TROUBLE_S = 15.0
FINAL = frozenset(each.value for each in (Trouble.AHEAD, Trouble.DIVERGED, Trouble.REFUSED))
"""Troubles that do not pass by themselves."""
SLAVE_ID = "1"
IN_STEP_BYTES = 1 << 20
"""Bytes: a replica that lacks less has caught up."""


@dataclasses.dataclass(frozen=True, slots=True)
class MasterFacts:
    """The master's report of itself. `ha_address`: host:port of its port for slaves."""

    address: str
    ha_address: str
    cluster: str
    name: str
    file_size: int
    min_offset: int
    max_offset: int


async def ask_master(client: RemotingClient, address: str) -> MasterFacts:
    """Asks a master for its facts. MqlakeError if it does not answer, ConfigError if it is no RocketMQ master."""

    async def ask(code: RequestCode) -> RemotingCommand:
        return await client.call(address, RemotingCommand.create_request(code), ASK_TIMEOUT_S)

    try:
        settings = parse_properties((await ask(RequestCode.GET_BROKER_CONFIG)).body_bytes().decode())
        info = KVTable.from_json((await ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body_bytes()).table
        if settings.get("brokerRole") == "SLAVE" or settings.get("brokerId", "0") != "0":
            raise ConfigError(f"{address} is a slave itself; name its master")
        return MasterFacts(
            address,
            await _ha_address(ask, address, settings),
            settings["brokerClusterName"],
            settings["brokerName"],
            int(settings["mappedFileSizeCommitLog"]),
            int(info["commitLogMinOffset"]),
            int(info["commitLogMaxOffset"]),
        )
    except RemotingTimeoutError as error:
        raise RemotingError(f"{error}: is it the address of a RocketMQ broker?") from error
    except (FormatError, KeyError, ValueError, ResponseError) as error:
        raise ConfigError(f"{address} is no RocketMQ broker that can be followed: {error}") from error


async def _ha_address(ask: Callable[[RequestCode], Any], address: str, settings: Mapping[str, str]) -> str:
    """The port for slaves, on the host that the user named: that one is known to be reachable."""
    host, port = parse_address(address)
    ha_port = int(settings.get("haListenPort") or port + 1)
    try:
        answer = await ask(RequestCode.EXCHANGE_BROKER_HA_INFO)
        told = answer.decode_header(ExchangeHAInfoResponseHeader).master_ha_address
    except ResponseError:  # RocketMQ 4
        told = None
    return format_address((host, parse_address(told)[1] if told else ha_port))


@dataclasses.dataclass(slots=True)
class ReplicaStatus:
    """Bytes and physical offsets; times in ms. `lag_bytes` -1: unknown."""

    of: str
    ha_address: str
    master: str
    state: str = "starting"
    following: bool = False
    """The master's bytes are being appended, or would be if there were any."""
    trouble: str = ""
    text: str = ""
    min_offset: int = 0
    max_offset: int = 0
    dispatched_offset: int = 0
    master_max_offset: int = -1
    lag_bytes: int = -1
    bytes_per_second: int = 0
    address: str = ""
    pid: int = 0
    updated_at: int = 0

    @property
    def is_in_step(self) -> bool:
        return self.following and 0 <= self.lag_bytes < IN_STEP_BYTES and not self.trouble

    def to_json(self) -> dict[str, Any]:
        return {camel_case(field.name): getattr(self, field.name) for field in dataclasses.fields(self)} | {
            "inStep": self.is_in_step
        }


def read_status(directory: str) -> dict[str, Any]:
    """The last status of the replica in `directory`, and whether its process runs. NotThereError if there is none."""
    path = os.path.join(directory, STATUS_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        raise NotThereError(
            f"{directory}: no replica was made here; `mqlake replica --of` makes one"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; delete it, the replica writes it again") from None
    return {**found, "running": _runs(int(found.get("pid", 0)))}


def _known_master(directory: str) -> str:
    """Cluster and name of the master that the replica in `directory` has followed; empty: not known."""
    try:
        return str(read_status(directory).get("master", ""))
    except ConfigError:
        return ""


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError, OverflowError):
        return False
    return pid > 0


class ReadReplica:
    """One replica, from start() to stop(). `from_now`: an empty log begins with the master's newest file; `bandwidth`:
    bytes a second, 0 without limit."""

    def __init__(
        self,
        master: MasterFacts,
        directory: str,
        settings: Mapping[str, str],
        *,
        from_now: bool = False,
        bandwidth: int = 0,
    ) -> None:
        """ConfigError for a store of other file sizes, a replica of another master, or settings that cannot be used."""
        name = f"{master.cluster}/{master.name}"
        if (known := _known_master(directory)) not in ("", name):
            raise ConfigError(
                f"{directory} is a replica of {known}, and the master at {master.address} is {name}: use another "
                f"directory for that one. If the broker has a new name, delete {os.path.join(directory, STATUS_FILE)}"
            )
        found = detect_settings(directory).get("mappedFileSizeCommitLog", master.file_size)
        if found != master.file_size:
            raise ConfigError(
                f"{directory}: its commit log files have {found} bytes, those of the master at {master.address} "
                f"{master.file_size} (mappedFileSizeCommitLog): a replica has the same"
            )
        detected = {key: str(value) for key, value in detect_settings(directory).items()}
        config, store_config, _ = read_settings(
            {
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "listenPort": "0",
                **detected,
                **settings,
                "mappedFileSizeCommitLog": str(master.file_size),
                "brokerClusterName": master.cluster,
                "brokerName": master.name,
                "brokerRole": "SLAVE",
                "brokerId": SLAVE_ID,
                "haMasterAddress": master.ha_address,
                "haListenPort": "0",
                "namesrvAddr": "",
                "storePathRootDir": directory,
            }
        )
        self.master = master
        self.directory = directory
        self.controller = BrokerController(config, dataclasses.replace(store_config, ha_listen_port=0))
        self.status = ReplicaStatus(master.address, master.ha_address, name)
        replication = self.controller.replication
        replication.set_master(master.address, None)
        if from_now:
            replication.begin_at(master.max_offset - master.max_offset % master.file_size)
        assert replication.ha_client_service is not None
        replication.ha_client_service.bandwidth = bandwidth
        self._rate = (time.monotonic(), 0)

    async def start(self) -> None:
        """Raises what BrokerController.start() raises."""
        await self.controller.start()
        self._rate = (time.monotonic(), self.controller.broker.store.max_phy_offset)
        self.look()

    async def stop(self) -> None:
        """Stops the replica; a second call does nothing."""
        await self.controller.stop()
        self.status.state, self.status.following = "stopped", False
        self._write()

    def look(self) -> ReplicaStatus:
        """The status now, which is also written to replica.json. OSError."""
        replication, store = self.controller.replication, self.controller.broker.store
        client, status = replication.ha_client, self.status
        assert client is not None
        now, end = time.monotonic(), store.max_phy_offset
        before, offset = self._rate
        if now - before >= STATUS_S / 2:
            status.bytes_per_second = int((end - offset) / (now - before))
            self._rate = (now, end)
        status.state, status.following = client.state.name, client.is_following
        status.trouble = "" if client.trouble is Trouble.NONE else client.trouble.value
        status.text = client.trouble_text
        if not status.trouble and store.running_flags.is_logics_queue_error:
            status.trouble, status.text = Trouble.DISK.value, "; ".join(store.running_flags.reasons())
        status.min_offset, status.max_offset = store.min_phy_offset, end
        status.dispatched_offset = end - store.dispatch_behind_bytes
        status.master_max_offset = replication.master_max
        status.lag_bytes = max(replication.master_max - end, 0) if replication.master_max >= 0 else -1
        status.address, status.pid = self.controller.broker_addr, os.getpid()
        self._write()
        return status

    def _write(self) -> None:
        """Writes the status in one step; not synced, as it is written each second."""
        self.status.updated_at = now_ms()
        path = os.path.join(self.directory, STATUS_FILE)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(self.status.to_json(), file, indent=2)
        os.replace(f"{path}.new", path)

    async def run(
        self,
        stop: asyncio.Event,
        on_status: Callable[[ReplicaStatus], None],
        *,
        until_in_step: bool = False,
    ) -> None:
        """Reports the status each second until `stop`; `until_in_step`: or until it has caught up and dispatched
        everything. ReplicationError then when its log is not the master's, or, for TROUBLE_S, something other than a
        master that cannot be reached keeps it from that."""
        well_at = time.monotonic()
        while not stop.is_set():
            try:
                status = self.look()
            except OSError as error:  # a full disk: the log's own message says more
                status = self.status
                status.text = status.text or f"{STATUS_FILE}: {error.strerror or error}"
            on_status(status)
            is_asked = self.controller.replication.asked_at > 0
            is_whole = status.lag_bytes == 0 and status.dispatched_offset == status.max_offset
            if until_in_step and is_asked and is_whole and status.is_in_step:
                return
            if status.trouble in ("", Trouble.UNREACHABLE.value):
                well_at = time.monotonic()
            elif until_in_step and (status.trouble in FINAL or time.monotonic() - well_at > TROUBLE_S):
                raise ReplicationError(f"not caught up: {status.text}")
            try:
                async with asyncio.timeout(STATUS_S):
                    await stop.wait()
            except TimeoutError:
                pass


def remembered_master(directory: str, of: str) -> MasterFacts | None:
    """The master that the replica in `directory` followed last, if it is `of`: to go on while it cannot be asked."""
    try:
        found = read_status(directory)
        file_size = int(str(detect_settings(directory)["mappedFileSizeCommitLog"]))
        cluster, name = str(found["master"]).split("/", 1)
    except (ConfigError, KeyError, ValueError):
        return None
    if of not in (found["of"], name):
        return None
    return MasterFacts(found["of"], found["haAddress"], cluster, name, file_size, 0, 0)


async def find_master(client: RemotingClient, of: str, namesrv: str) -> MasterFacts:
    """The master at an address, or of a name that a name server knows. MqlakeError, ConfigError."""
    from mqlake.remoting.bodies.route import MASTER_ID, ClusterInfo

    if not namesrv or ":" in of:
        return await ask_master(client, of)
    request = RemotingCommand.create_request(RequestCode.GET_BROKER_CLUSTER_INFO)
    problems = []
    for address in filter(None, namesrv.split(";")):
        try:
            answer = await client.call(address.strip(), request, ASK_TIMEOUT_S)
        except MqlakeError as error:
            problems.append(str(error))
            continue
        table = ClusterInfo.from_json(answer.body_bytes()).broker_addr_table
        data = table.get(of)
        if data is None or MASTER_ID not in data.broker_addrs:
            known = ", ".join(sorted(table)) or "none"
            raise ConfigError(f"{of}: no broker of this name has a master; there are {known}")
        return await ask_master(client, data.broker_addrs[MASTER_ID])
    raise MqlakeError(f"no name server: {'; '.join(problems)}")
