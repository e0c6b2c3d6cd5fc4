"""Synchronous and asynchronous replication, compatible with the original.

    synchronous     producer ─▶ samsa (master) ─┬─▶ own partition ─────┐
                                                └─▶ sync ─▶ gregor ────┴─▶ answer, once both have it

    asynchronous    slave<n> ─▶ get ─▶ master          raw records at the same offsets: identical files

Gregor has the master's brokerId, its own directory, and no node in ZooKeeper. A samsa whose gregor fails too often
leaves ZooKeeper, probes the gregor until it works again, and returns. A samsa has no transactions.
An asynchronous slave is in ZooKeeper as `slave<n>`: consumers read from it while there is no master.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mqlake.base.background import BackgroundWork
from mqlake.base.net import parse_address
from mqlake.errors import ConfigError, MqlakeError, RemotingConnectError, RemotingError, UnknownKeyError
from mqlake.metaq.broker.command_processor import BrokerCommandProcessor, RefusedError, right_checksum
from mqlake.metaq.config.meta_config import MetaConfig
from mqlake.metaq.config.values import parse_bool, parse_int
from mqlake.metaq.formats.command import (
    NO_CHECKSUM,
    BooleanCommand,
    DataCommand,
    GetCommand,
    HttpStatus,
    OffsetCommand,
    PutCommand,
    Request,
    StatsCommand,
    SyncCommand,
)
from mqlake.metaq.formats.record import MessageIterator, encode_header
from mqlake.metaq.store.manager import MessageStoreManager
from mqlake.metaq.store.message_store import Location, MessageStore
from mqlake.metaq.wire.connection import BODY_MAX, Connection

logger = logging.getLogger(__name__)

STATUS_TOPIC = "_metaq_slave_status_test"
"""The topic to which a samsa sends probes for its gregor."""
CONNECT_S = 5.0
FETCH_S = 10.0


@dataclass(frozen=True, kw_only=True)
class SamsaConfig:
    """The keys of samsa_master.properties."""

    slave: str
    """host:port of the gregor."""
    send_to_slave_timeout_in_mills: int = 2000
    check_slave_interval_in_mills: int = 100
    slave_continuous_failure_threshold: int = 100
    recover_offset: bool = False
    """Corrects the groups' offsets for this log before the broker registers itself: offset_recovery."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, str]) -> SamsaConfig:
        """ConfigError."""
        known = {
            "slave": "slave",
            "sendToSlaveTimeoutInMills": "send_to_slave_timeout_in_mills",
            "checkSlaveIntervalInMills": "check_slave_interval_in_mills",
            "slaveContinuousFailureThreshold": "slave_continuous_failure_threshold",
            "recoverOffset": "recover_offset",
        }
        ignored = {"callbackThreadCount", "recoverParallel", "recoverParallelHint"}
        found: dict[str, int | str] = {}
        for key, text in values.items():
            if key not in known and key not in ignored:
                raise UnknownKeyError(key, [*known, *ignored])
            if key == "slave":
                found["slave"] = text.removeprefix("meta://")
            elif key in known:
                found[known[key]] = parse_bool(text) if key == "recoverOffset" else parse_int(text)
        if not found.get("slave"):
            raise ConfigError("samsa: slave=host:port is needed")
        return cls(**found)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class SlaveConfig:
    """The keys of async_slave.properties."""

    slave_id: int
    slave_group: str = ""
    """The group as which it reads; empty: meta-slave-group_<id>."""
    slave_max_delay_in_mills: int = 500
    """The longest pause when the master has nothing new."""
    auto_sync_master_config: bool = False
    """True if the topics in its own server.ini follow the master's."""

    @property
    def group(self) -> str:
        return self.slave_group or f"meta-slave-group_{self.slave_id}"

    @classmethod
    def from_mapping(cls, values: Mapping[str, str]) -> SlaveConfig:
        """ConfigError."""
        known = ("slaveId", "slaveGroup", "slaveMaxDelayInMills", "autoSyncMasterConfig")
        for key in values:
            if key not in known:
                raise UnknownKeyError(key, known)
        if not values.get("slaveId") or parse_int(values["slaveId"]) < 0:
            raise ConfigError("slaveId must be 0 or more")
        return cls(
            slave_id=parse_int(values["slaveId"]),
            slave_group=values.get("slaveGroup", ""),
            slave_max_delay_in_mills=parse_int(values.get("slaveMaxDelayInMills", "500")),
            auto_sync_master_config=parse_bool(values.get("autoSyncMasterConfig", "false")),
        )


class Link:
    """A connection to another broker, renewed until `close`."""

    def __init__(self, address: str, retry_s: float) -> None:
        """`address`: host:port. RemotingConnectError if it is invalid."""
        self.address = address
        self._host, self._port = parse_address(address)
        self._retry_s = retry_s
        self._opaque = 0
        self._connection: Connection | None = None
        self._task = asyncio.ensure_future(self._keep())

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        work = BackgroundWork(f"connecting to {self.address}", logger)
        while True:
            async with work.round():
                if not self.connected:
                    with contextlib.suppress(OSError, TimeoutError):
                        async with asyncio.timeout(CONNECT_S):
                            _, self._connection = await loop.create_connection(
                                Connection, self._host, self._port
                            )
                        logger.info("connected to %s", self.address)
            await asyncio.sleep(self._retry_s)

    def begin(self, request: Request, timeout_s: float) -> asyncio.Task[BooleanCommand | DataCommand]:
        """Sends at once, in the order of the calls; the task has the answer. RemotingConnectError."""
        if self._connection is None or self._connection.closed:
            raise RemotingConnectError(self.address, "not connected")
        return asyncio.ensure_future(self._connection.invoke(request, timeout_s))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()


class SamsaCommandProcessor(BrokerCommandProcessor):
    """Puts into its own partition and the gregor's; answers 200 once both have the message."""

    def begin_replication(
        self, config: SamsaConfig, withdraw: Callable[[], None], come_back: Callable[[], None]
    ) -> None:
        """`withdraw` and `come_back` take the broker out of ZooKeeper and back. On the loop."""
        self._samsa = config
        self._withdraw = withdraw
        self._come_back = come_back
        self._failures = 0
        self._link = Link(config.slave, config.check_slave_interval_in_mills / 1000)
        self._healing: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()

    async def end_replication(self) -> None:
        if self._healing is not None:
            self._healing.cancel()
            await asyncio.gather(self._healing, return_exceptions=True)
        if self._answers:
            await asyncio.wait(self._answers)
        await self._link.close()

    def append(
        self,
        connection: Connection,
        command: PutCommand | SyncCommand,
        store: MessageStore,
        message_id: int,
        crc: int,
    ) -> None:
        if not self._link.connected:
            raise RefusedError("Slave is disconnected ")
        local: asyncio.Future[Location] = asyncio.get_running_loop().create_future()

        def stored(location: Location | None, error: Exception | None) -> None:
            if local.done():
                return
            if location is not None:
                local.set_result(location)
            else:
                local.set_exception(error or RemotingError("not stored"))

        sync = SyncCommand(
            command.topic,
            store.partition,
            command.data,
            command.flag,
            message_id,
            crc,
            self._link.next_opaque(),
        )
        remote = self._link.begin(sync, self._samsa.send_to_slave_timeout_in_mills / 1000)
        try:
            store.append(encode_header(command.data, message_id, command.flag, crc) + command.data, stored)
        except (MqlakeError, OSError) as error:
            local.set_exception(error)
        task = asyncio.ensure_future(self._answer(connection, command, store, message_id, local, remote))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(
        self,
        connection: Connection,
        command: PutCommand | SyncCommand,
        store: MessageStore,
        message_id: int,
        local: asyncio.Future[Location],
        remote: asyncio.Task[BooleanCommand | DataCommand],
    ) -> None:
        await asyncio.gather(local, remote, return_exceptions=True)
        failed = []
        answer = remote.result() if remote.exception() is None else None
        if answer is None or not isinstance(answer, BooleanCommand) or answer.code != HttpStatus.SUCCESS:
            failed.append(f"slave 'meta://{self._samsa.slave}'")
            self._slave_failed(getattr(answer, "message", str(remote.exception())))
        else:
            self._failures = 0
        if local.exception() is not None:
            logger.error("%s: %s", store.directory, local.exception())
            failed.append(f"master '{self._broker_string()}'")
        if failed:
            self.stats.stats_put_failed(store.topic)
            text = ";".join(f"Put message to [{who}] [partition '{store.name}'] failed" for who in failed)
            connection.respond(HttpStatus.INTERNAL_SERVER_ERROR, text, command.opaque)
        else:
            text = f"{message_id} {store.partition} {local.result().offset}"
            connection.respond(HttpStatus.SUCCESS, text, command.opaque)

    def _slave_failed(self, reason: str) -> None:
        self._failures += 1
        if self._failures >= self._samsa.slave_continuous_failure_threshold and self._healing is None:
            logger.error("the slave %s fails repeatedly: %s; leaving ZooKeeper", self._samsa.slave, reason)
            self._healing = asyncio.ensure_future(self._heal())

    async def _heal(self) -> None:
        work = BackgroundWork(f"looking for the slave {self._samsa.slave}", logger, pause_s=0.0)
        with work.round():
            self._withdraw()
        while True:
            await asyncio.sleep(self._samsa.check_slave_interval_in_mills / 1000)
            probe = SyncCommand(
                STATUS_TOPIC, 0, b"test", 0, self.ids.next_id(), NO_CHECKSUM, self._link.next_opaque()
            )
            async with work.round():
                answer = await self._link.begin(probe, self._samsa.send_to_slave_timeout_in_mills / 1000)
                if isinstance(answer, BooleanCommand) and answer.code == HttpStatus.SUCCESS:
                    break
        logger.warning("the slave %s works again; returning to ZooKeeper", self._samsa.slave)
        self._failures = 0
        self._healing = None
        self._come_back()


def process_sync(processor: BrokerCommandProcessor, connection: Connection, command: SyncCommand) -> None:
    """Gregor's side: stores a message under the id that the master gave it."""
    processor.stats.stats_put(command.topic, len(command.data))
    try:
        store = processor.manager.get_or_create(command.topic, command.partition)
        processor.append(connection, command, store, command.message_id, right_checksum(command))
    except (MqlakeError, OSError) as error:
        processor.put_failed(connection, command.topic, command.partition, command.opaque, error)


class SubscribeHandler:
    """Copies every partition of a master to an asynchronous slave."""

    def __init__(
        self, config: MetaConfig, manager: MessageStoreManager, slave: SlaveConfig, master: str
    ) -> None:
        """`master`: meta://host:port. Begins at once, on the running loop; `stop` at the end."""
        self._config = config
        self._manager = manager
        self._slave = slave
        self._link = Link(master.removeprefix("meta://"), slave.slave_max_delay_in_mills / 1000)
        self._tasks = [
            asyncio.ensure_future(self._follow(topic, partition))
            for topic in config.topics
            if "*" not in topic
            for partition in range(config.topic_config(topic).num_partitions)
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close()

    async def sync_config(self) -> None:
        """Copies the topics of the master's server.ini to its own. RemotingError, ConfigError, OSError."""
        answer = await self._link.begin(StatsCommand("config", self._link.next_opaque()), FETCH_S)
        if not isinstance(answer, BooleanCommand) or answer.code != HttpStatus.SUCCESS:
            raise RemotingError(f"the master did not send its configuration: {answer}")
        if await asyncio.to_thread(self._config.take_topics, answer.message):
            logger.warning("%s has the master's topics now", self._config.path)

    async def _follow(self, topic: str, partition: int) -> None:
        max_size = self._config.system.max_transfer_size
        pause_s = self._slave.slave_max_delay_in_mills / 1000
        work = BackgroundWork(f"copying of {topic}-{partition}", logger, pause_s=0.0)
        while True:
            async with work.round():
                store = await self._store(topic, partition)
                data = await self._fetch(store, max_size) if store is not None else b""
                if store is not None and data:
                    if await self._append(store, data):
                        max_size = self._config.system.max_transfer_size
                        continue
                    if len(data) >= max_size < BODY_MAX:
                        max_size = min(2 * max_size, BODY_MAX)
                        continue
            await asyncio.sleep(pause_s)

    async def _store(self, topic: str, partition: int) -> MessageStore | None:
        """The slave's partition, which begins where the master's does. None while the master has none."""
        store = self._manager.get(topic, partition)
        if store is not None:
            return store
        ask = OffsetCommand(topic, self._slave.group, partition, 0, self._link.next_opaque())
        answer = await self._link.begin(ask, FETCH_S)
        if not isinstance(answer, BooleanCommand) or answer.code != HttpStatus.SUCCESS:
            return None
        return self._manager.get_or_create(topic, partition, int(answer.message))

    async def _fetch(self, store: MessageStore, max_size: int) -> bytes:
        ask = GetCommand(
            store.topic,
            self._slave.group,
            store.partition,
            store.append_offset,
            max_size,
            self._link.next_opaque(),
        )
        answer = await self._link.begin(ask, FETCH_S)
        if isinstance(answer, DataCommand):
            return answer.data
        if answer.code == HttpStatus.MOVED:
            raise RemotingError(
                f"the master has not offset {store.append_offset} any longer, it continues at {answer.message}: "
                f"{store.directory} must be created again"
            )
        return b""

    async def _append(self, store: MessageStore, data: bytes) -> bool:
        """True if `data` had a whole message."""
        messages = MessageIterator(store.topic, data)
        count = sum(1 for _ in messages)
        if not count:
            return False
        store.append(data[: messages.offset], count=count)
        await asyncio.to_thread(store.flush)
        return True
