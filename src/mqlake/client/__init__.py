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

from typing import TYPE_CHECKING

from mqlake.base.lazy_exports import at_first_use

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
else:
    __getattr__, __dir__ = at_first_use(
        __name__,
        {
            "mqlake.client.admin": ["Admin"],
            "mqlake.client.config": ["ClientConfig"],
            "mqlake.client.consume.consumer_config": ["ConsumerConfig"],
            "mqlake.client.consume.listener": ["ConsumeContext", "ConsumeResult", "Listener"],
            "mqlake.client.consume.pull_consumer": ["PullConsumer"],
            "mqlake.client.consume.push_consumer": ["PushConsumer"],
            "mqlake.client.consume.simple_consumer": ["SimpleConsumer"],
            "mqlake.client.consume.subscription": ["MessageSelector"],
            "mqlake.client.mq_client": ["MQClientInstance"],
            "mqlake.client.produce.producer": [
                "MessageQueueSelector",
                "Producer",
                "ProducerConfig",
                "select_by_hash",
            ],
            "mqlake.client.produce.request_reply": ["create_reply_message"],
            "mqlake.client.produce.transaction_producer": [
                "LocalTransactionState",
                "TransactionListener",
                "TransactionMQProducer",
                "TransactionSendResult",
            ],
            "mqlake.client.records": ["MessageClientExt"],
            "mqlake.client.results": ["PullResult", "PullStatus", "SendResult", "SendStatus"],
            "mqlake.message": ["Message"],
            "mqlake.remoting.allocate": ["averagely", "averagely_by_circle"],
            "mqlake.remoting.bodies.client": ["ConsumeFromWhere", "MessageModel"],
            "mqlake.remoting.bodies.topic": ["MessageQueue"],
        },
    )

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
