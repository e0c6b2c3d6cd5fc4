"""ClientHousekeepingService: forgets clients whose connection closed or who have been silent for too long, and what
they left behind."""

from __future__ import annotations

import asyncio

from mqlake.broker.broker import Broker
from mqlake.remoting.connection import Connection

SCAN_INTERVAL_S = 10.0


class ClientHousekeepingService:
    """Put `on_close` into the `on_close` of every server whose connections are clients'."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SCAN_INTERVAL_S, self._scan)

    def shutdown(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_close(self, connection: Connection) -> None:
        self._broker.producer_manager.do_channel_close_event(connection)
        self._broker.consumer_manager.do_channel_close_event(connection)

    def _scan(self) -> None:
        self._broker.producer_manager.scan_not_active_channel()
        self._broker.consumer_manager.scan_not_active_channel()
        self._broker.rebalance_lock_manager.remove_expired()
        self._broker.consumer_filter_manager.clean()
        self.start()
