"""The pull consumer against a broker that answers as the test says."""

from __future__ import annotations

import asyncio
import logging

import pytest

from mqlake.client import (
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    Message,
    MessageQueue,
    MessageSelector,
    Producer,
    PullConsumer,
    blocking,
)
from mqlake.errors import ClientError, ConfigError, ResponseError
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.consume import PullMessageRequestHeader, PullMessageResponseHeader
from mqlake.remoting.loop import run
from tests.client.produce.test_producer import Cluster
from tests.client.test_records import record
from tests.interop.brokers import MqlakeBroker
from tests.waiting import PATIENCE_S

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)
CONFIG = ConsumerConfig(auto_commit=False, pull_time_delay_when_exception_s=0.01)


def answer(code: int, next_offset: int = 0, body: bytes | None = None) -> RemotingCommand:
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=next_offset, min_offset=0, max_offset=9
    )
    return RemotingCommand.create_response(code, f"code {code}", header, body)


def test_refusals_are_raised_and_the_rest_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    pulled: list[int] = []
    answers = {
        0: answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        1: answer(ResponseCode.SYSTEM_BUSY),
        2: answer(ResponseCode.PULL_OFFSET_MOVED, 5),
        3: answer(ResponseCode.SUCCESS, 8, record(b"x", 0, 6) + record(b"y", 0, 7)),
    }

    async def pull(_: Connection, command: RemotingCommand) -> RemotingCommand:
        pulled.append(command.decode_header(PullMessageRequestHeader).queue_offset)
        number = len(pulled) - 1
        return answers[number] if number in answers else await asyncio.Future()

    async def main() -> None:
        servers = Cluster(lambda *_: 0)
        await servers.start()
        servers.servers["a"].processors.register(RequestCode.LITE_PULL_MESSAGE, pull)
        try:
            async with PullConsumer("G", servers.addresses["namesrv"], CONFIG) as consumer:
                await consumer.assign([QUEUE], offsets={QUEUE: 3})
                with pytest.raises(ResponseError, match="code 26"):
                    await consumer.poll()
                assert [message.body for message in await consumer.poll()] == [b"x", b"y"]
                assert pulled[:4] == [3, 3, 3, 5] and consumer.position(QUEUE) == 8
                assert consumer.end_offset(QUEUE) == 9
                with pytest.raises(ConfigError, match="exclude each other"):
                    consumer.subscribe("T")
                with pytest.raises(ClientError, match="not assigned"):
                    consumer.position(MessageQueue(topic="T", broker_name="b", queue_id=0))
        finally:
            await servers.stop(0)

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "code 2" in caplog.text


def test_a_filter_that_the_broker_does_not_have() -> None:
    async def main() -> None:
        servers = Cluster(lambda *_: 0)
        await servers.start()
        servers.servers["a"].processors.register(
            RequestCode.CHECK_CLIENT_CONFIG,
            lambda *_: RemotingCommand.create_response(ResponseCode.SYSTEM_ERROR, "no property filter"),
        )
        try:
            where = ClientConfig(namesrv_addr=servers.addresses["namesrv"])
            async with PullConsumer("G", where, CONFIG) as consumer:
                with pytest.raises(ResponseError, match="no property filter"):
                    await consumer.assign([QUEUE], MessageSelector.by_sql("a > 1"), offsets={QUEUE: 0})
        finally:
            await servers.stop()

    run(main())


# --- a loop over the consumer

FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


async def filled(broker: MqlakeBroker, topic: str) -> MessageQueue:
    """One queue with the messages 0 to 9."""
    async with Producer("G", broker.namesrv) as producer:
        await producer.send(Message(topic, b"makes the topic"))
        queue = (await producer.fetch_publish_message_queues(topic))[-1]
        for i in range(10):
            await producer.send(Message(topic, b"%d" % i), queue=queue)
    return queue


def test_a_message_is_consumed_when_the_next_one_is_asked_for(mqlake_broker: MqlakeBroker) -> None:
    async def main() -> None:
        queue = await filled(mqlake_broker, "loop_consumed")
        async with asyncio.timeout(PATIENCE_S):
            numbers = [b"%d" % i for i in range(10)]

            async def consumer() -> PullConsumer:
                made = PullConsumer("GID_loop", mqlake_broker.namesrv, FIRST)
                await made.start()
                await made.assign([queue])
                return made

            seen = []
            first = await consumer()
            with pytest.raises(ZeroDivisionError):
                async for message in first:
                    if message.body not in numbers:
                        continue
                    seen.append(message.body)
                    at = message.queue_offset
                    assert first.position(queue) == at
                    if len(seen) == 3:
                        raise ZeroDivisionError
            await first.close()
            second = await consumer()
            assert await second.committed(queue) == at
            async for message in second:
                seen.append(message.body)
                if len(seen) == 5:
                    await second.commit()
                    break
            assert seen == numbers[:3] + numbers[2:4]
            assert await second.committed(queue) == second.position(queue) == at + 2
            await second.seek(queue, at)
            async for message in second:
                assert message.queue_offset == at
                await second.seek(queue, at)  # the same again
                break
            assert second.position(queue) == at
            assert (await second.poll())[0].queue_offset == at
            await second.close()

    run(main())


def test_a_loop_ends_with_the_consumer(mqlake_broker: MqlakeBroker) -> None:
    async def main() -> None:
        queue = await filled(mqlake_broker, "loop_ends")
        consumer = PullConsumer("GID_ends", mqlake_broker.namesrv, FIRST)
        with pytest.raises(ClientError, match="not started"):
            await anext(consumer)
        async with asyncio.timeout(PATIENCE_S), consumer:
            await consumer.assign([queue])
            at_the_end = asyncio.Event()

            async def close() -> None:
                await at_the_end.wait()
                await consumer.close()

            closing = asyncio.ensure_future(close())
            async for message in consumer:
                if message.body == b"9":
                    at_the_end.set()
            await closing
        async with PullConsumer("GID_ends", mqlake_broker.namesrv, FIRST) as after:
            assert await after.committed(queue) == message.queue_offset + 1

    run(main())


def test_a_loop_without_an_event_loop(mqlake_broker: MqlakeBroker) -> None:
    queue = run(filled(mqlake_broker, "loop_blocking"))
    with blocking.PullConsumer("GID_blocking", mqlake_broker.namesrv, FIRST) as consumer:
        consumer.assign([queue])
        for message in consumer:
            if message.body == b"9":
                consumer.commit()
                break
        assert consumer.committed(queue) == message.queue_offset + 1
    assert list(consumer) == []
