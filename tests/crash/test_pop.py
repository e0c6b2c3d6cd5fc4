"""A broker is killed again and again while consumers pop: nothing is lost, and nothing comes before its time.

history ─▶ checker    every message that was sent is acknowledged in the end
                      no delivery while an earlier one of the message keeps it invisible
                      no delivery after an acknowledgement that was answered in time
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mqlake.errors import MqlakeError
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.consume import GetMaxOffsetRequestHeader
from mqlake.remoting.loop import run
from tests.broker.live import now_ms, send_header
from tests.broker.pop.popping import Popped, Popper
from tests.interop.brokers import MqlakeBroker
from tests.interop.test_pop_live import Remote
from tests.waiting import PATIENCE_S

SETTINGS = {
    "brokerName": "broker-a",
    "timerPrecisionMs": 100,
    "reviveInterval": 30,
    "mappedFileSizeCommitLog": 4 << 20,
}


@dataclass
class Delivery:
    """A message was handed out. `visible_at`: when it may be handed out again, as far as its consumer can know."""

    pop_time: int
    visible_at: int
    acknowledged_at: int | None = None
    """When the answer came."""


@dataclass
class History:
    sent: set[bytes] = field(default_factory=set)
    maybe_sent: set[bytes] = field(default_factory=set)
    deliveries: defaultdict[bytes, list[Delivery]] = field(default_factory=lambda: defaultdict(list))

    def delivered(self, popped: Popped) -> Delivery:
        delivery = Delivery(popped.handle.pop_time, popped.handle.visible_at)
        self.deliveries[popped.body].append(delivery)
        return delivery

    @property
    def is_done(self) -> bool:
        return all(self.is_acknowledged(body) for body in self.sent)

    def is_acknowledged(self, body: bytes) -> bool:
        return any(delivery.acknowledged_at is not None for delivery in self.deliveries[body])

    def check(self) -> None:
        lost = [body for body in self.sent if not self.is_acknowledged(body)]
        assert not lost, f"never acknowledged: {lost}"
        for body, deliveries in self.deliveries.items():
            assert body in self.sent | self.maybe_sent
            in_order = sorted(deliveries, key=lambda delivery: delivery.pop_time)
            for i, earlier in enumerate(in_order):
                for later in in_order[i + 1 :]:
                    assert later.pop_time >= earlier.visible_at, (body, earlier, later)
                    assert earlier.acknowledged_at is None or earlier.acknowledged_at > earlier.visible_at, (
                        f"{body!r} came again after its acknowledgement",
                        earlier,
                        later,
                    )


async def produce(remote: Remote, history: History, count: int, pause_s: float) -> None:
    number = 0
    while number < count:
        body = b"%d" % number
        header = send_header("T", queue_id=number % 4)
        try:
            answer = await remote.ask(RequestCode.SEND_MESSAGE_V2, header, body)
        except MqlakeError:
            history.maybe_sent.add(body)
            await asyncio.sleep(0.02)
        else:
            if answer.code == ResponseCode.SUCCESS:
                history.sent.add(body)
        number += 1
        await asyncio.sleep(pause_s)


async def consume(remote: Remote, history: History, dice: random.Random, stop: asyncio.Event) -> None:
    popper = Popper(remote)
    while not stop.is_set():
        try:
            answer = await popper.pop(
                max_msg_nums=dice.randint(1, 8), invisible_time=dice.randint(300, 2500), poll_time=500
            )
            deliveries = [(popped, history.delivered(popped)) for popped in answer.messages]
            for popped, delivery in deliveries:
                await handle(popper, popped, delivery, dice, drain=stop.is_set())
        except MqlakeError:
            await asyncio.sleep(0.02)


async def handle(
    popper: Popper, popped: Popped, delivery: Delivery, dice: random.Random, *, drain: bool
) -> None:
    what = dice.choices(["ack", "batch", "change", "leave"], [6, 2, 2, 0 if drain else 2])[0]
    if what == "change":
        invisible_time = dice.choice([0, 200, 1500])
        asked_at = now_ms()
        # until the answer comes either may hold
        delivery.visible_at = min(delivery.visible_at, asked_at + invisible_time)
        changed = await popper.changed(popped, invisible_time)
        delivery.visible_at = changed.handle.visible_at
        if invisible_time < 1000:
            return
        popped, what = changed, "ack"
    if what == "ack":
        answer = await popper.ack(popped)
    elif what == "batch":
        answer = await popper.batch_ack([popped])
    else:
        return
    assert answer.code == ResponseCode.SUCCESS, answer
    delivery.acknowledged_at = now_ms()


async def scene(broker: MqlakeBroker, history: History, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    async with RemotingClient() as client:
        remote = Remote(broker, client)
        await remote.ask(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"first")
        history.sent.add(b"first")
        stop = asyncio.Event()
        producing = asyncio.create_task(produce(remote, history, 80 * kills, 0.01))
        consuming = [
            asyncio.create_task(consume(remote, history, random.Random(seed + n), stop)) for n in range(3)
        ]
        for _ in range(kills):
            await asyncio.sleep(dice.uniform(0.3, 1.5))
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        await producing
        async with asyncio.timeout(PATIENCE_S):
            while not history.is_done:
                await asyncio.sleep(0.05)
        # what was acknowledged must not come again either
        service_ends = now_ms() + 3000
        while now_ms() < service_ends:
            await asyncio.sleep(0.05)
        stop.set()
        await asyncio.gather(*consuming)


ON_DEMAND = (
    pytest.mark.campaign,
    pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it"),
)


@pytest.mark.parametrize(
    ("kills", "seed", "flush"),
    [
        (3, 1, "ASYNC_FLUSH"),
        pytest.param(12, 2, "ASYNC_FLUSH", marks=ON_DEMAND),
        pytest.param(12, 3, "SYNC_FLUSH", marks=ON_DEMAND),
    ],
)
def test_popping_from_a_broker_that_is_killed(tmp_path: Path, kills: int, seed: int, flush: str) -> None:
    history = History()
    with MqlakeBroker(tmp_path, {**SETTINGS, "flushDiskType": flush}) as broker:
        run(scene(broker, history, kills, seed))
    history.check()
    assert sum(map(len, history.deliveries.values())) > len(history.sent)


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

    with MqlakeBroker(tmp_path, {**SETTINGS, "flushConsumerOffsetInterval": 60_000}) as broker:
        run(scene(broker))
