"""NamesrvController: the name server on a port.

controller = NamesrvController(NamesrvConfig(listen_port=0, ...))
await controller.start()
controller.port
await controller.stop()
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable

from mqlake.auth.follow import FollowingAccess
from mqlake.auth.requests import Context
from mqlake.auth.storage import Storage
from mqlake.base.background import BackgroundWork
from mqlake.base.durable import write_durably
from mqlake.base.java_properties import format_properties
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.kv_config import KVConfigManager
from mqlake.namesrv.processors import NamesrvProcessors
from mqlake.namesrv.route_info_manager import RouteInfoManager
from mqlake.remoting.connection import Connection, Limits
from mqlake.remoting.processors import register
from mqlake.remoting.server import RemotingServer

logger = logging.getLogger(__name__)


def _monotonic_ms() -> int:
    """Monotonic: setting the time of day must not make all brokers look silent."""
    return time.monotonic_ns() // 1_000_000


class NamesrvController:
    def __init__(self, config: NamesrvConfig, *, clock_ms: Callable[[], int] = _monotonic_ms) -> None:
        """ConfigError when the TLS files cannot be used."""
        self.routes = RouteInfoManager(
            clock_ms,
            support_acting_master=config.support_acting_master,
            delete_topic_with_broker_registration=config.delete_topic_with_broker_registration,
        )
        self.kv_config = KVConfigManager(config.kv_config_path)
        self._processors = NamesrvProcessors(config, self.routes, self.kv_config, _store_config)
        self._server = RemotingServer(
            Limits(idle_s=float(config.server_channel_max_idle_time_seconds)), config.tls
        )
        register(self._server.processors, self._processors)
        self._server.on_close.append(self.routes.on_channel_destroy)
        self.access: FollowingAccess | None = None
        """Users and acls; None where authenticationEnabled is off."""
        if config.auth.authentication_enabled:
            directory = config.auth.auth_config_path or os.path.dirname(config.kv_config_path)
            self.access = FollowingAccess(config.auth, Storage(directory), Context(""))
            self._server.guard = self.access.guard
        self._scan_timer: asyncio.TimerHandle | None = None
        self._work = BackgroundWork("looking for brokers that have gone", logger)

    @property
    def config(self) -> NamesrvConfig:
        return self._processors.config

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Loads the key-value configuration and listens. ConfigError, StoreCorruptError, FormatError, OSError."""
        if self.access is not None:
            self.access.load()
        self.kv_config.load()
        await self._server.start(self.config.bind_address, self.config.listen_port)
        self._scan()

    def _scan(self) -> None:
        with self._work.round():
            for channel in self.routes.scan_not_active_broker():
                if isinstance(channel, Connection):
                    channel.abort()
        loop = asyncio.get_running_loop()
        self._scan_timer = loop.call_later(self.config.scan_not_active_broker_interval / 1000, self._scan)

    async def stop(self) -> None:
        if self._scan_timer is not None:
            self._scan_timer.cancel()
        await self._server.stop()


def _store_config(config: NamesrvConfig) -> None:
    directory = os.path.dirname(config.config_store_path)
    os.makedirs(directory or ".", exist_ok=True)
    write_durably(config.config_store_path, format_properties(config.to_properties()).encode())
