"""Names of directories and files in a data directory.

<dataPath>/<topic>-<partition>/<offset of the first byte, 20 digits>.meta
                               <...>.meta.arc  <...>.meta.zip        archived, no longer read
"""

from __future__ import annotations

from mqlake.errors import FormatError
from mqlake.formats.names import file_name_to_offset, offset_to_file_name

SEGMENT_SUFFIX = ".meta"
_PARTITION_MAX = (1 << 31) - 1


def segment_name(offset: int) -> str:
    """`0` → `"00000000000000000000.meta"`. ValueError for an offset below zero."""
    return offset_to_file_name(offset) + SEGMENT_SUFFIX


def segment_offset(name: str) -> int | None:
    """The offset in a segment's bare name; None if it is not the name of a segment."""
    stem = name.removesuffix(SEGMENT_SUFFIX)
    return file_name_to_offset(stem) if stem != name else None


def store_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_store_name(name: str) -> tuple[str, int]:
    """`"a-topic-3"` → `("a-topic", 3)`. FormatError if it is not the name of a partition's directory."""
    topic, dash, number = name.rpartition("-")
    is_number = number.isascii() and number.isdigit() and len(number) <= 10 and int(number) <= _PARTITION_MAX
    if not dash or not topic or not is_number:
        raise FormatError(0, f"{name!r} is not a partition's directory: <topic>-<number> is needed")
    return topic, int(number)
