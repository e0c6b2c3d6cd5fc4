"""ClientHousekeepingService: forgets clients that disconnected or were silent for too long, with their state."""

from __future__ import annotations

import asyncio
import itertools
import logging

from mqlake.base.background import BackgroundWork
from mqlake.broker.broker import Broker
from mqlake.remoting.connection import Connection
from mqlake.remoting.yielding import at_once, in_turns

logger = logging.getLogger(__name__)

SCAN_INTERVAL_S = 10.0
GROUPS_AT_ONCE = 100
"""A client with more groups is forgotten in turns with the requests of others."""


class ClientHousekeepingService:
    """Append `on_close` to the `on_close` of every server that serves clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timer: asyncio.TimerHandle | None = None
        self._work = BackgroundWork("looking for clients that have gone", logger)
        self._leaving: set[asyncio.Future[None]] = set()

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SCAN_INTERVAL_S, self._scan)

    def shutdown(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_close(self, connection: Connection) -> None:
        producers, consumers = self._broker.producer_manager, self._broker.consumer_manager
        steps = itertools.chain(producers.leave(connection), consumers.leave(connection))
        if producers.group_count(connection) + consumers.group_count(connection) <= GROUPS_AT_ONCE:
            at_once(steps)
        else:
            leaving = asyncio.ensure_future(in_turns(steps))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    def _scan(self) -> None:
        self.start()
        with self._work.round():
            self._broker.producer_manager.scan_not_active_channel()
            self._broker.consumer_manager.scan_not_active_channel()
            self._broker.rebalance_lock_manager.remove_expired()
            self._broker.consumer_filter_manager.clean()
