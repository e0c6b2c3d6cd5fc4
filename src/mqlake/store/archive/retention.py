"""How long an archive keeps what it has: its oldest whole files go by age and by size.

manifest without them ─▶ objects, units and heads deleted   a crash between leaves objects that nothing names (repair)
"""

from __future__ import annotations

import logging

from mqlake.store.archive.heads import heads_name
from mqlake.store.archive.manifest import ArchivedObject
from mqlake.store.archive.uploader import Uploader

logger = logging.getLogger(__name__)

HOUR_MS = 3_600_000


def expired(
    objects: tuple[ArchivedObject, ...], reserved_hours: int, max_bytes: int, now_ms: int
) -> list[ArchivedObject]:
    """The oldest whole files whose newest message is older than `reserved_hours`, or that make the archive larger than
    `max_bytes` (0: no bound). The newest object stays."""
    total = sum(each.size for each in objects)
    gone: list[ArchivedObject] = []
    for each in objects[:-1]:
        is_old = bool(reserved_hours) and each.last_time_ms < now_ms - reserved_hours * HOUR_MS
        if not each.is_whole or not (is_old or (max_bytes and total > max_bytes)):
            break
        total -= each.size
        gone.append(each)
    return gone


def expire(uploader: Uploader, reserved_hours: int, max_bytes: int, now_ms: int) -> list[ArchivedObject]:
    """Deletes them; which ones. ArchiveUnavailableError, OSError."""
    gone = expired(uploader.manifest.objects, reserved_hours, max_bytes, now_ms)
    if not gone:
        return []
    uploader.commit(uploader.manifest.objects[len(gone) :])
    for each in gone:
        delete(uploader, each)
    logger.info(
        "%d files of the log left the archive, which begins at %d now", len(gone), uploader.manifest.begin
    )
    return gone


def delete(uploader: Uploader, archived: ArchivedObject) -> None:
    """The object and what belongs to it. ArchiveUnavailableError."""
    if archived.units is not None:
        uploader.target.delete(archived.units.name)
    if archived.is_whole:
        uploader.target.delete(heads_name(archived))
    uploader.target.delete(archived.name)
