"""Unread messages: they keep the bytes of their record and read them when somebody asks for a field.

    unread ──any field──▶ a plain message
      │ ▲                 all its fields; no record any more
      └─┘ body

Whoever counts messages, hands them on, or looks at bodies alone pays for nothing else. The state is the object's class,
so that a plain message (one to put) costs nothing for it. Outside they differ in nothing: fields may be set, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mqlake.message.message import MessageExt

ReadFields = Callable[[MessageExt, bytes], None]
"""(message, record): sets all fields."""
ReadBody = Callable[[bytes], bytes]

_new = object.__new__
_set = object.__setattr__
_set_record = MessageExt.__dict__["_record"].__set__


class _Unread:
    __slots__ = ()

    _read_fields: ClassVar[ReadFields]
    _read_body: ClassVar[ReadBody]

    def __getattr__(self, name: str) -> Any:
        if name == "body":
            body = type(self)._read_body(self._record)
            _set(self, name, body)
            return body
        if name == "_record":
            raise AttributeError(name)
        _read(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _read(self)
        setattr(self, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _read(self)
        return self.__reduce_ex__(protocol)


def _read(message: Any) -> None:
    read_fields, record = message._read_fields, message._record
    _set(message, "__class__", MessageExt)
    message._record = b""
    read_fields(message, record)


def unread_messages(read_fields: ReadFields, read_body: ReadBody) -> Callable[[bytes], MessageExt]:
    """What makes messages of records that have been checked: reading one raises nothing."""
    kind = type(
        "MessageExt",  # nobody needs to see the difference
        (_Unread, MessageExt),
        {
            "__slots__": (),
            "__module__": MessageExt.__module__,
            "_read_fields": staticmethod(read_fields),
            "_read_body": staticmethod(read_body),
        },
    )

    def unread(record: bytes) -> MessageExt:
        message: MessageExt = _new(kind)
        _set_record(message, record)
        return message

    return unread
