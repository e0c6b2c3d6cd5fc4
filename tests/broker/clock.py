"""A clock that stands until a test sets it, and a store of a size for it."""

from __future__ import annotations

START_MS = 1_700_000_000_000
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 64,
    "maxHashSlotNum": 64,
    "maxIndexNum": 256,
}


class Clock:
    def __init__(self) -> None:
        self.now = START_MS

    def __call__(self) -> int:
        return self.now
