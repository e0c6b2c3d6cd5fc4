"""Declares the requests that a method answers, beside the method.

    class TopicAdmin:
        @answers(RequestCode.GET_TOPIC_CONFIG)
        def get_topic_config(self, header: GetTopicConfigRequestHeader) -> RemotingCommand: ...

    register(table, TopicAdmin(broker), broker.store)

A method takes what it needs of `connection`, `request` and `header`, in this order. The header is decoded as the class
that the method names; HeaderError is the answer.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection, Processor, ProcessorTable

Around = Callable[[Any, Processor], Processor]
"""Given the context of `register` and a processor, returns one that does something before or after it."""
Method = TypeVar("Method", bound=Callable[..., Any])

_DECLARED = "_answers"


def answers(codes: int | Iterable[int], *around: Around) -> Callable[[Method], Method]:
    """Declares that a method answers these codes; `around` is put around it, the first outermost."""

    def declare(method: Method) -> Method:
        setattr(method, _DECLARED, (codes, around))
        return method

    return declare


def register(table: ProcessorTable, owner: object, context: object = None) -> None:
    """Registers the methods of `owner` that answer requests."""
    for name in dir(type(owner)):
        if declared := getattr(getattr(type(owner), name), _DECLARED, None):
            codes, around = declared
            processor = _processor(getattr(owner, name))
            for put_around in reversed(around):
                processor = put_around(context, processor)
            table.register(codes, processor)


def _processor(method: Callable[..., Any]) -> Processor:
    hints = typing.get_type_hints(method)
    header_class = hints.get("header")

    def answer(connection: Connection, request: RemotingCommand) -> Any:
        taken: list[object] = [connection] if "connection" in hints else []
        if "request" in hints:
            taken.append(request)
        if header_class is not None:
            taken.append(request.decode_header(header_class))
        return method(*taken)

    async def answer_later(connection: Connection, request: RemotingCommand) -> Any:
        return await answer(connection, request)

    return answer_later if inspect.iscoroutinefunction(method) else answer
