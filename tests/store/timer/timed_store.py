"""A store whose timers run when a test says so, on a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mqlake.message import (
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DELIVER_MS,
    TIMER_TOPIC,
    MessageExt,
    MessageExtBrokerInner,
)
from mqlake.store.config import MessageStoreConfig
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.timer.timer_message_store import TimerMessageStore
from tests.clock import Clock
from tests.waiting import PATIENCE_S

SIZES = {
    "mappedFileSizeCommitLog": 64 * 1024,
    "mappedFileSizeConsumeQueue": 2000,
    "mappedFileSizeTimerLog": 52 * 10 + 20,
    "maxHashSlotNum": 20,
    "maxIndexNum": 80,
}


class TimedStore:
    def __init__(self, root: Path, clock: Clock, settings: Mapping[str, object]) -> None:
        config = MessageStoreConfig.from_mapping({**SIZES, **settings, "storePathRootDir": str(root)})
        self.clock = clock
        self.store = DefaultMessageStore(config, clock_ms=clock)
        self.timers = TimerMessageStore(self.store)
        self.store.load()
        self.timers.load()
        self.store.start()
        self.timers.is_dequeuing = True

    def put(self, number: int, deliver_ms: int, topic: str = "T", **properties: str) -> None:
        message = MessageExtBrokerInner(
            topic,
            b"body %d" % number,
            properties={
                "UNIQ_KEY": f"K{number}",
                PROPERTY_TIMER_DELIVER_MS: str(deliver_ms),
                **properties,
            },
            queue_id=number % 3,
        )
        result = self.store.put_message(message)
        assert result.is_ok, result

    def recall(self, number: int, deliver_ms: int, topic: str = "T", key: str = "") -> None:
        self.put(
            10_000_000 + number,
            deliver_ms,
            topic,
            **{PROPERTY_TIMER_DEL_UNIQKEY: key or f"{topic}+K{number}"},
        )

    def run(self, rounds: int = 1) -> None:
        """Rounds of the service, after all that was put has been dispatched; ends when all is in the wheel."""
        for _ in range(rounds):
            self.store.flush()  # under SYNC_FLUSH nothing is dispatched before, and the clock does not wait
            assert self.store.wait_until_dispatched(PATIENCE_S)
            while self.timers.run_once() == 0:
                self.store.flush()
        self.store.flush()
        assert self.store.wait_until_dispatched(PATIENCE_S)

    def run_until(self, now: int, step: int = 1000) -> None:
        """Rounds while the clock goes on."""
        while self.clock.now < now:
            self.clock.now = min(now, self.clock.now + step)
            self.run()

    def delivered(self, topic: str = "T") -> list[MessageExt]:
        """What the queues of the topic hold, in the order of storing."""
        found: list[MessageExt] = []
        for queue_id in range(3):
            offset, end = 0, self.store.max_offset_in_queue(topic, queue_id)
            while offset < end:
                result = self.store.get_message("G", topic, queue_id, offset, 32)
                found += result.messages()
                offset = result.next_begin_offset
        return sorted(found, key=lambda message: message.physical_offset)

    def bodies(self, topic: str = "T") -> list[int]:
        return [int(message.body.split()[1]) for message in self.delivered(topic)]

    def waiting(self) -> int:
        return self.store.max_offset_in_queue(TIMER_TOPIC, 0)

    def close(self) -> None:
        self.timers.flush()
        self.timers.metrics.persist()
        self.timers.shutdown()
        self.store.shutdown()

    def die(self) -> None:
        """Ends without making the timers' progress durable."""
        self.timers._unflushed = False
        self.timers.shutdown()
        self.store.shutdown()


@contextmanager
def timed_store(root: Path, clock: Clock | None = None, **settings: object) -> Iterator[TimedStore]:
    opened = TimedStore(root, clock or Clock(), settings)
    try:
        yield opened
    finally:
        opened.close()
