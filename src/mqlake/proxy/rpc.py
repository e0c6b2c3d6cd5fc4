"""Rpc: one method of the service, as both servers are told of it.

request ─▶ decode ─▶ method(request, context) ─▶ encode ─▶ answer
           many_requests: it gets an iterator of them     many_answers: it writes them to the context
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

MESSAGE_SIZE_MAX = 130 * 1024 * 1024
IDLE_MS = 120_000
"""A connection without an RPC is closed after so long."""
KEEPALIVE_MS = 60_000
"""A connection that has been silent for so long is pinged."""
KEEPALIVE_TIMEOUT_MS = 20_000
"""It is closed if the answer takes longer."""


class GrpcStatus(enum.IntEnum):
    """gRPC's own codes, which end an RPC; RocketMQ's are in the answers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RpcAbortedError(Exception):
    """Raised by a method to end its RPC with a status of gRPC's own."""

    def __init__(self, status: GrpcStatus, details: str) -> None:
        super().__init__(f"{status.name}: {details}")
        self.status = status
        self.details = details


@dataclass(frozen=True, slots=True)
class Rpc:
    service: str
    name: str
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    method: Callable[[Any, Any], Awaitable[Any]]
    many_requests: bool = False
    many_answers: bool = False

    @property
    def path(self) -> bytes:
        return f"/{self.service}/{self.name}".encode()
