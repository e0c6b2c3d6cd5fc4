"""Messages given back, at `mqlake serve`."""

from __future__ import annotations

import asyncio

from mqlake.client import (
    Admin,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    MessageClientExt,
    Producer,
    PushConsumer,
)
from mqlake.remoting.loop import run
from tests.interop.brokers import MqlakeBroker


def test_a_message_whose_broker_is_gone_is_sent_to_the_retry_topic(mqlake_broker: MqlakeBroker) -> None:
    async def main() -> None:
        consumed: asyncio.Queue[MessageClientExt] = asyncio.Queue()

        async def listener(messages: list[MessageClientExt], _: ConsumeContext) -> ConsumeResult | None:
            (message,) = messages
            consumed.put_nowait(message)
            if message.reconsume_times:
                return None
            message.broker_name = "nobody"
            return ConsumeResult.LATER

        config = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer = PushConsumer("GID_send_back", mqlake_broker.namesrv, listener, config)
        consumer.subscribe("SendBack")
        async with asyncio.timeout(120), Producer("PG", mqlake_broker.namesrv) as producer:
            async with Admin(mqlake_broker.namesrv) as admin:
                await admin.create_topic("SendBack", queues=1)
            async with consumer:
                await producer.send(Message("SendBack", b"body", tags="A"))
                first, again = await consumed.get(), await consumed.get()
        assert (again.topic, again.body, again.tags, again.reconsume_times) == ("SendBack", b"body", "A", 1)
        assert again.properties["ORIGIN_MESSAGE_ID"] == first.uniq_key

    run(main())
