"""/health and /ready beside /metrics: what a supervisor and a load balancer ask a broker.

    GET /health   200 as long as a restart would not help; 503: the event loop does not answer, or the store is fenced
    GET /ready    200 while clients are served; 503 with the reasons: no name server has it, the disk is full, ending, …

The answers are JSON, {"ready": false, "reasons": ["the disk is full: …"]}, with "failing": [...] where work in the
background keeps failing, which does not change the verdict. They are for the addresses of metricsSourceIps, and need no
user: probes have none.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from mqlake.auth.sources import SourceList
from mqlake.base.background import failing
from mqlake.broker.broker import Broker
from mqlake.broker.metrics.guard import App

ANSWER_S = 5.0
"""How long the event loop may take."""
PATHS = ("/health", "/ready")


class Health:
    """The health of one broker. Its methods belong to the event loop."""

    def __init__(
        self, broker: Broker, is_running: Callable[[], bool], name_servers_that_know: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._is_running = is_running
        self._name_servers_that_know = name_servers_that_know

    async def sick(self) -> list[str]:
        """Returns the faults that only a restart ends."""
        flags = self._broker.store.running_flags
        return flags.reasons() if flags.is_fenced else []

    async def not_ready(self) -> list[str]:
        """Why clients are not served now."""
        broker, found = self._broker, []
        if not self._is_running():
            found.append("the broker is starting or ending")
        if not broker.is_slave:  # it serves reads whatever these are
            found += broker.store.running_flags.reasons()
            replicas = broker.store.replicas
            if replicas is not None and (refusal := replicas.refusal()):
                found.append(refusal)
        if broker.config.namesrv_addresses and not self._name_servers_that_know():
            found.append("no name server has this broker")
        return found


def with_health(app: App, health: Health, sources: SourceList, loop: asyncio.AbstractEventLoop) -> App:
    """The application with the two paths beside its own."""

    def asked(path: str) -> tuple[str, list[str]]:
        """(name of the verdict, what is against it)."""
        name, ask = ("ready", health.not_ready) if path == PATHS[1] else ("healthy", health.sick)
        try:
            return name, asyncio.run_coroutine_threadsafe(ask(), loop).result(ANSWER_S)
        except (concurrent.futures.TimeoutError, RuntimeError):
            return name, [f"the broker's event loop has not answered for {ANSWER_S:g} s"]

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO") or "")
        if path not in PATHS or not sources.includes(str(environ.get("REMOTE_ADDR") or "")):
            return app(environ, start_response)
        name, reasons = asked(path)
        status = "503 Service Unavailable" if reasons else "200 OK"
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        verdict: dict[str, object] = {name: not reasons, "reasons": reasons}
        if works := failing():
            verdict["failing"] = works
        return [orjson.dumps(verdict) + b"\n"]

    return answer
