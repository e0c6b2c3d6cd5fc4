"""ConsumerFilterManager: which group filters which topic by which expression, kept in consumerFilter.json.

{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bloomFilterData":{"bitNum":112,"bitPos":[…]},"bornTime":…,
"clientVersion":…,"consumerGroup":"G","dead":false,"deadTime":0,"expression":"…","expressionType":"SQL92",
"topic":"T"}},"topic":"T"}}}

A filter comes with a heartbeat, is dead when its group has left, and is forgotten 24 hours later; a group that returns
with the same subscription finds it. `clientVersion` is the subscription's: an older one changes nothing.

The bloom filter's positions are written for RocketMQ, which ignores a file without them. mqlake does not use them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import field
from typing import Any

from mqlake.base.clock import now_ms
from mqlake.broker.filter import Expression, compile_expression, is_tag_type
from mqlake.broker.filter.bloom import BloomFilter
from mqlake.broker.state.config_manager import ConfigManager
from mqlake.errors import FilterExpressionError
from mqlake.remoting.bodies.client import SubscriptionData
from mqlake.remoting.bodies.codec import JsonBody

logger = logging.getLogger(__name__)

FILTER_DATA_CLEAN_TIME_SPAN_MS = 24 * 3600 * 1000
DEAD_BEFORE_LOAD_MS = 30_000


class BloomFilterData(JsonBody):
    bit_pos: list[int] = field(default_factory=list)
    bit_num: int = 0


class ConsumerFilterBody(JsonBody):
    """One group's filter of one topic, as in the file. It is dead if `dead_time` (ms) is not before `born_time`."""

    consumer_group: str = ""
    topic: str = ""
    expression: str | None = None
    expression_type: str | None = None
    born_time: int = 0
    dead_time: int = 0
    dead: bool = False
    """Written for RocketMQ's getter; not read."""
    bloom_filter_data: BloomFilterData | None = None
    client_version: int = 0


class FilterDataMapByTopic(JsonBody):
    topic: str = ""
    group_filter_data: dict[str, ConsumerFilterBody] = field(default_factory=dict)


class ConsumerFilterFile(JsonBody):
    filter_data_by_topic: dict[str, FilterDataMapByTopic] = field(default_factory=dict)


class ConsumerFilterData:
    """One group's filter of one topic. `compiled_expression` is None if the expression is invalid."""

    __slots__ = ("body", "compiled_expression")

    def __init__(self, body: ConsumerFilterBody) -> None:
        self.body = body
        self.compiled_expression: Expression | None = None
        try:
            self.compiled_expression = compile_expression(body.expression_type, body.expression)
        except FilterExpressionError as error:
            logger.error("%s of %s: %s", body.consumer_group, body.topic, error)

    @property
    def client_version(self) -> int:
        return self.body.client_version

    @property
    def is_dead(self) -> bool:
        return self.body.dead_time >= self.body.born_time

    def die(self, now: int) -> None:
        if not self.is_dead:
            self.body.dead_time = max(now, self.body.born_time)


class ConsumerFilterManager(ConfigManager):
    """`clean_time_span_ms`: how long dead filters are kept (filterDataCleanTimeSpan). `expected_groups` per topic and
    `error_rate_percent` size the bloom filter (expectConsumerNumUseFilter, maxErrorRateOfBloomFilter)."""

    def __init__(
        self,
        path: str,
        clean_time_span_ms: int = FILTER_DATA_CLEAN_TIME_SPAN_MS,
        clock_ms: Callable[[], int] = now_ms,
        *,
        expected_groups: int = 32,
        error_rate_percent: int = 20,
    ) -> None:
        super().__init__(path)
        self._clean_time_span_ms = clean_time_span_ms
        self._clock_ms = clock_ms
        self._by_topic: dict[str, dict[str, ConsumerFilterData]] = {}
        self._topics_of: dict[str, set[str]] = {}
        """Group → topics for which it has a filter."""
        self._bloom_filter = BloomFilter(error_rate_percent, expected_groups)

    def get(self, topic: str, group: str) -> ConsumerFilterData | None:
        groups = self._by_topic.get(topic)
        return groups.get(group) if groups is not None else None

    def build(
        self, topic: str, group: str, expression: str | None, expression_type: str | None, client_version: int
    ) -> ConsumerFilterData:
        """The filter of a subscription that a pull carries, without registering it."""
        return ConsumerFilterData(
            ConsumerFilterBody(
                consumer_group=group,
                topic=topic,
                expression=expression,
                expression_type=expression_type,
                born_time=self._clock_ms(),
                client_version=client_version,
                bloom_filter_data=self._bloom_data(topic, group),
            )
        )

    def _bloom_data(self, topic: str, group: str) -> BloomFilterData:
        positions = self._bloom_filter.positions(f"{group}#{topic}")
        return BloomFilterData(bit_pos=positions, bit_num=self._bloom_filter.m)

    def register_group(self, group: str, subscriptions: Collection[SubscriptionData]) -> None:
        """Takes all subscriptions of a group's heartbeat; its filters of other topics become dead."""
        for data in subscriptions:
            self.register(data.topic, group, data.sub_string, data.expression_type, data.sub_version)
        topics = {data.topic for data in subscriptions}
        for topic in self._topics_of.get(group, set()) - topics:
            self._die(self._by_topic[topic][group])

    def unregister_group(self, group: str) -> None:
        """The group's last member has left."""
        for topic in self._topics_of.get(group, ()):
            self._die(self._by_topic[topic][group])

    def register(
        self, topic: str, group: str, expression: str | None, expression_type: str | None, client_version: int
    ) -> bool:
        """Takes a subscription by expression; returns True if it changed anything. An older version than the known
        one changes nothing; an invalid expression removes the known filter."""
        if is_tag_type(expression_type) or not expression:
            return False
        groups = self._by_topic.get(topic, {})
        known = groups.get(group)
        if known is not None:
            same = (known.body.expression, known.body.expression_type) == (expression, expression_type)
            if client_version < known.client_version or (client_version == known.client_version and not same):
                return False
            if same:
                revived = known.is_dead
                if revived:
                    known.body.dead_time = 0
                changed = revived or client_version > known.client_version
                known.body.client_version = client_version
                self.dirty |= changed
                return changed
        data = self.build(topic, group, expression, expression_type, client_version)
        if data.compiled_expression is None:
            if known is not None:
                self._forget(topic, group)
            return False
        self._put(topic, group, data)
        self.dirty = True
        logger.info("%s filters %s by %r", group, topic, expression)
        return True

    def _put(self, topic: str, group: str, data: ConsumerFilterData) -> None:
        self._by_topic.setdefault(topic, {})[group] = data
        self._topics_of.setdefault(group, set()).add(topic)

    def _forget(self, topic: str, group: str) -> None:
        del self._by_topic[topic][group]
        if not self._by_topic[topic]:
            del self._by_topic[topic]
        self._topics_of[group].discard(topic)
        if not self._topics_of[group]:
            del self._topics_of[group]
        self.dirty = True

    def _die(self, data: ConsumerFilterData) -> None:
        if not data.is_dead:
            data.die(self._clock_ms())
            self.dirty = True

    def clean(self) -> None:
        """Forgets filters that have been dead for too long."""
        oldest = self._clock_ms() - self._clean_time_span_ms
        for topic, groups in list(self._by_topic.items()):
            for group, data in list(groups.items()):
                if data.is_dead and data.body.dead_time <= oldest:
                    logger.info("%s: its filter of %s is forgotten", group, topic)
                    self._forget(topic, group)

    # --- the file

    def encode(self) -> dict[str, Any]:
        self.clean()
        content = ConsumerFilterFile()
        for topic, groups in self._by_topic.items():
            for data in groups.values():
                data.body.dead = data.is_dead
            bodies = {group: data.body for group, data in groups.items()}
            content.filter_data_by_topic[topic] = FilterDataMapByTopic(topic=topic, group_filter_data=bodies)
        value = content.to_value()
        for by_topic in value["filterDataByTopic"].values():
            for body in by_topic["groupFilterData"].values():
                bloom_filter_data = body["bloomFilterData"]
                bloom_filter_data["bitPos"] = tuple(bloom_filter_data["bitPos"])  # an array there
        return value

    def decode(self, value: Any) -> None:
        loaded = ConsumerFilterFile.from_value(value).filter_data_by_topic
        dead_since = self._clock_ms() - DEAD_BEFORE_LOAD_MS
        for topic, by_topic in loaded.items():
            for group, body in by_topic.group_filter_data.items():
                data = ConsumerFilterData(body)
                body.bloom_filter_data = self._bloom_data(topic, group)
                data.die(dead_since)  # until a heartbeat says otherwise
                self._put(topic, group, data)
