"""RecordProperties: looks up properties in a record's bytes, without making a dict of all of them."""

from __future__ import annotations

import struct
from struct import Struct

from mqlake.formats.record import MESSAGE_MAGIC_CODE_V2
from mqlake.message import MessageSysFlag

_BEGIN = Struct(">4x i 28x i")  # magic, system flag
_I32 = Struct(">i")
_I16 = Struct(">H")
_HEAD_V4 = 84
"""Bytes before the body's length, between IPv4 hosts."""


class RecordProperties:
    """The properties of one complete record, whose bytes may change afterwards. A damaged record has none."""

    __slots__ = ("_text",)

    def __init__(self, record: memoryview) -> None:
        try:
            self._text = b"\x02" + _properties_of(record) + b"\x02"
        except (struct.error, IndexError):  # a length points past the end of the record
            self._text = b"\x02"

    def get(self, name: str, /) -> str | None:
        """The property's value; the last one counts, as in a dict, and an empty one is missing."""
        text = self._text
        key = f"\x02{name}\x01".encode()
        end = len(text)
        while (at := text.rfind(key, 0, end)) >= 0:
            begin = at + len(key)
            value = text[begin : text.index(b"\x02", begin)]
            if value:
                return value.decode("utf-8", "replace")
            end = at + len(key) - 1
        return None


def _properties_of(record: memoryview) -> bytes:
    magic, sys_flag = _BEGIN.unpack_from(record)
    at = _HEAD_V4
    if sys_flag & MessageSysFlag.BORNHOST_V6_FLAG:
        at += 12
    if sys_flag & MessageSysFlag.STOREHOSTADDRESS_V6_FLAG:
        at += 12
    at += 4 + max(_I32.unpack_from(record, at)[0], 0)
    if magic == MESSAGE_MAGIC_CODE_V2:
        at += 2 + _I16.unpack_from(record, at)[0]
    else:
        at += 1 + record[at]
    length = _I16.unpack_from(record, at)[0]
    return bytes(record[at + 2 : at + 2 + length])
