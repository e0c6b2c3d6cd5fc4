"""A client for RocketMQ and mqlake clusters: produce, consume, administer.

    Producer         sends: one, oneway, batch, ordered, request and reply
    TransactionMQProducer  messages that consumers get when a transaction is committed
    PushConsumer     calls a listener with a group's messages
    PullConsumer     returns messages when polled
    SimpleConsumer   returns messages that all members of a group share, and acknowledges them one by one
    Admin            topics, groups, offsets, messages by key and id, brokers and name servers
    MQClientInstance connections and heartbeats that several of them share

All are asyncio; `mqlake.client.blocking` has the same for programs without an event loop. Guide: docs/client.md. Each
name is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqlake.client.admin import Admin
    from mqlake.client.config import ClientConfig
    from mqlake.client.consume.consumer_config import ConsumerConfig
    from mqlake.client.consume.listener import ConsumeContext, ConsumeResult, Listener
    from mqlake.client.consume.pull_consumer import PullConsumer
    from mqlake.client.consume.push_consumer import PushConsumer
    from mqlake.client.consume.simple_consumer import SimpleConsumer
    from mqlake.client.consume.subscription import MessageSelector
    from mqlake.client.mq_client import MQClientInstance
    from mqlake.client.produce.producer import MessageQueueSelector, Producer, ProducerConfig, select_by_hash
    from mqlake.client.produce.request_reply import create_reply_message
    from mqlake.client.produce.transaction_producer import (
        LocalTransactionState,
        TransactionListener,
        TransactionMQProducer,
        TransactionSendResult,
    )
    from mqlake.client.records import MessageClientExt
    from mqlake.client.results import PullResult, PullStatus, SendResult, SendStatus
    from mqlake.message import Message
    from mqlake.remoting.allocate import averagely, averagely_by_circle
    from mqlake.remoting.bodies.client import ConsumeFromWhere, MessageModel
    from mqlake.remoting.bodies.topic import MessageQueue

_HOME = {
    "Admin": "client.admin",
    "ClientConfig": "client.config",
    "ConsumeContext": "client.consume.listener",
    "ConsumeFromWhere": "remoting.bodies.client",
    "ConsumeResult": "client.consume.listener",
    "ConsumerConfig": "client.consume.consumer_config",
    "Listener": "client.consume.listener",
    "LocalTransactionState": "client.produce.transaction_producer",
    "MQClientInstance": "client.mq_client",
    "Message": "message",
    "MessageClientExt": "client.records",
    "MessageModel": "remoting.bodies.client",
    "MessageQueue": "remoting.bodies.topic",
    "MessageQueueSelector": "client.produce.producer",
    "MessageSelector": "client.consume.subscription",
    "Producer": "client.produce.producer",
    "ProducerConfig": "client.produce.producer",
    "PullConsumer": "client.consume.pull_consumer",
    "PullResult": "client.results",
    "PullStatus": "client.results",
    "PushConsumer": "client.consume.push_consumer",
    "SendResult": "client.results",
    "SendStatus": "client.results",
    "SimpleConsumer": "client.consume.simple_consumer",
    "TransactionListener": "client.produce.transaction_producer",
    "TransactionMQProducer": "client.produce.transaction_producer",
    "TransactionSendResult": "client.produce.transaction_producer",
    "averagely": "remoting.allocate",
    "averagely_by_circle": "remoting.allocate",
    "create_reply_message": "client.produce.request_reply",
    "select_by_hash": "client.produce.producer",
}

__all__ = [
    "Admin",
    "ClientConfig",
    "ConsumeContext",
    "ConsumeFromWhere",
    "ConsumeResult",
    "ConsumerConfig",
    "Listener",
    "LocalTransactionState",
    "MQClientInstance",
    "Message",
    "MessageClientExt",
    "MessageModel",
    "MessageQueue",
    "MessageQueueSelector",
    "MessageSelector",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "TransactionListener",
    "TransactionMQProducer",
    "TransactionSendResult",
    "averagely",
    "averagely_by_circle",
    "create_reply_message",
    "select_by_hash",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"mqlake.{_HOME[name]}"), name)
