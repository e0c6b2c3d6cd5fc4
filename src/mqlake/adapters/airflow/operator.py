"""RocketPublishOperator: a task that sends one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import orjson
from airflow.providers.common.compat.sdk import BaseOperator

from mqlake.adapters.airflow.hook import RocketHook


class RocketPublishOperator(BaseOperator):
    """Publishes a message. The XCom is its place: message_id, broker, queue_id, queue_offset."""

    template_fields: ClassVar[Sequence[str]] = ("topic", "body", "tags", "keys", "properties")
    ui_color = "#e0f0ff"

    def __init__(
        self,
        *,
        topic: str,
        body: Any,
        tags: str = "",
        keys: str | list[str] = "",
        properties: dict[str, str] | None = None,
        delay_s: float = 0.0,
        rocketmq_conn_id: str = RocketHook.default_conn_name,
        **options: Any,
    ) -> None:
        """body: text, bytes, or what becomes JSON; it may be another task's XCom.
        delay_s: seconds that the broker keeps it back, if it has timers (timerWheelEnable=true)."""
        super().__init__(**options)
        self.topic, self.body, self.tags, self.keys = topic, body, tags, keys
        self.properties, self.delay_s, self.rocketmq_conn_id = properties, delay_s, rocketmq_conn_id

    def execute(self, context: Any) -> dict[str, Any]:
        body = self.body if isinstance(self.body, str | bytes) else orjson.dumps(self.body)
        sent = RocketHook(self.rocketmq_conn_id).send(
            self.topic,
            body,
            tags=self.tags,
            keys=self.keys,
            properties=self.properties,
            delay_s=self.delay_s,
        )
        return {
            "message_id": sent.msg_id,
            "broker": sent.message_queue.broker_name,
            "queue_id": sent.message_queue.queue_id,
            "queue_offset": sent.queue_offset,
        }
