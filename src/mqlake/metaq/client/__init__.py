"""The client: producers, consumers, topic browsers.

async with MetaMessageSessionFactory(zk_connect="127.0.0.1:2181") as session:
    producer = session.create_producer()
    await producer.publish("orders")
    result = await producer.send_message(Message("orders", b"..."))

    consumer = session.create_consumer(ConsumerConfig(group="billing"))
    consumer.subscribe("orders", handle)
    await consumer.complete_subscribe()
"""

from mqlake.metaq.client.consumer import ConsumerConfig, MessageConsumer
from mqlake.metaq.client.producer import (
    MessageProducer,
    ProducerTransaction,
    ProducerXATransaction,
    SendResult,
)
from mqlake.metaq.client.session_factory import MetaMessageSessionFactory
from mqlake.metaq.formats.transaction_id import XATransactionId
from mqlake.metaq.message import Message, Partition

__all__ = [
    "ConsumerConfig",
    "Message",
    "MessageConsumer",
    "MessageProducer",
    "MetaMessageSessionFactory",
    "Partition",
    "ProducerTransaction",
    "ProducerXATransaction",
    "SendResult",
    "XATransactionId",
]
