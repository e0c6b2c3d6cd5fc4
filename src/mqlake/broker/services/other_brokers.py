"""OtherBrokers: requests from this broker to others, by name, as name servers know their addresses."""

from __future__ import annotations

import asyncio

from mqlake.broker.services.outer_api import BrokerOuterAPI
from mqlake.errors import RemotingConnectError, ResponseError
from mqlake.remoting.bodies.route import MASTER_ID, BrokerData
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.command import RemotingCommand


class OtherBrokers:
    def __init__(self, outer_api: BrokerOuterAPI) -> None:
        self._outer_api = outer_api
        self._known: dict[str, BrokerData] = {}
        self._learning: asyncio.Task[None] | None = None

    async def ask(self, broker_name: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer of the broker's master, or of a replica while it has none, whatever its code.

        ResponseError if no name server knows the broker; RemotingConnectError, RemotingTimeoutError, which also make
        this look for the address again.
        """
        address = self._address(broker_name)
        if address is None:
            await self._learn()
            address = self._address(broker_name)
        if address is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"no name server knows the broker {broker_name}, which has a part of the queue",
            )
        try:
            return await self._outer_api.ask_broker(address, request, timeout_s)
        except RemotingConnectError:
            self._known.clear()  # it may be elsewhere now
            raise

    def _address(self, broker_name: str) -> str | None:
        data = self._known.get(broker_name)
        addresses = {} if data is None else data.broker_addrs
        return addresses.get(MASTER_ID) or (addresses[min(addresses)] if addresses else None)

    async def _learn(self) -> None:
        """Learns addresses; callers who need one at the same time share the answer."""
        if self._learning is None or self._learning.done():
            self._learning = asyncio.create_task(self._ask_name_servers())
        await asyncio.shield(self._learning)

    async def _ask_name_servers(self) -> None:
        cluster = await self._outer_api.cluster_info()
        if cluster is not None:
            self._known = cluster.broker_addr_table
