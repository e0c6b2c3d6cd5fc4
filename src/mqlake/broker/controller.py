"""BrokerController: the ports and services of a Broker, how they are connected, and their start and stop.

    clients ──▶ server (listenPort, and the VIP port two below) ──▶ processors ──▶ Broker: managers, store
    name servers ◀── registration ◀── new topics ──────────────────────────────────┤
    pulls that waited ◀── pull_request_hold_service ◀── arrivals ──────────────────┘

controller = BrokerController(config, store_config)
await controller.start()
controller.port, controller.broker_addr
await controller.stop()

Everything runs on one event loop. What blocks (recovery, config files, the end of the store) runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from mqlake.base.background import repeat
from mqlake.base.clock import now_ms
from mqlake.broker.admin.processor import AdminBrokerProcessor
from mqlake.broker.broker import Broker
from mqlake.broker.config import BrokerConfig, MetricsExporterType
from mqlake.broker.fast.fast_ack import FastAck
from mqlake.broker.fast.fast_pull import FastPull
from mqlake.broker.fast.fast_send import FastSend
from mqlake.broker.mqtrace.message_trace import MessageTrace
from mqlake.broker.pop.service import PopService
from mqlake.broker.requests.client_manage import ClientManageProcessor
from mqlake.broker.requests.consumer_manage import ConsumerManageProcessor
from mqlake.broker.requests.pull_message import PullMessageProcessor
from mqlake.broker.requests.query_message import QueryMessageProcessor
from mqlake.broker.requests.recall_message import RecallMessageProcessor
from mqlake.broker.requests.reply_message import ReplyMessageProcessor
from mqlake.broker.requests.send_back import ConsumerSendMsgBackProcessor
from mqlake.broker.requests.send_message import SendMessageProcessor
from mqlake.broker.requests.static_topic import StaticTopicTable
from mqlake.broker.services import heads
from mqlake.broker.services.broker_to_client import Broker2Client
from mqlake.broker.services.client_housekeeping import ClientHousekeepingService
from mqlake.broker.services.consumer_ids_change import DefaultConsumerIdsChangeListener
from mqlake.broker.services.registration import Registration
from mqlake.broker.services.replication import Replication
from mqlake.broker.services.schedule_message import ScheduleMessageService
from mqlake.broker.services.topic_queue_mapping_clean import TopicQueueMappingCleanService
from mqlake.broker.state.config_manager import ConfigManager
from mqlake.broker.transaction.check import (
    TransactionalMessageCheckListener,
    TransactionalMessageCheckService,
)
from mqlake.broker.transaction.end_transaction import EndTransactionProcessor
from mqlake.broker.transaction.metrics import TransactionMetrics
from mqlake.broker.transaction.service import TransactionalMessageService
from mqlake.errors import ConfigError
from mqlake.remoting.processors import register
from mqlake.remoting.server import RemotingServer
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.store_directory import check_is_directory
from mqlake.store.timer.timer_message_store import TimerMessageStore

if TYPE_CHECKING:
    from mqlake.broker.failover.driver import Failover
    from mqlake.broker.metrics.exporter import MetricsExporter

logger = logging.getLogger(__name__)

TOPICS_NAMED = 20
"""In a warning."""


class BrokerController:
    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        *,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """Raises NotAStoreError if the store's place is a file, ConfigError if the TLS files, or a plug-in,
        cannot be used."""
        check_is_directory(store_config.store_path_root_dir)
        self.broker = broker = Broker(config, store_config, clock_ms)
        self.server = RemotingServer(config.limits, config.tls)
        self.registration = Registration(broker)
        broker.topic_config_manager.on_change = self.registration.register_topics
        self.broker_to_client = Broker2Client(broker)
        broker.consumer_manager.append_consumer_ids_change_listener(
            DefaultConsumerIdsChangeListener(
                self.broker_to_client,
                broker.consumer_filter_manager,
                config.notify_consumer_ids_changed_enable,
            )
        )
        self.client_housekeeping_service = ClientHousekeepingService(broker)
        self.server.on_close.append(self.client_housekeeping_service.on_close)

        directory = store_config.config_dir
        self.schedule_message_service = ScheduleMessageService(
            os.path.join(directory, "delayOffset.json"), broker.store, config.delay_offset_update_version_step
        )
        self.timers = TimerMessageStore(broker.store) if store_config.timer_wheel_enable else None
        self.replication = Replication(broker, self.registration, self.schedule_message_service, self.timers)
        self.replication.on_promoted = self._start_as_master
        self.failover = self._make_failover()
        """Decides in place of the configuration which broker of the group is master."""
        self.transaction_metrics = TransactionMetrics(os.path.join(directory, "transactionMetrics"), clock_ms)
        self.transactional_message_service = self._make_transactional_message_service()
        self.transactional_message_check_service = TransactionalMessageCheckService(
            self.transactional_message_service,
            TransactionalMessageCheckListener(broker.producer_manager, config.broker_name),
            lambda: broker.config,
        )
        self.message_trace = self._register_hooks()
        self.pull_message_processor = PullMessageProcessor(broker)
        self.pull_request_hold_service = self.pull_message_processor.pull_request_hold_service
        broker.store.message_arriving_listeners.append(self.pull_request_hold_service.on_arrival)
        broker.store.dispatch_for(self._is_any_message_awaited)
        self.pop_service = PopService(broker, self.timers, self.registration.topic_route)
        self.heads_service = heads.HeadsService(broker)
        self.admin_processor = AdminBrokerProcessor(
            broker,
            self.broker_to_client,
            self.pull_request_hold_service,
            self.schedule_message_service,
            self.timers,
            self.replication,
        )
        self.metrics = self._make_metrics()
        if self.metrics is not None:
            from mqlake.broker.metrics.health import Health

            self.metrics.health = Health(
                broker, lambda: self._running, lambda: len(self.registration.registered_with)
            )
        self._register_processors()
        if broker.plain_access is not None:
            self.server.guard = broker.plain_access.guard
        if broker.access is not None:
            self.server.guard = broker.access.guard
            # those that check each request themselves; a new one belongs here when it does
            self.server.guarded_fast_paths = tuple(
                path for path in self.server.fast_paths if isinstance(path, FastSend | FastPull | FastAck)
            )

        self._config_managers: list[ConfigManager] = [
            broker.topic_config_manager,
            broker.topic_queue_mapping_manager,
            broker.subscription_group_manager,
            broker.consumer_offset_manager,
            broker.consumer_filter_manager,
            broker.message_request_mode_manager,
            self.schedule_message_service,
            self.transaction_metrics,
            *self.pop_service.config_managers,
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False

    def _make_failover(self) -> Failover | None:
        if not self.broker.config.failover:
            return None
        from mqlake.broker.failover.driver import Failover

        return Failover(self.broker, self.registration, self.replication)

    def _make_transactional_message_service(self) -> TransactionalMessageService:
        broker = self.broker
        return TransactionalMessageService(
            broker.store,
            broker.consumer_offset_manager,
            broker.topic_config_manager,
            self.transaction_metrics,
            lambda: broker.config,
            lambda: broker.store_host,
            broker.clock_ms,
        )

    def _register_hooks(self) -> MessageTrace | None:
        """The hooks of message trace, if it is on, and of the plug-ins that the configuration names. ConfigError."""
        trace, hooks = None, self.broker.hooks
        if self.broker.config.broker_message_trace_enable:
            trace = MessageTrace(self.broker)
            hooks.register_send_message_hook(trace)
            hooks.register_consume_message_hook(trace)
        hooks.register_plugins(self.broker)
        return trace

    def _make_metrics(self) -> MetricsExporter | None:
        if self.broker.config.metrics_exporter_type is not MetricsExporterType.PROM:
            return None
        from mqlake.broker.metrics.exporter import MetricsExporter
        from mqlake.broker.metrics.families import Sources

        return MetricsExporter(
            Sources(
                self.broker,
                self.server,
                self.pull_request_hold_service,
                self.admin_processor,
                self.transaction_metrics,
                self.timers,
                self.pop_service,
            )
        )

    def _register_processors(self) -> None:
        broker, server = self.broker, self.server
        latencies = None if self.metrics is None else self.metrics.rpc_latencies
        if latencies is not None:
            server.processors = latencies.processor_table()
        table = StaticTopicTable(server.processors, broker, self.registration.other_brokers)
        sends = SendMessageProcessor(broker, self.transactional_message_service)
        for processor in (
            self.admin_processor,
            *self.admin_processor.families,
            sends,
            RecallMessageProcessor(broker),
            ReplyMessageProcessor(broker, self.broker_to_client),
            ClientManageProcessor(broker),
            ConsumerManageProcessor(broker),
            ConsumerSendMsgBackProcessor(broker),
            QueryMessageProcessor(broker.store),
            EndTransactionProcessor(broker, self.transactional_message_service),
            self.pull_message_processor,
            self.pop_service.pop_message_processor,
            self.pop_service.ack_message_processor,
            self.pop_service.query_assignment_processor,
            self.pop_service.notification_processor,
        ):
            register(table, processor, broker.store)
        fast_send = FastSend(broker, sends, self.transactional_message_service, latencies, server.scratch)
        server.fast_paths = (
            fast_send,
            FastPull(broker, self.pull_message_processor, latencies, server.scratch),
            FastAck(self.pop_service.state, self.pop_service.ack_message_processor, latencies),
        )

    def load_compiled(self) -> None:
        """Has the native code loaded that clients' requests call for."""
        for path in self.server.fast_paths:
            if isinstance(path, FastSend | FastPull):
                path.load()

    async def _load_store(self, *, accept_loss: bool) -> None:
        """Recovers the store. Its topics are made again from its consume queues if nothing is left of their table."""
        store, topics = self.broker.store, self.broker.topic_config_manager
        if self.broker.is_slave or not topics.is_missing:  # a slave has its master's
            await asyncio.to_thread(store.load, accept_loss=accept_loss)
            return
        made = topics.make_from_queues(store.consume_queues.on_disk())  # which type they have, recovery asks
        try:
            await asyncio.to_thread(store.load, accept_loss=accept_loss)
        except BaseException:
            topics.dirty = False  # nothing is written into a store that is refused
            raise
        made += topics.make_from_queues(store.consume_queues.on_disk())
        if made:
            names = ", ".join(f"{each.topic_name} ({each.read_queue_nums})" for each in made[:TOPICS_NAMED])
            more = f" and {len(made) - TOPICS_NAMED} more" if len(made) > TOPICS_NAMED else ""
            logger.warning(
                "%s is missing: %d topics were made again from the consume queues (in brackets how many), with "
                "permission to read and write and without attributes: %s%s. Change them with `mqlake admin topic "
                "create`, or put the file back and restart",
                topics.path,
                len(made),
                names,
                more,
            )

    # --- where it is

    @property
    def port(self) -> int:
        """The port it listens on; 0 before the start."""
        return self.broker.port

    @property
    def broker_addr(self) -> str:
        """The address that it registers with name servers: host:port."""
        return self.broker.broker_addr

    # --- life

    async def start(self, *, accept_loss: bool = False) -> None:
        """Recovers the store, listens, registers. `accept_loss`: see DefaultMessageStore.load(). Raises ConfigError,
        StoreError, FormatError or OSError, and then undoes what it began."""
        broker = self.broker
        broker.load_access()
        self.heads_service.check()
        await asyncio.to_thread(
            lambda: broker.store_host
        )  # looks up the name that is advertised, if it is one
        broker.topic_config_manager.init()
        for manager in self._config_managers:
            manager.load()
        if self.failover is not None:
            await asyncio.to_thread(self.failover.load)
        await self._bind()  # before anything is written: a port may be taken
        try:
            await self._load_store(accept_loss=accept_loss)
            if self.timers is not None:
                await asyncio.to_thread(self.timers.load)
            await asyncio.to_thread(broker.store.start)
            self.schedule_message_service.correct_delay_offset()
            await asyncio.to_thread(self.pop_service.load)
            self.replication.start()
            await self.server.listen()
            if self.metrics is not None:
                self.metrics.start()
        except BaseException:
            await self._stop_parts()
            raise
        self._running = True
        self.pull_request_hold_service.start()
        self.client_housekeeping_service.start()
        self.pop_service.start()
        is_master = not broker.is_slave
        if self.timers is not None:
            self.timers.start(dequeue=is_master)
        if is_master:
            self.schedule_message_service.start()
            self.transactional_message_check_service.start()
            self.pop_service.start_revive()
        self._start_regular_work()
        if self.failover is not None:
            await self.failover.start()
        await self.registration.start()

    def _start_regular_work(self) -> None:
        broker = self.broker
        self._every(
            lambda: broker.config.flush_consumer_offset_interval / 1000, self._persist_config, "config files"
        )
        self._every(
            lambda: broker.config.transaction_metric_flush_interval / 1000,
            self.transaction_metrics.persist_in_background,
            "transaction metrics",
        )
        self._every(
            lambda: broker.config.static_topic_clean_interval / 1000,
            TopicQueueMappingCleanService(broker, self.registration).run_once,
            "mappings of static topics",
        )
        self._every(heads.LOOK_S, self.heads_service.run_once, "heads of log files")

    async def _bind(self) -> None:
        config = self.broker.config
        try:
            await self.server.bind(config.bind_address, config.listen_port)
            self.broker.port = self.server.port
            await self._bind_vip(max(self.server.port - 2, 0))
            self.replication.bind()
            if self.metrics is not None:
                await self.metrics.listen()
        except BaseException:
            if self.metrics is not None:
                await self.metrics.stop()
            await asyncio.gather(self.server.stop(), self.replication.shutdown())
            raise

    async def _bind_vip(self, port: int) -> None:
        config = self.broker.config
        try:
            await self.server.bind(config.bind_address, port, alone=not config.listen_port)
        except ConfigError as error:
            if config.listen_port:
                raise ConfigError(f"{error}; it is the VIP port, two below listenPort") from None
            # the port two below a port that happened to be free may be taken
            logger.info("no VIP port: %s", error)

    def _is_any_message_awaited(self) -> bool:
        """On the dispatch thread."""
        pops = self.pop_service.state
        return self.pull_request_hold_service.holds_any or bool(pops.pop_polling or pops.notification_polling)

    def _start_as_master(self) -> None:
        """Starts the services that a slave does not run."""
        self.schedule_message_service.correct_delay_offset()
        if self.timers is not None:
            self.timers.start_dequeue()
        self.schedule_message_service.start()
        self.transactional_message_check_service.start()
        self.pop_service.become_master()

    async def stop(self) -> None:
        """Unregisters, finishes the requests in flight, persists everything. Idempotent."""
        if self._running:
            self._running = False
            if self.failover is not None:
                await self.failover.shutdown()
            self.client_housekeeping_service.shutdown()
            await self.registration.shutdown()
            await self._cancel_tasks()
            self.pull_request_hold_service.shutdown()
        await self._stop_parts()

    async def _stop_parts(self) -> None:
        if self.metrics is not None:
            await self.metrics.stop()
        self.pop_service.answer_all()
        await self.server.stop()
        await self.pop_service.shutdown()
        await self.schedule_message_service.shutdown()
        await self.transactional_message_check_service.shutdown()
        self.transactional_message_service.close()
        if self.message_trace is not None:
            self.message_trace.flush()
        if self.timers is not None:
            await asyncio.to_thread(self.timers.shutdown)
        await self.replication.shutdown()
        await self._persist_config()
        await asyncio.to_thread(self.broker.store.shutdown)

    async def _cancel_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _every(
        self, interval_s: float | Callable[[], float], job: Callable[[], Awaitable[None]], name: str
    ) -> None:
        self._tasks.append(asyncio.create_task(repeat(name, logger, interval_s, job), name=name))

    async def _persist_config(self) -> None:
        for manager in self._config_managers:
            try:
                await manager.persist_in_background()
            except OSError as error:
                logger.error("%s cannot be written: %s; it is tried again", manager.path, error)
