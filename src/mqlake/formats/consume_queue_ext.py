"""One unit of a consume queue's extension: what does not fit into the 20 bytes of a consume queue unit.

    0      2          10          18           20
    ├──────┼──────────┼───────────┼────────────┼──────────────┐
    │ size │ tagsCode │ storeTime │ bitMapSize │ filterBitMap │   size = 20 + bitMapSize
    │ i16  │   i64    │    i64    │    i16     │ bitMapSize B │
    └──────┴──────────┴───────────┴────────────┴──────────────┘

A file keeps its last 4 bytes free; where the next unit does not fit, an i16 of -1 says that it is in the next
file. The consume queue's tags_code holds the unit's address: its offset, moved so far below zero that no hash
of tags can be mistaken for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from mqlake.errors import BadLengthError, MessageError, TruncatedRecordError

_HEAD = Struct(">hqqh")
MIN_EXT_UNIT_SIZE = 20
MAX_EXT_UNIT_SIZE = 0x7FFF
END_BLANK_DATA_LENGTH = 4
END_OF_FILE = b"\xff\xff"
"""The mark where a file's units end before the file does."""

_I64_MIN = -(1 << 63)
MAX_ADDRESS = -(1 << 31) - 1
MAX_REAL_OFFSET = MAX_ADDRESS - _I64_MIN


@dataclass(slots=True, frozen=True)
class ConsumeQueueExtUnit:
    tags_code: int
    store_time: int
    """ms"""
    filter_bit_map: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of the encoded unit."""
        return MIN_EXT_UNIT_SIZE + len(self.filter_bit_map)


def encode_unit(unit: ConsumeQueueExtUnit) -> bytes:
    """The unit's bytes. Raises MessageError when it would be longer than MAX_EXT_UNIT_SIZE."""
    if unit.size > MAX_EXT_UNIT_SIZE:
        raise MessageError(f"an extension unit of {unit.size} bytes; {MAX_EXT_UNIT_SIZE} are allowed")
    bit_map = unit.filter_bit_map
    return _HEAD.pack(unit.size, unit.tags_code, unit.store_time, len(bit_map)) + bit_map


def decode_unit(buf: bytes | bytearray | memoryview, pos: int = 0) -> ConsumeQueueExtUnit | None:
    """The unit at `pos`; None where units end, which is at a size of 0 or below.

    Raises TruncatedRecordError or BadLengthError, nothing else.
    """
    available = len(buf) - pos
    if pos < 0 or available < 2:
        raise TruncatedRecordError(pos, "an extension unit needs its size")
    size = int.from_bytes(buf[pos : pos + 2], "big", signed=True)
    if size <= 0:
        return None
    if size < MIN_EXT_UNIT_SIZE:
        raise BadLengthError(pos, f"an extension unit cannot have {size} bytes")
    if size > available:
        raise TruncatedRecordError(pos, f"the extension unit has {size} bytes, {available} are there")
    _, tags_code, store_time, bit_map_size = _HEAD.unpack_from(buf, pos)
    if bit_map_size != size - MIN_EXT_UNIT_SIZE:
        raise BadLengthError(pos, f"a bit map of {bit_map_size} bytes in an extension unit of {size}")
    return ConsumeQueueExtUnit(tags_code, store_time, bytes(buf[pos + MIN_EXT_UNIT_SIZE : pos + size]))


def is_ext_address(tags_code: int) -> bool:
    """True if a consume queue unit's tags_code is an address in the extension files."""
    return tags_code <= MAX_ADDRESS


def decorate(offset: int) -> int:
    """The address (a tags_code) of the unit at `offset` bytes in the extension files."""
    return offset if is_ext_address(offset) else offset + _I64_MIN


def undecorate(address: int) -> int:
    """Inverse of `decorate`."""
    return address - _I64_MIN if is_ext_address(address) else address
