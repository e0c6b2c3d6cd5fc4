"""ReceiveBuffer: bytes that one connection has received and not yet handled.

    scratch (shared by all connections of a loop; filled and emptied within one callback)

        ┌──────────┬───────────────────────────────┬──────────┐
        │ held     │ what this read brought        │          │
        └──────────┴───────────────────────────────┴──────────┘
         from the   frame│frame│frame│ half a frame ──▶ held until the next read
         last read

An idle connection holds no memory. A frame that is too long for the scratch gets its own buffer, which grows with
the bytes that arrive and never beyond the frame: a length field alone allocates nothing. It grows by mapping more
pages, so what is in it is not copied, and pages for which no byte has come take no memory.
"""

from __future__ import annotations

import mmap

from mqlake.errors import ProtocolError
from mqlake.remoting.codec import frame_size

OWN_BUFFER_FROM = 64 * 1024
"""A longer frame is gathered in its own buffer; shorter ones are copied with each read."""
READ_MAX = 1 << 20
"""Bytes of one read into a buffer of its own: others wait while the kernel copies them, and finds pages for them."""


class ReceiveBuffer:
    """`get_buffer` → read bytes into it → `commit` returns all bytes at hand → `keep` the unused rest."""

    __slots__ = ("_held", "_own", "_own_size", "_scratch", "_view")

    def __init__(self, scratch: memoryview) -> None:
        """`scratch` must be larger than OWN_BUFFER_FROM; its content may change between two calls."""
        self._scratch = scratch
        self._held = b""
        self._own: mmap.mmap | None = None  # the first bytes of one long frame, _own_size of them
        self._own_size = 0
        self._view = scratch[:0]

    @property
    def held(self) -> int:
        """Bytes that wait for more."""
        return len(self._held) if self._own is None else self._own_size

    def get_buffer(self) -> memoryview:
        """The buffer for the next bytes, of at least one byte. Nothing is lost if none come."""
        own = self._own
        if own is not None:
            if self._own_size == len(own):
                own = self._grow(own)
            return memoryview(own)[self._own_size : self._own_size + READ_MAX]
        held = self._held
        if not held:
            return self._scratch
        self._scratch[: len(held)] = held
        return self._scratch[len(held) :]

    def _grow(self, own: mmap.mmap) -> mmap.mmap:
        size = min(frame_size(memoryview(own), 0, self._own_size), 2 * len(own))
        try:
            own.resize(size)
        except BufferError:  # a view of it is still alive
            grown = _pages(size)
            grown[: len(own)] = own[:]
            self._own = own = grown
        return own

    def commit(self, count: int) -> memoryview:
        """Takes `count` new bytes; returns all bytes at hand, valid until the next `get_buffer` of any connection."""
        if self._own is not None:
            self._own_size += count
            self._view = memoryview(self._own)[: self._own_size]
        else:
            self._view = self._scratch[: len(self._held) + count]
        return self._view

    def keep(self, used: int) -> None:
        """Drops the first `used` bytes that `commit` returned, and keeps the rest."""
        view = self._view
        self._view = self._scratch[:0]
        if used == 0 and self._own is not None:
            return
        rest = view[used:]
        self._own = None
        size = len(rest)
        if not size:
            self._held = b""
            return
        needed = _size_if_frame(rest)
        if size < needed and needed > OWN_BUFFER_FROM:
            self._own = _pages(min(needed, max(2 * size, OWN_BUFFER_FROM)))
            self._own[:size] = rest
            self._own_size = size
            self._held = b""
        else:
            self._held = bytes(rest)

    def take_back(self) -> memoryview:
        """The held bytes, as `commit` returns them: for frames that had to wait."""
        self._view = memoryview(self._held) if self._own is None else memoryview(self._own)[: self._own_size]
        return self._view


def _pages(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _size_if_frame(data: memoryview) -> int:
    """The size of the frame that begins with `data`; 0 if it is unknown or not a frame."""
    try:
        return frame_size(data, 0, len(data))
    except ProtocolError:
        return 0
