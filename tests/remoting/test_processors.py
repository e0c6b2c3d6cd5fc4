from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mqlake.errors import HeaderError
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Processor, ProcessorTable
from mqlake.remoting.headers.consume import GetMaxOffsetRequestHeader
from mqlake.remoting.processors import answers, register


def with_context(context: object, processor: Processor) -> Any:
    return lambda connection, request: (context, processor(connection, request))


class Offsets:
    @answers(1, with_context)
    def nothing(self) -> str:
        return "nothing"

    @answers((2, 3))
    def all_of_it(
        self, connection: object, request: RemotingCommand, header: GetMaxOffsetRequestHeader
    ) -> tuple[object, int, int]:
        return connection, request.code, header.queue_id

    @answers(4)
    async def later(self, header: GetMaxOffsetRequestHeader) -> int:
        return header.queue_id


def test_methods_get_what_they_take_and_answer_the_codes_that_stand_beside_them() -> None:
    table = ProcessorTable()
    register(table, Offsets(), "store")

    def ask(code: int, **fields: str) -> object:
        found: Any = table.find(code)
        processor, is_async = found
        answer = processor("connection", RemotingCommand(code, ext_fields=fields))
        assert is_async == asyncio.iscoroutine(answer), "an asynchronous processor keeps the body"
        return asyncio.run(answer) if is_async else answer

    assert ask(1) == ("store", "nothing")
    assert ask(2, topic="T", queueId="7") == ("connection", 2, 7)
    assert ask(3, topic="T", queueId="8") == ("connection", 3, 8)
    assert ask(4, topic="T", queueId="9") == 9
    for code in (2, 4):
        with pytest.raises(HeaderError, match="queueId"):
            ask(code, topic="T")
    assert table.find(5) is None
