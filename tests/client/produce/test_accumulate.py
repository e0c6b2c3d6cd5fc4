"""Sends that come together: nothing is lost, mixed up or out of order, whatever the batches are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from mqlake.client.produce.accumulate import IN_FLIGHT_MAX, ITEM_OVERHEAD, ProduceAccumulator, split_result
from mqlake.client.results import SendResult, SendStatus
from mqlake.errors import SendError
from mqlake.message import Message
from mqlake.remoting.bodies.topic import MessageQueue
from tests.waiting import trying

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)


class Store:
    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.stored = 0

    async def send(self, messages: Sequence[Message], *_: object) -> SendResult:
        await asyncio.sleep(0)
        bodies = [message.body for message in messages]
        if b"bad" in bodies:
            raise SendError("T", 13, [("b", "no")])
        self.batches.append(bodies)
        first, self.stored = self.stored, self.stored + len(bodies)
        ids = ",".join(message.keys or "" for message in messages)
        return SendResult(SendStatus.SEND_OK, ids, ids, QUEUE, first)


def test_no_answer_is_its_batchs() -> None:
    async def main() -> None:
        def silent(messages: Sequence[Message], *_: object) -> Awaitable[SendResult]:
            batches.append(len(messages))
            raise SendError("T", None, [("b", "no answer within 3 s")])

        batches: list[int] = []
        together = ProduceAccumulator(silent, 2 * (ITEM_OVERHEAD + 9))
        sends = [together.send(Message("T", b"x"), QUEUE, fixed=False) for _ in range(4)]
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(result, SendError) for result in results) and batches == [2, 2]

    asyncio.run(main())


def test_a_chosen_queue_keeps_its_order() -> None:
    async def main() -> None:
        in_flight: list[asyncio.Future[None]] = []

        async def slow(messages: Sequence[Message], queue: MessageQueue, _: bool) -> SendResult:
            in_flight.append(asyncio.get_running_loop().create_future())
            await in_flight[-1]
            ids = ",".join("id" for _ in messages)
            return SendResult(SendStatus.SEND_OK, ids, ids, queue, 0)

        together = ProduceAccumulator(slow, 2 * (ITEM_OVERHEAD + 9))
        for fixed, at_once in ((False, IN_FLIGHT_MAX), (True, 1)):
            in_flight.clear()
            sends = [
                asyncio.ensure_future(together.send(Message("T", b"x"), QUEUE, fixed=fixed))
                for _ in range(30)
            ]
            for _ in range(9):
                await asyncio.sleep(0)
            assert len(in_flight) == at_once
            for _ in trying("all are sent"):
                if all(send.done() for send in sends):
                    break
                for each in in_flight:
                    if not each.done():
                        each.set_result(None)
                await asyncio.sleep(0)
            await asyncio.gather(*sends)

    asyncio.run(main())


def test_batches_grow_with_the_load() -> None:
    async def main() -> None:
        store = Store()
        together = ProduceAccumulator(store.send, 10 * (ITEM_OVERHEAD + 2))
        results = await asyncio.gather(
            *(together.send(Message("T", b"%02d" % i, keys=f"k{i}"), QUEUE, fixed=False) for i in range(25))
        )
        assert [result.msg_id for result in results] == [f"k{i}" for i in range(25)]
        assert [result.queue_offset for result in results] == list(range(25))
        assert list(map(len, store.batches)) == [10, 10, 5]
        assert (await together.send(Message("T", b"x", keys="k"), QUEUE, fixed=False)).queue_offset == 25

    asyncio.run(main())


def test_a_refusal_is_its_messages() -> None:
    async def main() -> None:
        together = ProduceAccumulator(Store().send, 2 * (ITEM_OVERHEAD + 9))
        sends = [together.send(Message("T", body), QUEUE, fixed=False) for body in (b"1", b"bad", b"2", b"3")]
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert [isinstance(result, SendError) for result in results] == [False, True, False, False]
        gone = asyncio.ensure_future(together.send(Message("T", b"4"), QUEUE, fixed=False))
        await asyncio.sleep(0)
        gone.cancel()
        assert (await together.send(Message("T", b"5"), QUEUE, fixed=False)).queue_offset >= 2

    asyncio.run(main())


@pytest.mark.parametrize("places", ["p0,p1", "one record"])
def test_results_of_a_batch(places: str) -> None:
    whole = SendResult(SendStatus.SEND_OK, "a,b", places, QUEUE, 7)
    parts = split_result(whole, 2)
    assert [(part.msg_id, part.queue_offset) for part in parts] == [("a", 7), ("b", 8)]
    assert [part.offset_msg_id for part in parts] == (
        places.split(",") if "," in places else ["one record"] * 2
    )
