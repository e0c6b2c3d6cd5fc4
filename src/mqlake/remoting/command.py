"""RemotingCommand: one request or one answer, apart from any bytes.

code         the request, or the result
opaque       chosen by the sender of a request and repeated in its answer: answers may come in any order
flag         bit 0: this is an answer; bit 1: no answer is wanted (oneway)
remark       text, mostly for a failure
ext_fields   the fields of the code's own header (`headers`), all as text
body         bytes, in the form that the code requires (`bodies`)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from mqlake.base.text import unencodable
from mqlake.errors import HeaderError
from mqlake.remoting.codes import CURRENT_VERSION, LanguageCode, ResponseCode, SerializeType, version_name

if TYPE_CHECKING:
    from mqlake.remoting.headers.codec import CommandHeader

    Header = TypeVar("Header", bound=CommandHeader)

Buffer = bytes | bytearray | memoryview
Body = Buffer | Sequence[Buffer] | None
"""A body to encode: one buffer, or several that are sent one after another without being joined."""

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2

_opaques = itertools.count(1)


def next_opaque() -> int:
    """A number for a request, different for each in this process (until 2**31 of them)."""
    return next(_opaques) & 0x7FFFFFFF


class RemotingCommand:
    __slots__ = (
        "body",
        "code",
        "ext_fields",
        "flag",
        "language",
        "opaque",
        "remark",
        "serialize_type",
        "version",
    )

    def __init__(
        self,
        code: int,
        *,
        language: LanguageCode = LanguageCode.PYTHON,
        version: int = CURRENT_VERSION,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: Body = None,
        serialize_type: SerializeType = SerializeType.JSON,
    ) -> None:
        self.code = code
        self.language = language
        self.version = version
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.ext_fields: dict[str, str] = {} if ext_fields is None else ext_fields
        self.body = body
        self.serialize_type = serialize_type

    @classmethod
    def create_request(
        cls, code: int, header: CommandHeader | None = None, body: Body = None
    ) -> RemotingCommand:
        """A request with an opaque of its own. HeaderError names a field that holds what UTF-8 cannot."""
        fields = None if header is None else header.encode()
        for name, value in (fields or {}).items():
            if not value.isascii() and (wrong := unencodable(value)):
                raise HeaderError(f"the field <{name}> of the request {wrong}")
        return cls(code, opaque=next_opaque(), ext_fields=fields, body=body)

    @classmethod
    def create_response(
        cls,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        header: CommandHeader | None = None,
        body: Body = None,
    ) -> RemotingCommand:
        """An answer; the connection sets its opaque to that of the request."""
        fields = None if header is None else header.encode()
        return cls(code, flag=RESPONSE_FLAG, remark=remark, ext_fields=fields, body=body)

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONEWAY_FLAG != 0

    def mark_oneway(self) -> None:
        self.flag |= ONEWAY_FLAG

    def decode_header(self, header_class: type[Header]) -> Header:
        """The fields as the code's own header. HeaderError when one is missing or has the wrong type."""
        return header_class.decode(self.ext_fields)

    def body_bytes(self) -> bytes:
        """The body as one copy that the caller may keep; empty if there is no body."""
        body = self.body
        if body is None:
            return b""
        if isinstance(body, bytes | bytearray | memoryview):
            return bytes(body)
        return b"".join(body)

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"<{kind} code={int(self.code)} opaque={self.opaque} {self.language.name} "
            f"{version_name(self.version)} remark={self.remark!r} {self.ext_fields} body={len(self.body_bytes())} B>"
        )
