"""A topic's queues: those to send to, and those to read from. Of a static topic both are its logical queues."""

from __future__ import annotations

import random

from mqlake.remoting.bodies.route import MASTER_ID, TopicRouteData, numbered_queues
from mqlake.remoting.bodies.route import readable_queues as queues_of_brokers
from mqlake.remoting.bodies.topic import PERM_WRITE, MessageQueue
from mqlake.remoting.static_topic import NO_BROKER, endpoints


def readable_queues(route: TopicRouteData, topic: str) -> list[MessageQueue]:
    """Queues that may be read, sorted."""
    return sorted(endpoints(topic, route)) or queues_of_brokers(route, topic)


def writable_queues(route: TopicRouteData, topic: str) -> list[MessageQueue]:
    """Queues that may be written and whose broker has a master, in RocketMQ's order.

    `orderTopicConf` (`broker:queues;…`), if a name server returns it, overrides the route.
    """
    if route.order_topic_conf:
        queues = []
        for item in route.order_topic_conf.split(";"):
            broker, _, count = item.partition(":")
            if broker and count.isdecimal():
                queues += numbered_queues(topic, broker, int(count))
        return queues
    if logical := sorted(endpoints(topic, route)):
        return logical
    with_master = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    return [
        queue
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERM_WRITE and data.broker_name in with_master
        for queue in numbered_queues(topic, data.broker_name, data.write_queue_nums)
    ]


def queues_at_brokers(route: TopicRouteData, topic: str) -> list[MessageQueue]:
    """As writable_queues, with the names of the brokers to send to: of a static topic those that lead its queues."""
    leaders = sorted((queue.queue_id, name) for queue, name in endpoints(topic, route).items())
    if not leaders:
        return writable_queues(route, topic)
    return [
        MessageQueue(topic=topic, broker_name=name, queue_id=queue_id)
        for queue_id, name in leaders
        if name != NO_BROKER
    ]


class TopicPublishInfo:
    """A topic's writable queues, given out in turn."""

    def __init__(self, queues: list[MessageQueue]) -> None:
        self.queues = queues
        self._next = random.randrange(max(1, len(queues)))

    def select_one_message_queue(self, avoid: frozenset[str] = frozenset()) -> MessageQueue:
        """The next queue whose broker is not in `avoid`, or just the next when all are."""
        queues = self.queues
        for _ in range(len(queues)):
            queue = queues[self._next % len(queues)]
            self._next += 1
            if queue.broker_name not in avoid:
                return queue
        queue = queues[self._next % len(queues)]
        self._next += 1
        return queue
