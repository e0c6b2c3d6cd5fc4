"""The trace context of a framework's message as properties of RocketMQ's, where OpenTelemetry's hooks look for it.

A framework's own instrumentation writes the context into the message's headers or labels, which are part of the body.
As properties it is seen by consumers that are none of the framework, and by who reads the log: `mqlake.client.tracing`
and the instrumentation of RocketMQ's Java client take it from there.

Source: W3C Trace Context, Baggage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = ("traceparent", "tracestate", "baggage")


def trace_properties(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the part of `headers` that is a trace's context; empty without instrumentation."""
    if not headers:
        return {}
    return {name: value for name in FIELDS if isinstance(value := headers.get(name), str) and value}
