"""BrokerController: the parts of a broker, how they hang together, and their life.

    clients ──▶ server (listenPort), fast_server (two below) ──▶ processors ──▶ managers, store
    name servers ◀── outer_api: registration
    store ── arrivals ──▶ pull_request_hold_service ──▶ pulls that waited

controller = BrokerController(config, store_config)
await controller.start()
controller.port, controller.broker_addr
await controller.stop()

Everything runs on one event loop. What blocks (recovery, config files, the end of the store) runs in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Awaitable, Callable, Iterable

from mqlake.broker.admin import AdminBrokerProcessor
from mqlake.broker.broker_to_client import Broker2Client
from mqlake.broker.client_housekeeping import ClientHousekeepingService
from mqlake.broker.client_manage import ClientManageProcessor
from mqlake.broker.clients import ConsumerManager, ProducerManager, wall_clock_ms
from mqlake.broker.config import BrokerConfig, MetricsExporterType
from mqlake.broker.config_manager import ConfigManager
from mqlake.broker.consumer_filter import ConsumerFilterManager
from mqlake.broker.consumer_ids_change import DefaultConsumerIdsChangeListener
from mqlake.broker.consumer_manage import ConsumerManageProcessor
from mqlake.broker.consumer_offset import ConsumerOffsetManager
from mqlake.broker.fast_pull import FastPull
from mqlake.broker.fast_send import FastSend
from mqlake.broker.metrics import MetricsExporter
from mqlake.broker.outer_api import BrokerIdentity, BrokerOuterAPI
from mqlake.broker.pull_message import PullMessageProcessor
from mqlake.broker.pull_request_hold import PullRequestHoldService
from mqlake.broker.query_message import QueryMessageProcessor
from mqlake.broker.rebalance_lock import RebalanceLockManager
from mqlake.broker.reply_message import ReplyMessageProcessor
from mqlake.broker.schedule_message import ScheduleMessageService
from mqlake.broker.send_back import ConsumerSendMsgBackProcessor
from mqlake.broker.send_message import SendMessageProcessor
from mqlake.broker.subscription_group import SubscriptionGroupManager
from mqlake.broker.topic_config import PERM_READ_WRITE, TopicConfigManager
from mqlake.broker.transaction.bridge import TransactionalMessageBridge
from mqlake.broker.transaction.check import (
    TransactionalMessageCheckListener,
    TransactionalMessageCheckService,
)
from mqlake.broker.transaction.end_transaction import EndTransactionProcessor
from mqlake.broker.transaction.metrics import TransactionMetrics
from mqlake.broker.transaction.service import TransactionalMessageService
from mqlake.errors import ConfigError
from mqlake.formats.columns import never_load_here
from mqlake.message import Host
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.connection import Limits, ProcessorTable
from mqlake.remoting.server import RemotingServer
from mqlake.remoting.tls import caller_context
from mqlake.store.broker_stats import BrokerStatsManager
from mqlake.store.config import BrokerRole, MessageStoreConfig
from mqlake.store.message_store import DefaultMessageStore

logger = logging.getLogger(__name__)

REGISTER_RETRY_S = 2.0
"""A name server that did not answer is asked again after so long."""
REGISTER_START_WAIT_S = 3.0
"""The start waits so long for the name servers to know the broker."""
REGISTER_WAIT_S = 1.0
"""A send that made its topic waits so long for the name servers to know it."""
UNREGISTER_TIMEOUT_S = 3.0


class BrokerController:
    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """ConfigError when the TLS files cannot be used."""
        self.config = config
        self.store_config = store_config
        self.clock_ms = clock_ms
        directory = store_config.config_dir
        self.broker_stats_manager = BrokerStatsManager(config.broker_cluster_name)

        self.topic_config_manager = TopicConfigManager(
            os.path.join(directory, "topics.json"), lambda: self.config, self.register_topics
        )
        self.subscription_group_manager = SubscriptionGroupManager(
            os.path.join(directory, "subscriptionGroup.json"),
            config.auto_create_subscription_group,
            config.enable_create_sys_group,
        )
        self.consumer_offset_manager = ConsumerOffsetManager(
            os.path.join(directory, "consumerOffset.json"),
            config.consumer_offset_update_version_step,
            config.use_server_side_reset_offset,
        )
        self.rebalance_lock_manager = RebalanceLockManager()
        self.broker_to_client = Broker2Client(self)
        self.consumer_filter_manager = ConsumerFilterManager(
            os.path.join(directory, "consumerFilter.json"),
            config.filter_data_clean_time_span,
            clock_ms,
            expected_groups=config.expect_consumer_num_use_filter,
            error_rate_percent=config.max_error_rate_of_bloom_filter,
        )
        self.producer_manager = ProducerManager(config.channel_expired_timeout, clock_ms)
        self.consumer_manager = ConsumerManager(
            DefaultConsumerIdsChangeListener(
                self.broker_to_client,
                self.consumer_filter_manager,
                config.notify_consumer_ids_changed_enable,
            ),
            config.channel_expired_timeout,
            config.subscription_expired_timeout,
            clock_ms,
        )
        self.client_housekeeping_service = ClientHousekeepingService(self)
        self.pull_request_hold_service = PullRequestHoldService(self)
        self.store = DefaultMessageStore(
            store_config,
            is_batch_topic=self.topic_config_manager.is_batch_topic,
            broker_stats=self.broker_stats_manager,
            message_arriving_listener=self.pull_request_hold_service.on_arrival,
        )
        self.pull_message_processor = PullMessageProcessor(self)
        self.admin_processor = AdminBrokerProcessor(self)
        self.metrics = (
            MetricsExporter(self) if config.metrics_exporter_type is MetricsExporterType.PROM else None
        )

        self.schedule_message_service = ScheduleMessageService(
            os.path.join(directory, "delayOffset.json"), self.store, config.delay_offset_update_version_step
        )
        self.transaction_metrics = TransactionMetrics(os.path.join(directory, "transactionMetrics"), clock_ms)
        self.transactional_message_service = TransactionalMessageService(
            TransactionalMessageBridge(
                self.store,
                self.consumer_offset_manager,
                self.topic_config_manager,
                lambda: self.store_host,
                clock_ms,
            ),
            self.transaction_metrics,
            lambda: self.config,
        )
        self.transactional_message_check_service = TransactionalMessageCheckService(
            self.transactional_message_service,
            TransactionalMessageCheckListener(self.producer_manager, config.broker_name),
            lambda: self.config,
        )

        limits = Limits(idle_s=float(config.server_channel_max_idle_time_seconds))
        self.server = RemotingServer(limits, config.tls)
        self.fast_server = RemotingServer(limits, config.tls)
        """On the VIP port: everything but pulls, so that sends need not queue behind them."""
        self.outer_api = BrokerOuterAPI(
            config.namesrv_addresses, self._name_server_lost, caller_context(config.tls)
        )
        for server in (self.server, self.fast_server):
            server.on_close.append(self.client_housekeeping_service.on_close)
        self._register_processors()

        self._config_managers: list[ConfigManager] = [
            self.topic_config_manager,
            self.subscription_group_manager,
            self.consumer_offset_manager,
            self.consumer_filter_manager,
            self.schedule_message_service,
            self.transaction_metrics,
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._register_now = asyncio.Event()
        self._register_lock = asyncio.Lock()
        self._new_topics: dict[str, TopicConfig] = {}
        self._registering_new: asyncio.Task[None] | None = None
        self._tried_to_register = asyncio.Event()
        self._running = False

    def _register_processors(self) -> None:
        for server in (self.server, self.fast_server):
            if self.metrics is not None:
                server.processors = self.metrics.rpc_latencies.processor_table()
            sends = SendMessageProcessor(self)
            sends.register(server.processors)
            server.fast_path = fast_send = FastSend(self, sends)
            if server is self.server:
                fast_send.otherwise = FastPull(self, self.pull_message_processor)
            self._register_in(server.processors)
        self.pull_message_processor.register(self.server.processors)

    def _register_in(self, table: ProcessorTable) -> None:
        """What both ports answer."""
        ReplyMessageProcessor(self).register(table)
        ClientManageProcessor(self).register(table)
        ConsumerManageProcessor(self).register(table)
        ConsumerSendMsgBackProcessor(self).register(table)
        QueryMessageProcessor(self).register(table)
        EndTransactionProcessor(self).register(table)
        self.admin_processor.register(table)

    # --- where it is

    @property
    def port(self) -> int:
        """Where it listens; 0 before the start."""
        return self.server.port

    @property
    def broker_addr(self) -> str:
        """What name servers are told: host:port."""
        return _address(self.config.broker_ip1, self.port)

    @property
    def store_host(self) -> Host:
        """What messages carry as the broker they are stored at."""
        return self.config.broker_ip1, self.port

    @property
    def identity(self) -> BrokerIdentity:
        config = self.config
        return BrokerIdentity(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            broker_addr=self.broker_addr,
            ha_server_addr=_address(config.broker_ip2, self.port + 1),
        )

    # --- life

    async def start(self) -> None:
        """Recovers the store, listens, registers. ConfigError, StoreError, FormatError, OSError; then all is as
        before."""
        never_load_here()
        self.topic_config_manager.init()
        for manager in self._config_managers:
            manager.load()
        await self._bind()  # a port that is taken is known before anything is made on the disk
        try:
            await asyncio.to_thread(self.store.load)
            await asyncio.to_thread(self.store.start)
            self.schedule_message_service.correct_delay_offset()
            await self.server.listen()
            if self.fast_server.port:
                await self.fast_server.listen()
            if self.metrics is not None:
                await self.metrics.start()
        except BaseException:
            await self._stop_parts()
            raise
        self._running = True
        self.pull_request_hold_service.start()
        self.client_housekeeping_service.start()
        if self.store_config.broker_role is not BrokerRole.SLAVE:
            self.schedule_message_service.start()
            self.transactional_message_check_service.start()
        self._every(self._flush_interval_s, self._persist_config, "config files")
        self._every(
            lambda: self.config.transaction_metric_flush_interval / 1000,
            self.transaction_metrics.persist_in_background,
            "transaction metrics",
        )
        self._tasks.append(asyncio.create_task(self._keep_registered()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REGISTER_START_WAIT_S):
                await self._tried_to_register.wait()

    async def _bind(self) -> None:
        config = self.config
        try:
            await self.server.bind(config.bind_address, config.listen_port)
            await self._bind_vip(max(self.server.port - 2, 0))
        except BaseException:
            await self.server.stop()
            raise

    async def _bind_vip(self, port: int) -> None:
        try:
            await self.fast_server.bind(self.config.bind_address, port)
        except ConfigError as error:
            if self.config.listen_port:
                raise ConfigError(f"{error}; it is the VIP port, two below listenPort") from None
            # beside a port that happened to be free there may be none
            logger.info("no VIP port: %s", error)

    async def stop(self) -> None:
        """Unregisters, answers what is under way, writes everything down. Idempotent."""
        if self._running:
            self._running = False
            self.client_housekeeping_service.shutdown()
            await self._cancel_tasks()
            await self.outer_api.unregister_broker_all(self.identity, UNREGISTER_TIMEOUT_S)
            self.pull_request_hold_service.shutdown()
        await self._stop_parts()

    async def _stop_parts(self) -> None:
        if self.metrics is not None:
            await self.metrics.stop()
        await asyncio.gather(self.server.stop(), self.fast_server.stop())
        await self.schedule_message_service.shutdown()
        await self.transactional_message_check_service.shutdown()
        self.transactional_message_service.close()
        await self._persist_config()
        await asyncio.to_thread(self.store.shutdown)
        await self.outer_api.close()

    async def _cancel_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        if self._registering_new is not None:
            tasks.append(self._registering_new)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _every(self, interval_s: Callable[[], float], job: Callable[[], Awaitable[None]], name: str) -> None:
        async def run() -> None:
            while True:
                await asyncio.sleep(interval_s())
                try:
                    await job()
                except Exception:
                    logger.exception("%s: failed, tried again later", name)

        self._tasks.append(asyncio.create_task(run(), name=name))

    def _flush_interval_s(self) -> float:
        return self.config.flush_consumer_offset_interval / 1000

    async def _persist_config(self) -> None:
        for manager in self._config_managers:
            try:
                await manager.persist_in_background()
            except OSError as error:
                logger.error("%s cannot be written: %s; it is tried again", manager.path, error)

    # --- registration

    async def register_broker_all(self, *, force: bool = True) -> bool:
        """Registers with all name servers; whether all of them answered. `force` False leaves it out when they
        have this version already."""
        async with self._register_lock:
            config, manager = self.config, self.topic_config_manager
            timeout_s = config.register_broker_timeout_mills / 1000
            if not force and not await self.outer_api.need_register(
                self.identity, manager.data_version, timeout_s
            ):
                return True
            self._new_topics.clear()  # they are in the whole table
            size = (
                config.split_registration_size
                if config.enable_split_registration
                else len(manager.topic_config_table)
            )
            topics = list(manager.topic_config_table.values())
            answered = True
            for start in range(0, max(len(topics), 1), max(size, 1)):
                answered &= await self._register(topics[start : start + max(size, 1)])
            return answered

    async def _register(self, topics: Iterable[TopicConfig]) -> bool:
        permission = self.config.broker_permission
        if permission & PERM_READ_WRITE != PERM_READ_WRITE:
            topics = [dataclasses.replace(topic, perm=topic.perm & permission) for topic in topics]
        results = await self.outer_api.register_broker_all(
            self.identity,
            self.topic_config_manager.build_serialize_wrapper({topic.topic_name: topic for topic in topics}),
            self.config.register_broker_timeout_mills / 1000,
        )
        for result in results:
            if result is not None:
                self.topic_config_manager.update_order_topic_config(result.order_topics)
        return None not in results

    def register_topics(self, topics: Iterable[TopicConfig]) -> asyncio.Future[None] | None:
        """Tells the name servers of topics that came or changed. The future is done when they have answered, or
        after REGISTER_WAIT_S."""
        if not self._running or not self.outer_api.name_servers:
            return None
        self._new_topics.update((topic.topic_name, topic) for topic in topics)
        if self._registering_new is None or self._registering_new.done():
            self._registering_new = asyncio.create_task(self._register_new_topics())
        registering = self._registering_new
        return asyncio.ensure_future(_wait_at_most(registering, REGISTER_WAIT_S))

    async def _register_new_topics(self) -> None:
        """All that have come when the last request is answered go with the next one."""
        while self._new_topics:
            async with self._register_lock:
                topics, self._new_topics = list(self._new_topics.values()), {}
                if not topics:
                    return
                if self.config.enable_single_topic_register:
                    for topic in topics:
                        await self.outer_api.register_single_topic_all(self.config.broker_name, topic)
                elif not await self._register(topics):
                    self._register_now.set()

    async def _keep_registered(self) -> None:
        """Registers at once, then at each period; soon again when a name server did not answer or was lost."""
        force = True
        while True:
            # before it asks: a name server may answer and be lost at once
            self._register_now.clear()
            try:
                answered = await self.register_broker_all(force=force)
            except Exception:
                logger.exception("registration failed; it is tried again")
                answered = False
            self._tried_to_register.set()
            force = self.config.force_register or not answered
            period = min(max(self.config.register_name_server_period, 10_000), 60_000) / 1000
            try:
                async with asyncio.timeout(period if answered else REGISTER_RETRY_S):
                    await self._register_now.wait()
                await asyncio.sleep(REGISTER_RETRY_S)
                force = True
            except TimeoutError:
                pass

    def _name_server_lost(self) -> None:
        self._register_now.set()


async def _wait_at_most(task: asyncio.Task[None], seconds: float) -> None:
    await asyncio.wait([task], timeout=seconds)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
