"""Local: what a store remembers of failover, in failover.json beside its commit log.

    {"epoch": 7, "node": 8041..., "lockFile": "..."}

`epoch` is that of the master whose log this is; it is written after everything that is no part of it has been cut.
`node` tells the store apart from others under the same id. It is drawn anew when the store may lack messages that it
has acknowledged: it was emptied or is a copy, or the machine went down before they were synced.
"""

from __future__ import annotations

import json
import os
import secrets

from mqlake.base.durable import make_dirs, write_durably
from mqlake.errors import FailoverError
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.store_lock import AbortFile, StoreLock
from mqlake.store.ha.membership import Member
from mqlake.store.lost_end import last_exit_of

NAME = "failover.json"


class Local:
    def __init__(self, config: MessageStoreConfig) -> None:
        self.epoch = 0
        self.node = 0
        self._config = config
        self._path = os.path.join(config.store_path_root_dir, NAME)
        self._lock_file = ""

    def load(self) -> None:
        """Before the store is opened. FailoverError, OSError."""
        node = self._read()
        lock = StoreLock(self._config.lock_path, abort_path=self._config.abort_path)
        last_exit = last_exit_of(AbortFile(self._config.abort_path), lock)
        is_the_same = bool(self._lock_file) and self._lock_file == lock.file_id
        is_whole = last_exit.clean or last_exit.machine_stayed_up or last_exit.queued_only_flushed
        self.node = node if node and is_the_same and is_whole else secrets.randbits(62)

    def _read(self) -> int:
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return 0
        try:
            values = json.loads(data)
            self.epoch, self._lock_file = int(values["epoch"]), str(values["lockFile"])
            return int(values["node"])
        except (KeyError, TypeError, ValueError) as error:
            raise FailoverError(
                f"{self._path} is damaged: delete it, and this store begins as one that was not in the group"
            ) from error

    def save(self, epoch: int) -> None:
        """Durably: from now on the log is that of `epoch`. While the store is open. OSError."""
        lock = StoreLock(self._config.lock_path, abort_path=self._config.abort_path)
        self._lock_file = lock.file_id
        values = {"epoch": epoch, "node": self.node, "lockFile": self._lock_file}
        make_dirs(self._config.store_path_root_dir)
        write_durably(self._path, json.dumps(values).encode())
        self.epoch = epoch

    def member(self, replica: int) -> Member:
        return (replica, self.node)
