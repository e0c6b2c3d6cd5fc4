from __future__ import annotations

from mqlake.broker.services import client_housekeeping
from mqlake.remoting.bodies.topic import MessageQueue
from tests.broker.live_broker import Client, live_broker, run
from tests.waiting import until_async


def test_the_silent_are_closed_and_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(client_housekeeping, "SCAN_INTERVAL_S", 0.02)

    async def main():
        async with (
            live_broker(tmp_path) as controller,
            Client(controller) as client,
        ):
            await client.heartbeat(producer="P")
            assert controller.broker.producer_manager.group_channel_table.get("P")
            # from here on: before, a slow machine may take longer to say hello
            controller.broker.producer_manager._channel_expired_timeout_ms = 50
            await until_async(lambda: not client.connections)
            assert controller.broker.consumer_manager.get_consumer_group_info("G") is None
            assert not controller.broker.producer_manager.group_channel_table.get("P")

    run(main())


def test_expired_locks_and_dead_filters_go(tmp_path, monkeypatch):
    monkeypatch.setattr(client_housekeeping, "SCAN_INTERVAL_S", 0.02)

    async def main():
        async with live_broker(tmp_path, filterDataCleanTimeSpan="0") as controller:
            controller.broker.rebalance_lock_manager._max_live = -1
            controller.broker.rebalance_lock_manager.try_lock_batch("G", [MessageQueue(topic="T")], "c")
            controller.broker.consumer_filter_manager.register("T", "G", "a > 5", "SQL92", 1)
            controller.broker.consumer_filter_manager.unregister_group("G")
            await until_async(lambda: not controller.broker.rebalance_lock_manager._table)
            await until_async(lambda: controller.broker.consumer_filter_manager.get("T", "G") is None)

    run(main())


def test_a_client_of_many_groups_is_forgotten_in_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(client_housekeeping, "GROUPS_AT_ONCE", 2)

    async def main():
        async with live_broker(tmp_path) as controller, Client(controller, "stays") as stays:
            consumers = controller.broker.consumer_manager
            async with Client(controller, "goes") as goes:
                for group in ("G", "H", "I"):
                    await goes.heartbeat(group, producer=f"{group}-P")
                await stays.heartbeat("H")
            await until_async(lambda: list(consumers.consumer_table) == ["H"])
            assert consumers.consumer_table["H"].all_client_ids() == ["stays"]
            await until_async(lambda: not controller.broker.producer_manager.group_channel_table)

    run(main())
