"""Checks that a backup still has the bytes that were saved: each file against its CRC-32 in backup.json.

every backup run    every file is there and long enough; the one is read that was not read for the longest time
verify_backup()     every file is read, those of the configuration too
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Mapping

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import NotThereError
from mqlake.store.backup_manifest import LOG, MANIFEST, SavedFile, read_manifest

PIECE = 4 << 20


@dataclasses.dataclass(slots=True)
class BackupCheck:
    """The result of reading a backup. Offsets are physical, in bytes."""

    path: str
    start: int
    end: int
    files: int
    bytes: int = 0
    damage: list[str] = dataclasses.field(default_factory=list)
    """File and what is wrong with it."""

    @property
    def ok(self) -> bool:
        return not self.damage


def verify_backup(directory: str, *, progress: Progress = no_progress) -> BackupCheck:
    """Reads a whole backup. NotThereError if there is none, ConfigError if its backup.json cannot be read; OSError."""
    manifest = read_manifest(directory)
    if manifest is None:
        raise NotThereError(f"{directory}: there is no {MANIFEST}, so no whole backup")
    check = BackupCheck(directory, manifest.start, manifest.end, len(manifest.files))
    total = sum(each.size for each in manifest.files)
    for each in manifest.files:
        if trouble := trouble_of(directory, each):
            check.damage.append(trouble)
        check.bytes += each.size
        progress(check.bytes, total)
    check.damage += config_troubles(os.path.join(directory, manifest.config), manifest.config_crcs)
    return check


def trouble_of(directory: str, saved: SavedFile, *, read: bool = True) -> str:
    """Returns the fault of the copy of a file of the log, with its path; empty without one. `read`: its bytes too."""
    path = os.path.join(directory, LOG, saved.name)
    try:
        size = os.path.getsize(path)
        if size < saved.size:
            return f"{path}: {saved.size - size} bytes are missing"
        if read and (crc := crc_of(path, saved.size)) != saved.crc:
            return f"{path}: CRC {crc:08x} is not {saved.crc:08x}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def config_troubles(directory: str, crcs: Mapping[str, int]) -> list[str]:
    """The same of the files of the configuration."""
    found = []
    for name, right in crcs.items():
        path = os.path.join(directory, name)
        try:
            crc = crc_of(path, os.path.getsize(path))
        except OSError as error:
            found.append(f"{path}: {error.strerror}")
        else:
            if crc != right:
                found.append(f"{path}: CRC {crc:08x} is not {right:08x}")
    return found


def crcs_of_config(directory: str) -> dict[str, int]:
    """Path below `directory` → CRC-32 of each file. OSError."""
    paths = (os.path.join(path, name) for path, _, names in os.walk(directory) for name in names)
    return {os.path.relpath(path, directory): crc_of(path, os.path.getsize(path)) for path in sorted(paths)}


def crc_of(path: str, size: int) -> int:
    """CRC-32 of the first `size` bytes, read from the disk where the system lets that be asked for. OSError."""
    crc, left = 0, size
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while left and (piece := file.read(min(PIECE, left))):
            crc = zlib.crc32(piece, crc)
            left -= len(piece)
    return crc
