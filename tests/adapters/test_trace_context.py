"""OpenTelemetry's instrumentation of Celery and Taskiq over a real broker: one trace, which the message's properties
carry too. FastStream's is in faststream/test_faststream.py."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from contextlib import aclosing
from pathlib import Path
from typing import Any

from celery import Celery
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from taskiq.middlewares.opentelemetry_middleware import OpenTelemetryMiddleware
from taskiq.receiver import Receiver

import mqlake.adapters.kombu  # noqa: F401 - makes rocketmq:// known
from mqlake.adapters.taskiq import RocketBroker
from mqlake.adapters.trace_context import trace_properties
from mqlake.client.admin import Admin
from mqlake.client.config import ClientConfig
from tests.interop.brokers import Broker
from tests.waiting import PATIENCE_S, until_async

ROOT = Path(__file__).resolve().parents[2]
WORKER = """
import os

from celery import Celery
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider

import mqlake.adapters.kombu

trace.set_tracer_provider(TracerProvider())
CeleryInstrumentor().instrument()
app = Celery("traced", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])


@app.task(name="current_span")
def current_span():
    span = trace.get_current_span()
    return [f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}", span.kind.name]
"""


class Tracing:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


async def carried(broker: Broker, topic: str, key: str) -> str:
    """`traceparent` of the one message with the key."""
    async with Admin(ClientConfig(namesrv_addr=broker.namesrv)) as admin:
        [message] = await until_async(lambda: admin.query_message(topic, key, 2))
        return str(message.properties.get("traceparent"))


def test_celery_from_the_caller_to_a_worker_of_another_process(broker: Broker, tmp_path: Path) -> None:
    tracing = Tracing()
    queue = f"traced-{uuid.uuid4().hex[:8]}"
    (tmp_path / "traced.py").write_text(WORKER)
    where, results = f"rocketmq://{broker.namesrv}", f"file://{tmp_path}"
    app = Celery("asking", broker=where, backend=results)
    command = ["-m", "celery", "-A", "traced", "worker", "-P", "solo", "-Q", queue, "-l", "WARNING"]
    worker = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "BROKER": where, "BACKEND": results, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
    )
    CeleryInstrumentor().instrument(tracer_provider=tracing.provider)
    try:
        with tracing.provider.get_tracer("test").start_as_current_span("caller") as caller:
            asked = app.send_task("current_span", queue=queue)
        trace_id, parent_id, kind = asked.get(timeout=PATIENCE_S)
    finally:
        CeleryInstrumentor().uninstrument()
        worker.terminate()
        worker.wait()
        app.close()
    [published] = tracing.spans(SpanKind.PRODUCER)
    assert (trace_id, parent_id) == ids(published)
    assert (trace_id, kind) == (f"{caller.get_span_context().trace_id:032x}", "CONSUMER")
    assert asyncio.run(carried(broker, queue, asked.id)).startswith(f"00-{trace_id}-{parent_id}-")


def test_taskiq_from_the_caller_to_the_task(broker: Broker) -> None:
    tracing = Tracing()
    topic = f"traced-{uuid.uuid4().hex[:8]}"

    async def scene() -> Any:
        tasks = RocketBroker(broker.namesrv, topic=topic, group=topic).with_middlewares(
            OpenTelemetryMiddleware(tracer_provider=tracing.provider)
        )

        @tasks.task
        async def work() -> None: ...

        await tasks.startup()
        try:
            asked = await work.kiq()
            async with aclosing(tasks.listen()) as listening:
                await Receiver(tasks, run_startup=False).callback(await anext(listening))
            return await carried(broker, topic, asked.task_id)
        finally:
            await tasks.shutdown()

    traceparent = asyncio.run(scene())
    [sent], [executed] = tracing.spans(SpanKind.PRODUCER), tracing.spans(SpanKind.CONSUMER)
    assert executed.parent is not None
    assert (ids(executed)[0], f"{executed.parent.span_id:016x}") == ids(sent)
    assert traceparent.startswith("00-{}-{}-".format(*ids(sent)))


def test_nothing_but_a_context_becomes_a_property() -> None:
    headers = {"traceparent": "00-a-b-01", "tracestate": "", "baggage": 1, "lang": "py"}
    assert trace_properties(headers) == {"traceparent": "00-a-b-01"}
    assert trace_properties(None) == {}
