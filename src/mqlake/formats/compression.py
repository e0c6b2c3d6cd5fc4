"""Compressed bodies: what the bits 0 and 8-10 of a record's SYSFLAG promise.

    type (bits 8-10)   body
    0, 0x300  ZLIB     a zlib stream
    0x100     LZ4      an LZ4 frame
    0x200     ZSTD     a Zstandard frame

Producers compress, consumers unpack; a broker stores what it is given. Facts: MessageSysFlag of RocketMQ 5.3.3.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from mqlake.errors import FormatError
from mqlake.message import MessageSysFlag

Buffer = bytes | bytearray | memoryview

COMPRESSION_NAMES = {
    "LZ4": MessageSysFlag.COMPRESSION_LZ4_TYPE,
    "ZSTD": MessageSysFlag.COMPRESSION_ZSTD_TYPE,
    "ZLIB": MessageSysFlag.COMPRESSION_ZLIB_TYPE,
}
DEFAULT_LEVEL = 5
MAX_BODY_SIZE = 256 << 20
"""Bytes that a body may unpack to, unless a caller says otherwise: a few bytes must not claim all memory."""
PIECE_SIZE = 256 << 10
ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS
"""RocketMQ's proxy stores the gzip bodies of gRPC producers as they are, under the flag of zlib."""


def compress_body(body: Buffer, sys_flag: int, level: int = DEFAULT_LEVEL) -> bytes:
    """The body compressed as `sys_flag` names it; the flag itself stays the caller's."""
    kind = MessageSysFlag.compression_type(sys_flag)
    if kind == MessageSysFlag.COMPRESSION_ZLIB_TYPE:
        return zlib.compress(body, level)
    if kind == MessageSysFlag.COMPRESSION_LZ4_TYPE:
        import lz4.frame

        return bytes(lz4.frame.compress(body, compression_level=level))
    if kind == MessageSysFlag.COMPRESSION_ZSTD_TYPE:
        from mqlake.base import zstd

        return zstd.compress(body, level)
    raise FormatError(0, f"compression type {kind >> 8} is not one of 0 to 3")


def decompress_body(body: Buffer, sys_flag: int, max_size: int = MAX_BODY_SIZE) -> bytes:
    """The body as its producer had it; `body` itself (as bytes) when `sys_flag` does not say compressed.

    FormatError when it cannot be unpacked, or unpacks to more than `max_size` bytes.
    """
    pieces, size = [], 0
    for piece in decompress_pieces(body, sys_flag, max_size + 1):
        pieces.append(piece)
        size += len(piece)
        if size > max_size and sys_flag & MessageSysFlag.COMPRESSED_FLAG:
            raise FormatError(0, f"a body of {len(body)} bytes unpacks to more than {max_size} bytes")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompress_pieces(body: Buffer, sys_flag: int, size: int = PIECE_SIZE) -> Iterator[bytes]:
    """The body as its producer had it, unpacked only as far as it is read: pieces of at most `size` bytes.

    FormatError where it cannot be unpacked.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED_FLAG:
        yield bytes(body)
        return
    kind = MessageSysFlag.compression_type(sys_flag)
    try:
        if kind not in _PIECES:
            raise ValueError(f"compression type {kind >> 8} is not one of 0 to 3")
        yield from _PIECES[kind](body, size)
    except (zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise FormatError(0, f"a body of {len(body)} bytes cannot be unpacked: {error}") from error


def _zlib_pieces(body: Buffer, size: int) -> Iterator[bytes]:
    unpacker, rest = zlib.decompressobj(ZLIB_OR_GZIP), body
    while not unpacker.eof:
        piece = unpacker.decompress(rest, size)
        rest = unpacker.unconsumed_tail
        yield _checked(piece, ended=unpacker.eof)


def _lz4_pieces(body: Buffer, size: int) -> Iterator[bytes]:
    import lz4.frame

    return _pieces(lz4.frame.LZ4FrameDecompressor(), body, size)


def _zstd_pieces(body: Buffer, size: int) -> Iterator[bytes]:
    from mqlake.base import zstd

    try:
        yield from _pieces(zstd.ZstdDecompressor(), body, size)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error


def _pieces(unpacker: Any, body: Buffer, size: int) -> Iterator[bytes]:
    """The pieces of a body, by an unpacker as Python has them of LZMA."""
    rest = body
    while not unpacker.eof:
        piece = unpacker.decompress(rest, size)
        rest = b""  # it keeps what it has not unpacked yet
        yield _checked(piece, ended=unpacker.eof)


_PIECES = {
    MessageSysFlag.COMPRESSION_ZLIB_TYPE: _zlib_pieces,
    MessageSysFlag.COMPRESSION_LZ4_TYPE: _lz4_pieces,
    MessageSysFlag.COMPRESSION_ZSTD_TYPE: _zstd_pieces,
}


def _checked(piece: bytes, *, ended: bool) -> bytes:
    """EOFError when nothing comes any more before the end."""
    if not piece and not ended:
        raise EOFError("the stream ends too early")
    return piece
