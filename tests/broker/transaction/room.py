"""A store on a clock that the test sets, with the transaction service of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from mqlake.broker.config import BrokerConfig, read_settings
from mqlake.broker.state.consumer_offset import ConsumerOffsetManager
from mqlake.broker.state.topic_config import TopicConfigManager
from mqlake.broker.transaction import messages
from mqlake.broker.transaction.metrics import TransactionMetrics
from mqlake.broker.transaction.service import (
    CONSUMER_GROUP,
    TransactionalMessageService,
    TransactionState,
    place_of,
)
from mqlake.message import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    MessageExt,
    MessageExtBrokerInner,
)
from mqlake.store.config import MessageStoreConfig
from mqlake.store.message_store import DefaultMessageStore
from tests.broker.small import SMALL
from tests.clock import Clock
from tests.waiting import PATIENCE_S


class Room:
    """As after a start of a broker. `asked`: the half messages that producers were asked for."""

    def __init__(self, root: Path, clock: Clock, **settings: object) -> None:
        self.clock = clock
        self.store = DefaultMessageStore(
            MessageStoreConfig.from_mapping({**SMALL, "storePathRootDir": str(root)}), clock_ms=clock
        )
        self.store.load()
        self.store.start()
        self.config: BrokerConfig = read_settings({key: str(value) for key, value in settings.items()}).config
        self.offsets = ConsumerOffsetManager(str(root / "config" / "consumerOffset.json"))
        self.topics = TopicConfigManager(str(root / "config" / "topics.json"), lambda: self.config)
        self.metrics = TransactionMetrics(str(root / "config" / "transactionMetrics"), clock)
        self.topics.init()
        for manager in (self.offsets, self.topics, self.metrics):
            manager.load()
        self.service = TransactionalMessageService(
            self.store,
            self.offsets,
            self.topics,
            self.metrics,
            lambda: self.config,
            lambda: ("10.0.0.9", 10911),
            clock,
        )
        self.asked: list[MessageExt] = []
        self.producers_there = True

    def shutdown(self, *, crash: bool = False) -> None:
        """`crash`: what is in memory only is lost, as are offsets since the last time they were written."""
        if not crash:
            self.service.close()
            self.offsets.persist()
            self.metrics.persist()
        self.store.shutdown()

    async def prepare(self, body: str, topic: str = "T", queue_id: int = 3, **properties: str) -> MessageExt:
        """The half message as the log has it."""
        place = await self.put_half(body, topic, queue_id, **properties)
        self.service.look_half_message(place)  # what is remembered is given away once
        half = self.service.look_half_message(place)
        assert half is not None
        return half

    async def put_half(self, body: str, topic: str = "T", queue_id: int = 3, **properties: str) -> int:
        """Where the half message is."""
        message = MessageExtBrokerInner(
            topic,
            body.encode(),
            "tag",
            flag=5,
            properties={
                PROPERTY_TRANSACTION_PREPARED: "true",
                PROPERTY_PRODUCER_GROUP: "PG",
                "UNIQ_KEY": f"K{body}",
                **properties,
            },
            queue_id=queue_id,
            born_timestamp=self.clock.now,
            born_host=("10.0.0.1", 5),
            store_host=("10.0.0.2", 6),
            reconsume_times=1,
        )
        assert (await self.service.async_prepare_message(message)).is_ok
        return message.physical_offset

    def commit(self, half: MessageExt) -> None:
        assert self.service.put(messages.final(half))
        self.service.end(place_of(half), TransactionState.COMMITTED)
        self.service.delete_prepare_message(half)

    def roll_back(self, half: MessageExt) -> None:
        self.service.end(place_of(half), TransactionState.ROLLED_BACK)
        self.service.delete_prepare_message(half)

    async def check(self, *, after_ms: int = 0) -> list[str]:
        """A round; the bodies that were asked for in it."""
        self.clock.now += after_ms
        self.service.batch_send_op_message()
        assert await asyncio.to_thread(self.store.wait_until_dispatched, 60)
        self.asked.clear()

        async def ask(half: MessageExt) -> bool:
            if self.producers_there:
                self.asked.append(half)
            return self.producers_there

        await self.service.check(ask)
        assert await asyncio.to_thread(self.store.wait_until_dispatched, 60)
        return [half.body.decode() for half in self.asked]

    def messages(self, topic: str, queue_id: int = 0) -> list[MessageExt]:
        assert self.store.wait_until_dispatched(PATIENCE_S)
        found: list[MessageExt] = []
        while len(found) < self.store.max_offset_in_queue(topic, queue_id):
            found += self.store.get_message("g", topic, queue_id, len(found), 32).messages()
        return found

    def progress(self) -> tuple[int, int]:
        """How far the half queue and the op queue are dealt with."""
        return (
            self.offsets.query_offset(CONSUMER_GROUP, TRANS_HALF_TOPIC, 0),
            self.offsets.query_offset(CONSUMER_GROUP, TRANS_OP_HALF_TOPIC, 0),
        )


def in_a_room(root: Path, scene: Callable[[Room], object], **settings: object) -> None:
    """Runs the coroutine function `scene` in a room of its own."""

    async def play() -> None:
        room = Room(root, Clock(), **settings)
        try:
            await scene(room)  # type: ignore[misc]
        finally:
            room.shutdown()

    asyncio.run(play())
