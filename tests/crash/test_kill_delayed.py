"""A broker with delayed messages under way is killed again and again: each acknowledged one is delivered, in order."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import pytest

from mqlake.formats.record import decode_record
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader
from mqlake.remoting.loop import run
from tests.broker.live import pull_header, send_header
from tests.interop.brokers import MqlakeBroker
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.crash

KILLS = 2
ROUND_S = 1.4
DELAYED = "DELAY\x011\x02WAIT\x01false\x02"


async def send_until_killed(broker: MqlakeBroker, first: int) -> tuple[list[int], int]:
    """(the numbers that were acknowledged, the first one not sent)."""
    acknowledged: list[int] = []
    number = first
    async with RemotingClient() as client:

        async def send(number: int) -> None:
            request = RemotingCommand.create_request(
                RequestCode.SEND_MESSAGE_V2, send_header("T", properties=DELAYED), str(number).encode()
            )
            if (await client.invoke(broker.address, request)).code == ResponseCode.SUCCESS:
                acknowledged.append(number)

        end = time.monotonic() + ROUND_S
        while time.monotonic() < end:
            await asyncio.gather(*(send(number + i) for i in range(20)))
            number += 20
            await asyncio.sleep(0.002)
        last = [asyncio.ensure_future(send(number + i)) for i in range(20)]
        await asyncio.sleep(0)
        await asyncio.to_thread(broker.kill)
        await asyncio.gather(*last, return_exceptions=True)
    return acknowledged, number + 20


async def delivered(broker: MqlakeBroker, wanted: set[int]) -> list[int]:
    """What has come to the queue once all that is wanted has."""
    found: list[int] = []
    async with RemotingClient() as client, asyncio.timeout(PATIENCE_S):
        while not wanted <= set(found):
            header = GetMaxOffsetRequestHeader(topic="T", queue_id=0)
            request = RemotingCommand.create_request(RequestCode.GET_MAX_OFFSET, header)
            answer = await client.call(broker.address, request)
            end = answer.decode_header(GetMaxOffsetResponseHeader).offset
            if end == len(found):
                await asyncio.sleep(0.05)
            while len(found) < end:
                request = RemotingCommand.create_request(
                    RequestCode.PULL_MESSAGE, pull_header("T", len(found))
                )
                body = (await client.call(broker.address, request)).body_bytes()
                at = 0
                while at < len(body):
                    message = decode_record(body, at)
                    at += message.store_size
                    found.append(int(message.body))
    return found


def test_no_delayed_message_is_lost_and_none_overtakes(tmp_path: Path) -> None:
    with MqlakeBroker(
        tmp_path, {"messageDelayLevel": "1s", "flushConsumerOffsetInterval": 100, "defaultTopicQueueNums": 1}
    ) as broker:
        acknowledged: list[int] = []
        number = 0
        for _ in range(KILLS):
            more, number = run(send_until_killed(broker, number))
            acknowledged += more
            broker.start()
        found = run(delivered(broker, set(acknowledged)))
    assert len(acknowledged) > 100
    # what had not been persisted comes again, from there on in order
    firsts = list(dict.fromkeys(found))
    assert firsts == sorted(firsts)
    repeats = len(found) - len(firsts)
    runs = 1 + sum(after < before for before, after in pairwise(found))
    assert runs <= 1 + KILLS, f"{repeats} repeated in {runs} runs"
