"""A broker is killed at the steps of pop, acknowledgement, revive, timers and recall: nothing is lost, and nothing
comes before its time. `python -m tests.crash.pop_life` runs many such lives."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.consume import GetMaxOffsetRequestHeader
from mqlake.remoting.loop import run
from tests.broker.live import send_header
from tests.broker.pop.popping import Popped, Popper
from tests.crash.pop_history import History
from tests.crash.pop_life import Life, end_at
from tests.interop.brokers import MqlakeBroker
from tests.interop.test_pop_live import Remote
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.crash


def test_a_broker_that_is_killed_at_the_steps_of_a_pop(tmp_path: Path) -> None:
    dice = random.Random(4)
    steps = ("put acknowledgement", "retry stored", "finish checkpoint", "hand out in order")
    life = Life(tmp_path, 4, "ASYNC_FLUSH")
    assert asyncio.run(life.run([end_at(dice, step) for step in steps])) == []
    assert life.killed.total() == len(steps)
    assert sum(map(len, life.history.deliveries.values())) > len(life.history.sent) > 0


T = 1_000_000


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ("lost", "lost: "),
        ("early", "early: "),
        ("soon", "too soon: "),
        ("again", "after its acknowledgement: "),
        ("recalled", "recalled: "),
        ("unknown", "nobody sent "),
        ("overtaken", "overtaken: "),
        ("", ""),
    ],
)
def test_the_checker_finds(broken: str, rule: str) -> None:
    history = History(sent={b"a": 0, b"late": T + 500, b"1": 0, b"2": 0}, in_order=[b"1", b"2"])
    first = history.delivered(b"a", T, T + 1000)
    again = history.delivered(b"a", T + (900 if broken == "soon" else 1001), T + 3000)
    if broken != "lost":
        again.acknowledging, again.acknowledged_at = True, T + 1500
    if broken == "again":
        first.acknowledged_at = T + 999
    if broken == "unknown":
        history.delivered(b"who?", T, T + 1)
    late = history.delivered(b"late", T + (499 if broken == "early" else 500), T + 2000)
    late.acknowledging, late.acknowledged_at = True, T + 600
    if broken == "recalled":
        history.recalled.add(b"late")
    one = history.delivered(b"1", T, T + 1000)
    two = history.delivered(b"2", T + (999 if broken == "overtaken" else 1000), T + 2000)
    again = history.delivered(b"1", T + 1000, T + 2000)
    again.acknowledging = two.acknowledging = True
    assert not one.acknowledging
    found = history.violations()
    assert [text[: len(rule)] for text in found] == ([rule] if rule else []), found


def test_order_outlives_a_kill(tmp_path: Path) -> None:
    """What was handed out in order stays invisible, what was acknowledged does not come again."""

    async def scene(broker: MqlakeBroker) -> None:
        async with RemotingClient() as client:
            remote = Remote(broker, client)
            for number in range(6):
                answer = await remote.ask(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"%d" % number)
                assert answer.code == ResponseCode.SUCCESS
            popper, last = Popper(remote), GetMaxOffsetRequestHeader(topic="T", queue_id=0)

            async def pop(count: int, attempt: str) -> list[Popped]:
                answer = await popper.pop(
                    queue_id=0, order=True, attempt_id=attempt, max_msg_nums=count, invisible_time=60_000
                )
                return answer.messages

            async def kill() -> None:
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)

            async with asyncio.timeout(PATIENCE_S):
                while (await remote.ask(RequestCode.GET_MAX_OFFSET, last)).ext_fields["offset"] != "6":
                    await asyncio.sleep(0.01)
            first = await pop(3, "one")
            assert [popped.body for popped in first] == [b"0", b"1", b"2"]
            await popper.ack(first[0])
            await kill()
            assert await pop(3, "two") == []
            await popper.ack(first[1])
            await kill()
            assert [popped.body for popped in await pop(1, "one")] == [b"2"], (
                "the same attempt may have it again"
            )
            assert await pop(3, "two") == []
            (again,) = await pop(1, "one")
            await popper.ack(again)
            await kill()
            assert [popped.body for popped in await pop(3, "three")] == [b"3", b"4", b"5"]

    settings = {"brokerName": "broker-a", "flushConsumerOffsetInterval": 60_000}
    with MqlakeBroker(tmp_path, settings) as broker:
        run(scene(broker))
