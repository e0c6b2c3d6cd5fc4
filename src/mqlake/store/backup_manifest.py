"""The contents of a backup: backup.json, written last. It names one state of a store.

DIR/backup.json    the first bytes of each file of the log, with their CRC-32; the configuration's directory and
                   the CRC-32 of each of its files
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from mqlake.base.durable import write_durably
from mqlake.errors import ConfigError

MANIFEST, LOG, CONFIG = "backup.json", "commitlog", "config"
FORMAT, VERSION = "mqlake backup", 1


@dataclasses.dataclass(frozen=True, slots=True)
class SavedFile:
    """The first `size` bytes of a file of the log. `seen`: the original's inode and time of change (ns): it is as
    it was while they are. `checked`: when its copy was last read (ms), 0 if that is not known, -1 if it was damaged."""

    name: str
    size: int
    crc: int
    seen: tuple[int, int]
    checked: int = 0

    @property
    def start(self) -> int:
        return int(self.name)


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup; `file_size` of each file of the log, in bytes."""

    file_size: int
    files: tuple[SavedFile, ...] = ()
    config: str = ""
    saved_at_ms: int = 0
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Sizes of the store's files by RocketMQ's keys: the restored store gets the same."""
    config_crcs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Path below the configuration's directory → CRC-32; empty in a backup that was made before there were any."""

    @property
    def start(self) -> int:
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        return self.files[-1].start + self.files[-1].size if self.files else 0


def is_backup(directory: str) -> bool:
    """True for a directory that a backup was made to."""
    return os.path.isfile(os.path.join(directory, MANIFEST))


def read_manifest(directory: str) -> Manifest | None:
    """Reads the manifest of DIR; None if there is nothing yet. ConfigError names the file if it cannot be read."""
    path = os.path.join(directory, MANIFEST)
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise ConfigError(f"{directory}: a backup is a directory") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        if (found["format"], found["version"]) != (FORMAT, VERSION):
            raise ConfigError(f"{path}: {found['format']} {found['version']} is not known here")
        files = tuple(
            SavedFile(
                str(each["name"]),
                int(each["size"]),
                int(each["crc"]),
                tuple(each["seen"]),
                int(each.get("checked", 0)),
            )
            for each in found["files"]
        )
        if not all(re.fullmatch(r"\d{20}", each.name) for each in files) or os.sep in str(found["config"]):
            raise ValueError("it names a file that is not part of a backup")
        sizes = {str(key): str(value) for key, value in found["settings"].items()}
        crcs = {str(name): int(crc) for name, crc in found.get("configCrcs", {}).items()}
        return Manifest(
            int(found["fileSize"]), files, str(found["config"]), int(found["savedAtMs"]), sizes, crcs
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {error!r}") from None


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Durably. OSError."""
    found: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "savedAtMs": manifest.saved_at_ms,
        "fileSize": manifest.file_size,
        "config": manifest.config,
        "configCrcs": manifest.config_crcs,
        "settings": manifest.settings,
        "files": [dataclasses.asdict(each) for each in manifest.files],
    }
    write_durably(os.path.join(directory, MANIFEST), json.dumps(found, indent=1).encode() + b"\n")
