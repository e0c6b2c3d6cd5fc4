"""SlaveSynchronize: what a slave asks its master for besides the log.

    21 topics ─▶ 201 groups ─▶ 43 offsets of consumers ─▶ 45 of delays ─▶ 402 request modes ─▶ 61 counts of timers
       └▶ 202 ends of queues, after a change        3005 users, 3010 acls, under access control
    60 how far the timers are, every few seconds

RocketMQ's slave begins after a minute; this one as soon as it knows its master. Every table is replaced whole or stays
as it is. Topics that are gone take their queues and offsets with them. Offsets are the master's, except those that
consumers committed to this broker while the master was away: these stay until the master has them, and are sent to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mqlake.base import json_config
from mqlake.base.java_properties import parse_properties
from mqlake.base.throttled_log import ThrottledLog
from mqlake.broker.broker import Broker
from mqlake.broker.services.schedule_message import ScheduleMessageService
from mqlake.broker.services.slave_access import sync_access
from mqlake.broker.services.slave_queues import Ends, StaleQueues
from mqlake.broker.state.consumer_offset import split_topic_at_group
from mqlake.errors import FormatError, MqlakeError, ResponseError
from mqlake.remoting.bodies.admin import (
    ConsumerOffsetSerializeWrapper,
    TopicStatsTable,
)
from mqlake.remoting.bodies.topic import KVTable
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.admin import GetTopicStatsInfoRequestHeader
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.headers.consume import UpdateConsumerOffsetRequestHeader
from mqlake.remoting.metadata_pages import all_groups, all_topics
from mqlake.store.timer.timer_message_store import TimerMessageStore

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0


class SlaveSynchronize:
    def __init__(
        self,
        broker: Broker,
        schedule_message_service: ScheduleMessageService,
        timers: TimerMessageStore | None,
        client: RemotingClient,
    ) -> None:
        self.master_addr = ""
        """host:port of the master's listenPort; empty: not known."""
        self.is_reachable = False
        """True if the master answered the last round."""
        self._broker = broker
        self._schedule = schedule_message_service
        self._timers = timers
        self._stale_queues = StaleQueues(broker.store.consume_queues, self._ends)
        self._client = client
        self._trouble = ThrottledLog(logger, logging.WARNING)

    async def sync_all(self) -> bool:
        """Runs one round; returns True if all of it worked."""
        if not self.master_addr:
            return False
        steps: tuple[Callable[[], Awaitable[None]], ...] = (
            self.sync_topic_config,
            self.sync_subscription_group_config,
            self.sync_consumer_offset,
            self.sync_delay_offset,
            self.sync_message_request_mode,
            self._stale_queues.compare,
            self.sync_timer_metrics,
            self.sync_users_and_acls,
        )
        failed = ""
        for step in steps:
            # a master with failover has queues up to what its replicas have: less than here is no sign of anything
            if step == self._stale_queues.compare and self._broker.config.failover:
                continue
            try:
                await step()
            except ResponseError as error:  # it has nothing of this kind, or is too old to know the request
                must_have = step in (self.sync_topic_config, self.sync_subscription_group_config)
                if must_have or error.code == ResponseCode.NO_PERMISSION:
                    failed = failed or f"{step.__name__} from {self.master_addr}: {error}"
                logger.debug("%s from %s: %s", step.__name__, self.master_addr, error)
            except (MqlakeError, FormatError, OSError, ValueError) as error:
                failed = failed or f"{step.__name__} from {self.master_addr}: {error}"
        if failed:
            self._trouble.failed(f"metadata of the master: {failed}")
        else:
            self._trouble.worked("metadata of the master is fetched again")
        return not failed

    async def ask(
        self, code: RequestCode, timeout_s: float = TIMEOUT_S, header: CommandHeader | None = None
    ) -> bytes:
        """The body of the master's answer. MqlakeError."""
        return (await self._answer(code, header, timeout_s)).body_bytes()

    async def _answer(
        self, code: RequestCode, header: CommandHeader | None, timeout_s: float = TIMEOUT_S
    ) -> RemotingCommand:
        self.is_reachable = False
        request = RemotingCommand.create_request(code, header)
        answer = await self._client.call(self.master_addr, request, timeout_s)
        self.is_reachable = True
        return answer

    async def runtime_info(self, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
        """28 of the master: commitLogMinOffset, commitLogMaxOffset and the others. MqlakeError, FormatError."""
        return KVTable.from_json(await self.ask(RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s)).table

    async def settings(self) -> dict[str, str]:
        """26 of the master: its settings. MqlakeError."""
        return parse_properties((await self.ask(RequestCode.GET_BROKER_CONFIG)).decode())

    # --- the steps

    async def sync_topic_config(self) -> None:
        manager = self._broker.topic_config_manager
        wrapper = await all_topics(self._answer, manager.data_version)
        mappings = self._broker.topic_queue_mapping_manager
        if wrapper.mapping_data_version != mappings.data_version:
            mappings.take_over(wrapper.topic_queue_mapping_detail_map, wrapper.mapping_data_version)
        if wrapper.data_version == manager.data_version and wrapper.topic_config_table:
            return
        self._stale_queues.table_changed()
        gone = manager.take_over(wrapper)
        for topic in sorted(gone):
            logger.info("topic %s is gone from the master: its queues and offsets go, too", topic)
            self._broker.consumer_offset_manager.clean_offset_by_topic(topic)
            await asyncio.to_thread(self._broker.store.consume_queues.delete_topic, topic)

    async def sync_subscription_group_config(self) -> None:
        manager = self._broker.subscription_group_manager
        wrapper = await all_groups(self._answer, manager.data_version)
        if wrapper.data_version != manager.data_version:
            manager.take_over(wrapper)

    async def sync_consumer_offset(self) -> None:
        body = await self.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        wrapper = await asyncio.to_thread(ConsumerOffsetSerializeWrapper.from_json, body)
        for key, queue_id, offset in self._broker.consumer_offset_manager.take_over(wrapper):
            parts = split_topic_at_group(key)
            if parts is None:
                continue
            header = UpdateConsumerOffsetRequestHeader(
                consumer_group=parts[1], topic=parts[0], queue_id=queue_id, commit_offset=offset
            )
            request = RemotingCommand.create_request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            await self._client.call(self.master_addr, request, TIMEOUT_S)

    async def sync_delay_offset(self) -> None:
        body = await self.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        self._schedule.decode(json_config.loads(body.decode()))
        self._schedule.dirty = True

    async def sync_message_request_mode(self) -> None:
        manager = self._broker.message_request_mode_manager
        value = json_config.loads((await self.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).decode())
        if value != manager.encode():
            manager.decode(value)
            manager.dirty = True

    async def _ends(self, topic: str) -> Ends:
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        stats = TopicStatsTable.from_json(await self.ask(RequestCode.GET_TOPIC_STATS_INFO, TIMEOUT_S, header))
        return {queue.queue_id: each.max_offset for queue, each in stats.offset_table.items()}

    async def sync_timer_metrics(self) -> None:
        """How many timer messages wait, by topic: a figure for people, which a new master goes on with."""
        if self._timers is not None and not self._timers.is_dequeuing:
            self._timers.metrics.set(
                json_config.loads((await self.ask(RequestCode.GET_TIMER_METRICS)).decode())
            )

    async def sync_timer_check_point(self) -> None:
        """How far the master has delivered timer messages: from there on this broker would, as the master."""
        if self._timers is not None and not self._timers.is_dequeuing and self.master_addr:
            try:
                self._timers.set_checkpoint(await self.ask(RequestCode.GET_TIMER_CHECK_POINT))
            except (MqlakeError, FormatError) as error:  # also a master without timers
                logger.debug("the timers of %s: %s", self.master_addr, error)

    async def sync_users_and_acls(self) -> None:
        access = self._broker.access
        if access is not None and self._broker.config.auth.sync_users_from_master:
            await sync_access(access, self.ask)
