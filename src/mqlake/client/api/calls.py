"""ServerCalls: one request to one server, and its answer as a header or a body.

BrokerCalls adds the requests that clients and operators both make.
"""

from __future__ import annotations

from typing import TypeVar

from mqlake.remoting.bodies.codec import JsonBody
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import Body, RemotingCommand
from mqlake.remoting.headers import consume
from mqlake.remoting.headers.codec import CommandHeader

AnyBody = TypeVar("AnyBody", bound=JsonBody)
AnyHeader = TypeVar("AnyHeader", bound=CommandHeader)


class ServerCalls:
    """Raises RemotingConnectError, RemotingTimeoutError, and ResponseError for an answer other than SUCCESS."""

    def __init__(self, client: RemotingClient, *, timeout_s: float | None = None) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def _call(
        self,
        address: str,
        code: int,
        header: CommandHeader | None = None,
        body: Body = None,
        timeout_s: float | None = None,
    ) -> RemotingCommand:
        request = RemotingCommand.create_request(code, header, body)
        return await self._client.call(address, request, timeout_s or self._timeout_s)

    async def _body(
        self,
        kind: type[AnyBody],
        address: str,
        code: int,
        header: CommandHeader | None = None,
        body: Body = None,
    ) -> AnyBody:
        """The answer's body."""
        answer = await self._call(address, code, header, body)
        return kind.from_json(answer.body_bytes())

    async def _header(
        self,
        kind: type[AnyHeader],
        address: str,
        code: int,
        header: CommandHeader | None = None,
        body: Body = None,
    ) -> AnyHeader:
        """The answer's header."""
        answer = await self._call(address, code, header, body)
        return answer.decode_header(kind)


class BrokerCalls(ServerCalls):
    """Every method takes the broker's address (host:port) first."""

    async def get_max_offset(self, address: str, queue: MessageQueue) -> int:
        header = consume.GetMaxOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        kind = consume.GetMaxOffsetResponseHeader
        return (await self._header(kind, address, RequestCode.GET_MAX_OFFSET, header)).offset

    async def get_min_offset(self, address: str, queue: MessageQueue) -> int:
        header = consume.GetMinOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        kind = consume.GetMinOffsetResponseHeader
        return (await self._header(kind, address, RequestCode.GET_MIN_OFFSET, header)).offset

    async def search_offset(self, address: str, queue: MessageQueue, timestamp: int) -> int:
        """The offset of the first message stored at `timestamp` (ms since 1970) or later."""
        header = consume.SearchOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp, bname=queue.broker_name
        )
        kind = consume.SearchOffsetResponseHeader
        return (await self._header(kind, address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)).offset
