"""MetricsExporter: the broker's figures for Prometheus.

    Prometheus ── GET /metrics ──▶ thread of the exporter ── asks ──▶ event loop: reads the counters there are
                                          └── makes the text of them

Nothing is counted for metrics alone, so they cost a message nothing; a scrape reads what the broker and its store count
anyway. The event loop only copies the figures, in turns with other work; the exporter's thread turns them into metrics
and text. The metrics are in `families`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mqlake.auth.sources import SourceList
from mqlake.base.net import format_address, is_every_address, reason_of
from mqlake.broker.metrics.families import Families, Family, Sources
from mqlake.broker.metrics.guard import guarded
from mqlake.broker.metrics.health import Health, with_health
from mqlake.broker.metrics.rpc_latency import RpcLatencies
from mqlake.errors import ConfigError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

logger = logging.getLogger(__name__)

SNAPSHOT_TIMEOUT_S = 10.0


class MetricsExporter:
    """Serves the metrics of one broker, on `port`."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.rpc_latencies = RpcLatencies()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: tuple[WSGIServer, threading.Thread] | None = None
        self.port = 0
        self.health: Health | None = None
        """The source of /health and /ready, from listen() on; None: there are none."""
        self.registry: CollectorRegistry | None = None
        """From listen() on; rooms above register what they count."""

    async def listen(self) -> None:
        """Serves the process's metrics, /health and /ready. Raises ConfigError if it cannot."""
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

        config = self._sources.broker.config
        self._loop = asyncio.get_running_loop()
        registry = self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        host, port = self._host, config.metrics_prom_exporter_port
        try:
            self._server = start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served on {host}:{port}: {reason_of(error)}; "
                "set metricsPromExporterPort (0: any free one) or metricsExporterType=DISABLE"
            ) from error
        server = self._server[0]
        auth = config.auth
        sources = SourceList.parse(auth.metrics_source_ips, "metricsSourceIps")
        access = self._sources.broker.access if auth.metrics_authentication else None
        app = server.get_app()
        assert app is not None
        app = guarded(app, sources, access, self._loop)
        server.set_app(app if self.health is None else with_health(app, self.health, sources, self._loop))
        self.port = server.server_port
        logger.info("metrics: %s", self.where)

    def start(self) -> None:
        """Serves the broker's metrics too, from now on: before its store is open there are none."""
        assert self.registry is not None
        self.registry.register(self)

    @property
    def _host(self) -> str:
        config = self._sources.broker.config
        return config.metrics_prom_exporter_host or config.bind_address

    @property
    def where(self) -> str:
        """The URL, and whether it is on every address of this machine; from listen() on."""
        if not is_every_address(self._host):
            return f"http://{format_address((self._host, self.port))}/metrics"
        url = f"http://{format_address((self._sources.broker.config.broker_ip1, self.port))}/metrics"
        return f"{url} (on every address of this machine; metricsPromExporterHost sets another)"

    async def stop(self) -> None:
        """Idempotent."""
        if self._server is None:
            return
        (server, thread), self._server = self._server, None

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        await asyncio.to_thread(end)

    def describe(self) -> Iterable[Metric]:
        """Empty: the registry calls this at registration, when nothing can be collected yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """On a thread of the exporter."""
        assert self._loop is not None
        snapshot = asyncio.run_coroutine_threadsafe(self._snapshot(), self._loop)
        yield from map(Family.metric, snapshot.result(SNAPSHOT_TIMEOUT_S))

    async def _snapshot(self) -> list[Family]:
        return [family async for family in Families(self._sources, self.rpc_latencies).all()]
