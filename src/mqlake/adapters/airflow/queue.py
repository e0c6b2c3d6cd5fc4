"""RocketMessageQueueProvider: Airflow's common interface of message queues, MessageQueueTrigger, over RocketMQ.

MessageQueueTrigger(scheme="rocketmq", topic="Orders", group="shop")
MessageQueueTrigger(queue="rocketmq://10.0.0.1:9876/Orders", group="shop")      the older way
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from mqlake.adapters.airflow.trigger import RocketMessageTrigger
from mqlake.errors import ConfigError


class RocketMessageQueueProvider(BaseMessageQueueProvider):
    scheme = "rocketmq"

    def queue_matches(self, queue: str) -> bool:
        return queue.startswith("rocketmq://")

    def trigger_class(self) -> type[RocketMessageTrigger]:
        return RocketMessageTrigger

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """ConfigError for an address without a topic."""
        parts = urlsplit(queue)
        topic = parts.path.strip("/")
        if not topic or "/" in topic:
            raise ConfigError(f"queue {queue!r}: rocketmq://NAME_SERVER:PORT/TOPIC is needed")
        return {"name_servers": parts.netloc, "topic": topic}
