from __future__ import annotations

import asyncio

from mqlake.broker.services import consumer_ids_change
from mqlake.broker.services.consumer_ids_change import DefaultConsumerIdsChangeListener
from tests.waiting import until_async


class Recorder:
    """In the place of Broker2Client and of ConsumerFilterManager."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[str]]] = []
        self.filters: list[tuple[object, ...]] = []

    def notify_consumer_ids_changed(self, connections, group) -> None:
        self.told.append((group, list(connections)))

    def register_group(self, group, subscriptions) -> None:
        self.filters.append((group, subscriptions))

    def unregister_group(self, group) -> None:
        self.filters.append((group,))


def test_the_first_change_is_told_at_once_and_the_rest_together(monkeypatch):
    monkeypatch.setattr(consumer_ids_change, "PAUSE_S", 0.02)

    async def main():
        recorder = Recorder()
        listener = DefaultConsumerIdsChangeListener(recorder, recorder)
        listener.on_change("G", ["c"])
        listener.on_change("H", ["x"])
        assert recorder.told == [("G", ["c"]), ("H", ["x"])]
        for number in range(100):
            listener.on_change("G", ["c", str(number)])
        assert len(recorder.told) == 2
        await until_async(lambda: len(recorder.told) == 3)
        assert recorder.told[2] == ("G", ["c", "99"])
        await until_async(lambda: not listener._pausing)
        listener.on_change("G", ["d"])
        assert recorder.told[3] == ("G", ["d"])

    asyncio.run(main())


def test_nobody_is_told_when_the_broker_is_set_so():
    async def main():
        recorder = Recorder()
        DefaultConsumerIdsChangeListener(recorder, recorder, notify=False).on_change("G", ["c"])
        assert recorder.told == []

    asyncio.run(main())


def test_filters_hear_of_subscriptions():
    recorder = Recorder()
    listener = DefaultConsumerIdsChangeListener(recorder, recorder)
    listener.on_register("G", ["subscription"])
    listener.on_unregister("G")
    assert recorder.filters == [("G", ["subscription"]), ("G",)]
