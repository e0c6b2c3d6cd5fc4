"""Lives of a broker that is killed at named steps of pop, acknowledgement, revive, timers and recall, while producers,
pop consumers and one that pops in order work.

    python -m tests.crash.pop_life --minutes 20 --seed 1

A life has a directory; in each part of it the broker dies at another step (killer.py), and what the clients saw of all
parts is judged by pop_history.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mqlake.errors import MqlakeError
from mqlake.message import PROPERTY_TIMER_DELIVER_MS, properties_to_string
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.headers.produce import RecallMessageRequestHeader, SendMessageResponseHeader
from tests.broker.live import now_ms, send_header
from tests.broker.pop.popping import Popped, Popper
from tests.campaign.forker import Forker, runs
from tests.crash.killer import CALLS, METHODS
from tests.crash.pop_history import RECALL_MS, Delivery, History
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until_async

SETTINGS = {
    "brokerName": "broker-a",
    "timerPrecisionMs": 100,
    "reviveInterval": 30,
    "recallMessageEnable": "true",
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20 * 2000,
    "mappedFileSizeTimerLog": 52 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": 60_000,
}
PART_S = 8.0
"""A step that has not come by then ends by a kill at any moment."""
TIMER_CALLS = ("write timer log", "flush timer log", "create timer log", "write wheel", "flush wheel")
RARE = (
    "create timer log",
    "write offsets",
    "write order",
    "cut order journal",
    "flush timer log",
    "flush wheel",
)
POINTS = (
    *METHODS,
    *TIMER_CALLS,
    *("write timercheck", "flush timercheck", "write offsets", "write order", "write order journal"),
    *("cut order journal", "flush", "append", "write queue"),
)


def end_at(dice: random.Random, point: str) -> list[Any]:
    if point == "append":
        return [point, "half", dice.randrange(1, 250)]
    moments = ["before", "after"]
    if point in CALLS and CALLS[point][0] == "pwrite":
        moments.append("half")
    most = 4 if point in RARE else 8 if point in ("recall", "recover offsets", "write timercheck") else 16
    return [point, dice.choice(moments), dice.randrange(1, most)]


class KilledBroker:
    """A broker that dies at a named step."""

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        self.log = directory / "broker.log"
        self._forker = Forker(directory / "forker.log")
        self.port = free_ports(4) + 2
        self.address = f"127.0.0.1:{self.port}"
        settings = {**settings, "listenPort": self.port, "storePathRootDir": directory / "store"}
        self._args = [
            "broker",
            "--host",
            "127.0.0.1",
            *(f"--set={key}={value}" for key, value in settings.items()),
        ]
        self.pid = 0

    @property
    def runs(self) -> bool:
        return self.pid > 0 and runs(self.pid)

    def start(self, end: Sequence[Any] = ()) -> None:
        self.pid = self._forker.fork(self._args, self.log, end)

    async def dies_within(self, seconds: float) -> bool:
        """Whether it died by itself; afterwards it is dead."""
        deadline = time.monotonic() + seconds
        while self.runs and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        by_itself = not self.runs
        if not by_itself:
            os.kill(self.pid, signal.SIGKILL)
            await until_async(lambda: not self.runs, "the broker is dead")
        return by_itself

    def close(self) -> None:
        if self.runs:
            os.kill(self.pid, signal.SIGKILL)
        self._forker.close()


class Life:
    def __init__(self, directory: Path, seed: int, flush: str) -> None:
        self.history = History()
        self.killed: Counter[str] = Counter()
        self.dice = dice = random.Random(seed)
        settings = {
            "flushDiskType": flush,
            "flushConsumerOffsetInterval": dice.choice((200, 1000, 5000)),
            "timerFlushIntervalMs": dice.choice((10, 1000)),
            # a window shorter than most times: what waits is rolled
            "timerRollWindowSlot": dice.choice((8, 172_800)),
        }
        self.broker = KilledBroker(directory, SETTINGS | settings)
        self.address = self.broker.address
        self._number = 0
        self._stop = asyncio.Event()

    async def ask(
        self, code: int, header: CommandHeader | None = None, body: bytes | None = None
    ) -> RemotingCommand:
        return await self._client.invoke(
            self.address, RemotingCommand.create_request(code, header, body), PATIENCE_S
        )

    # --- what the clients do

    async def _send(self, topic: str, queue_id: int, due: int = 0) -> str:
        """The recall handle of a message that waits; empty without an answer."""
        self._number += 1
        body = b"%s %d" % (topic.encode(), self._number)
        properties = {"UNIQ_KEY": f"K{self._number}"} | ({PROPERTY_TIMER_DELIVER_MS: str(due)} if due else {})
        header = send_header(topic, queue_id=queue_id, properties=properties_to_string(properties))
        self.history.maybe_sent[body] = due
        if topic == "F":
            self.history.in_order.append(body)
        answer = await self.ask(RequestCode.SEND_MESSAGE_V2, header, body)
        if answer.code != ResponseCode.SUCCESS:
            return ""
        self.history.sent[body] = due
        handle = answer.decode_header(SendMessageResponseHeader).recall_handle or ""
        if due and self.dice.random() < 0.4:
            await self._recall(body, due, handle)
        return handle

    async def _recall(self, body: bytes, due: int, handle: str) -> None:
        self.history.recalling.add(body)
        header = RecallMessageRequestHeader(topic="T", recall_handle=handle, producer_group="P")
        answer = await self.ask(RequestCode.RECALL_MESSAGE, header)
        if answer.code == ResponseCode.SUCCESS and now_ms() <= due - RECALL_MS:
            self.history.recalled.add(body)

    async def _produce(self) -> None:
        dice = self.dice
        while not self._stop.is_set():
            try:
                await self._send("T", dice.randrange(4))
                if dice.random() < 0.3:
                    await self._send("T", dice.randrange(4), now_ms() + dice.choice((300, 1200, 2500, 4000)))
                if dice.random() < 0.2:
                    await self._send("F", 0)
            except MqlakeError:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.02)

    async def _consume(self, done: Callable[[], bool], dice: random.Random, *, order: bool) -> None:
        popper, number = Popper(self, "F" if order else "T"), 0
        while not done():
            number += 1
            how: dict[str, object] = (
                {"order": True, "queue_id": 0, "attempt_id": str(number)} if order else {}
            )
            how["max_msg_nums"], how["invisible_time"] = dice.randint(1, 8), dice.randint(300, 2500)
            try:
                answer = await popper.pop(**how, poll_time=500)
                found = [(each, self._delivered(each)) for each in answer.messages]
                for popped, delivery in found:
                    drains = self._stop.is_set()
                    if not await self._handle(popper, popped, delivery, dice, drain=drains, order=order):
                        break
            except MqlakeError:
                await asyncio.sleep(0.02)

    def _delivered(self, popped: Popped) -> Delivery:
        handle = popped.handle
        place = popped.topic, handle.queue_id, handle.queue_offset
        return self.history.delivered(popped.body, handle.pop_time, handle.visible_at, place)

    async def _handle(
        self,
        popper: Popper,
        popped: Popped,
        delivery: Delivery,
        dice: random.Random,
        *,
        drain: bool,
        order: bool,
    ) -> bool:
        """False: what was popped with it in order is left too."""
        leaves = 0 if drain else 2
        what = dice.choices(["ack", "batch", "change", "leave"], [6, 2, 2, leaves])[0]
        if what == "change":
            invisible_time, asked_at = dice.choice([0, 200, 1500]), now_ms()
            # until the answer comes either may hold
            delivery.visible_at = min(delivery.visible_at, asked_at + invisible_time)
            self.history.half_changed[popped.body] += 1
            popped = await popper.changed(popped, invisible_time)
            self.history.half_changed[popped.body] -= 1
            delivery.visible_at = popped.handle.visible_at
            what = "ack" if invisible_time >= 1000 else "leave"
        if what == "leave":
            return not order
        delivery.acknowledging = True
        answer = await (popper.ack(popped) if what == "ack" else popper.batch_ack([popped]))
        assert answer.code == ResponseCode.SUCCESS or order, answer  # in order it may be another's meanwhile
        if answer.code == ResponseCode.SUCCESS:
            delivery.acknowledged_at = now_ms()
        return True

    # --- what happens to the broker

    async def run(self, ends: Sequence[Sequence[Any]]) -> list[str]:
        """What was not as promised."""
        seed = self.dice.randrange(1 << 30)
        over = asyncio.Event()
        try:
            async with RemotingClient() as self._client:
                work = [asyncio.create_task(self._produce())]
                for n in range(4):
                    consumer = self._consume(over.is_set, random.Random(seed + n), order=n == 3)
                    work.append(asyncio.create_task(consumer))
                for end in ends:
                    self.broker.start(end)
                    if await self.broker.dies_within(PART_S):
                        self.killed[end[0]] += 1
                    else:
                        self.killed["at any moment"] += 1
                self.broker.start()
                self._stop.set()
                await work[0]
                await self._settle(work)
                over.set()
                await asyncio.gather(*work)
        finally:
            self.broker.close()
        return self.history.violations()

    async def _settle(self, work: Sequence[asyncio.Task[None]]) -> None:
        """Until all is acknowledged; what was must not come again afterwards either."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.history.is_done and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            assert self.broker.runs, self.broker.log.read_text()[-3000:]
            for task in work[1:]:
                if task.done():
                    task.result()
        await asyncio.sleep(3)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.pop_life", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="after so many no new life begins")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=10, help="in a life")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="pop-lives-"))
    killed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    began, seed = time.monotonic(), arguments.seed
    while time.monotonic() < began + arguments.minutes * 60:
        dice, place = random.Random(seed), root / str(seed)
        place.mkdir()
        life = Life(place, seed, dice.choice(("ASYNC_FLUSH", "SYNC_FLUSH")))
        found = asyncio.run(life.run([end_at(dice, dice.choice(POINTS)) for _ in range(arguments.kills)]))
        history = life.history
        killed += life.killed
        total.update(
            lives=1,
            kills=sum(life.killed.values()),
            sent=len(history.sent),
            recalled=len(history.recalled),
            deliveries=sum(map(len, history.deliveries.values())),
            violations=len(found),
        )
        if found:
            print(f"life {seed}, {place}: {found[:5]}", file=sys.stderr, flush=True)
        else:
            shutil.rmtree(place)
        seed += 1
        minutes = round((time.monotonic() - began) / 60, 1)
        print(json.dumps({"minutes": minutes, **total, "killed": dict(sorted(killed.items()))}), flush=True)
    return 1 if total["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
