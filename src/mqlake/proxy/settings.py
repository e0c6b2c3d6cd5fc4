"""Settings: what the server answers to a client's own, in the block that the client needs.

Clients insist on a complete answer: a retry policy, a batch size, a polling time, and the block `metric` in any case.
"""

from __future__ import annotations

from typing import Any

from mqlake.proxy.backend import Backend
from mqlake.proxy.publish import MAX_BODY_SIZE
from mqlake.proxy.status import StatusError
from mqlake.proxy.v2.definition_pb2 import (
    Code,
    CustomizedBackoff,
    ExponentialBackoff,
    FilterType,
    Metric,
    Publishing,
    RetryPolicy,
    Settings,
    Subscription,
)
from mqlake.proxy.values import duration, group_name, topic_name
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig

PRODUCER_ATTEMPTS = 3
PRODUCER_BACKOFF = ExponentialBackoff(initial=duration(10), max=duration(1000), multiplier=2.0)
RECEIVE_BATCH_SIZE = 32
LONG_POLLING_MS = 20_000
LITE_SUBSCRIPTION_QUOTA = 2000
MAX_LITE_TOPIC_SIZE = 64
_S = 1000
_M = 60 * _S
RETRY_DELAYS_MS = (
    *(1 * _S, 5 * _S, 10 * _S, 30 * _S),
    *(minutes * _M for minutes in (*range(1, 11), 20, 30, 60, 120)),
)
"""Delays of a group with the policy CUSTOMIZED and no times of its own."""


async def merged_settings(backend: Backend, wanted: Settings) -> Settings:
    """The answer to a client's settings. StatusError."""
    answer = Settings()
    answer.CopyFrom(wanted)
    answer.metric.CopyFrom(Metric(on=False))
    kind = wanted.WhichOneof("pub_sub")
    if kind == "publishing":
        topics = wanted.publishing.topics
        for topic in topics:
            topic_name(topic)
        answer.publishing.CopyFrom(
            Publishing(topics=topics, max_body_size=MAX_BODY_SIZE, validate_message_type=True)
        )
        policy = RetryPolicy(max_attempts=PRODUCER_ATTEMPTS, exponential_backoff=PRODUCER_BACKOFF)
        answer.backoff_policy.CopyFrom(policy)
        return answer
    if kind != "subscription":
        raise StatusError(Code.BAD_REQUEST, "the settings have neither publishing nor subscription")
    subscription = wanted.subscription
    group = await existing_group(backend, group_name(subscription.group))
    for entry in subscription.subscriptions:
        topic_name(entry.topic, system=True)
    answer.subscription.CopyFrom(
        Subscription(
            group=subscription.group,
            subscriptions=subscription.subscriptions,
            fifo=group.consume_message_orderly,
            receive_batch_size=RECEIVE_BATCH_SIZE,
            long_polling_timeout=duration(LONG_POLLING_MS),
            lite_subscription_quota=LITE_SUBSCRIPTION_QUOTA,
            max_lite_topic_size=MAX_LITE_TOPIC_SIZE,
        )
    )
    for entry in answer.subscription.subscriptions:
        if entry.expression.type == FilterType.FILTER_TYPE_UNSPECIFIED:
            entry.expression.type = FilterType.TAG
    answer.backoff_policy.CopyFrom(consumer_policy(group))
    return answer


async def existing_group(backend: Backend, group: str) -> SubscriptionGroupConfig:
    """StatusError CONSUMER_GROUP_NOT_FOUND."""
    config = await backend.group_config(group)
    if config is None:
        raise StatusError(
            Code.CONSUMER_GROUP_NOT_FOUND,
            f"group not found: {group}; create it (mqlake admin group create), or set "
            f"autoCreateSubscriptionGroup=true at the broker",
        )
    return config


def consumer_policy(group: SubscriptionGroupConfig) -> RetryPolicy:
    """How a consumer repeats what failed."""
    attempts = max_attempts(group)
    policy = group.group_retry_policy or {}
    if policy.get("type") == "EXPONENTIAL":
        given: dict[str, Any] = policy.get("exponentialRetryPolicy") or {}
        backoff = ExponentialBackoff(
            initial=duration(int(given.get("initial", 5 * _S))),
            max=duration(int(given.get("max", 120 * _M))),
            multiplier=float(given.get("multiplier", 2)),
        )
        return RetryPolicy(max_attempts=attempts, exponential_backoff=backoff)
    delays = (policy.get("customizedRetryPolicy") or {}).get("next") or RETRY_DELAYS_MS
    return RetryPolicy(
        max_attempts=attempts, customized_backoff=CustomizedBackoff(next=[duration(int(ms)) for ms in delays])
    )


def max_attempts(group: SubscriptionGroupConfig) -> int:
    """Deliveries of one message before it is a dead letter."""
    return group.retry_max_times + 1
