"""Unread messages: the body, and where the record is, which is read when somebody asks for another field.

    unread ──any field but the body──▶ a plain message: all its fields; no record any more

Whoever counts messages, hands them on, or looks at bodies alone pays for nothing else. The state is the object's class,
so that a plain message (one to put) costs nothing for it, and a body is an attribute in both. Outside they differ in
nothing: fields may be set, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqlake.message.message import Message, MessageExt

ReadFields = Callable[[MessageExt, bytes, int], None]
"""(message, records, where its own begins): sets all fields but the body."""


def unread_messages(read_fields: ReadFields) -> type[MessageExt]:
    """The class of messages that have `body` and `_record`, of records that have been checked: reading them raises
    nothing."""

    def read(message: Any) -> None:
        records, start = message._record
        message.__class__ = MessageExt
        del message._record
        read_fields(message, records, start)

    def reduce(message: Any, protocol: Any) -> Any:
        read(message)
        return message.__reduce_ex__(protocol)

    names = {*Message.__slots__, *MessageExt.__slots__} - {"body", "_record"}
    return type(
        "MessageExt",  # nobody needs to see the difference
        (MessageExt,),
        {
            "__slots__": (),
            "__module__": MessageExt.__module__,
            "__reduce_ex__": reduce,
            **{name: _field(name, read) for name in names},
        },
    )


def _field(name: str, read: Callable[[Any], None]) -> property:
    def get(message: Any) -> Any:
        read(message)
        return getattr(message, name)

    def put(message: Any, value: object) -> None:
        read(message)
        setattr(message, name, value)

    return property(get, put)
