"""Error answers that carry the default response header, as RocketMQ's do when it has not looked at the request yet:
numbers that are 0, and a remark."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from mqlake.errors import ResponseError
from mqlake.remoting.command import RESPONSE_FLAG, RemotingCommand
from mqlake.remoting.connection import Answer, Connection, Processor
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.processors import Around

DEFAULT_REMARK = "not set any response code"
"""RocketMQ's remark in the answer of a processor that sets none, whatever its code."""


def refusal(error: ResponseError, fields: Mapping[str, str]) -> RemotingCommand:
    """The answer that refuses, with these fields."""
    return RemotingCommand(error.code, flag=RESPONSE_FLAG, remark=error.remark, ext_fields=dict(fields))


def with_default_header(header: Callable[[], CommandHeader]) -> Around:
    """The processor, with a header in the answers that refuse. `header` makes it for each: few are needed."""

    def around(_: object, processor: Processor) -> Processor:
        def answer(connection: Connection, request: RemotingCommand) -> Answer | Awaitable[Answer]:
            try:
                return processor(connection, request)
            except ResponseError as error:
                return refusal(error, header().encode())

        return answer

    return around
