"""ClientHousekeepingService: forgets clients whose connection closed or who have been silent for too long, and what
they left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqlake.broker.controller import BrokerController
    from mqlake.remoting.connection import Connection

SCAN_INTERVAL_S = 10.0


class ClientHousekeepingService:
    """Put `on_close` into the `on_close` of every server whose connections are clients'."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SCAN_INTERVAL_S, self._scan)

    def shutdown(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_close(self, connection: Connection) -> None:
        self._controller.producer_manager.do_channel_close_event(connection)
        self._controller.consumer_manager.do_channel_close_event(connection)

    def _scan(self) -> None:
        self._controller.producer_manager.scan_not_active_channel()
        self._controller.consumer_manager.scan_not_active_channel()
        self._controller.rebalance_lock_manager.remove_expired()
        self._controller.consumer_filter_manager.clean()
        self.start()
