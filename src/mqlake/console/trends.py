"""Trends: rates and lag over time of groups, topics and queues, added up round by round, in a bounded space.

    round ──▶ (group, queue) → end of the queue, where the group is ──┬─▶ group: behind, consumed/s
                     queue → end of the queue ────────────────────────┼─▶ topic: behind, in/s
                                                                      └─▶ queue: in/s; with a group: behind

A rate takes two rounds, and counts only what was there in the round before too: a group that begins with a topic has
consumed nothing yet.
What has been looked at comes first when there is more than fits, then what is furthest behind.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from mqlake.message.groups import messages_behind
from mqlake.remoting.bodies.topic import MessageQueue

SAMPLES = 720
POINTS = 60
"""Points of a small plot, one in a table."""
GROUPS_MAX = 2000
TOPICS_MAX = 2000
QUEUES_MAX = 2000
LAGS_MAX = 20_000
"""Topics whose lag is known, to sort them by it."""
KNOWN_MAX = 200_000
"""Positions that are remembered until the next round."""

Key = TypeVar("Key")
GroupQueue = tuple[str, MessageQueue]


class Ring:
    """The last `size` values; those never set are -1."""

    __slots__ = ("_next", "_values")

    def __init__(self, size: int = SAMPLES) -> None:
        self._values: npt.NDArray[np.float32] = np.full(size, -1.0, np.float32)
        self._next = 0

    def add(self, value: float) -> None:
        self._values[self._next] = value
        self._next = (self._next + 1) % len(self._values)

    def values(self, points: int = 0) -> list[float]:
        """Oldest first, without those never set; with `points` at most so many, each the highest of its stretch."""
        ordered = np.roll(self._values, -self._next)
        known = ordered[ordered >= 0]
        if not 0 < points < len(known):
            return _plain(known)
        stretch = math.ceil(len(known) / points)
        padded = np.concatenate((np.full(-len(known) % stretch, -1.0, np.float32), known))
        return _plain(padded.reshape(-1, stretch).max(axis=1))


def _plain(values: npt.NDArray[np.float32]) -> list[float]:
    """As JSON has them: float32 would show digits that mean nothing."""
    return [round(value, 2) for value in values.tolist()]


@dataclass(slots=True)
class Trend:
    """The trend of one group, topic or queue."""

    behind: int = 0
    """In the last round."""
    rate: float | None = None
    """Messages per second between the last two rounds; None: there was one round."""
    history: Ring = field(default_factory=Ring)
    """How far behind."""
    rates: Ring = field(default_factory=Ring)

    _begun: bool = False

    def add(self, behind: int, rate: float) -> None:
        self.behind = behind
        self.history.add(behind)
        if self._begun:
            self.rate = rate
            self.rates.add(rate)
        self._begun = True


@dataclass(slots=True)
class GroupTrend(Trend):
    topics: dict[str, int] = field(default_factory=dict)
    """Topic → how far behind."""


class Round:
    """The findings of one round of questions."""

    def __init__(self) -> None:
        self.at: dict[GroupQueue, tuple[int, int]] = {}
        """For each group and queue: the end of the queue, the offset of the group."""
        self.ends: dict[MessageQueue, int] = {}

    def add(self, group: str, queue: MessageQueue, end: int, consumed: int) -> None:
        self.at[group, queue] = (end, max(0, consumed))
        self.add_end(queue, end)

    def add_end(self, queue: MessageQueue, end: int) -> None:
        self.ends[queue] = max(end, self.ends.get(queue, 0))


class _Moved(Generic[Key]):
    """How far each offset has come since the round before."""

    def __init__(self) -> None:
        self._before: dict[Key, int] = {}

    def since(self, now: Mapping[Key, int]) -> dict[Key, int]:
        """0 for what was not there before, and where an offset went back: somebody has reset it."""
        before = self._before
        moved = {key: max(0, offset - before.get(key, offset)) for key, offset in now.items()}
        self._before = dict(islice(now.items(), KNOWN_MAX))
        return moved


class Trends:
    """Each table is replaced as a whole, so that other threads may read it at any time."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupTrend] = {}
        self.topics: dict[str, Trend] = {}
        self.queues: dict[MessageQueue, Trend] = {}
        """`behind` is 0: a queue is behind for each group alone."""
        self.group_queues: dict[GroupQueue, Trend] = {}
        self.lags: dict[str, int] = {}
        """Topic → how far all its groups are behind together."""
        self._consumed: _Moved[GroupQueue] = _Moved()
        self._ends: _Moved[MessageQueue] = _Moved()

    def add(
        self, found: Round, passed_s: float, watched_groups: Iterable[str], watched_topics: Iterable[str]
    ) -> None:
        """Adds a round, `passed_s` after the one before (0: it is the first). What is watched is kept first."""
        consumed = self._consumed.since({key: offset for key, (_, offset) in found.at.items()})
        arrived = self._ends.since(found.ends)
        per_s = 1 / passed_s if passed_s else 0.0
        lags: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        moved: dict[str, int] = defaultdict(int)
        of_group: dict[str, list[MessageQueue]] = defaultdict(list)
        for (group, queue), (end, offset) in found.at.items():
            lags[group][queue.topic] += messages_behind(end, offset)
            moved[group] += consumed[group, queue]
            of_group[group].append(queue)
        behind = {group: sum(topics.values()) for group, topics in lags.items()}
        in_order = list(_first(watched_groups, behind))

        groups: dict[str, GroupTrend] = {}
        for group in in_order[:GROUPS_MAX]:
            one = self.groups.get(group) or GroupTrend()
            one.add(behind[group], moved[group] * per_s)
            one.topics = dict(lags[group])
            groups[group] = one
        group_queues: dict[GroupQueue, Trend] = {}
        pairs = ((group, queue) for group in in_order for queue in of_group[group])
        for key in islice(pairs, QUEUES_MAX):
            end, offset = found.at[key]
            trend = self.group_queues.get(key) or Trend()
            trend.add(messages_behind(end, offset), consumed[key] * per_s)
            group_queues[key] = trend
        self.groups, self.group_queues = groups, group_queues
        self._add_topics(arrived, lags, per_s, watched_topics)

    def _add_topics(
        self,
        arrived: Mapping[MessageQueue, int],
        lags: Mapping[str, Mapping[str, int]],
        per_s: float,
        watched: Iterable[str],
    ) -> None:
        of_topic: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in arrived:
            of_topic[queue.topic].append(queue)
        behind: dict[str, int] = dict.fromkeys(of_topic, 0)
        for topics in lags.values():
            for topic, count in topics.items():
                behind[topic] += count
        in_order = list(_first(watched, behind))
        shown: dict[str, Trend] = {}
        for topic in in_order[:TOPICS_MAX]:
            trend = self.topics.get(topic) or Trend()
            trend.add(behind[topic], sum(arrived[queue] for queue in of_topic[topic]) * per_s)
            shown[topic] = trend
        queues: dict[MessageQueue, Trend] = {}
        for queue in islice((queue for topic in in_order for queue in of_topic[topic]), QUEUES_MAX):
            trend = self.queues.get(queue) or Trend()
            trend.add(0, arrived[queue] * per_s)
            queues[queue] = trend
        self.topics, self.queues = shown, queues
        self.lags = {topic: behind[topic] for topic in in_order[:LAGS_MAX]}


def _first(watched: Iterable[str], behind: Mapping[str, int]) -> Iterator[str]:
    """Yields the watched names, then the ones furthest behind; each once."""
    wanted = [name for name in watched if name in behind]
    yield from wanted
    taken = set(wanted)
    yield from (name for name in sorted(behind, key=lambda name: -behind[name]) if name not in taken)
