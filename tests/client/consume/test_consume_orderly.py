"""Orderly consuming, at `mqlake serve`."""

from __future__ import annotations

import asyncio

import pytest

from mqlake.client import (
    Admin,
    ClientConfig,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    Message,
    MessageClientExt,
    MQClientInstance,
    Producer,
    PushConsumer,
)
from mqlake.client.consume import consume_orderly
from mqlake.client.consume.queue_locks import QueueLocks
from mqlake.remoting.loop import run
from tests.interop.brokers import MqlakeBroker


def test_a_queue_whose_lock_is_lost_is_given_up_and_taken_again(
    mqlake_broker: MqlakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_orderly, "LOCK_INTERVAL_S", 0.05)
    group, topic = "GID_lost_lock", "LostLock"

    async def main() -> None:
        consumed: asyncio.Queue[bytes] = asyncio.Queue()

        async def listener(messages: list[MessageClientExt], _: ConsumeContext) -> None:
            for message in messages:
                consumed.put_nowait(message.body)

        config = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer = PushConsumer(group, mqlake_broker.namesrv, listener, config, orderly=True)
        consumer.subscribe(topic)
        other = MQClientInstance(ClientConfig(namesrv_addr=mqlake_broker.namesrv, instance_name="other"))
        async with (
            asyncio.timeout(120),
            other,
            Admin(mqlake_broker.namesrv) as admin,
            Producer("PG", other) as producer,
        ):
            await admin.create_topic(topic, queues=1)
            async with consumer:
                await producer.send(Message(topic, b"first"))
                assert await consumed.get() == b"first"
                (queue,) = (each for each in consumer.process_queue_table if each.topic == topic)
                theirs = QueueLocks(other, group)
                address = other.find_broker_address_in_publish(queue.broker_name)
                while not await theirs.lock([queue]):
                    await other.api.unlock_batch_mq(address, group, consumer.client.client_id, [queue])
                while queue in consumer.process_queue_table:
                    await asyncio.sleep(0.01)
                await producer.send(Message(topic, b"second"))
                await theirs.unlock([queue])
                consumer.client.rebalance_immediately()
                while await consumed.get() != b"second":
                    pass  # the first may come again: nobody had its offset yet

    run(main())
