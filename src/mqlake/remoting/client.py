"""RemotingClient: sends requests to servers by address, and connects when the first request is made.

    async with RemotingClient() as client:
        answer = await client.invoke("127.0.0.1:9876", RemotingCommand.create_request(...))

One connection for each address, made with the first request and again after it was lost. Requests from brokers go
to `processors`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from mqlake.base.net import parse_address, reason_of
from mqlake.base.single_flight import SingleFlight
from mqlake.errors import (
    CertificateError,
    HandshakeError,
    RemotingConnectError,
    RemotingTimeoutError,
    ResponseError,
)
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection, Endpoint, Limits
from mqlake.remoting.service import Service
from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS
from mqlake.remoting.tls import why_unaccepted

logger = logging.getLogger(__name__)

WAIT_ENOUGH_S = 0.1
"""A request that waited so long (or a quarter of its time limit) without an answer says that its connection is dead."""


class RemotingClient(Endpoint, Service):
    def __init__(
        self,
        limits: Limits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float | None = None,
    ) -> None:
        """`tls`: see `remoting.tls.client_context`; None: no TLS."""
        super().__init__(limits)
        self._ssl = tls
        self._connect_timeout_s = connect_timeout_s
        self._by_address: dict[str, Connection] = {}
        self._connecting = SingleFlight(self._connect)
        self._checking = False
        self._stopped = False

    async def connection(self, address: str) -> Connection:
        """The connection to `address` (host:port), made if there is none. RemotingConnectError."""
        known = self._by_address.get(address)
        if known is not None and not known.closed:
            return known
        if self._stopped:
            raise RemotingConnectError(address, "the client is closed")
        return await self._connecting(address)

    async def _connect(self, address: str) -> Connection:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        if not self._checking:
            self._checking = True
            self.idle_checks.start(loop)
        connection = Connection(self, loop, address_called=address)
        timeout_s = DEFAULT_TIMEOUTS.of(self._connect_timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(
                    lambda: connection,
                    host,
                    port,
                    ssl=self._ssl,
                    server_hostname=host if self._ssl is not None else None,
                )
        except asyncio.CancelledError:
            self._abandon(connection)
            raise
        except TimeoutError:
            self._abandon(connection)
            raise RemotingConnectError(address, f"no connection within {timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(address, why_unaccepted(host, error)) from error
        except OSError as error:  # ssl.SSLError is one
            reason = reason_of(error)
            # a connection that is refused, or an address that nobody has, comes before the handshake
            lost = isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError)
            if self._ssl is not None and lost:
                hint = "the TLS handshake failed; is it a server without TLS?"
                raise HandshakeError(address, f"{hint} ({reason})") from error
            raise RemotingConnectError(address, f"cannot connect: {reason}") from error
        if self._stopped:
            connection.abort()
            raise RemotingConnectError(address, "the client is closed")
        self._by_address[address] = connection
        return connection

    def _abandon(self, connection: Connection) -> None:
        """Reports the loss: uvloop closes a connection without notice if the task that made it was cancelled."""
        if not connection.closed:
            connection.connection_lost(None)

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        """Sends a request to `address`; its answer, whatever its code.

        `timeout_s` covers everything, connecting included. After GO_AWAY the request is sent once more, on a new
        connection. A connection that received nothing until the timeout is closed: its server, or the network, may
        be gone. (RocketMQ's client closes it even if something came: clientCloseSocketIfTimeout.)
        Raises RemotingConnectError, RemotingTimeoutError, RemotingTooMuchError.
        """
        timeout_s = DEFAULT_TIMEOUTS.of(timeout_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            answer = await self._invoke_once(address, command, deadline, timeout_s)
            if answer.code == ResponseCode.GO_AWAY:
                answer = await self._invoke_once(address, command, deadline, timeout_s)
        except (TimeoutError, RemotingTimeoutError):
            raise RemotingTimeoutError(address, timeout_s) from None
        return answer

    async def _invoke_once(
        self, address: str, command: RemotingCommand, deadline: float, timeout_s: float
    ) -> RemotingCommand:
        async with asyncio.timeout_at(deadline):
            connection = await self.connection(address)
        remaining = deadline - asyncio.get_running_loop().time()
        reads = connection.reads
        try:
            answer = await connection.invoke(command, max(remaining, 0))
        except RemotingTimeoutError:
            had_time = remaining > WAIT_ENOUGH_S or remaining > timeout_s / 4
            if had_time and connection.reads == reads:
                logger.warning("%s: no sign of life within %.3g s; closed", address, remaining)
                self._forget(address, connection)
                connection.abort()
            raise
        if answer.code == ResponseCode.GO_AWAY:
            self._forget(address, connection)
            connection.close()
        return answer

    def _forget(self, address: str, connection: Connection) -> None:
        if self._by_address.get(address) is connection:
            del self._by_address[address]

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float | None = None
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
        """Closes every connection; pending requests fail with RemotingConnectError."""
        self._stopped = True
        self.idle_checks.stop()
        for task in self._connecting.in_flight:
            task.cancel()
        for connection in list(self.connections):
            connection.close()
        while self.connections:
            for connection in list(self.connections):
                connection.abort()
            await asyncio.sleep(0)
