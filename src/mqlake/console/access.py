"""Access control of a cluster: is it on, and is somebody who they say they are?"""

from __future__ import annotations

import time
from dataclasses import replace

from mqlake.client.admin import Admin
from mqlake.client.config import ClientConfig
from mqlake.console.ask import Cluster
from mqlake.console.sampler import Sampler
from mqlake.errors import MqlakeError, ResponseError
from mqlake.remoting.codes import ResponseCode

KEPT_S = 60.0
"""Seconds for which an answer is believed; brokers count refused requests."""


def is_refusal(error: BaseException) -> bool:
    """True if a request lacked a signature or a permission."""
    return isinstance(error, ResponseError) and (
        error.code == ResponseCode.NO_PERMISSION or "AclException" in error.remark
    )


def lacks_permission(error: BaseException) -> bool:
    """True if the user is known, and only may not do this."""
    return is_refusal(error) and "has no permission" in str(error)


class Gate:
    """Opens clusters: for everybody while there is no access control, else for each user with their own secret."""

    def __init__(self, config: ClientConfig, sample_interval_s: float) -> None:
        self._sample_interval_s = sample_interval_s
        self._config = replace(config, access_key="", secret_key="", security_token="")
        self._open: Cluster | None = None
        self._asked = 0.0
        self._needs_login = False

    async def needs_login(self) -> bool:
        """True if an unsigned request is refused. Raises RemotingError if nobody answers."""
        now = time.monotonic()
        if not self._asked or now - self._asked > KEPT_S:
            self._needs_login = await self._is_refused(self.everybody().admin)
            self._asked = time.monotonic()
        return self._needs_login

    def everybody(self) -> Cluster:
        """Without credentials."""
        if self._open is None:
            self._open = Cluster(
                Admin(self._config, unpack=False), Sampler(self._config, self._sample_interval_s)
            )
        return self._open

    async def log_in(self, name: str, secret: str) -> Cluster:
        """The cluster as that user may see it. ResponseError if name or secret is wrong."""
        config = replace(self._config, access_key=name, secret_key=secret)
        admin = Admin(config, unpack=False)
        is_super = False
        try:
            for broker in await admin.masters():
                user = await admin.access.get_user(broker.address, name)
                is_super = user is not None and user.is_super
        except BaseException as error:
            if not lacks_permission(error):
                await admin.close()
                raise
        sampler = Sampler(config, self._sample_interval_s)
        sampler.start()
        return Cluster(admin, sampler, name, is_super)

    async def _is_refused(self, admin: Admin) -> bool:
        try:
            for broker in await admin.masters():
                await admin.brokers.get_broker_runtime_info(broker.address)
        except MqlakeError as error:
            if not is_refusal(error):
                raise
            return True
        return False

    async def close(self) -> None:
        if self._open is not None:
            await close_cluster(self._open)


async def close_cluster(cluster: Cluster) -> None:
    await cluster.sampler.close()
    await cluster.admin.close()
