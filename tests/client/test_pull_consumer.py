"""The pull consumer against a broker that answers as the test says."""

from __future__ import annotations

import asyncio
import logging

import pytest

from mqlake.client import ClientConfig, ConsumerConfig, MessageQueue, MessageSelector, PullConsumer
from mqlake.errors import ClientError, ConfigError, ResponseError
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.consume import PullMessageRequestHeader, PullMessageResponseHeader
from mqlake.remoting.loop import run
from tests.client.test_producer import Cluster
from tests.client.test_records import record

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
