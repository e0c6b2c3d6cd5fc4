"""Metrics of the gRPC endpoint.

rocketmq_proxy_up             1 while it serves, as RocketMQ's proxy has it
mqlake_grpc_rpc_milliseconds  histogram by RPC and status
mqlake_grpc_clients           clients that are known, by type
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mqlake.proxy.v2.definition_pb2 import ClientType, Code

if TYPE_CHECKING:
    from mqlake.proxy.clients import Client

BUCKETS_MS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)


class ProxyMetrics(Collector):
    """RPCs are noted on the event loop; `collect` runs on a thread of the exporter."""

    def __init__(self, *, cluster: str, node_id: str, mode: str) -> None:
        self._labels = {"cluster": cluster, "node_type": "proxy", "node_id": node_id, "proxy_mode": mode}
        self._histograms: dict[tuple[str, int], list[float]] = {}
        self.clients: Iterable[Client] = ()

    def note(self, rpc: str, code: int, seconds: float) -> None:
        """Counts an answered RPC."""
        counts = self._histograms.get((rpc, code))
        if counts is None:
            counts = self._histograms[rpc, code] = [0.0] * (len(BUCKETS_MS) + 2)
        counts[bisect_left(BUCKETS_MS, seconds * 1000)] += 1
        counts[-1] += seconds * 1000

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        names, values = list(self._labels), list(self._labels.values())
        up = GaugeMetricFamily("rocketmq_proxy_up", "1 while the proxy serves", labels=names)
        up.add_metric(values, 1)
        yield up
        clients = GaugeMetricFamily("mqlake_grpc_clients", "gRPC clients", labels=[*names, "client_type"])
        for kind, count in Counter(map(_client_type, list(self.clients))).items():
            clients.add_metric([*values, kind], count)
        yield clients
        yield self._latencies(names, values)

    def _latencies(self, names: list[str], values: list[str]) -> Metric:
        family = HistogramMetricFamily(
            "mqlake_grpc_rpc_milliseconds", "Durations of RPCs", labels=[*names, "rpc", "status"]
        )
        for (rpc, code), counts in list(self._histograms.items()):
            total, buckets = 0.0, []
            for bound, count in zip((*map(str, BUCKETS_MS), "+Inf"), counts[:-1], strict=True):
                total += count
                buckets.append((bound, total))
            status = Code.Name(code) if code in Code.values() else str(code)
            family.add_metric([*values, rpc, status], buckets, counts[-1])
        return family


def _client_type(client: Client) -> str:
    kind = client.settings.client_type if client.settings is not None else 0
    return ClientType.Name(kind).lower() if kind in ClientType.values() else str(kind)
