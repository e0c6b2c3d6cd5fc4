"""FollowingAccess: the users and acls that a broker on this machine keeps, for a name server beside it.

    broker ── writes ──▶ accessControl.jsonl ── is looked at once a second, and before a refusal ──▶ name server

A name server has no users of its own: RocketMQ's enforces nothing. It never writes; first users that the file does not
have exist in its memory only. While the file cannot be read it goes on with what it read last.
"""

from __future__ import annotations

import logging
import os
import time

from mqlake.auth import state
from mqlake.auth.access import AccessControl, AccessDeniedError
from mqlake.auth.model import UserType
from mqlake.auth.state import Change, State
from mqlake.errors import ConfigError
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection

logger = logging.getLogger(__name__)

LOOK_S = 1.0


class FollowingAccess(AccessControl):
    _seen: tuple[int, ...] = ()
    _looked_at = 0.0

    def load(self, adopt: Change | None = None) -> None:
        """ConfigError names file and line; OSError."""
        self._seen = self._identity()
        self._set(self._with_first_users(self.storage.load()))
        self._looked_at = time.monotonic()

    def _with_first_users(self, loaded: State) -> State:
        for first in self.config.first_users():
            if first.access_key not in loaded.users:
                loaded = state.create_user(loaded, first.access_key, first.secret_key, UserType.SUPER)
        return loaded

    def _identity(self) -> tuple[int, ...]:
        try:
            found = os.stat(self.storage.path)
        except FileNotFoundError:
            return ()
        return (found.st_ino, found.st_mtime_ns, found.st_size)

    def guard(self, connection: Connection, command: RemotingCommand) -> None:
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._reload_if_changed()
        try:
            super().guard(connection, command)
        except AccessDeniedError:
            if not self._reload_if_changed():  # a user that was made just now is let in
                raise
            super().guard(connection, command)

    def _reload_if_changed(self) -> bool:
        """True if the file has changed and was read again."""
        found = self._identity()
        if found == self._seen:
            return False
        try:
            self.load()
        except (ConfigError, OSError) as error:
            self._seen = found  # reported once
            logger.error("%s; the users and acls of before still count", error)
            return False
        return True
