"""MetaMorphosisBroker: starts and stops all parts of a broker, and dispatches requests.

    start   partitions ─▶ transactions ─▶ listen ─▶ ZooKeeper, topics
    stop    ZooKeeper ─▶ connections ─▶ transactions ─▶ partitions

The original listens before it has replayed its transactions, and opens the partitions a second time for the replay;
mqlake serves no request before the replay is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from mqlake.base.background import BackgroundWork
from mqlake.errors import ConfigError, MqlakeError, RemotingError
from mqlake.metaq.broker.broker_zookeeper import BrokerZooKeeper
from mqlake.metaq.broker.command_processor import VERSION, BrokerCommandProcessor
from mqlake.metaq.broker.offset_recovery import recover_offsets
from mqlake.metaq.broker.replication import (
    STATUS_TOPIC,
    SamsaCommandProcessor,
    SamsaConfig,
    SlaveConfig,
    SubscribeHandler,
    process_sync,
)
from mqlake.metaq.broker.stats import StatsManager
from mqlake.metaq.broker.transaction_store import JournalTransactionStore
from mqlake.metaq.broker.transactional import TransactionalCommandProcessor
from mqlake.metaq.config.meta_config import MetaConfig
from mqlake.metaq.formats.command import (
    GetCommand,
    HttpStatus,
    OffsetCommand,
    PutCommand,
    QuitCommand,
    Request,
    StatsCommand,
    SyncCommand,
    TransactionCommand,
    TransactionType,
    VersionCommand,
)
from mqlake.metaq.formats.ids import IdWorker
from mqlake.metaq.store.group_commit import GroupCommitService
from mqlake.metaq.store.manager import LoadReport, MessageStoreManager
from mqlake.metaq.wire.address import broker_string
from mqlake.metaq.wire.connection import Connection
from mqlake.metaq.wire.server import MetaServer
from mqlake.metaq.zookeeper.paths import MetaZookeeper
from mqlake.metaq.zookeeper.session import ZkSession

logger = logging.getLogger(__name__)

MASTER_LOOK_S = 0.5
"""How often an asynchronous slave looks up its master."""
JOURNAL_FLUSH_S = 1.0
"""How often, with flushTxLogAtCommit=2."""


class MetaMorphosisBroker:
    """One broker of one configuration; `start` and `stop` once each, on one event loop."""

    def __init__(
        self,
        config: MetaConfig,
        *,
        host: str = "",
        fast_boot: bool = False,
        use_zookeeper: bool = True,
        samsa: SamsaConfig | None = None,
        gregor: bool = False,
        slave: SlaveConfig | None = None,
    ) -> None:
        """`host`: the address to listen on, empty for all. `use_zookeeper` False: the broker is not registered.

        `samsa`: a master with a synchronous slave; `gregor`: that slave; `slave`: an asynchronous one. ConfigError.
        """
        if (samsa is not None) + gregor + (slave is not None) > 1:
            raise ConfigError("a broker is one of samsa, gregor and asynchronous slave")
        self._samsa, self._gregor, self._slave = samsa, gregor, slave
        if gregor:
            use_zookeeper = False
            config.add_topic(STATUS_TOPIC, {"numPartitions": "1"})
        self.config = config
        self._host = host
        self._use_zookeeper = use_zookeeper
        self._group_commit = GroupCommitService(self._deliver, self._begin_flush)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._replicates = False
        self.load_report = LoadReport()
        self.manager = MessageStoreManager(config, group_commit=self._group_commit, fast_boot=fast_boot)
        self.ids = IdWorker(config.system.broker_id)
        self.server = MetaServer(self.handle, on_close=self._on_close)
        self.stats = StatsManager(
            config,
            self.manager,
            version=VERSION,
            connection_count=lambda: len(self.server.connections),
            port=lambda: self.server.port,
            slave=slave is not None,
        )
        self.zookeeper: BrokerZooKeeper | None = None
        processor_class = SamsaCommandProcessor if samsa is not None else BrokerCommandProcessor
        self.subscribe_handler: SubscribeHandler | None = None
        self.processor = processor_class(
            config,
            self.manager,
            self.ids,
            self.stats,
            broker_string=lambda: self.broker_string,
            topic_created=self._topic_created,
        )
        self.transactions: TransactionalCommandProcessor | None = None
        self._handlers: dict[type, Callable[[Connection, Request], None]] = {}

    @property
    def transaction_processor(self) -> TransactionalCommandProcessor:
        """ConfigError unless the broker runs."""
        if self.transactions is None:
            raise ConfigError("the broker does not run")
        return self.transactions

    @property
    def broker_string(self) -> str:
        """meta://host:port, as others reach the broker."""
        return broker_string(self.config.system.host_name, self.server.port)

    @property
    def zookeeper_paths(self) -> MetaZookeeper:
        return MetaZookeeper(self.config.zookeeper.zk_root)

    # --- start and stop

    async def start(self) -> None:
        """Returns when the broker serves. After ConfigError, StoreError or OSError everything is stopped again."""
        self._loop = asyncio.get_running_loop()
        try:
            self.load_report = await asyncio.to_thread(self.manager.load)
            store = JournalTransactionStore(
                self.config.system.effective_data_log_path,
                self.manager,
                checkpoints_max=self.config.system.max_checkpoints,
                flush_at_commit=self.config.system.flush_tx_log_at_commit,
            )
            self.transactions = TransactionalCommandProcessor(
                self.processor, store, timeout_max_s=self.config.system.max_tx_timeout_in_seconds
            )
            self.transactions.recover()
            self._handlers = self._table(self.transactions)
            if isinstance(self.processor, SamsaCommandProcessor) and self._samsa is not None:
                self.processor.begin_replication(self._samsa, self._withdraw, self._come_back)
                self._replicates = True
            self.manager.start()
            self._tasks.append(asyncio.create_task(self._checkpoints(store)))
            if self.config.system.flush_tx_log_at_commit == 2:
                self._tasks.append(asyncio.create_task(self._journal_flushes(store)))
            await self.server.start(self._host, self.config.system.server_port)
            if self._use_zookeeper:
                slave_id = self._slave.slave_id if self._slave is not None else -1
                self.zookeeper = BrokerZooKeeper(
                    self.config, self.broker_string, self.manager.all_topics, slave_id=slave_id
                )
                await asyncio.to_thread(self.zookeeper.start, self._before_registration)
            if self._slave is not None:
                self._tasks.append(asyncio.create_task(self._follow_master(self._slave)))
        except BaseException:
            with contextlib.suppress(MqlakeError, OSError):
                await self.stop()
            raise

    async def stop(self) -> None:
        """Serves the requests received so far, writes everything, releases everything. StoreFencedError, OSError."""
        if self.zookeeper is not None:
            zookeeper, self.zookeeper = self.zookeeper, None
            await asyncio.to_thread(zookeeper.stop)
        await self.server.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._replicates and isinstance(self.processor, SamsaCommandProcessor):
            self._replicates = False
            await self.processor.end_replication()
        if self.subscribe_handler is not None:
            await self.subscribe_handler.stop()
            self.subscribe_handler = None
        try:
            if self.transactions is not None:
                transactions, self.transactions = self.transactions, None
                await transactions.close()
        finally:
            try:
                await asyncio.to_thread(self.manager.close)
            finally:
                await asyncio.to_thread(self._group_commit.close)

    # --- requests

    def _table(
        self, transactions: TransactionalCommandProcessor
    ) -> dict[type, Callable[[Connection, Request], None]]:
        def put(connection: Connection, command: PutCommand) -> None:
            if self._slave is not None or self._gregor:
                connection.respond(HttpStatus.FORBIDDEN, "a slave takes no messages", command.opaque)
            elif command.transaction_id is None or self._samsa is not None:
                self.processor.process_put(connection, command)
            else:
                transactions.process_put(connection, command)

        def close(connection: Connection, _: QuitCommand) -> None:
            connection.close()

        def transaction(connection: Connection, command: TransactionCommand) -> None:
            if self._samsa is None:
                transactions.process(connection, command)
            elif command.type is not TransactionType.END:
                name = command.type.value.lower().partition("_")[0]
                text = f"Unsupported {name}Transaction"
                connection.respond(HttpStatus.INTERNAL_SERVER_ERROR, text, command.opaque)

        def sync(connection: Connection, command: SyncCommand) -> None:
            process_sync(self.processor, connection, command)

        handlers: dict[type, Callable[..., None]] = {
            PutCommand: put,
            GetCommand: self.processor.process_get,
            OffsetCommand: self.processor.process_offset,
            VersionCommand: self.processor.process_version,
            StatsCommand: self.processor.process_stats,
            TransactionCommand: transaction,
            QuitCommand: close,
        }
        if self._gregor:
            handlers[SyncCommand] = sync
        return handlers

    def handle(self, connection: Connection, request: Request) -> None:
        """Serves one request; the answer goes to `connection`, now or later."""
        handler = self._handlers.get(type(request))
        if handler is None:
            name = f"com.taobao.metamorphosis.network.{type(request).__name__}"
            connection.respond(
                HttpStatus.SERVICE_UNAVAILABLE, f"未注册请求处理器，请求处理器类为{name}", request.opaque
            )
            return
        try:
            handler(connection, request)
        except Exception as error:  # one request must not fail its connection or others
            logger.exception("%s: %s failed", connection.remote_address, type(request).__name__)
            connection.respond(
                HttpStatus.INTERNAL_SERVER_ERROR, str(error) or type(error).__name__, request.opaque
            )

    def _on_close(self, connection: Connection) -> None:
        if self.transactions is not None:
            self.transactions.connection_closed(connection)

    def _begin_flush(self, begin: Callable[[], None]) -> None:
        """At the end of this iteration of the loop: all its puts share one fsync."""
        assert self._loop is not None
        self._loop.call_soon(begin)

    def _deliver(self, batch: Callable[[], None]) -> None:
        """Runs the callbacks of a group commit on the loop, which is woken once for all of them."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(batch)
        except RuntimeError:
            logger.debug("the loop is closed, no client waits for these answers")

    # --- replication

    def _withdraw(self) -> None:
        if self.zookeeper is not None:
            self.zookeeper.withdraw()

    def _come_back(self) -> None:
        if self.zookeeper is not None:
            self.zookeeper.come_back()

    def _before_registration(self, session: ZkSession) -> None:
        if self._samsa is not None and self._samsa.recover_offset:
            recover_offsets(session, self.zookeeper_paths, self.manager, self.config.system.broker_id)

    async def _follow_master(self, slave: SlaveConfig) -> None:
        """Follows the current master; starts again when it, its configuration or the own topics have changed."""
        followed: tuple[str, str, object] = "", "", None
        synced = ""
        work = BackgroundWork("following the master", logger)
        while True:
            async with work.round():
                master, checksum = await asyncio.to_thread(self._master)
                wanted = master, checksum, self.config.topic_config_map
                if master and wanted != followed:
                    if self.subscribe_handler is not None:
                        await self.subscribe_handler.stop()
                    self.subscribe_handler = SubscribeHandler(self.config, self.manager, slave, master)
                    followed = wanted
                handler = self.subscribe_handler
                if slave.auto_sync_master_config and handler is not None and checksum not in ("", synced):
                    synced = checksum if await self._sync_config(handler) else ""
            await asyncio.sleep(MASTER_LOOK_S)

    async def _sync_config(self, handler: SubscribeHandler) -> bool:
        """True if the master was reached."""
        try:
            await handler.sync_config()
        except RemotingError as error:
            logger.warning("the configuration is not copied yet: %s", error)
            return False
        except (MqlakeError, OSError) as error:
            logger.error("the master's configuration is not copied: %s", error)
        return True

    def _master(self) -> tuple[str, str]:
        """The master's address and its configuration's checksum in ZooKeeper; empty if they are not there."""
        zookeeper = self.zookeeper
        if zookeeper is None or zookeeper.session is None:
            return "", ""
        paths, broker_id = self.zookeeper_paths, self.config.system.broker_id
        try:
            address, checksum = (
                (zookeeper.session.read(path) or b"").decode("utf-8", "replace")
                for path in (paths.master(broker_id), paths.master_config_checksum(broker_id))
            )
        except MqlakeError:
            return "", ""
        return address, checksum

    # --- timers

    async def _checkpoints(self, store: JournalTransactionStore) -> None:
        work = BackgroundWork("checkpoints of transactions", logger)
        while True:
            await asyncio.sleep(self.config.system.checkpoint_interval / 1000)
            async with work.round():
                store.make_checkpoint()

    async def _journal_flushes(self, store: JournalTransactionStore) -> None:
        work = BackgroundWork("flushes of the journal", logger)
        while True:
            await asyncio.sleep(JOURNAL_FLUSH_S)
            async with work.round():
                await asyncio.to_thread(store.journal.sync_all_now)

    def _topic_created(self, topic: str) -> None:
        if self.zookeeper is not None:
            self.zookeeper.topic_created(topic)
