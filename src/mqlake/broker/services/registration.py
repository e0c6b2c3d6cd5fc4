"""Registration: keeps the broker and its topics registered with the name servers, from start() to shutdown().

    each period, and soon after a name server was lost     all topics
    topic_config_manager.on_change                         the topics that came or changed, together

A name server that does not answer delays no other, and is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable

from mqlake.base.background import BackgroundWork
from mqlake.broker.broker import Broker
from mqlake.broker.services.other_brokers import OtherBrokers
from mqlake.broker.services.outer_api import BrokerIdentity, BrokerOuterAPI, RegisterBrokerResult
from mqlake.broker.state.topic_config import PERM_READ_WRITE
from mqlake.remoting.bodies.route import TopicRouteData
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.tls import caller_context

logger = logging.getLogger(__name__)

REGISTER_RETRY_S = 2.0
"""Pause before a name server that did not answer is tried again."""
REGISTER_START_WAIT_S = 3.0
"""How long the start waits for the name servers to know the broker."""
REGISTER_WAIT_S = 1.0
"""How long a send that created its topic waits for the name servers to know it."""
UNREGISTER_TIMEOUT_S = 3.0


class Registration:
    def __init__(self, broker: Broker) -> None:
        """ConfigError when the TLS files cannot be used."""
        self._broker = broker
        self._topic_config_manager = broker.topic_config_manager
        self._outer_api = BrokerOuterAPI(
            broker.config.namesrv_addresses,
            self._name_server_lost,
            caller_context(broker.config.tls),
            broker.config.auth.inner_credentials,
        )
        self.other_brokers = OtherBrokers(self._outer_api)
        self.on_answers: Callable[[list[RegisterBrokerResult]], None] = lambda results: None
        """Called with the answers of the name servers, which tell a slave where its master is."""
        self.registered_with: list[str] = []
        """The name servers that answered the last registration."""
        self._register_now = asyncio.Event()
        self._register_lock = asyncio.Lock()
        self._new_topics: dict[str, TopicConfig] = {}
        self._registering_new: asyncio.Task[None] | None = None
        self._tried_to_register = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        """None before the start and after the end."""

    @property
    def identity(self) -> BrokerIdentity:
        config = self._broker.config
        return BrokerIdentity(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            broker_addr=self._broker.broker_addr,
            ha_server_addr=self._broker.ha_server_addr,
        )

    # --- life

    async def start(self) -> None:
        """Registers from now on; returns when all name servers were tried, or after REGISTER_START_WAIT_S."""
        self._task = asyncio.create_task(self._keep_registered())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REGISTER_START_WAIT_S):
                await self._tried_to_register.wait()

    async def shutdown(self) -> None:
        """Unregisters. Idempotent."""
        if self._task is None:
            return
        tasks = [self._task] if self._registering_new is None else [self._task, self._registering_new]
        self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._outer_api.unregister_broker_all(self.identity, UNREGISTER_TIMEOUT_S)
        await self._outer_api.close()

    async def topic_route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic from a name server; None without one, or if none knows the topic."""
        return await self._outer_api.topic_route(topic)

    # --- all topics

    async def register_broker_all(self, *, force: bool = True) -> bool:
        """Registers with all name servers; returns True if all answered. With `force` False it does nothing if they
        have this version already."""
        async with self._register_lock:
            config, manager = self._broker.config, self._topic_config_manager
            timeout_s = config.register_broker_timeout_mills / 1000
            if not force and not await self._outer_api.need_register(
                self.identity, manager.data_version, timeout_s
            ):
                return True
            self._new_topics.clear()  # they are in the whole table
            topics = list(manager.topic_config_table.values())
            size = config.split_registration_size if config.enable_split_registration else len(topics)
            answered = True
            for start in range(0, max(len(topics), 1), max(size, 1)):
                part = topics[start : start + max(size, 1)]
                answered &= await self._register(part, partial=len(part) < len(topics))
            return answered

    async def _register(self, topics: Iterable[TopicConfig], *, partial: bool) -> bool:
        config, manager = self._broker.config, self._topic_config_manager
        topics = [self._permitted(topic) for topic in topics]
        wrapper = manager.build_serialize_wrapper({topic.topic_name: topic for topic in topics})
        mappings = self._broker.topic_queue_mapping_manager
        wrapper.topic_queue_mapping_info_map = mappings.infos(wrapper.topic_config_table)
        asked = list(self._outer_api.name_servers)
        results = await self._outer_api.register_broker_all(
            self.identity, wrapper, config.register_broker_timeout_mills / 1000, partial=partial
        )
        self.registered_with = [at for at, result in zip(asked, results, strict=True) if result is not None]
        for result in results:
            if result is not None:
                manager.update_order_topic_config(result.order_topics)
        self.on_answers([result for result in results if result is not None])
        return None not in results

    def _permitted(self, topic: TopicConfig) -> TopicConfig:
        """The topic with what the broker's own permission leaves of its."""
        permission = self._broker.config.broker_permission
        if permission & PERM_READ_WRITE == PERM_READ_WRITE:
            return topic
        return dataclasses.replace(topic, perm=topic.perm & permission)

    async def _keep_registered(self) -> None:
        """Registers at once, then at each period; sooner if a name server did not answer or was lost."""
        force = True
        work = BackgroundWork("registration with the name servers", logger, pause_s=0.0)
        while True:
            # before the requests: a name server may answer and be lost at once
            self._register_now.clear()
            answered = False
            async with work.round():
                answered = await self.register_broker_all(force=force)
            self._tried_to_register.set()
            config = self._broker.config
            force = config.force_register or not answered
            period = min(max(config.register_name_server_period, 10_000), 60_000) / 1000
            try:
                async with asyncio.timeout(period if answered else REGISTER_RETRY_S):
                    await self._register_now.wait()
                await asyncio.sleep(REGISTER_RETRY_S)
                force = True
            except TimeoutError:
                pass

    def register_soon(self) -> None:
        """Registers again in REGISTER_RETRY_S, to learn what the name servers know by then."""
        self._register_now.set()

    async def change_identity(self, change: Callable[[], None]) -> None:
        """Unregisters, makes the change (of the id, say), registers under what is true then."""
        await self._outer_api.unregister_broker_all(self.identity, UNREGISTER_TIMEOUT_S)
        change()
        await self.register_broker_all()

    def _name_server_lost(self) -> None:
        self._register_now.set()

    # --- new topics

    def register_topics(self, topics: Iterable[TopicConfig]) -> asyncio.Future[None] | None:
        """Registers new and changed topics. The future is done when the name servers have answered, or after
        REGISTER_WAIT_S."""
        if self._task is None or not self._outer_api.name_servers:
            return None
        self._new_topics.update((topic.topic_name, topic) for topic in topics)
        if self._registering_new is None or self._registering_new.done():
            self._registering_new = asyncio.create_task(self._register_new_topics())
        registering = self._registering_new
        return asyncio.ensure_future(_wait_at_most(registering, REGISTER_WAIT_S))

    async def _register_new_topics(self) -> None:
        """Topics that come while a request is in flight go together with the next one. The lock comes first: where
        none are left the whole table has taken them, and the name servers know it when the lock is free."""
        work = BackgroundWork("registration of new topics", logger, pause_s=0.0)
        while True:
            async with self._register_lock:
                topics, self._new_topics = list(self._new_topics.values()), {}
                if not topics:
                    return
                answered = False
                async with work.round():
                    if self._broker.config.enable_single_topic_register:
                        answered = await self._register_singly(topics)
                    else:
                        answered = await self._register(topics, partial=True)
                if not answered:
                    self._register_now.set()

    async def _register_singly(self, topics: Iterable[TopicConfig]) -> bool:
        """True if all name servers answered. One of RocketMQ with deleteTopicWithBrokerRegistration=true would take a
        registration of these topics for the broker's whole table, and forget the others; not so one that brings a
        mapping along."""
        name, answered = self._broker.config.broker_name, True
        for topic in topics:
            if topic.topic_name in self._broker.topic_queue_mapping_manager.table:
                answered &= await self._register([topic], partial=True)
            else:
                answered &= await self._outer_api.register_single_topic_all(name, self._permitted(topic))
        return answered


async def _wait_at_most(task: asyncio.Task[None], seconds: float) -> None:
    await asyncio.wait([task], timeout=seconds)
