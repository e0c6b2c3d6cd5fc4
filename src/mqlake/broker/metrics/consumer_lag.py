"""How far a group is behind in a topic, by the offsets it consumes with.

              consumed        pulled          end
    ── done ─────┼── in flight ───┼── ready ───┤
                 └────────── lag ──────────────┘

A pulling group commits what it has consumed, and the broker remembers what it has pulled. A popping group commits what
was handed out, and the broker counts what of it is not acknowledged: as RocketMQ does it, so many messages before the
offset are in flight. A queue that is popped in order stays at the first message that is not acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqlake.broker.broker import Broker
from mqlake.broker.pop.state import PopState
from mqlake.message.groups import messages_behind
from mqlake.remoting.bodies.client import ConsumeType
from mqlake.remoting.bodies.topic import PERM_READ, PERM_WRITE


@dataclass(frozen=True, slots=True)
class Place:
    """The progress of a group in one queue."""

    end: int
    pulled: int
    consumed: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of one group in one topic."""

    messages: int
    latency_ms: int
    in_flight: int
    queueing_ms: int
    """Since the next message to pull was stored."""
    ready: int


class ConsumerLag:
    """Make one for each round of figures."""

    def __init__(self, broker: Broker, pop: PopState) -> None:
        self._broker = broker
        self._pop = pop
        self._popped_since_start = {(queue.group, queue.topic) for queue in pop.queues}

    def pops(self, group: str, topic: str) -> bool:
        """Returns True if the group pops the topic: by its heartbeat, or since the broker started."""
        members = self._broker.consumer_manager.get_consumer_group_info(group, True)
        if members is not None and members.consume_type is ConsumeType.CONSUME_POP:
            return True
        return (group, topic) in self._popped_since_start

    def of(self, group: str, topic: str, *, pops: bool) -> Lag | None:
        """None for a topic that is not there, or not open."""
        broker = self._broker
        config = broker.topic_config_manager.select_topic_config(topic)
        if config is None or not config.perm & broker.config.broker_permission & (PERM_READ | PERM_WRITE):
            return None
        behind = in_flight = ready = 0
        unconsumed: list[int] = []
        unpulled: list[int] = []
        for queue_id in range(config.write_queue_nums):
            place = self._popped(group, topic, queue_id) if pops else self._pulled(group, topic, queue_id)
            behind += messages_behind(place.end, place.consumed)
            in_flight += place.in_flight
            ready += messages_behind(place.end, place.pulled)
            for offset, found in ((place.consumed, unconsumed), (place.pulled, unpulled)):
                if offset < place.end:
                    stored = broker.store.message_store_timestamp(topic, queue_id, offset)
                    if stored > 0:
                        found.append(stored)
        now = broker.clock_ms()
        return Lag(
            behind,
            now - min(unconsumed, default=now),
            in_flight,
            now - min(unpulled, default=now),
            ready,
        )

    def _pulled(self, group: str, topic: str, queue_id: int) -> Place:
        end = self._broker.store.max_offset_in_queue(topic, queue_id)
        offsets = self._broker.consumer_offset_manager
        consumed = offsets.query_offset(group, topic, queue_id)
        pulled = offsets.query_pull_offset(group, topic, queue_id)
        consumed = end if consumed < 0 else consumed
        pulled = consumed if pulled < 0 else pulled
        return Place(end, pulled, consumed, messages_behind(pulled, consumed))

    def _popped(self, group: str, topic: str, queue_id: int) -> Place:
        end = self._broker.store.max_offset_in_queue(topic, queue_id)
        committed = self._broker.consumer_offset_manager.query_offset(group, topic, queue_id)
        if committed < 0:
            return Place(end, end, end, 0)
        in_order = self._pop.order_info_manager.find(topic, group, queue_id)
        if in_order is not None and in_order.offset_list and in_order.offsets[-1] >= committed:
            unacknowledged = [
                offset
                for index, offset in enumerate(in_order.offsets)
                if offset >= committed and not in_order.is_acknowledged(index)
            ]
            return Place(end, in_order.offsets[-1] + 1, committed, len(unacknowledged))
        queue = self._pop.queues.find(topic, group, queue_id)
        pulled = committed if queue is None else self._pop.queues.next_offset(queue)
        in_flight = 0 if queue is None else queue.in_flight
        return Place(end, pulled, max(pulled - in_flight, 0), in_flight)
