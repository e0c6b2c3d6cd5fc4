"""The filters of pulls: ExpressionMessageFilter, and a variant that knows retried messages.

By tags, the consume queue's hash decides; clients compare the text again, as hashes collide. By an expression, the
record's properties decide; if the expression is unknown, every message passes, as in RocketMQ.
"""

from __future__ import annotations

from mqlake.broker.filter import Expression, is_tag_type
from mqlake.broker.filter.properties import RecordProperties
from mqlake.broker.filter.sql92 import Properties
from mqlake.broker.state.consumer_filter import ConsumerFilterData, ConsumerFilterManager
from mqlake.message import PROPERTY_RETRY_TOPIC, RETRY_GROUP_TOPIC_PREFIX
from mqlake.remoting.bodies.client import SubscriptionData
from mqlake.store.filter import SUBSCRIBE_ALL


class ExpressionMessageFilter:
    """A MessageFilter of the store for a subscription. `filter_data`: for a subscription by expression."""

    __slots__ = ("_by_tags", "_codes", "_expression")

    def __init__(self, subscription: SubscriptionData, filter_data: ConsumerFilterData | None) -> None:
        self._by_tags = is_tag_type(subscription.expression_type)
        everything = (
            not self._by_tags
            or subscription.class_filter_mode
            or subscription.sub_string in (None, "", SUBSCRIBE_ALL)
        )
        self._codes: frozenset[int] | None = None if everything else frozenset(subscription.code_set)
        self._expression: Expression | None = (
            filter_data.compiled_expression if filter_data is not None and not self._by_tags else None
        )

    def is_matched_by_consume_queue(self, code: int) -> bool:
        return self._codes is None or code in self._codes

    def is_matched_by_commit_log(self, record: memoryview) -> bool:
        return self._by_tags or self.is_matched_by_properties(RecordProperties(record))

    def is_matched_by_properties(self, properties: Properties) -> bool:
        """True if a message with these properties passes; for held pulls."""
        return self._expression is None or self._expression.matches(properties)


class ExpressionForRetryMessageFilter(ExpressionMessageFilter):
    """Filters a retried message by the filter for its original topic (filterSupportRetry)."""

    __slots__ = ("_group", "_manager")

    def __init__(
        self,
        subscription: SubscriptionData,
        filter_data: ConsumerFilterData | None,
        manager: ConsumerFilterManager,
    ) -> None:
        super().__init__(subscription, filter_data)
        self._manager = manager
        topic = subscription.topic
        self._group = (
            topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
            if topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
            else None
        )

    def is_matched_by_properties(self, properties: Properties) -> bool:
        if self._group is None:
            return super().is_matched_by_properties(properties)
        topic = properties.get(PROPERTY_RETRY_TOPIC)
        data = self._manager.get(topic, self._group) if topic is not None else None
        expression = data.compiled_expression if data is not None else None
        return expression is None or expression.matches(properties)
