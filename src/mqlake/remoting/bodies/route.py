"""The route of a topic: the JSON that name servers answer, and the queues that a client makes of it.

`namesrv` builds a TopicRouteData from what brokers registered; `client`, `proxy` and `lake.live` ask for it and turn it
into MessageQueues (`readable_queues`).
"""

from __future__ import annotations

from dataclasses import field

from mqlake.remoting.bodies.codec import JsonBody
from mqlake.remoting.bodies.topic import PERM_READ, MessageQueue, TopicQueueMappingInfo

MASTER_ID = 0
"""The broker id of a master; replicas have others."""


class BrokerData(JsonBody):
    """A broker and its replicas: broker id → host:port."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False


class QueueData(JsonBody):
    """The queues of a topic on one broker, and their permissions."""

    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


class TopicRouteData(JsonBody):
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


class ClusterInfo(JsonBody):
    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, set[str]] = field(default_factory=dict)


class BrokerMemberGroup(JsonBody):
    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = field(default_factory=dict)


class GetBrokerMemberGroupResponseBody(JsonBody):
    broker_member_group: BrokerMemberGroup | None = None


def readable_queues(route: TopicRouteData, topic: str) -> list[MessageQueue]:
    """Queues that may be read, sorted."""
    return sorted(
        queue
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue in numbered_queues(topic, data.broker_name, data.read_queue_nums)
    )


def numbered_queues(topic: str, broker_name: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic=topic, broker_name=broker_name, queue_id=i) for i in range(count)]
