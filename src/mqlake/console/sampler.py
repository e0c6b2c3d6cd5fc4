"""Sampler: how far groups were behind, and how fast brokers were, while the console ran.

A round asks each broker once for the progress of all groups, and for the queues of topics that somebody looks at. What
comes of it over time is in `trends`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mqlake.base.background import BackgroundWork
from mqlake.base.clock import now_ms
from mqlake.client.admin import Admin, Broker
from mqlake.client.config import ClientConfig
from mqlake.client.overview import latest_rate, runtime_info
from mqlake.console.trends import Ring, Round, Trends
from mqlake.errors import MessageError, ResponseError
from mqlake.remoting.loop import run

INTERVAL_S = 5.0
TIMEOUT_S = 30.0
"""Timeout of one request, which may bring the progress of thousands of groups."""
PAUSE_FACTOR = 20
"""Pause after a round, in times of its length: a long round comes less often, so that the console takes little of a
cluster's time."""
BROKERS_MAX = 2000
WATCHED_MAX = 32
"""Groups, and topics, whose pages were opened: a topic is asked about in each round."""
WATCHED_S = 3600.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class BrokerSample:
    rate_in: Ring = field(default_factory=Ring)
    rate_out: Ring = field(default_factory=Ring)


class Sampler:
    """Runs from start() to close(), in a thread of its own: reading the progress of thousands of groups takes a while.

    What it has found is replaced as a whole, so that others may read it at any time.
    """

    def __init__(self, config: ClientConfig, interval_s: float) -> None:
        self._config = replace(config, timeout_s=max(config.timeout_s, TIMEOUT_S))
        self._interval_s = interval_s
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._end: Callable[[], object] = bool
        self.trends = Trends()
        self.brokers: dict[str, BrokerSample] = {}
        """By address."""
        self._watched_groups: dict[str, float] = {}
        self._watched_topics: dict[str, float] = {}
        self.sampled_at = 0
        """ms since 1970 of the last round; 0: none yet."""
        self.interval_s = interval_s
        """Between the last rounds."""
        self.trouble = ""

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="console-sampler")
            self._thread.start()

    async def close(self) -> None:
        if self._thread is not None:
            await asyncio.to_thread(self._ready.wait)
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._end()
            await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                run(self._run())
        finally:
            self._ready.set()

    async def _run(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._end = functools.partial(loop.call_soon_threadsafe, task.cancel)
        self._ready.set()
        work = BackgroundWork("samples for trends", logger)
        async with Admin(self._config) as admin:
            while True:
                began = time.monotonic()
                async with work.round():
                    try:
                        await self._sample(admin)
                        self.trouble = ""
                    except Exception as error:
                        self.trouble = str(error) or type(error).__name__
                        raise
                took = time.monotonic() - began
                await asyncio.sleep(max(self._interval_s, took * PAUSE_FACTOR))

    def watch(self, *, group: str = "", topic: str = "") -> None:
        """Somebody looks at it: its trend is kept first, for WATCHED_S. From any thread."""
        if group:
            self._watched_groups[group] = time.monotonic()
        if topic:
            self._watched_topics[topic] = time.monotonic()

    async def _sample(self, admin: Admin) -> None:
        """One round."""
        found = Round()
        for broker in await admin.masters():
            await self._sample_broker(admin, broker, found)
        groups, topics = _recently_watched(self._watched_groups), _recently_watched(self._watched_topics)
        for topic in topics:
            await self._sample_topic(admin, topic, found)
        now = now_ms()
        passed_s = (now - self.sampled_at) / 1000 if self.sampled_at else 0.0
        if passed_s:
            self.interval_s = passed_s
        await asyncio.to_thread(self.trends.add, found, passed_s, groups, topics)
        self.sampled_at = now

    async def _sample_broker(self, admin: Admin, broker: Broker, found: Round) -> None:
        answer = await admin.brokers.fetch_consume_stats_in_broker(broker.address)
        for table in answer.consume_stats_list:
            for group, all_stats in table.items():
                for stats in all_stats:
                    for queue, at in stats.offset_table.items():
                        found.add(group, queue, at.broker_offset, at.consumer_offset)
        state, _ = await runtime_info(admin, broker.address)
        if broker.address in self.brokers or len(self.brokers) < BROKERS_MAX:
            sample = self.brokers.get(broker.address) or BrokerSample()
            self.brokers = self.brokers | {broker.address: sample}
            sample.rate_in.add(latest_rate(state.get("putTps")))
            sample.rate_out.add(latest_rate(state.get("getTransferredTps")))

    async def _sample_topic(self, admin: Admin, topic: str, found: Round) -> None:
        """Samples a topic, and also the queues that no group consumes."""
        try:
            stats = await admin.examine_topic_stats(topic)
        except (ResponseError, MessageError):  # it was deleted
            return
        for queue, at in stats.offset_table.items():
            found.add_end(queue, at.max_offset)


def _recently_watched(watched: dict[str, float]) -> list[str]:
    """Returns the names watched lately, the latest first."""
    latest = sorted(watched.items(), key=lambda item: -item[1])
    for number, (name, at) in enumerate(latest):
        if number >= WATCHED_MAX or time.monotonic() - at > WATCHED_S:
            watched.pop(name, None)
    return [name for name, _ in latest if name in watched]
