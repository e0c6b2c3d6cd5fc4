"""Config files (topics.json, consumerOffset.json, ...): JSON as RocketMQ writes it, kept safe over a crash.

    persist   FILE.tmp ← new, fsync      FILE.bak.tmp ← last good content, fsync
              rename FILE.bak.tmp → FILE.bak, rename FILE.tmp → FILE, fsync the directory
    load      FILE, or FILE.bak if FILE is missing, empty or unreadable

Both renames follow after both contents are on disk, so after a crash at any point FILE and FILE.bak each hold a
complete content. A damaged FILE is never copied over the good FILE.bak that replaced it.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from mqlake.base import json_config
from mqlake.base.durable import fsync_dir, write_temporary
from mqlake.errors import FormatError, StoreCorruptError

logger = logging.getLogger(__name__)


class ConfigFile:
    """One config file at `path`; its directory is made when missing. Calls may come from any thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.backup_path = f"{path}.bak"
        self._good: bytes | None = None
        self._lock = threading.Lock()

    def load(self) -> Any:
        """The content as Python values, None when neither file has any.

        Raises StoreCorruptError when there is content but neither file can be read as JSON, OSError.
        """
        with self._lock:
            damage: StoreCorruptError | None = None
            for path in (self.path, self.backup_path):
                try:
                    raw, value = _read(path)
                except StoreCorruptError as error:
                    logger.warning("%s", error)
                    damage = damage or error
                    continue
                if raw:
                    if path == self.backup_path:
                        logger.warning("%s is missing or damaged; %s is used", self.path, path)
                    self._good = raw
                    return value
            if damage is not None:
                raise damage
            return None

    def persist(self, value: Any) -> bool:
        """Makes `value` the content, durably; False when it already was. On OSError the old content stays."""
        raw = json_config.dumps(value, pretty=True).encode()
        with self._lock:
            if raw == self._good and os.path.exists(self.path):
                return False
            directory = os.path.dirname(self.path)
            os.makedirs(directory or ".", exist_ok=True)
            good = self._last_good()
            temporary = write_temporary(self.path, raw)
            if good:
                os.replace(write_temporary(self.backup_path, good), self.backup_path)
            os.replace(temporary, self.path)
            self._good = raw
            fsync_dir(directory)
            return True

    def _last_good(self) -> bytes | None:
        """The next content of FILE.bak: what was last loaded or persisted, else FILE if it can be read."""
        if self._good is None:
            try:
                self._good = _read(self.path)[0]
            except StoreCorruptError:
                return None
        return self._good


def _read(path: str) -> tuple[bytes, Any]:
    """Bytes and value of one file; (b"", None) when it is missing or holds only white space."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        return b"", None
    if not raw.strip():
        return b"", None
    try:
        return raw, json_config.loads(raw)
    except FormatError as error:
        raise StoreCorruptError(path, error.offset, error.reason) from error
