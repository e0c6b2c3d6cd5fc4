"""Sampler: how far groups were behind, and how fast brokers were, while the console ran.

A round asks each broker once for the progress of all groups. The last hour of rounds is kept, in arrays of a fixed
size, for at most GROUPS_MAX groups: those that were furthest behind come first.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from mqlake.base.clock import now_ms
from mqlake.client.admin import Admin, Broker
from mqlake.client.config import ClientConfig
from mqlake.client.overview import latest_rate, runtime_info
from mqlake.errors import MqlakeError
from mqlake.remoting.loop import run

INTERVAL_S = 5.0
TIMEOUT_S = 30.0
"""Of one request, which may bring the progress of thousands of groups."""
PAUSE_FACTOR = 20
"""A round that takes long comes less often, so that the console takes little of a cluster's time."""
SAMPLES = 720
GROUPS_MAX = 2000
TOPICS_MAX = 20_000

logger = logging.getLogger(__name__)


class Ring:
    """The last `size` values; those never set are -1."""

    __slots__ = ("_next", "_values")

    def __init__(self, size: int = SAMPLES) -> None:
        self._values: npt.NDArray[np.float64] = np.full(size, -1.0)
        self._next = 0

    def add(self, value: float) -> None:
        self._values[self._next] = value
        self._next = (self._next + 1) % len(self._values)

    def values(self) -> list[float]:
        """Oldest first, without those never set."""
        ordered = np.roll(self._values, -self._next)
        known: list[float] = ordered[np.argmax(ordered >= 0) :].tolist() if (ordered >= 0).any() else []
        return known


@dataclass(slots=True)
class GroupSample:
    """What the last round saw of a group."""

    behind: int = 0
    consumed: int = 0
    """All offsets together."""
    rate: float = 0.0
    """Messages consumed per second between the last two rounds."""
    topics: dict[str, int] = field(default_factory=dict)
    """Topic → how far behind."""
    history: Ring = field(default_factory=Ring)
    rates: Ring = field(default_factory=Ring)


@dataclass(slots=True)
class BrokerSample:
    rate_in: Ring = field(default_factory=Ring)
    rate_out: Ring = field(default_factory=Ring)


class Sampler:
    """Runs from start() to close(), in a thread of its own: reading the progress of thousands of groups takes a while.

    What it has found is replaced as a whole, so that others may read it at any time.
    """

    def __init__(self, config: ClientConfig, interval_s: float = INTERVAL_S) -> None:
        self._config = replace(config, timeout_s=max(config.timeout_s, TIMEOUT_S))
        self._interval_s = interval_s
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._end: Callable[[], object] = bool
        self.groups: dict[str, GroupSample] = {}
        self.brokers: dict[str, BrokerSample] = {}
        """By address."""
        self.topics: dict[str, int] = {}
        """Topic → how far all its groups are behind together."""
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
        async with Admin(self._config) as admin:
            while True:
                began = time.monotonic()
                try:
                    await self._sample(admin)
                    self.trouble = ""
                except (MqlakeError, OSError) as error:
                    self.trouble = str(error)
                except Exception:
                    logger.exception("a round of samples failed")
                took = time.monotonic() - began
                await asyncio.sleep(max(self._interval_s, took * PAUSE_FACTOR))

    async def _sample(self, admin: Admin) -> None:
        """One round."""
        masters = await admin.masters()
        behind: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        consumed: dict[str, int] = defaultdict(int)
        for broker in masters:
            await self._sample_broker(admin, broker, behind, consumed)
        now = now_ms()
        passed_s = (now - self.sampled_at) / 1000 if self.sampled_at else 0.0
        if passed_s:
            self.interval_s = passed_s
        topics: dict[str, int] = defaultdict(int)
        groups: dict[str, GroupSample] = {}
        for group in sorted(behind, key=lambda name: -sum(behind[name].values()))[:GROUPS_MAX]:
            groups[group] = self._next(group, dict(behind[group]), consumed[group], passed_s)
            for topic, count in behind[group].items():
                if len(topics) < TOPICS_MAX or topic in topics:
                    topics[topic] += count
        self.groups, self.topics, self.sampled_at = groups, dict(topics), now

    async def _sample_broker(
        self, admin: Admin, broker: Broker, behind: dict[str, dict[str, int]], consumed: dict[str, int]
    ) -> None:
        found = await admin.brokers.fetch_consume_stats_in_broker(broker.address)
        for table in found.consume_stats_list:
            for group, all_stats in table.items():
                for stats in all_stats:
                    for queue, at in stats.offset_table.items():
                        behind[group][queue.topic] += max(0, at.broker_offset - at.consumer_offset)
                        consumed[group] += max(0, at.consumer_offset)
        state, _ = await runtime_info(admin, broker.address)
        if broker.address in self.brokers or len(self.brokers) < GROUPS_MAX:
            sample = self.brokers.get(broker.address) or BrokerSample()
            self.brokers = self.brokers | {broker.address: sample}
            sample.rate_in.add(latest_rate(state.get("putTps")))
            sample.rate_out.add(latest_rate(state.get("getTransferredTps")))

    def _next(self, group: str, topics: dict[str, int], consumed: int, passed_s: float) -> GroupSample:
        known = group in self.groups
        sample = self.groups.get(group) or GroupSample()
        # offsets go back when somebody resets them: that is no rate
        sample.rate = max(0.0, (consumed - sample.consumed) / passed_s) if known and passed_s else 0.0
        sample.behind, sample.consumed, sample.topics = sum(topics.values()), consumed, topics
        sample.history.add(sample.behind)
        sample.rates.add(sample.rate)
        return sample
