"""OpenTelemetry spans of a client, by the semantic conventions for messaging.

    hook = OpenTelemetryHook()
    ProducerConfig(send_message_hooks=[hook])      ConsumerConfig(consume_message_hooks=[hook])

    the caller's span
      ├─ create T   PRODUCER, of each message; its context travels in the message (traceparent, tracestate)
      │     └─ process T   CONSUMER, of a listener's call with this message alone
      └─ send T     CLIENT, of each try; linked to the messages that it carries

A message that travels in a batch keeps the span of who sent it. A listener's call with several messages is linked to
all of them. RocketMQ's own message trace is another thing (docs/client.md).

Source: OpenTelemetry's semantic conventions 1.36, "Messaging spans" and "RocketMQ"; W3C Trace Context. The properties
are those that OpenTelemetry's instrumentation of RocketMQ's Java client writes and reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqlake.client.hooks import ConsumeMessageContext, SendMessageContext
from mqlake.errors import MissingPartError
from mqlake.message import Message

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, TracerProvider

SYSTEM = {"messaging.system": "rocketmq"}
SCOPE = "mqlake.client"


@dataclass(slots=True)
class _Open:
    """A hook's state from before to after."""

    span: Span
    token: Token[Context] | None = None


class OpenTelemetryHook:
    """A hook of producers and of consumers. Without `tracer_provider`, OpenTelemetry's global one is used.

    MissingPartError when opentelemetry-api is not installed.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import context, propagate, trace
        except ImportError:
            raise MissingPartError(
                "the Python package opentelemetry-api",
                "pip install 'mqlake[otel]'",
                why="for OpenTelemetryHook",
            ) from None
        self._context, self._propagate, self._trace = context, propagate, trace
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)

    def hook_name(self) -> str:
        return "OpenTelemetry"

    def message_created(self, message: Message) -> None:
        span = self._tracer.start_span(
            f"create {message.topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                **SYSTEM,
                "messaging.operation.type": "create",
                "messaging.operation.name": "create",
                "messaging.destination.name": message.topic,
                **_of_message(message),
            },
        )
        self._propagate.inject(message.properties, self._trace.set_span_in_context(span))
        span.end()

    def send_message_before(self, context: SendMessageContext) -> None:
        messages = context.batch or [context.message]
        host, _, port = context.broker_addr.rpartition(":")
        span = self._start(
            "send",
            self._trace.SpanKind.CLIENT,
            context.message_queue.topic,
            messages,
            links=self._links(messages),
        )
        span.set_attributes(
            {
                "messaging.destination.partition.id": str(context.message_queue.queue_id),
                "server.address": host,
                "server.port": int(port),
            }
        )
        context.mq_trace_context = _Open(span)

    def send_message_after(self, context: SendMessageContext) -> None:
        opened = context.mq_trace_context
        if context.exception is not None:
            self._failed(opened.span, type(context.exception).__name__, str(context.exception))
        elif context.send_result is not None and context.batch is None:
            opened.span.set_attribute("messaging.message.id", context.send_result.msg_id)
        opened.span.end()

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        messages = context.messages
        only = self._creation(messages[0]) if len(messages) == 1 else None
        span = self._start(
            "process",
            self._trace.SpanKind.CONSUMER,
            messages[0].topic,
            messages,
            parent=only,
            links=self._links(messages),
        )
        span.set_attributes(
            {
                "messaging.consumer.group.name": context.consumer_group,
                "messaging.destination.partition.id": str(context.message_queue.queue_id),
            }
        )
        token = self._context.attach(self._trace.set_span_in_context(span))
        context.mq_trace_context = _Open(span, token)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        opened = context.mq_trace_context
        self._context.detach(opened.token)
        if not context.success:
            self._failed(opened.span, context.status, "the messages are consumed again later")
        opened.span.end()

    def _start(
        self,
        operation: str,
        kind: SpanKind,
        topic: str,
        messages: Sequence[Message],
        *,
        links: Sequence[Link],
        parent: Context | None = None,
    ) -> Span:
        attributes: dict[str, Any] = {
            **SYSTEM,
            "messaging.operation.type": operation,
            "messaging.operation.name": operation,
            "messaging.destination.name": topic,
        }
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes.update(_of_message(messages[0]))
        return self._tracer.start_span(
            f"{operation} {topic}", context=parent, kind=kind, attributes=attributes, links=links
        )

    def _creation(self, message: Message) -> Context:
        return self._propagate.extract(message.properties)

    def _links(self, messages: Sequence[Message]) -> list[Link]:
        spans = (self._trace.get_current_span(self._creation(message)) for message in messages)
        contexts = (span.get_span_context() for span in spans)
        return [self._trace.Link(found) for found in contexts if found.is_valid]

    def _failed(self, span: Span, kind: str, description: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.StatusCode.ERROR, description)


def _of_message(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"messaging.message.body.size": len(message.body)}
    if message.uniq_key:
        found["messaging.message.id"] = message.uniq_key
    if message.tags:
        found["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        found["messaging.rocketmq.message.keys"] = message.keys.split()
    return found
