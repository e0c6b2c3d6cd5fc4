"""A backend whose broker answers what a test says, and which keeps what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mqlake.proxy.backend import Backend, OnRequest
from mqlake.proxy.clients import Client
from mqlake.proxy.context import RequestContext, request_context
from mqlake.proxy.v2.definition_pb2 import MessageType
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.route import BrokerData, QueueData, TopicRouteData
from mqlake.remoting.bodies.topic import MessageQueue, TopicConfig
from mqlake.remoting.command import RemotingCommand

Answer = Callable[[RemotingCommand], RemotingCommand]


class ScriptedBackend(Backend):
    """`answers`: by request code; a request without one is a failure of the test."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.asked: list[tuple[str, RemotingCommand]] = []
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[str, SubscriptionGroupConfig] = {"G": SubscriptionGroupConfig(group_name="G")}
        self.on_request: OnRequest | None = None
        self.closed = 0

    def add_topic(self, topic: str, kind: MessageType = MessageType.NORMAL) -> None:
        attributes = {"message.type": MessageType.Name(kind)}
        self.topics[topic] = TopicConfig(
            topic_name=topic, read_queue_nums=2, write_queue_nums=2, attributes=attributes
        )

    def asked_for(self, code: int) -> list[RemotingCommand]:
        return [command for _, command in self.asked if command.code == code]

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def open(self, remote_address: str, on_request: OnRequest) -> ScriptedBackend:
        self.on_request = on_request
        return self

    async def invoke(
        self, broker_name: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        self.asked.append((broker_name, command))
        return self.answers[command.code](command)

    async def route(self, topic: str) -> TopicRouteData:
        return TopicRouteData(
            queue_datas=[QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=2, perm=6)],
            broker_datas=[BrokerData(cluster="c", broker_name="b", broker_addrs={0: "10.0.0.1:10911"})],
        )

    async def queues_to_send(self, topic: str) -> Sequence[MessageQueue]:
        return [MessageQueue(topic=topic, broker_name="b", queue_id=number) for number in range(2)]

    async def brokers_of(self, topics: Iterable[str]) -> set[str]:
        return {"b"}

    async def topic_config(self, topic: str) -> TopicConfig | None:
        return self.topics.get(topic)

    async def group_config(self, group: str) -> SubscriptionGroupConfig | None:
        return self.groups.get(group)


def context(client_id: str = "c", remaining_s: float | None = None, **metadata: str) -> RequestContext:
    headers = {"x-mq-client-id": client_id, "x-mq-client-version": "5.1.2"}
    headers |= {key.replace("_", "-"): value for key, value in metadata.items()}
    return request_context(headers, "ipv4:10.1.2.3:4567", remaining_s)


def client(backend: Backend, client_id: str = "c") -> Client:
    return Client(backend, context(client_id))
