"""RemotingClient: asks servers by address, connecting when there is something to ask.

    async with RemotingClient() as client:
        answer = await client.invoke("127.0.0.1:9876", RemotingCommand.create_request(...))

One connection for each address, made with the first request and again after it was lost. What a broker asks
of its clients goes to `processors`.
"""

from __future__ import annotations

import asyncio
import ssl

from mqlake.errors import RemotingConnectError, RemotingTimeoutError, ResponseError
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection, Endpoint, Limits, parse_address
from mqlake.remoting.service import Service

TIMEOUT_S = 3.0


class RemotingClient(Endpoint, Service):
    def __init__(
        self,
        limits: Limits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`tls`: see `remoting.tls.client_context`; None speaks plainly."""
        super().__init__(limits)
        self._ssl = tls
        self._connect_timeout_s = connect_timeout_s
        self._by_address: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._checking = False
        self._stopped = False

    async def connection(self, address: str) -> Connection:
        """The connection to `address` (host:port), made when there is none. RemotingConnectError."""
        known = self._by_address.get(address)
        if known is not None and not known.closed:
            return known
        if self._stopped:
            raise RemotingConnectError(address, "the client is closed")
        connecting = self._connecting.get(address)
        if connecting is None:
            connecting = asyncio.ensure_future(self._connect(address))
            self._connecting[address] = connecting
            connecting.add_done_callback(lambda task: self._connected(address, task))
        # Many may wait for it, and one who gives up must not stop it for the others.
        return await asyncio.shield(connecting)

    def _connected(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled():
            task.exception()  # taken by those who wait, if any still do

    async def _connect(self, address: str) -> Connection:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        if not self._checking:
            self._checking = True
            self.start_idle_checks(loop)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, loop, address_called=address),
                    host,
                    port,
                    ssl=self._ssl,
                    server_hostname=host if self._ssl is not None else None,
                )
        except TimeoutError:
            raise RemotingConnectError(
                address, f"no connection within {self._connect_timeout_s:g} s"
            ) from None
        except (OSError, ssl.SSLError) as error:
            raise RemotingConnectError(address, f"cannot connect: {error.strerror or error}") from error
        if self._stopped:
            connection.abort()
            raise RemotingConnectError(address, "the client is closed")
        self._by_address[address] = connection
        return connection

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_s: float = TIMEOUT_S
    ) -> RemotingCommand:
        """Sends a request to `address`; its answer, whatever its code.

        `timeout_s` holds for all of it, connecting included. A server that says GO_AWAY is asked once more on
        a new connection. Raises RemotingConnectError, RemotingTimeoutError, RemotingTooMuchError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            answer = await self._invoke_once(address, command, deadline)
            if answer.code == ResponseCode.GO_AWAY:
                answer = await self._invoke_once(address, command, deadline)
        except (TimeoutError, RemotingTimeoutError):
            raise RemotingTimeoutError(address, timeout_s) from None
        return answer

    async def _invoke_once(self, address: str, command: RemotingCommand, deadline: float) -> RemotingCommand:
        async with asyncio.timeout_at(deadline):
            connection = await self.connection(address)
        remaining = deadline - asyncio.get_running_loop().time()
        answer = await connection.invoke(command, max(remaining, 0))
        if answer.code == ResponseCode.GO_AWAY:
            if self._by_address.get(address) is connection:
                del self._by_address[address]
            connection.close()
        return answer

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float = TIMEOUT_S
    ) -> RemotingCommand:
        """Like `invoke`, for answers that must be SUCCESS: ResponseError for any other code."""
        answer = await self.invoke(address, command, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise ResponseError(answer.code, answer.remark or "")
        return answer

    async def invoke_oneway(self, address: str, command: RemotingCommand) -> None:
        """Sends a request that is not answered. RemotingConnectError."""
        (await self.connection(address)).invoke_oneway(command)

    async def close(self) -> None:
        """Closes every connection; requests that wait fail with RemotingConnectError."""
        self._stopped = True
        self.stop_idle_checks()
        for task in list(self._connecting.values()):
            task.cancel()
        for connection in list(self.connections):
            connection.close()
        while self.connections:
            for connection in list(self.connections):
                connection.abort()
            await asyncio.sleep(0)
