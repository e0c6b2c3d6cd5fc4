"""What the server answers to the settings of a client."""

from __future__ import annotations

import asyncio

import pytest

from mqlake.proxy.settings import consumer_policy, merged_settings
from mqlake.proxy.status import StatusError
from mqlake.proxy.v2.definition_pb2 import Code, FilterType, Settings
from mqlake.proxy.values import duration_ms
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from tests.proxy.live import consumer_settings, producer_settings
from tests.proxy.scripted import ScriptedBackend


def merged(wanted: Settings, backend: ScriptedBackend | None = None) -> Settings:
    return asyncio.run(merged_settings(backend or ScriptedBackend(), wanted))


def test_a_producer_gets_all_that_clients_insist_on():
    answer = merged(producer_settings("T").settings)
    assert answer.WhichOneof("pub_sub") == "publishing"
    assert answer.publishing.max_body_size == 4194304
    assert answer.publishing.validate_message_type
    assert [topic.name for topic in answer.publishing.topics] == ["T"]
    assert (answer.backoff_policy.max_attempts, answer.backoff_policy.WhichOneof("strategy")) == (
        3,
        "exponential_backoff",
    )
    assert answer.HasField("metric") and not answer.metric.on


def test_a_consumer_gets_all_that_clients_insist_on():
    answer = merged(consumer_settings("G", "T").settings)
    subscription = answer.subscription
    assert (subscription.group.name, subscription.fifo, subscription.receive_batch_size) == ("G", False, 32)
    assert duration_ms(subscription.long_polling_timeout) == 20_000
    assert subscription.subscriptions[0].expression.type == FilterType.TAG
    assert answer.backoff_policy.max_attempts == 17
    assert answer.HasField("metric")


def test_retry_policies():
    delays = [
        duration_ms(delay) // 1000
        for delay in consumer_policy(SubscriptionGroupConfig()).customized_backoff.next
    ]
    minutes = [60 * number for number in range(1, 11)]
    assert delays == [1, 5, 10, 30, *minutes, 1200, 1800, 3600, 7200]

    own = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [100, 2000]}}
    policy = consumer_policy(SubscriptionGroupConfig(group_retry_policy=own, retry_max_times=3))
    assert [duration_ms(delay) for delay in policy.customized_backoff.next] == [100, 2000]
    assert policy.max_attempts == 4

    given = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 9000, "multiplier": 3}}
    backoff = consumer_policy(SubscriptionGroupConfig(group_retry_policy=given)).exponential_backoff
    assert (duration_ms(backoff.initial), duration_ms(backoff.max), backoff.multiplier) == (1000, 9000, 3)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (Settings(), Code.BAD_REQUEST),
        (producer_settings("a b").settings, Code.ILLEGAL_TOPIC),
        (consumer_settings("a b", "T").settings, Code.ILLEGAL_CONSUMER_GROUP),
        (consumer_settings("G", "").settings, Code.ILLEGAL_TOPIC),
        (consumer_settings("Unknown", "T").settings, Code.CONSUMER_GROUP_NOT_FOUND),
    ],
)
def test_what_is_refused(wanted: Settings, code: int):
    with pytest.raises(StatusError) as caught:
        merged(wanted)
    assert caught.value.code == code
