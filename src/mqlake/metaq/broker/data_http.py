"""DataHttp: puts and gets over HTTP, like the original's jettyBroker plugin.

    POST /put/<bid>?topic&partition&flag&length[&checksum]     the payload as the body
    GET  /get/<bid>?topic&partition&group&offset&maxsize       200 and the records, or the code and text of `get`
    GET  /offset/<bid>?topic&partition&group&offset

The first letter of the path decides, as in the original. Status and body are those of the text protocol's answer.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from mqlake.errors import ProtocolError
from mqlake.metaq.formats.command import (
    NO_CHECKSUM,
    BooleanCommand,
    DataCommand,
    GetCommand,
    OffsetCommand,
    PutCommand,
    Request,
    decode_command,
    int32,
    int64,
)
from mqlake.metaq.wire.connection import BODY_MAX
from mqlake.metaq.wire.http import BYTES, HttpAnswer, HttpRequest, HttpServer

if TYPE_CHECKING:
    from mqlake.metaq.broker.broker import MetaMorphosisBroker

OPAQUE = 0


class _Waiting:
    """Takes the place of a connection, and keeps the answer."""

    remote_address = "http"

    def __init__(self) -> None:
        self.answer: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()

    def respond(self, code: int, message: str, opaque: int) -> None:
        self.answer.set_result(HttpAnswer(code, message.encode()))

    def transfer(self, head: bytes, fd: int, offset: int, count: int) -> None:
        self.answer.set_result(HttpAnswer(200, os.pread(fd, count, offset), BYTES))

    def send(self, data: bytes) -> None:
        decoded = decode_command(data, 0, body_max=len(data))
        command = decoded[0] if isinstance(decoded, tuple) else None
        if isinstance(command, DataCommand):
            self.answer.set_result(HttpAnswer(200, command.data, BYTES))
        elif isinstance(command, BooleanCommand):
            self.respond(command.code, command.message, OPAQUE)


class DataHttp:
    """`start`, then `server.port` is known; `stop` at the end."""

    def __init__(self, broker: MetaMorphosisBroker) -> None:
        self._broker = broker
        self.server = HttpServer(self._answer, body_max=BODY_MAX)

    async def start(self, host: str, port: int) -> None:
        """ConfigError."""
        await self.server.start(host, port)

    async def stop(self) -> None:
        await self.server.stop()

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        try:
            command = _command(request)
        except KeyError as error:
            return HttpAnswer(400, f"the parameter {error.args[0]} is missing".encode())
        except ProtocolError as error:
            return HttpAnswer(400, str(error).encode())
        if command is None:
            return HttpAnswer(400, b"Invalid request")
        waiting = _Waiting()
        self._broker.handle(waiting, command)  # type: ignore[arg-type]
        return await waiting.answer


def _command(request: HttpRequest) -> Request | None:
    """None for an unknown path. KeyError for a missing parameter, ProtocolError for an invalid one."""
    query, kind = request.query, request.path[1:2]
    if kind not in ("p", "g", "o"):
        return None
    topic, partition = query["topic"], int32(query["partition"])
    if kind == "p":
        if int32(query["length"]) != len(request.body):
            raise ProtocolError(f"length is {query['length']}, the body has {len(request.body)} bytes")
        crc = int32(query["checksum"]) if "checksum" in query else NO_CHECKSUM
        return PutCommand(topic, partition, request.body, int32(query["flag"]), crc, None, OPAQUE)
    group, offset = query["group"], int64(query["offset"])
    if kind == "g":
        return GetCommand(topic, group, partition, offset, int32(query["maxsize"]), OPAQUE)
    return OffsetCommand(topic, group, partition, offset, OPAQUE)
