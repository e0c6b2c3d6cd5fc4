from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mqlake.broker.controller import BrokerController
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.errors import ConfigError
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.store.kept_copies import keep
from tests.broker.live import Peer, on_a_broker
from tests.broker.live_broker import Client, live_broker, put, run
from tests.broker.transaction.test_end_transaction import COMMIT, ROLLBACK, end, prepare
from tests.store.small_store import flip, log_file
from tests.waiting import until_async

ON = {
    "metricsExporterType": "PROM",
    "metricsPromExporterPort": "0",
    "metricsPromExporterHost": "127.0.0.1",
}
COMMON = "cluster node_id node_type"
# Sample names and labels of a RocketMQ 5.3.3 broker with metricsExporterType=PROM (otel_scope_name left out)
ROCKETMQ = {
    "rocketmq_broker_permission": "",
    "rocketmq_topic_number": "",
    "rocketmq_consumer_group_number": "",
    "rocketmq_producer_connections": "language version protocol_type",
    "rocketmq_consumer_connections": ("consumer_group language version consume_mode protocol_type is_system"),
    "rocketmq_messages_in_total": "topic message_type is_system",
    "rocketmq_throughput_in_total": "topic message_type is_system",
    "rocketmq_message_size_count": "topic message_type is_system",
    "rocketmq_messages_out_total": "topic consumer_group is_system",
    "rocketmq_throughput_out_total": "topic consumer_group is_system",
    "rocketmq_storage_size_bytes": "storage_medium storage_type",
    "rocketmq_storage_flush_behind_bytes": "storage_medium storage_type",
    "rocketmq_storage_dispatch_behind_bytes": "storage_medium storage_type",
    "rocketmq_storage_message_reserve_time_milliseconds": "storage_medium storage_type",
    "rocketmq_topic_create_execution_time_milliseconds_count": "invocation_status is_system",
    "rocketmq_consumer_group_create_execution_time_milliseconds_count": "invocation_status",
    "rocketmq_consumer_lag_messages": "consumer_group topic is_retry is_system",
    "rocketmq_consumer_lag_latency_milliseconds": "consumer_group topic is_retry is_system",
    "rocketmq_consumer_inflight_messages": "consumer_group topic is_retry is_system",
    "rocketmq_consumer_queueing_latency_milliseconds": "consumer_group topic is_retry is_system",
    "rocketmq_consumer_ready_messages": "consumer_group topic is_retry is_system",
    "rocketmq_rpc_latency_milliseconds_count": (
        "protocol_type request_code response_code is_long_polling result"
    ),
}

Samples = dict[str, list[tuple[dict[str, str], float]]]


async def scrape(controller: BrokerController) -> Samples:
    assert controller.metrics is not None

    def fetch() -> str:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{controller.metrics.port}/metrics", timeout=60
        ) as answer:
            return answer.read().decode()

    samples: Samples = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(fetch)):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return samples


def test_names_labels_and_values(tmp_path):
    async def scene() -> None:
        async with (
            live_broker(tmp_path, **ON, metricsLabel="zone:a") as controller,
            Client(controller) as client,
        ):
            api, at = BrokerAPI(client), controller.broker_addr
            await api.create_topic(at, TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
            await api.create_subscription_group(at, SubscriptionGroupConfig(group_name="G"))
            await client.heartbeat("G", ("T", "%RETRY%G"), producer="P")
            for _ in range(5):
                put(controller)
            put(controller, "%RETRY%G")
            offsets = controller.broker.consumer_offset_manager
            offsets.commit_offset("h", "G", "T", 0, 1)
            offsets.commit_pull_offset("h", "G", "T", 0, 3)
            controller.broker.broker_stats_manager.get("G", "T", 0, 3, 300, 0)

            samples = await scrape(controller)
            for name, labels in ROCKETMQ.items():
                assert name in samples, name
                for found, _ in samples[name]:
                    assert found.keys() == {*COMMON.split(), "zone", *labels.split()}, name

            def value(name: str) -> float:
                (sample,) = samples[name]
                return sample[1]

            assert samples["rocketmq_messages_in_total"][0][0]["topic"] == "T"
            assert (value("rocketmq_messages_in_total"), value("rocketmq_messages_out_total")) == (5, 3)
            assert value("rocketmq_throughput_out_total") == 300
            assert value("rocketmq_message_size_count") == 5
            assert (
                value("rocketmq_consumer_lag_messages"),
                value("rocketmq_consumer_inflight_messages"),
                value("rocketmq_consumer_ready_messages"),
            ) == (4, 2, 2)
            assert value("rocketmq_consumer_lag_latency_milliseconds") >= 0
            assert value("rocketmq_consumer_connections") == value("rocketmq_producer_connections") == 1
            (client_labels, _), *_ = samples["rocketmq_consumer_connections"]
            assert (client_labels["language"], client_labels["version"], client_labels["consume_mode"]) == (
                "python",
                "v5_3_3",
                "push",
            )
            assert value("rocketmq_topic_create_execution_time_milliseconds_count") == 1
            heartbeats = [
                (labels["response_code"], labels["is_long_polling"], labels["result"], count)
                for labels, count in samples["rocketmq_rpc_latency_milliseconds_count"]
                if labels["request_code"] == "heart_beat"
            ]
            assert heartbeats == [("success", "false", "success", 1)]
            bounds = {labels["le"] for labels, _ in samples["rocketmq_rpc_latency_milliseconds_bucket"]}
            assert bounds == {f"{ms}.0" for ms in (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)} | {"+Inf"}
            assert "process_resident_memory_bytes" in samples
            assert "mqlake_metrics_dropped_series" not in samples

    run(scene())


def test_a_delayed_message_counts_where_it_waits_and_where_it_is_delivered(tmp_path):
    """As a RocketMQ 5.3.3 broker counts it, all but the delivered one's type (`delay` there)."""

    async def scene() -> None:
        async with live_broker(tmp_path, **ON) as controller:
            put(controller, properties={"DELAY": "1"})
            await until_async(lambda: controller.broker.store.max_offset_in_queue("T", 0) == 1)
            samples = await scrape(controller)
            assert {
                (labels["topic"], labels["message_type"], labels["is_system"]): count
                for labels, count in samples["rocketmq_messages_in_total"]
            } == {("T", "normal", "false"): 1, ("SCHEDULE_TOPIC_XXXX", "delay", "true"): 1}
            ((labels, count),) = samples["rocketmq_messages_out_total"]
            assert (labels["topic"], labels["consumer_group"], count) == (
                "SCHEDULE_TOPIC_XXXX",
                "SCHEDULE_CONSUMER",
                1,
            )

    run(scene())


def test_timers(tmp_path):
    async def scene() -> None:
        async with live_broker(tmp_path, **ON) as controller:
            put(controller, properties={"TIMER_DELAY_SEC": "100"})
            await until_async(lambda: controller.timers.all_congest_num == 1)
            samples = await scrape(controller)
            for name in ("rocketmq_timing_messages", "rocketmq_timer_enqueue_total"):
                ((labels, count),) = samples[name]
                assert (labels["topic"], labels["storage_medium"], count) == ("T", "disk", 1)
            assert [
                (labels["timer_bound_s"], count)
                for labels, count in samples["rocketmq_timer_message_snapshot"]
            ][1:3] == [("60", 0), ("300", 1)]
            for name in ("enqueue_lag", "enqueue_latency_milliseconds", "dequeue_lag"):
                assert [count for _, count in samples[f"rocketmq_timer_{name}"]] == [0]

    run(scene())


def test_transactions(tmp_path):
    async def scene(peer: Peer) -> None:
        _, committed, rolled_back = [await prepare(peer) for _ in range(3)]
        assert (await end(peer, committed, COMMIT)).code == (await end(peer, rolled_back, ROLLBACK)).code == 0
        samples = await scrape(peer.controller)
        for name in (
            "rocketmq_half_messages",
            "rocketmq_commit_messages_total",
            "rocketmq_rollback_messages_total",
            "rocketmq_finish_message_latency_milliseconds_count",
        ):
            ((labels, count),) = samples[name]
            assert labels.keys() == {*COMMON.split(), "topic"} and (labels["topic"], count) == ("T", 1), name
        half = {labels["topic"]: labels for labels, _ in samples["rocketmq_messages_in_total"]}
        assert half["RMQ_SYS_TRANS_HALF_TOPIC"]["message_type"] == "transaction"

    on_a_broker(tmp_path, scene, **ON)


def test_the_number_of_series_is_bounded(tmp_path):
    async def scene() -> None:
        async with live_broker(tmp_path, **ON, metricsOtelCardinalityLimit="3") as controller:
            for number in range(5):
                put(controller, f"T{number}")
            samples = await scrape(controller)
            assert len(samples["rocketmq_messages_in_total"]) == 3
            dropped = {labels["metric"]: count for labels, count in samples["mqlake_metrics_dropped_series"]}
            assert dropped["rocketmq_messages_in"] == 2

    run(scene())


def test_off_unless_asked_for_and_gone_with_the_broker(tmp_path):
    async def scene() -> None:
        async with live_broker(tmp_path / "a") as controller:
            assert controller.metrics is None
        async with live_broker(tmp_path / "b", **ON) as controller:
            await scrape(controller)
        with pytest.raises(urllib.error.URLError):
            await scrape(controller)

    run(scene())


def test_a_port_that_is_taken(tmp_path):
    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            settings = {**ON, "metricsPromExporterPort": str(taken.getsockname()[1])}
            with pytest.raises(ConfigError, match="metricsPromExporterPort"):
                async with live_broker(tmp_path, **settings):
                    pass

    run(scene())


def test_what_left_the_log_is_counted(tmp_path):
    async def scene() -> None:
        async with live_broker(tmp_path, **ON) as controller:
            root = tmp_path / "store"

            async def kept() -> dict[str, float]:
                samples = (await scrape(controller))["mqlake_store_kept_copies"]
                return {labels["kind"]: count for labels, count in samples}

            assert await kept() == {"dropped": 0, "repair": 0}
            keep(str(root), memoryview(b"bytes"), 4096, "why")
            (root / "repair-20260101T000000").mkdir()
            assert await kept() == {"dropped": 1, "repair": 1}

    run(scene())


def test_damage_is_counted(tmp_path):
    async def scene() -> None:
        async with live_broker(tmp_path, **ON) as controller:
            for _ in range(3):
                put(controller)
            assert "mqlake_damaged_places_total" not in await scrape(controller)
            store = controller.broker.store
            flip(log_file(tmp_path / "store"), store.consume_queues.get("T", 0).get(1).physical_offset + 15)
            for _ in range(2):
                assert store.get_message("G", "T", 0, 0, 32).message_count == 2
            [(labels, count)] = (await scrape(controller))["mqlake_damaged_places_total"]
            assert (labels["topic"], labels["found_by"], count) == ("T", "pull", 1)

    run(scene())
