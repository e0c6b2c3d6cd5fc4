"""ReceiveBuffer: what one connection has received and not yet understood.

    scratch (shared by all connections of a loop; filled and emptied within one callback)

        ┌──────────┬───────────────────────────────┬──────────┐
        │ held     │ what this read brought        │          │
        └──────────┴───────────────────────────────┴──────────┘
         from the   frame│frame│frame│ half a frame ──▶ held until the next read
         last read

An idle connection holds no memory. A frame that is too long for the scratch gets a buffer of its own, which
grows with what arrives and never beyond the frame: a length alone makes nobody allocate.
"""

from __future__ import annotations

from mqlake.errors import ProtocolError
from mqlake.remoting.codec import frame_size

OWN_BUFFER_FROM = 64 * 1024
"""A frame longer than this is gathered in a buffer of its own (shorter ones are copied with each read)."""


class ReceiveBuffer:
    """`get_buffer` → the bytes are read into it → `commit` gives all at hand → `keep` what is not used."""

    __slots__ = ("_held", "_own", "_own_size", "_scratch", "_view")

    def __init__(self, scratch: memoryview) -> None:
        """`scratch` must be larger than OWN_BUFFER_FROM; its content is nobody's between two calls."""
        self._scratch = scratch
        self._held = b""
        self._own: bytearray | None = None  # the first bytes of one long frame, _own_size of them
        self._own_size = 0
        self._view = scratch[:0]

    @property
    def held(self) -> int:
        """Bytes that wait for more."""
        return len(self._held) if self._own is None else self._own_size

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; at least one fits. Nothing is lost when none come."""
        own = self._own
        if own is not None:
            if self._own_size == len(own):
                needed = frame_size(own, 0, self._own_size)
                grown = bytearray(min(needed, 2 * len(own)))
                grown[: len(own)] = own
                self._own = own = grown
            return memoryview(own)[self._own_size :]
        held = self._held
        if not held:
            return self._scratch
        self._scratch[: len(held)] = held
        return self._scratch[len(held) :]

    def commit(self, count: int) -> memoryview:
        """`count` bytes came: all bytes at hand, in one piece, good until the next `get_buffer` of anybody."""
        if self._own is not None:
            self._own_size += count
            self._view = memoryview(self._own)[: self._own_size]
        else:
            self._view = self._scratch[: len(self._held) + count]
        return self._view

    def keep(self, used: int) -> None:
        """The first `used` bytes of what `commit` gave are done with."""
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
            self._own = bytearray(min(needed, max(2 * size, OWN_BUFFER_FROM)))
            self._own[:size] = rest
            self._own_size = size
            self._held = b""
        else:
            self._held = bytes(rest)

    def take_back(self) -> memoryview:
        """What is held, as `commit` would give it: for frames that had to wait."""
        self._view = memoryview(self._held) if self._own is None else memoryview(self._own)[: self._own_size]
        return self._view


def _size_if_frame(data: memoryview) -> int:
    """0 also for what will turn out to be no frame when its turn comes."""
    try:
        return frame_size(data, 0, len(data))
    except ProtocolError:
        return 0
