"""DefaultConsumerIdsChangeListener: tells the members of a group to rebalance.

The first change of a group is sent at once; changes within the next 100 ms are sent together at their end.
Otherwise a thousand members that join at once would get half a million notifications.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

from mqlake.broker.services.broker_to_client import Broker2Client
from mqlake.remoting.bodies.client import SubscriptionData
from mqlake.remoting.connection import Connection

PAUSE_S = 0.1


class SubscriptionListener(Protocol):
    """The part of ConsumerFilterManager that is notified."""

    def register_group(self, group: str, subscriptions: Collection[SubscriptionData]) -> None: ...

    def unregister_group(self, group: str) -> None: ...


class DefaultConsumerIdsChangeListener:
    """`notify`: True if members are notified at all (notifyConsumerIdsChangedEnable)."""

    def __init__(
        self, broker_to_client: Broker2Client, filters: SubscriptionListener, notify: bool = True
    ) -> None:
        self._broker_to_client = broker_to_client
        self._filters = filters
        self._notify = notify
        self._pausing: dict[str, list[Connection]] = {}

    def on_change(self, group: str, connections: list[Connection]) -> None:
        if not self._notify:
            return
        if group in self._pausing:
            self._pausing[group] = connections
            return
        self._broker_to_client.notify_consumer_ids_changed(connections, group)
        self._pausing[group] = []
        asyncio.get_running_loop().call_later(PAUSE_S, self._after_pause, group)

    def _after_pause(self, group: str) -> None:
        connections = self._pausing.pop(group)
        if connections:
            self.on_change(group, connections)

    def on_register(self, group: str, subscriptions: Collection[SubscriptionData]) -> None:
        self._filters.register_group(group, subscriptions)

    def on_unregister(self, group: str) -> None:
        self._filters.unregister_group(group)
