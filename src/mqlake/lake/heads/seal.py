"""The seal of a file of heads: checksums of all its bytes, so that no flipped bit of it goes unnoticed.

    PAR1 pages │ page index, Bloom filters │ seal │ footer, its length, PAR1
    └─ pages ──┴───────── ends ────────────┴──────┴───────── ends ─────────┘

A reader of Parquet follows the offsets in the footer and passes over the seal. Parquet itself has checksums of pages
only; a flipped bit of a Bloom filter would hide rows. `ends` is checked whenever the file is opened; the pages have
checksums of their own, and are checked as a whole when heads are verified.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from mqlake.errors import UnfitHeadsError

MAGIC = b"MQHS"
PARQUET = b"PAR1"
_SEAL = struct.Struct("<4sIQI")
"""MAGIC, CRC-32 of the pages, where the ends begin, CRC-32 of the ends and of the seal before it."""
_TRAILER = struct.Struct("<I4s")
"""Length of the footer, and PARQUET."""
PIECE = 1 << 20

Read = Callable[[int, int], bytes]
"""The bytes between two positions of a file."""


@dataclass(frozen=True)
class Sealed:
    """A file whose ends are sound."""

    metadata: pq.FileMetaData
    pages_end: int
    pages_crc: int


def seal(file: BinaryIO) -> None:
    """Puts the seal into a Parquet file that is open for reading and writing. OSError."""
    size = file.seek(0, 2)
    file.seek(size - _TRAILER.size)
    length, _ = _TRAILER.unpack(file.read(_TRAILER.size))
    at = size - _TRAILER.size - length
    file.seek(at)
    footer = file.read()
    begin = _end_of_pages(_parsed(footer))
    file.seek(0)
    pages_crc = _crc(file.read, begin)
    head = struct.pack("<4sIQ", MAGIC, pages_crc, begin)
    crc = zlib.crc32(footer, zlib.crc32(head, _crc(file.read, at - begin)))
    file.seek(at)
    file.write(head + struct.pack("<I", crc) + footer)


def _crc(read: Callable[[int], bytes], size: int) -> int:
    crc = 0
    while size:
        piece = read(min(PIECE, size))
        if not piece:
            break
        crc = zlib.crc32(piece, crc)
        size -= len(piece)
    return crc


def check_ends(read: Read, size: int) -> Sealed:
    """The file of `size` bytes, if its footer, page index and Bloom filters are as they were sealed.

    UnfitHeadsError for one that is not, OSError.
    """
    trailer = read(max(0, size - _TRAILER.size), size)
    if len(trailer) < _TRAILER.size or trailer[4:] != PARQUET:
        raise UnfitHeadsError("its end is none of a Parquet file")
    at = size - _TRAILER.size - int(_TRAILER.unpack(trailer)[0])
    if at < _SEAL.size:
        raise UnfitHeadsError("its footer is longer than the file")
    end = read(at - _SEAL.size, size)
    magic, pages_crc, begin, crc = _SEAL.unpack_from(end)
    if magic != MAGIC:
        raise UnfitHeadsError("it has no seal")
    footer = end[_SEAL.size :]
    index = read(begin, at - _SEAL.size) if begin <= at - _SEAL.size else b""
    if zlib.crc32(footer, zlib.crc32(end[: _SEAL.size - 4], zlib.crc32(index))) != crc:
        raise UnfitHeadsError("its footer, page index or Bloom filters are damaged")
    return Sealed(_parsed(footer), begin, pages_crc)


def check_pages(read: Read, sealed: Sealed) -> None:
    """UnfitHeadsError unless the pages are as they were sealed."""
    crc = 0
    for start in range(0, sealed.pages_end, PIECE):
        crc = zlib.crc32(read(start, min(start + PIECE, sealed.pages_end)), crc)
    if crc != sealed.pages_crc:
        raise UnfitHeadsError("its pages are damaged")


def _parsed(footer: bytes) -> pq.FileMetaData:
    """The metadata that a footer with its length and magic says."""
    try:
        return pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowException, OSError) as error:
        raise UnfitHeadsError(f"its footer cannot be read: {error}") from error


def _end_of_pages(metadata: pq.FileMetaData) -> int:
    """Position after the last page."""
    end = len(PARQUET)
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            start = column.data_page_offset
            if column.has_dictionary_page:
                start = min(start, column.dictionary_page_offset)
            end = max(end, start + column.total_compressed_size)
    return int(end)
