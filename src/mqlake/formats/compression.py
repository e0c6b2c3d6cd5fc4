"""Compressed bodies: what the bits 0 and 8-10 of a record's SYSFLAG promise.

    type (bits 8-10)   body
    0, 0x300  ZLIB     a zlib stream
    0x100     LZ4      an LZ4 frame
    0x200     ZSTD     a Zstandard frame

Producers compress, consumers unpack; a broker stores what it is given. Facts: reference §1 (SYSFLAG).
"""

from __future__ import annotations

import zlib

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
ZSTD_PIECE = 256
"""Bytes; each block of four can stand for 128 KiB."""


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
        import zstandard

        return zstandard.ZstdCompressor(level).compress(body)
    raise FormatError(0, f"compression type {kind >> 8} is not one of 0 to 3")


def decompress_body(body: Buffer, sys_flag: int, max_size: int = MAX_BODY_SIZE) -> bytes:
    """The body as its producer had it; `body` itself (as bytes) when `sys_flag` does not say compressed.

    FormatError when it cannot be unpacked, or unpacks to more than `max_size` bytes.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED_FLAG:
        return bytes(body)
    kind = MessageSysFlag.compression_type(sys_flag)
    try:
        plain = _decompress(body, kind, max_size)
    except (zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise FormatError(0, f"a body of {len(body)} bytes cannot be unpacked: {error}") from error
    if len(plain) > max_size:
        raise FormatError(0, f"a body of {len(body)} bytes unpacks to more than {max_size} bytes")
    return plain


def _decompress(body: Buffer, kind: int, max_size: int) -> bytes:
    """At most one byte more than `max_size`."""
    if kind == MessageSysFlag.COMPRESSION_ZLIB_TYPE:
        unpacker = zlib.decompressobj(ZLIB_OR_GZIP)
        plain = unpacker.decompress(body, max_size + 1)
        ended = unpacker.eof
    elif kind == MessageSysFlag.COMPRESSION_LZ4_TYPE:
        import lz4.frame

        frames = lz4.frame.LZ4FrameDecompressor()
        plain = frames.decompress(body, max_size + 1)
        ended = frames.eof
    elif kind == MessageSysFlag.COMPRESSION_ZSTD_TYPE:
        import zstandard

        # In small pieces, because this one cannot be told how much it may bring at once.
        zstd, pieces, size = zstandard.ZstdDecompressor().decompressobj(), [], 0
        view = memoryview(body)
        try:
            for start in range(0, len(view), ZSTD_PIECE):
                pieces.append(zstd.decompress(view[start : start + ZSTD_PIECE]))
                size += len(pieces[-1])
                if zstd.eof or size > max_size:
                    break
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        plain, ended = b"".join(pieces), zstd.eof
    else:
        raise ValueError(f"compression type {kind >> 8} is not one of 0 to 3")
    if not ended and len(plain) <= max_size:
        raise EOFError("the stream ends too early")
    return plain
