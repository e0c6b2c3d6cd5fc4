"""Request: a request to a broker whose header becomes text only on its way to another process.

broker in this process ◀── the header itself ── Request ── the header's fields as text ──▶ another broker
"""

from __future__ import annotations

from typing import Any, TypeVar

from mqlake.remoting.command import Body, RemotingCommand, next_opaque
from mqlake.remoting.headers.codec import CommandHeader

Header = TypeVar("Header", bound=CommandHeader)


class Request(RemotingCommand):
    __slots__ = ("_fields", "header")

    def __init__(self, code: int, header: CommandHeader, body: Body = None) -> None:
        self._fields: dict[str, str] | None = None
        self.header = header
        super().__init__(code, opaque=next_opaque(), body=body)

    @property
    def ext_fields(self) -> dict[str, str]:
        fields = self._fields
        if fields is None:
            fields = self._fields = self.header.encode()
        return fields

    @ext_fields.setter
    def ext_fields(self, fields: dict[str, str]) -> None:
        """The fields that a RemotingCommand begins with, none, do not count."""
        if fields:
            self._fields = fields

    def decode_header(self, header_class: type[Header]) -> Header:
        header: Any = self.header
        if type(header) is header_class and self._fields is None:
            return header
        return header_class.decode(self.ext_fields)
