"""FastStream's OpenTelemetry middleware for a RocketBroker: spans of publishers and subscribers, linked by headers.

RocketBroker(middlewares=[RocketTelemetryMiddleware()])
"""

from __future__ import annotations

from typing import Any

from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.semconv.trace import SpanAttributes

from mqlake.adapters.faststream.command import RocketPublishCommand
from mqlake.adapters.faststream.message import RocketMessage, deliveries_of, destination_of

SYSTEM = "rocketmq"


class RocketTelemetryMiddleware(TelemetryMiddleware):
    def __init__(
        self,
        *,
        tracer_provider: Any = None,
        meter_provider: Any = None,
        meter: Any = None,
        include_messages_counters: bool = True,
    ) -> None:
        """The providers are OpenTelemetry's global ones by default."""
        super().__init__(
            settings_provider_factory=lambda _: RocketTelemetrySettings(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )


class RocketTelemetrySettings:
    """The attributes of OpenTelemetry's conventions for RocketMQ."""

    messaging_system = SYSTEM

    def get_consume_attrs_from_message(self, msg: RocketMessage) -> dict[str, Any]:
        raw = deliveries_of(msg.raw_message)
        first = raw[0].message
        found = {
            SpanAttributes.MESSAGING_SYSTEM: SYSTEM,
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: sum(len(each.message.body) for each in raw),
            MESSAGING_DESTINATION_PUBLISH_NAME: first.topic,
        }
        if len(raw) > 1:
            found[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(raw)
        if first.tags:
            found["messaging.rocketmq.message.tag"] = first.tags
        if first.keys:
            found["messaging.rocketmq.message.keys"] = first.keys.split()
        return found

    def get_consume_destination_name(self, msg: RocketMessage) -> str:
        return destination_of(msg.raw_message)

    def get_publish_attrs_from_cmd(self, cmd: RocketPublishCommand) -> dict[str, Any]:
        found = {
            SpanAttributes.MESSAGING_SYSTEM: SYSTEM,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
        }
        if cmd.tag:
            found["messaging.rocketmq.message.tag"] = cmd.tag
        return found

    def get_publish_destination_name(self, cmd: RocketPublishCommand) -> str:
        topic: str = cmd.destination
        return topic
