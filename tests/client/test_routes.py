"""Which queues a route gives to producers and consumers, and in which order they are taken."""

from __future__ import annotations

from mqlake.client.routes import TopicPublishInfo, writable_queues
from mqlake.remoting.bodies.route import BrokerData, QueueData, TopicRouteData, readable_queues
from mqlake.remoting.bodies.topic import MessageQueue


def queue(broker: str, number: int) -> MessageQueue:
    return MessageQueue(topic="T", broker_name=broker, queue_id=number)


ROUTE = TopicRouteData(
    queue_datas=[
        QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=1, perm=6),
        QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=2, perm=6),
        QueueData(broker_name="no-master", read_queue_nums=1, write_queue_nums=1, perm=6),
        QueueData(broker_name="read-only", read_queue_nums=1, write_queue_nums=1, perm=4),
    ],
    broker_datas=[
        BrokerData(broker_name="a", broker_addrs={0: "x:1"}),
        BrokerData(broker_name="b", broker_addrs={0: "x:2", 1: "x:3"}),
        BrokerData(broker_name="no-master", broker_addrs={1: "x:4"}),
        BrokerData(broker_name="read-only", broker_addrs={0: "x:5"}),
    ],
)


def test_queues_of_a_route() -> None:
    assert writable_queues(ROUTE, "T") == [queue("a", 0), queue("a", 1), queue("b", 0)]
    assert readable_queues(ROUTE, "T") == [
        queue("a", 0),
        queue("b", 0),
        queue("b", 1),
        queue("no-master", 0),
        queue("read-only", 0),
    ]


def test_an_order_configuration_is_all_there_is() -> None:
    route = TopicRouteData(order_topic_conf="b:1;a:2;", queue_datas=ROUTE.queue_datas)
    assert writable_queues(route, "T") == [queue("b", 0), queue("a", 0), queue("a", 1)]


def test_queues_in_turn() -> None:
    queues = [queue("a", 0), queue("a", 1), queue("b", 0)]
    info = TopicPublishInfo(queues)
    taken = [info.select_one_message_queue() for _ in range(6)]
    assert sorted(taken) == sorted(queues * 2) and taken[:3] == taken[3:]
    assert {info.select_one_message_queue(frozenset("a")) for _ in range(5)} == {queue("b", 0)}
    assert info.select_one_message_queue(frozenset("ab")) in queues
