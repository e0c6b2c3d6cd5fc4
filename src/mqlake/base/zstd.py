"""Zstandard, as Python has it from 3.14 on (`compression.zstd`); before, its backport has the same names."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError, compress, decompress
else:
    from backports.zstd import ZstdDecompressor, ZstdError, compress, decompress

__all__ = ["ZstdDecompressor", "ZstdError", "compress", "decompress"]
