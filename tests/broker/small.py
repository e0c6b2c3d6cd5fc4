"""Settings of a small store."""

from __future__ import annotations

SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 64,
    "maxHashSlotNum": 64,
    "maxIndexNum": 256,
}
