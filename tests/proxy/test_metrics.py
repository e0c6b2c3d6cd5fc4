"""The metrics of the gRPC endpoint."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from mqlake.proxy.metrics import ProxyMetrics
from mqlake.proxy.v2.definition_pb2 import Code
from tests.proxy.live import producer_settings
from tests.proxy.scripted import ScriptedBackend, client


def test_names_and_values():
    metrics = ProxyMetrics(cluster="c", node_id="b", mode="local")
    known = client(ScriptedBackend())
    known.settings = producer_settings("T").settings
    metrics.clients = [known, client(ScriptedBackend())]
    for seconds in (0.0005, 0.002, 60.0):
        metrics.note("SendMessage", Code.OK, seconds)
    registry = CollectorRegistry()
    registry.register(metrics)
    text = generate_latest(registry).decode()
    labels = 'cluster="c",node_id="b",node_type="proxy",proxy_mode="local"'
    assert f"rocketmq_proxy_up{{{labels}}} 1.0" in text
    name = "mqlake_grpc_rpc_milliseconds"
    of_rpc = 'rpc="SendMessage",status="OK"'
    value = {
        sample.labels.get("le", sample.name): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name.startswith(name) and sample.labels["rpc"] == "SendMessage"
    }
    assert (value["1"], value["3"], value["3000"], value["+Inf"]) == (1, 2, 2, 3)
    assert of_rpc in text
    assert 'client_type="producer"' in text and 'client_type="client_type_unspecified"' in text
