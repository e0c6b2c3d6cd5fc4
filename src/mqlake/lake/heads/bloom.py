"""Bloom filters of Parquet's row groups: which of them may have a text. pyarrow writes them and does not read them.

    filter    Thrift: size, algorithm, hash, compression │ blocks of 32 bytes, of 8 words
    a text    xxHash64 ─┬─ upper 32 bits × number of blocks >> 32: its block
                        └─ lower 32 bits × a word's salt >> 27: the bit that it sets in this word

https://parquet.apache.org/docs/file-format/bloomfilter/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow.parquet as pq
import xxhash

from mqlake.lake.heads.seal import Read

HEADER_MAX = 32
_KINDS = b"\x1c\x1c\x00\x00" * 3 + b"\x00"
"""Split blocks, xxHash and no compression, in Thrift's compact protocol."""
_SIZE = b"\x15"
"""The header's first field, a number."""
_BLOCK = 32
_SALTS = (
    0x47B6137B,
    0x44974D91,
    0x8824AD5B,
    0xA2B7289D,
    0x705495C7,
    0x2DF1424B,
    0x9EFC4947,
    0x5C6BFB31,
)


def groups_that_may_have(
    metadata: pq.FileMetaData, read: Read, column: str, texts: Iterable[str]
) -> set[int]:
    """The row groups that may have one of the texts in a column. One whose filter is of another kind may."""
    index = metadata.schema.names.index(column)
    hashes = [xxhash.xxh64_intdigest(text.encode("utf-8", "surrogatepass")) for text in texts]
    found = set()
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(index)
        at, length = chunk.bloom_filter_offset, chunk.bloom_filter_length
        if at is None or length is None or _may_have(read, at, at + length, hashes):
            found.add(group)
    return found


def _may_have(read: Read, at: int, end: int, hashes: Sequence[int]) -> bool:
    """Asks the filter between two positions."""
    header = _header_size(read(at, min(end, at + HEADER_MAX)), end - at)
    if header is None:
        return True
    blocks = at + header
    count = (end - blocks) // _BLOCK
    for each in hashes:
        begin = blocks + ((each >> 32) * count >> 32) * _BLOCK
        mask = _mask(each & 0xFFFFFFFF)
        if int.from_bytes(read(begin, begin + _BLOCK), "little") & mask == mask:
            return True
    return False


def _mask(low: int) -> int:
    """The bits of a block that a text with these lower bits of its hash has set."""
    return sum(1 << (32 * word + ((low * salt & 0xFFFFFFFF) >> 27)) for word, salt in enumerate(_SALTS))


def _header_size(header: bytes, length: int) -> int | None:
    """Bytes before the blocks of a filter of `length` bytes; None if it is of another kind."""
    if header[:1] != _SIZE:
        return None
    size, shift, at = 0, 0, 1
    while at < len(header) and header[at] & 0x80:
        size |= (header[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    size = (size | header[at] << shift) >> 1 if at < len(header) else 0  # zigzag, and never below 0
    end = at + 1 + len(_KINDS)
    fits = size and not size % _BLOCK and end + size == length
    return end if fits and header[at + 1 : end] == _KINDS else None
