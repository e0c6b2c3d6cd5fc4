"""Decides who may read the metrics: addresses in metricsSourceIps, and under access control users who may Get the
cluster.

Prometheus sends name and password as HTTP Basic (`basic_auth` in its configuration). Their port has no TLS, so it
belongs into a private network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from mqlake.auth.access import AccessControl, AccessDeniedError
from mqlake.auth.model import Action
from mqlake.auth.sources import SourceList, ip_of

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
CHECK_TIMEOUT_S = 10.0


def guarded(
    app: App, sources: SourceList, access: AccessControl | None, loop: asyncio.AbstractEventLoop
) -> App:
    """The application behind its checks; `access` belongs to `loop`, and None asks for no user."""

    async def check(authorization: str | None, ip: str) -> None:
        assert access is not None
        user = access.authenticate_basic(authorization, ip, "metrics")
        access.may_administer(user, Action.GET, ip, "metrics")

    def refuse(start_response: Callable[..., Any], status: str, text: str) -> Iterable[bytes]:
        headers = [("Content-Type", "text/plain"), ("WWW-Authenticate", 'Basic realm="metrics"')]
        start_response(status, headers if status.startswith("401") else headers[:1])
        return [text.encode() + b"\n"]

    def guard(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        address = str(environ.get("REMOTE_ADDR") or "")
        if not sources.includes(address):
            return refuse(start_response, "403 Forbidden", "metricsSourceIps does not include this address")
        if access is not None:
            asked = check(environ.get("HTTP_AUTHORIZATION"), ip_of(address))
            try:
                asyncio.run_coroutine_threadsafe(asked, loop).result(CHECK_TIMEOUT_S)
            except AccessDeniedError as denied:
                status = "401 Unauthorized" if denied.step == "authentication" else "403 Forbidden"
                return refuse(start_response, status, denied.remark)
        return app(environ, start_response)

    return guard
