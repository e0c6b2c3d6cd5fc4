"""FastStream over RocketMQ: RocketBroker, with subscribers, publishers, routers and an in-memory broker for tests.

    broker = RocketBroker("127.0.0.1:9876")

    @broker.publisher("Packed", tag="new")
    @broker.subscriber("Orders", tags="book || record", group="packing")
    async def pack(order: Order) -> Parcel: ...

    publish   ─▶ Message: the body as FastStream encodes it; headers, content type and correlation id are properties
    subscribe ◀─ popped (each message acknowledged alone), or pulled in the order of its queue (`orderly=True`)
    request   ─▶ RocketMQ's request and reply; a subscriber's result answers those of Java's clients, too

Guide: docs/faststream.md.
"""

from mqlake.adapters.faststream.broker import RocketBroker
from mqlake.adapters.faststream.command import RocketResponse
from mqlake.adapters.faststream.message import Delivery, RocketMessage
from mqlake.adapters.faststream.registrator import RocketPublisherRoute, RocketRoute, RocketRouter
from mqlake.adapters.faststream.testing import TestRocketBroker
from mqlake.adapters.faststream.transaction import Transaction

__all__ = [
    "Delivery",
    "RocketBroker",
    "RocketMessage",
    "RocketPublisherRoute",
    "RocketResponse",
    "RocketRoute",
    "RocketRouter",
    "TestRocketBroker",
    "Transaction",
]
