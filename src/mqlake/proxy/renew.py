"""Renewal: messages received with auto_renew stay invisible while their consumer works on them.

    received ── 60 s ──▶ renewed 10 s before that is over ── 1, 3, 5, 10, 30, 60, 60 ... min ──▶ ... 3 hours at most

When the client has gone its messages become visible at once.
"""

from __future__ import annotations

import asyncio
import logging

from mqlake.base.clock import now_ms
from mqlake.errors import MqlakeError
from mqlake.proxy.acknowledge import Acknowledger
from mqlake.proxy.clients import Client, Clients, Renewal

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
AHEAD_MS = 10_000
_M = 60_000
STEPS_MS = (1 * _M, 3 * _M, 5 * _M, 10 * _M, 30 * _M, 60 * _M)
LONGEST_MS = 3 * 3600 * 1000
"""After so long the message goes the way of one that failed."""
FAILURES_MAX = 3
WHEN_GONE_MS = 1000
AT_ONCE = 64


class Renewer:
    def __init__(self, clients: Clients, acknowledger: Acknowledger) -> None:
        self._clients = clients
        self._acknowledger = acknowledger

    async def renew(self) -> None:
        """One round."""
        due = now_ms() + AHEAD_MS
        waiting = [
            (client, key, renewal)
            for client in self._clients.table.values()
            for key, renewal in client.renewals.items()
            if renewal.handle.visible_at <= due
        ]
        for start in range(0, len(waiting), AT_ONCE):
            await asyncio.gather(*[self._renew(*one) for one in waiting[start : start + AT_ONCE]])

    async def _renew(self, client: Client, key: tuple[str, str], renewal: Renewal) -> None:
        handle = renewal.handle
        if handle.visible_at < now_ms() or now_ms() - renewal.first.pop_time > LONGEST_MS:
            client.renewals.pop(key, None)
            return
        step = STEPS_MS[min(renewal.count, len(STEPS_MS) - 1)]
        try:
            changed = await self._acknowledger.change(client, renewal.group, renewal.topic, handle, step)
        except MqlakeError as error:
            renewal.failures += 1
            logger.info("%s: message %s is not renewed: %s", client.client_id, key[1], error)
            if renewal.failures >= FAILURES_MAX:
                client.renewals.pop(key, None)
            return
        renewal.handle, renewal.failures = changed, 0
        renewal.count += 1
        if renewal.ended:  # its client used the handle from before, at the same time
            await self._acknowledger.ack(client, renewal.group, renewal.topic, changed)

    async def clear(self, client: Client) -> None:
        """Makes the messages of a client that has gone visible."""
        for key, renewal in list(client.renewals.items()):
            client.renewals.pop(key, None)
            try:
                await self._acknowledger.change(
                    client, renewal.group, renewal.topic, renewal.handle, WHEN_GONE_MS
                )
            except MqlakeError as error:
                logger.info("%s: message %s stays invisible: %s", client.client_id, key[1], error)
