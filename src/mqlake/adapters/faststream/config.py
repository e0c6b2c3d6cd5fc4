"""Configurations of broker, routers, subscribers and publishers, and the connection that they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from mqlake.adapters.faststream.command import Keys
from mqlake.client.admin import Admin
from mqlake.client.consume.subscription import MessageSelector
from mqlake.client.mq_client import MQClientInstance

RETRY_DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""RocketMQ's: when a message that was not acknowledged comes again, the later the oftener."""


@dataclass
class Connection:
    """The connection of a broker; without a client it is one of TestRocketBroker."""

    client: MQClientInstance | None
    admin: Admin | None

    async def make_topic(self, topic: str, queues: int) -> None:
        """Creates the topic if it is not there. MqlakeError when it may not be made."""
        if self.admin is not None and not await self.admin.topic_exists(topic):
            await self.admin.create_topic(topic, queues=queues)


@dataclass(kw_only=True)
class RocketBrokerConfig(BrokerConfig):
    group: str = ""
    queues: int = 8
    startup_timeout_s: float | None = 0.0
    connection: Connection | None = field(default=None, init=False)


@dataclass(kw_only=True)
class RocketSubscriberConfig(SubscriberUsecaseConfig):
    topic: str
    group: str
    selector: MessageSelector
    batch: bool
    max_records: int
    max_workers: int
    prefetch: int
    visibility_timeout_s: float
    from_first: bool
    retry_delays_s: tuple[float, ...]

    @property
    def ack_policy(self) -> AckPolicy:
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        broker: AckPolicy = self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR if broker is EMPTY else broker


@dataclass(kw_only=True)
class RocketPublisherConfig(PublisherUsecaseConfig):
    topic: str
    tag: str
    keys: Keys
    sharding_key: str
    headers: dict[str, Any]
    reply_to: str
    batch: bool


@dataclass(kw_only=True)
class RocketSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    topic: str
    about: Callable[[], str]
    """How it subscribes, in a sentence for the AsyncAPI page."""


@dataclass(kw_only=True)
class RocketPublisherSpecificationConfig(PublisherSpecificationConfig):
    topic: str
    about: str
