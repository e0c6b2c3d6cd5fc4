"""TopicQueueMappingCleanService: forgets parts of static topics that nobody needs to know any more.

    the messages of the oldest part are gone      the leader of the queue takes the part out of its mapping
    a queue has moved on twice                    a broker that led it before that takes the queue out of its mapping

Only in the hours of deleteWhen, as in RocketMQ. What another broker does not answer stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from mqlake.broker.broker import Broker
from mqlake.broker.services.after_dispatch import DISPATCH_WAIT_S
from mqlake.broker.services.registration import Registration
from mqlake.errors import MqlakeError
from mqlake.remoting.bodies.admin import TopicStatsTable
from mqlake.remoting.bodies.topic import (
    LogicQueueMappingItem,
    MessageQueue,
    TopicConfigAndQueueMapping,
    TopicQueueMappingDetail,
)
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.admin import GetTopicConfigRequestHeader, GetTopicStatsInfoRequestHeader
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.static_topic import NO_BROKER, endpoints, leads, mock_broker_name
from mqlake.store.clean import is_time_to_delete

logger = logging.getLogger(__name__)


class TopicQueueMappingCleanService:
    def __init__(self, broker: Broker, registration: Registration) -> None:
        self._broker, self._registration = broker, registration
        self._mappings = broker.topic_queue_mapping_manager

    async def run_once(self) -> None:
        """One look at all static topics."""
        broker = self._broker
        hours = broker.store_config.delete_when_hours
        if broker.is_slave or not self._mappings.table or not is_time_to_delete(hours, broker.clock_ms()):
            return
        for clean in (self._clean_expired, self._clean_moved):
            for detail in list(self._mappings.table.values()):
                try:
                    await clean(detail)
                except MqlakeError as error:
                    logger.warning("topic %s: its mapping is not cleaned now: %s", detail.topic, error)
        await self._mappings.persist_in_background()

    # --- parts without messages

    async def _clean_expired(self, detail: TopicQueueMappingDetail) -> None:
        candidates = {
            queue_id: items
            for queue_id, items in detail.hosted_queues.items()
            # the next part must be decided, or an offset would belong to none
            if leads(items, detail) and len(items) > 1 and items[1].is_decided
        }
        empty = await self._empty_parts(detail, [items[0] for items in candidates.values()])
        left = {
            queue_id: items[1:] if queue_id in candidates and items[0] in empty else items
            for queue_id, items in detail.hosted_queues.items()
        }
        if left != detail.hosted_queues and self._mappings.table.get(detail.topic) is detail:
            self._mappings.set_queues(detail.topic, left)

    async def _empty_parts(
        self, detail: TopicQueueMappingDetail, parts: Iterable[LogicQueueMappingItem]
    ) -> list[LogicQueueMappingItem]:
        by_broker: dict[str, list[LogicQueueMappingItem]] = {}
        for item in parts:
            by_broker.setdefault(item.bname, []).append(item)
        empty = []
        for broker_name, items in by_broker.items():
            if broker_name == detail.bname:
                ends = await self._ends_here(detail.topic, items)
            else:
                ends = await self._ends_there(detail.topic, broker_name, items)
            empty += [item for item, (low, high) in zip(items, ends, strict=True) if high in (low, 0)]
        return empty

    async def _ends_here(self, topic: str, items: Iterable[LogicQueueMappingItem]) -> list[tuple[int, int]]:
        store = self._broker.store
        await asyncio.to_thread(store.wait_until_dispatched, DISPATCH_WAIT_S)
        if store.dispatch_behind_bytes:
            return [(-1, -2) for _ in items]  # none is known to be empty
        queues = [item.queue_id for item in items]
        return [(store.min_offset_in_queue(topic, q), store.max_offset_in_queue(topic, q)) for q in queues]

    async def _ends_there(
        self, topic: str, broker_name: str, items: Iterable[LogicQueueMappingItem]
    ) -> list[tuple[int, int]]:
        header = GetTopicStatsInfoRequestHeader(topic=topic, lo=False, bname=broker_name)
        body = await self._ask(broker_name, RequestCode.GET_TOPIC_STATS_INFO, header)
        stats = {} if body is None else TopicStatsTable.from_json(body).offset_table
        ends = []
        for item in items:
            known = stats.get(MessageQueue(topic=topic, broker_name=broker_name, queue_id=item.queue_id))
            ends.append((-1, -2) if known is None else (known.min_offset, known.max_offset))
        return ends

    # --- queues that have moved on

    async def _clean_moved(self, detail: TopicQueueMappingDetail) -> None:
        elsewhere = {
            queue_id: items[-1].bname
            for queue_id, items in detail.hosted_queues.items()
            if items and not leads(items, detail)
        }
        if not elsewhere:
            return
        route = await self._registration.topic_route(detail.topic)
        if route is None:
            return
        real = {
            queue.queue_id: broker_name
            for queue, broker_name in endpoints(detail.topic, route).items()
            if queue.broker_name == mock_broker_name(detail.scope)
        }
        moved = {
            queue_id: real[queue_id]
            for queue_id, known_leader in elsewhere.items()
            if real.get(queue_id, NO_BROKER) not in (known_leader, NO_BROKER)
        }
        led_by = {name: await self._led_by(detail, name) for name in set(moved.values())}
        gone = {queue_id for queue_id, leader in moved.items() if queue_id in led_by[leader]}
        if gone and self._mappings.table.get(detail.topic) is detail:
            left = {q: items for q, items in detail.hosted_queues.items() if q not in gone}
            self._mappings.set_queues(detail.topic, left)

    async def _led_by(self, detail: TopicQueueMappingDetail, broker_name: str) -> set[int]:
        """The queues that this broker says it leads, if it knows the same state of the mapping."""
        header = GetTopicConfigRequestHeader(topic=detail.topic, lo=True, bname=broker_name)
        body = await self._ask(broker_name, RequestCode.GET_TOPIC_CONFIG, header)
        theirs = None if body is None else TopicConfigAndQueueMapping.from_json(body).mapping_detail
        if theirs is None or (theirs.bname, theirs.epoch, theirs.total_queues) != (
            broker_name,
            detail.epoch,
            detail.total_queues,
        ):
            return set()
        return {queue_id for queue_id, items in theirs.hosted_queues.items() if leads(items, theirs)}

    async def _ask(self, broker_name: str, code: RequestCode, header: CommandHeader) -> bytes | None:
        """The body of its answer; None if it refuses. MqlakeError if there is no answer."""
        timeout_s = self._broker.config.forward_timeout / 1000
        request = RemotingCommand.create_request(code, header)
        answer = await self._registration.other_brokers.ask(broker_name, request, timeout_s)
        return answer.body_bytes() if answer.code == ResponseCode.SUCCESS else None
