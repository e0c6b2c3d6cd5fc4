"""ClientBase: the common base of producers and consumers: a group, a client, start and close."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from mqlake.client.config import ClientConfig
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.namespace import with_namespace
from mqlake.errors import ClientClosedError, ConfigError
from mqlake.remoting.service import Service

Where = MQClientInstance | ClientConfig | str
"""A client to share, or how to make one: its configuration, or just the name servers' address."""

GROUP_LENGTH_MAX = 255
_GROUP_CHARACTERS = frozenset("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def check_group(group: str) -> None:
    """ConfigError unless `group` is 1 to 255 characters of [%|a-zA-Z0-9_-]."""
    if not group or len(group) > GROUP_LENGTH_MAX or not _GROUP_CHARACTERS.issuperset(group):
        raise ConfigError(
            f"group {group[:80]!r}: 1 to {GROUP_LENGTH_MAX} letters, digits and % | _ - are needed"
        )


class ClientBase(Service):
    def __init__(self, group: str, where: Where, *, instance_name: str = "") -> None:
        """`instance_name` is for a client made here whose configuration has none."""
        check_group(group)
        if isinstance(where, str):
            where = ClientConfig(namesrv_addr=where)
        if isinstance(where, ClientConfig) and instance_name and not where.instance_name:
            where = dataclasses.replace(where, instance_name=instance_name)
        self._owns_client = not isinstance(where, MQClientInstance)
        self.client = where if isinstance(where, MQClientInstance) else MQClientInstance(where)
        self.namespace = self.client.config.namespace
        self.group = with_namespace(self.namespace, group)
        self._running = self._ended = False

    if not TYPE_CHECKING:  # type checkers go on to refuse a plain `with`

        def __enter__(self):
            """Says what Python 3.11's own error does not."""
            name = type(self).__name__
            raise TypeError(
                f"{name} is for asyncio: use `async with`, or the class of mqlake.client.blocking"
            )

        def __exit__(self, *_):
            """Python looks for it before it calls __enter__."""

    async def start(self) -> None:
        """Must come before anything else; `async with` does it."""
        if self._ended:
            raise ClientClosedError(f"group {self.group}: closed; make a new one")
        if self._running:
            return
        await self.client.start()
        try:
            await self._start()
        except BaseException:
            self._ended = True
            await self._stop()
            if self._owns_client:
                await self.client.close()
            raise
        self._running = True

    async def close(self) -> None:
        """Stops and unregisters from the brokers. A second close does nothing."""
        if self._ended or not self._running:
            return
        self._ended = True
        self._running = False
        try:
            await self._stop()
        finally:
            if self._owns_client:
                await self.client.close()

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        """Also called for a start that failed."""
        raise NotImplementedError

    def _check_running(self) -> None:
        if not self._running:
            unstarted = "not started: use it in a `with` (asyncio: `async with`), or call start()"
            state = "closed" if self._ended else unstarted
            raise ClientClosedError(f"group {self.group}: {state}")
