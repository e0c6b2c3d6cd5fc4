"""ReceiveBuffer: bytes that one connection has received and not yet handled.

    scratch (shared by all connections of a loop; filled and emptied within one callback)

        ┌──────────┬───────────────────────────────┬──────────┐
        │ held     │ what this read brought        │          │
        └──────────┴───────────────────────────────┴──────────┘
         from the   frame│frame│frame│ half a frame ──▶ held until the next read
         last read

An idle connection holds no memory. A frame that is too long for the scratch gets its own buffer, which grows with
the bytes that arrive and never beyond the frame: a length field alone allocates nothing. It grows by mapping more
pages, so what is in it is not copied, and pages for which no byte has come take no memory. When its frame is handled,
the next long frame gets it, of whatever connection: new pages cost more than what is copied into them.
"""

from __future__ import annotations

import mmap
import sys

from mqlake.errors import ProtocolError
from mqlake.remoting.codec import frame_size

OWN_BUFFER_FROM = 64 * 1024
"""A longer frame is gathered in its own buffer; shorter ones are copied with each read."""
READ_MAX = 1 << 20
"""Bytes of one read into a buffer of its own: others wait while the kernel copies them, and finds pages for them."""
SPARE_SIZE_MAX = 5 << 20
"""A longer buffer is not kept for another frame. A message of 4 MiB, and its header, fit."""
SPARES_MAX = 2


class SpareBuffers:
    """Buffers whose frame is handled, for the next long frames of all connections of a loop."""

    def __init__(self) -> None:
        self._spares: list[mmap.mmap] = []

    def take(self, needed: int, size: int) -> mmap.mmap:
        """One of any size from `needed` on, else a new one of `size`. One that is too small goes: frames are longer
        now."""
        if self._spares and len(spare := self._spares.pop()) >= needed:
            return spare
        return private_pages(size)

    def give(self, buffer: mmap.mmap) -> None:
        if len(buffer) <= SPARE_SIZE_MAX and len(self._spares) < SPARES_MAX:
            self._spares.append(buffer)


class ReceiveBuffer:
    """`get_buffer` → read bytes into it → `commit` returns all bytes at hand → `keep` the unused rest."""

    __slots__ = ("_frame_size", "_held", "_own", "_own_size", "_scratch", "_spares", "_view", "is_empty")

    def __init__(self, scratch: memoryview, spares: SpareBuffers) -> None:
        """`scratch` must be larger than OWN_BUFFER_FROM. The content of both may change between two calls."""
        self._scratch = scratch
        self._spares = spares
        self._held = b""
        # one long frame: _own_size bytes of its _frame_size, and nothing else
        self._own: mmap.mmap | None = None
        self._own_size = self._frame_size = 0
        self._view = scratch[:0]
        self.is_empty = True
        """True if no bytes wait for more: the next read begins a frame, where the scratch begins."""

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
            return memoryview(own)[self._own_size : min(self._own_size + READ_MAX, self._frame_size)]
        held = self._held
        if not held:
            return self._scratch
        self._scratch[: len(held)] = held
        return self._scratch[len(held) :]

    def _grow(self, own: mmap.mmap) -> mmap.mmap:
        size = min(self._frame_size, 2 * len(own))
        try:
            own.resize(size)
        except (BufferError, SystemError):  # a view of it is still alive, or the system cannot (macOS)
            grown = private_pages(size)
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
        if (own := self._own) is not None:
            if used:  # it held this frame and nothing else
                self._own, self.is_empty = None, True
                self._spares.give(own)
            return
        rest = view[used:]
        size = len(rest)
        self.is_empty = not size
        if not size:
            self._held = b""
            return
        needed = _size_if_frame(rest)
        if size < needed and needed > OWN_BUFFER_FROM:
            self._own = self._spares.take(size, min(needed, max(2 * size, OWN_BUFFER_FROM)))
            self._own[:size] = rest
            self._own_size, self._frame_size = size, needed
            self._held = b""
        else:
            self._held = bytes(rest)

    def take_back(self) -> memoryview:
        """The held bytes, as `commit` returns them: for frames that had to wait."""
        self._view = memoryview(self._held) if self._own is None else memoryview(self._own)[: self._own_size]
        return self._view


def private_pages(size: int) -> mmap.mmap:
    """`size` zeros that take no memory before they are written."""
    if sys.platform == "win32":  # pages of the paging file, which are no other process's
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _size_if_frame(data: memoryview) -> int:
    """The size of the frame that begins with `data`; 0 if it is unknown or not a frame."""
    try:
        return frame_size(data, 0, len(data))
    except ProtocolError:
        return 0
