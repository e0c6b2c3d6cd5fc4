"""The CRC-32 that native code calls: ISA-L's, by the processor's own instructions, where its wheel is installed."""

from __future__ import annotations

import ctypes
import functools


@functools.cache
def crc32_address() -> int:
    """The address of crc32_gzip_refl(seed, bytes, length); 0 (native code has tables, too) without it."""
    try:
        import isal.isal_zlib

        library = ctypes.CDLL(isal.isal_zlib.__file__)
        return ctypes.cast(library.crc32_gzip_refl, ctypes.c_void_p).value or 0
    except (ImportError, OSError, AttributeError):
        return 0
