"""RocketMQ's own clients (rocketmq-client 5.3.3) as peers: many producers and consumers in one JVM.

    with JavaClients(tmp_path) as clients:
        clients.topic(broker, "T", queues=4)
        with clients.producer(broker) as producer, clients.push(broker, "G", "T") as consumer:
            producer.send("T", "sync", [message(b"body", tags="a")])
            consumer.take(1)

What each takes and gives is listed in tests/interop/java/src/main/java/mqlake/client. Bodies are bytes here.
"""

from __future__ import annotations

import base64
import itertools
import os
from collections.abc import Sequence
from typing import Any, Protocol, Self

from tests.interop.java_peer import TEST_JVM
from tests.interop.java_wire import JavaLines, Json
from tests.waiting import PATIENCE_S

REBALANCE = "-Drocketmq.client.rebalance.waitInterval=1000"
"""A consumer looks for new queues (its retry topic's among them) each second instead of every 20."""


class Address(Protocol):
    """Whatever is asked: the address of its name server."""

    @property
    def namesrv(self) -> str: ...


def message(body: bytes, **fields: Any) -> Json:
    """A message to send: tags, keys, properties, delayLevel, flag; queueId or shard where `how` wants one."""
    return {"body": base64.b64encode(body).decode(), **fields}


def _received(messages: list[Json]) -> list[Json]:
    for each in messages:
        each["body"] = base64.b64decode(each["body"])
    return messages


class JavaClients(JavaLines):
    """Clients of any number of brokers; a name is given to each, so that each is a client of its own."""

    MAIN = "mqlake.client.Main"
    _numbers = itertools.count()

    def __init__(
        self, directory: str | os.PathLike[str], *, jvm: Sequence[str] = (*TEST_JVM, REBALANCE)
    ) -> None:
        super().__init__(directory, jvm=jvm)

    def new_name(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"

    def topic(self, broker: Address, topic: str, queues: int = 4) -> None:
        """Made as mqadmin makes it."""
        self.request("topic.create", namesrv=broker.namesrv, topic=topic, queues=queues)

    def producer(self, broker: Address, **settings: Any) -> JavaProducer:
        return JavaProducer(self, "producer", broker, **settings)

    def push(self, broker: Address, group: str, topic: str, **settings: Any) -> JavaPushConsumer:
        return JavaPushConsumer(self, "push", broker, group=group, topic=topic, **settings)

    def pull(self, broker: Address, group: str, **settings: Any) -> JavaPullConsumer:
        return JavaPullConsumer(self, "pull", broker, group=group, **settings)

    def load(self, broker: Address, topic: str, batch: int = 1) -> JavaLoad:
        return JavaLoad(self, "load", broker, topic=topic, batch=batch)

    def all_of(self, broker: Address, topic: str, count: int) -> dict[int, list[Json]]:
        """Every message of a topic by queue, in their order; `count` are waited for."""
        with self.pull(broker, self.new_name("GID_all")) as consumer:
            consumer.assign(topic, begin=True)
            found = consumer.poll(count)
        queues: dict[int, list[Json]] = {}
        for each in found:
            queues.setdefault(each["queueId"], []).append(each)
        return queues


class JavaClient:
    """One client, started with its making and ended with its `with`."""

    def __init__(self, clients: JavaClients, kind: str, broker: Address, **settings: Any) -> None:
        self.clients, self.kind, self.name = clients, kind, clients.new_name(kind)
        self._stopped = False
        self.ask("start", namesrv=broker.namesrv, **settings)

    def ask(self, what: str, **fields: Any) -> Json:
        return self.clients.request(f"{self.kind}.{what}", name=self.name, **fields)

    def stop(self) -> Json:
        self._stopped = True
        return self.ask("stop")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stopped:
            self.stop()


class JavaProducer(JavaClient):
    def send(self, topic: str, how: str, messages: Sequence[Json], **fields: Any) -> list[Json]:
        """How: sync, async, oneway, queue, ordered, batch. What came of each send that is answered."""
        results: list[Json] = self.ask("send", topic=topic, how=how, messages=list(messages), **fields)[
            "results"
        ]
        return results

    def ask_for_reply(self, topic: str, body: bytes) -> Json:
        """Request-reply: the reply."""
        answer = self.ask("request", topic=topic, message=message(body), timeoutMillis=int(PATIENCE_S * 1000))
        return _received([answer])[0]

    def recall(self, topic: str, handle: str) -> str:
        """Cancels a timer message; its id."""
        return str(self.ask("recall", topic=topic, handle=handle)["msgId"])

    def queues(self, topic: str) -> list[int]:
        queues: list[int] = self.ask("queues", topic=topic)["queues"]
        return queues


class JavaPushConsumer(JavaClient):
    def take(self, count: int, timeout_s: float = PATIENCE_S) -> list[Json]:
        """All that it has consumed so far, once there are `count`."""
        found = _received(self.ask("take", count=count, timeoutMillis=int(timeout_s * 1000))["messages"])
        assert len(found) >= count, f"{self.name} consumed {len(found)} of {count} within {timeout_s:g} s"
        return found

    def queues(self, topic: str) -> set[int]:
        """Those that it has now."""
        return set(self.ask("queues", topic=topic)["queues"])


class JavaPullConsumer(JavaClient):
    def assign(self, topic: str, queues: list[int] | None = None, *, begin: bool = False) -> None:
        self.ask("assign", topic=topic, queues=queues, begin=begin)

    def poll(self, count: int, timeout_s: float = PATIENCE_S) -> list[Json]:
        """The next messages, `count` of them or a few more. A pull that is held while its queue is sought is not
        always interrupted: it may be 20 seconds until it ends by itself."""
        found = _received(self.ask("poll", count=count, timeoutMillis=int(timeout_s * 1000))["messages"])
        assert len(found) >= count, f"{self.name} got {len(found)} of {count} within {timeout_s:g} s"
        return found


class JavaLoad(JavaClient):
    def wait_for_more(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Until so many more messages are acknowledged."""
        before = self.ask("state")["acknowledged"]
        after = self.ask("await", count=count, timeoutMillis=int(timeout_s * 1000))
        assert after["acknowledged"] >= before + count, f"{after} after {before} within {timeout_s:g} s"
