"""The part of HTTP/1.1 that administration and the original's HTTP plugin need: one request per connection."""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from mqlake.base.net import reason_of
from mqlake.errors import ConfigError

logger = logging.getLogger(__name__)

HEAD_MAX = 16 * 1024
READ_S = 10.0
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
JSON = "application/json"
BYTES = "application/octet-stream"


class HttpRequest(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    """The last value of a name counts."""
    body: bytes
    headers: dict[str, str]
    """Names in lower case."""


class HttpAnswer(NamedTuple):
    status: int
    body: bytes
    kind: str = TEXT


HttpHandler = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class HttpServer:
    """`start`, then `port` is known; `stop` at the end. An exception of the handler is answered with 500."""

    def __init__(self, handler: HttpHandler, *, body_max: int = 0) -> None:
        self._handler = handler
        self._body_max = body_max
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """ConfigError if it cannot listen there."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_MAX)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {reason_of(error)}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_S):
                request = await self._read(reader)
            answer = await self._handler(request)
        except (asyncio.LimitOverrunError, UnicodeDecodeError, ValueError) as error:
            answer = HttpAnswer(400, f"not a valid HTTP request: {error}\n".encode())
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            writer.close()
            return
        except Exception as error:
            logger.exception("an HTTP request failed")
            answer = HttpAnswer(500, f"{error}\n".encode())
        try:
            writer.write(
                f"HTTP/1.1 {answer.status} {http.HTTPStatus(answer.status).phrase}\r\n"
                f"Content-Type: {answer.kind}\r\nContent-Length: {len(answer.body)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + answer.body
            )
            await writer.drain()
        except OSError:
            pass
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> HttpRequest:
        """ValueError for an invalid request."""
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            raise ValueError(f"{lines[0][:80]!r}")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        size = int(headers.get("content-length", "0"))
        if not 0 <= size <= self._body_max:
            raise ValueError(f"a body of {size} bytes; 0 to {self._body_max} are allowed")
        body = await reader.readexactly(size) if size else b""
        parts = urlsplit(words[1])
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        return HttpRequest(words[0], parts.path, query, body, headers)
