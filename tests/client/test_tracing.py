"""Spans of sends and listeners, from the caller to the consumer."""

from __future__ import annotations

import asyncio
import builtins
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mqlake.client import ConsumeFromWhere, ConsumerConfig, Message, Producer, ProducerConfig, PushConsumer
from mqlake.client.tracing import OpenTelemetryHook
from mqlake.errors import MissingPartError, SendError
from mqlake.remoting.loop import run
from tests.interop.brokers import MqlakeBroker
from tests.waiting import until_async

REFUSED = {"DELAY": "1", "TRAN_MSG": "true"}


class Tracing:
    """A provider of its own, what it recorded, and a hook on it."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.hook = OpenTelemetryHook(self.provider)
        self.tracer = self.provider.get_tracer("test")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def test_one_trace_from_the_caller_to_the_listener(mqlake_broker: MqlakeBroker) -> None:
    tracing = Tracing()
    inner: list[int] = []

    async def listen(messages: list[Any], _: object) -> None:
        inner.append(trace.get_current_span().get_span_context().span_id)
        if not messages[0].reconsume_times:
            raise ValueError("not this time")

    async def main() -> None:
        config = ProducerConfig(send_message_hooks=[tracing.hook], auto_batch=False)
        async with Producer("traced", mqlake_broker.namesrv, config) as producer:
            with tracing.tracer.start_as_current_span("order"):
                message = Message("Traced", b"12345")
                message.tags, message.keys = "a", "k1 k2"
                sent = await producer.send(message)
        consumed = ConsumerConfig(
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            consume_message_hooks=[tracing.hook],
        )
        consumer = PushConsumer("traced", mqlake_broker.namesrv, listen, consumed)
        consumer.subscribe("Traced")
        async with consumer:
            await until_async(lambda: len(tracing.spans("process Traced")) == 2, "both calls have ended")

        (order,), (create,), (send,) = map(tracing.spans, ("order", "create Traced", "send Traced"))
        first, second = tracing.spans("process Traced")
        assert {trace_of(span) for span in (order, create, send, first, second)} == {trace_of(order)}
        assert (create.kind, send.kind, first.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER)
        assert create.parent is not None and create.parent.span_id == span_id(order)
        assert first.parent is not None and first.parent.span_id == span_id(create)
        assert [link.context.span_id for link in send.links] == [span_id(create)]
        assert inner == [span_id(first), span_id(second)], "the listener's own spans are below"
        host, _, port = mqlake_broker.address.rpartition(":")
        assert attributes(send) == {
            "messaging.system": "rocketmq",
            "messaging.operation.type": "send",
            "messaging.operation.name": "send",
            "messaging.destination.name": "Traced",
            "messaging.destination.partition.id": str(sent.message_queue.queue_id),
            "messaging.message.body.size": 5,
            "messaging.message.id": sent.msg_id,
            "messaging.rocketmq.message.tag": "a",
            "messaging.rocketmq.message.keys": ("k1", "k2"),
            "server.address": host,
            "server.port": int(port),
        }
        assert attributes(first)["messaging.consumer.group.name"] == "traced"
        assert (first.status.status_code, attributes(first)["error.type"]) == (StatusCode.ERROR, "ValueError")
        assert second.status.status_code is StatusCode.UNSET

    run(main())


def test_messages_that_travel_together_keep_their_callers(mqlake_broker: MqlakeBroker) -> None:
    tracing = Tracing()

    async def main() -> None:
        async def order(producer: Producer, number: int) -> Message:
            with tracing.tracer.start_as_current_span(f"order {number}"):
                message = Message("TracedTogether", b"%d" % number)
                await producer.send(message)
                return message

        config = ProducerConfig(send_message_hooks=[tracing.hook])
        async with Producer("traced-together", mqlake_broker.namesrv, config) as producer:
            messages = await asyncio.gather(*(order(producer, number) for number in range(20)))
            for number, message in enumerate(messages):
                (span,) = tracing.spans(f"order {number}")
                assert message.properties["traceparent"].split("-")[1] == f"{trace_of(span):032x}"
            sends = tracing.spans("send TracedTogether")
            assert sum(len(span.links) for span in sends) == 20
            assert any(attributes(span).get("messaging.batch.message_count", 1) > 1 for span in sends)

    run(main())


def test_a_send_that_fails(mqlake_broker: MqlakeBroker) -> None:
    tracing = Tracing()

    async def main() -> None:
        config = ProducerConfig(send_message_hooks=[tracing.hook])
        async with Producer("traced-failing", mqlake_broker.namesrv, config) as producer:
            with pytest.raises(SendError):
                await producer.send(Message("TracedFailing", b"1", properties=dict(REFUSED)))

    run(main())
    span = tracing.spans("send TracedFailing")[-1]
    assert (span.status.status_code, attributes(span)["error.type"]) == (StatusCode.ERROR, "ResponseError")


def test_without_a_provider_messages_are_as_they_were(mqlake_broker: MqlakeBroker) -> None:
    async def main() -> None:
        config = ProducerConfig(send_message_hooks=[OpenTelemetryHook()])
        async with Producer("untraced", mqlake_broker.namesrv, config) as producer:
            message = Message("Untraced", b"1")
            await producer.send(message)
            assert "traceparent" not in message.properties

    run(main())


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPartError, match=r"pip install 'mqlake\[otel\]'"):
        OpenTelemetryHook()
