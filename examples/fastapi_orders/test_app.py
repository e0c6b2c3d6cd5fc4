"""The service over a real broker, which the fixture `rocketmq` of mqlake starts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from app import app
from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)


@pytest.fixture
def client(rocketmq, monkeypatch) -> Iterator[TestClient]:
    monkeypatch.setenv("NAMESRV_ADDR", rocketmq.namesrv)
    with TestClient(app) as client:
        yield client


def test_an_order_is_packed_and_traced(client):
    assert client.get("/health").json() == {"status": "ok"}
    answer = client.post("/orders", json={"item": "apple", "count": 2})
    assert answer.status_code == 202
    number = answer.json()["id"]
    deadline = time.monotonic() + 60
    while (found := client.get(f"/orders/{number}")).status_code == 404:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert found.json() == {"id": number, "item": "apple", "count": 2, "state": "packed"}
    order = next(span for span in spans.get_finished_spans() if span.name == "order")
    of_it = {s.name for s in spans.get_finished_spans() if s.context.trace_id == order.context.trace_id}
    assert {"create Orders", "process Orders"} <= of_it


def test_unknown_and_invalid_orders(client):
    assert client.get("/orders/nobody").status_code == 404
    assert client.post("/orders", json={"count": 2}).status_code == 422
