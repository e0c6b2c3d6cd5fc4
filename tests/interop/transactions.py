"""Transaction producers, RocketMQ's and mqlake's, that do as the messages say.

A message's properties "local" and "check" say what its local transaction comes to: COMMIT, ROLLBACK or UNKNOWN.
No broker asks for what will end by itself, however long a slow machine takes to end it: what such a message says keeps
mqlake's from it. RocketMQ's stores it anew at each look then, whether it has ended or not, and is to be told otherwise.
"""

from __future__ import annotations

import itertools
from typing import Protocol

from mqlake.client import LocalTransactionState, Message, MessageClientExt
from mqlake.client.blocking import PullConsumer, TransactionMQProducer
from mqlake.message import PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS
from tests.interop.java_wire import JavaLines

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
_numbers = itertools.count()


class JavaTransactions(JavaLines):
    MAIN = "mqlake.transactions.Main"


class TransactionPeer(Protocol):
    def send(self, topic: str, body: str, local: str, check: str = UNKNOWN) -> str:
        """The state that the producer says."""
        ...

    def asked(self) -> list[str]:
        """Bodies that a broker has asked for."""
        ...

    def stop(self) -> None: ...


class JavaPeer:
    def __init__(self, java: JavaTransactions, namesrv: str, group: str) -> None:
        self._java = java
        self._name = f"transactions-{next(_numbers)}"
        java.request("start", name=self._name, namesrv=namesrv, group=group)

    def send(self, topic: str, body: str, local: str, check: str = UNKNOWN) -> str:
        fields = {"topic": topic, "body": body, "local": local, "check": check, "flag": 3}
        sent = self._java.request("send", name=self._name, **fields)
        assert sent["status"] == "SEND_OK"
        return str(sent["state"])

    def asked(self) -> list[str]:
        bodies: list[str] = self._java.request("asked", name=self._name)["bodies"]
        return bodies

    def stop(self) -> None:
        self._java.request("stop", name=self._name)


class MqlakePeer:
    def __init__(
        self, namesrv: str, group: str, topics: tuple[str, ...] = (), *, immune: bool = True
    ) -> None:
        """`immune`: what will end by itself says so."""
        self._immune = immune
        self._asked: list[str] = []
        self.producer = TransactionMQProducer(group, namesrv, self, topics=topics)
        self.producer.start()

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState[message.properties["local"]]

    def check_local_transaction(self, message: MessageClientExt) -> LocalTransactionState:
        self._asked.append(message.body.decode())
        return LocalTransactionState[message.properties["check"]]

    def send(self, topic: str, body: str, local: str, check: str = UNKNOWN) -> str:
        properties = {"local": local, "check": check}
        if local != UNKNOWN and self._immune:
            properties[PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS] = "600"
        message = Message(topic, body.encode(), flag=3, properties=properties)
        return self.producer.send_message_in_transaction(message).local_transaction_state.name

    def asked(self) -> list[str]:
        return list(self._asked)

    def stop(self) -> None:
        self.producer.close()


def bodies(namesrv: str, topic: str) -> list[str]:
    """All that the topic has, sorted."""
    with PullConsumer(f"all-{next(_numbers)}", namesrv) as consumer:
        found = []
        for queue in consumer.fetch_message_queues(topic):
            offset, end = consumer.begin_offset(queue), consumer.max_offset(queue)
            while offset < end:
                pulled = consumer.pull(queue, offset)
                found += [message.body.decode() for message in pulled.messages()]
                offset = pulled.next_begin_offset
    return sorted(found)
