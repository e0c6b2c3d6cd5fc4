from __future__ import annotations

import asyncio
import time

import pytest

from mqlake.broker.services.topic_queue_mapping_clean import TopicQueueMappingCleanService
from tests.broker.static_cluster import StaticCluster, on_static_brokers

ALL_HOURS = ";".join(f"{hour:02}" for hour in range(24))


async def clean(cluster: StaticCluster) -> None:
    for controller in cluster.brokers.values():
        await TopicQueueMappingCleanService(controller.broker, controller.registration).run_once()


async def moved_twice(cluster: StaticCluster, queues: int = 2) -> None:
    """From broker-a to b to c, with messages on each."""
    await cluster.map("T", queues, "broker-a")
    for name in ("broker-a", "broker-b", "broker-c"):
        if name != "broker-a":
            await cluster.move("T", name)
        for queue_id in range(queues):
            await cluster.send(name, 2, queue_id=queue_id)
        await cluster.peer(name).dispatched()


def counts(cluster: StaticCluster) -> dict[str, list[int]]:
    """How many parts each broker knows of each queue that it knows."""
    return {
        name: [len(items) for _, items in sorted(cluster.detail(name).hosted_queues.items())]
        for name in cluster.brokers
    }


def test_who_led_a_queue_before_its_last_leader_forgets_it(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await moved_twice(cluster)
        assert counts(cluster) == {"broker-a": [2, 2], "broker-b": [3, 3], "broker-c": [3, 3]}
        await clean(cluster)
        assert counts(cluster) == {"broker-a": [], "broker-b": [3, 3], "broker-c": [3, 3]}
        assert await cluster.read_all("broker-c") == [0, 1, 10_000, 10_001, 20_000, 20_001]

    on_static_brokers(tmp_path, scene, 3, deleteWhen=ALL_HOURS)


def test_the_oldest_part_goes_when_its_messages_are_gone(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await moved_twice(cluster)
        for name in ("broker-a", "broker-b"):  # as if all files of their logs had expired
            queues = cluster.brokers[name].broker.store.consume_queues
            await asyncio.to_thread(queues.delete_topic, "T")
        await clean(cluster)
        assert counts(cluster)["broker-c"] == [2, 2]
        await clean(cluster)
        assert counts(cluster)["broker-c"] == [1, 1]
        await clean(cluster)
        assert counts(cluster)["broker-c"] == [1, 1]
        assert await cluster.read_all("broker-c") == [20_000, 20_001]
        on_disk = (tmp_path / "broker-c/store/config/topicQueueMapping.json").read_text()
        assert '"gen":2' in on_disk and '"gen":1' not in on_disk

    on_static_brokers(tmp_path, scene, 3, deleteWhen=ALL_HOURS)


def test_a_part_on_the_leader_itself_goes_too(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        await cluster.move("T", "broker-b")
        await cluster.move("T", "broker-a")
        await cluster.send("broker-a")
        await clean(cluster)  # nothing was ever sent to the first part
        await clean(cluster)
        assert counts(cluster)["broker-a"] == [1]
        assert await cluster.read_all("broker-a") == [20_000]

    on_static_brokers(tmp_path, scene, 2, deleteWhen=ALL_HOURS)


@pytest.mark.parametrize("what", ["hours", "away"])
def test_what_is_not_known_to_be_gone_stays(tmp_path, what):
    async def scene(cluster: StaticCluster) -> None:
        await moved_twice(cluster, 1)
        before = counts(cluster)
        if what == "away":
            queues = cluster.brokers["broker-a"].broker.store.consume_queues
            await asyncio.to_thread(queues.delete_topic, "T")
            await cluster.brokers["broker-a"].stop()
        await clean(cluster)
        after = counts(cluster)
        assert after["broker-c"] == before["broker-c"]
        if what == "hours":
            assert after == before

    other = f"{(time.localtime().tm_hour + 12) % 24:02}"
    settings = {"deleteWhen": other if what == "hours" else ALL_HOURS, "forwardTimeout": "500"}
    on_static_brokers(tmp_path, scene, 3, **settings)
