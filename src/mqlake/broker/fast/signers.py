"""Signers: whose signatures FastSend's kernel compares, and what they may send to.

    connection ─▶ its user's two states of SHA-1 in the kernel's SIGNER ─▶ each send is compared there
                  └ topics that the user may send to, from this address: decided once, until users or acls change

A connection has one user as a rule, so the kernel knows one at a time; with another it stops, and gets that one.
Whatever is refused here goes to the slow path, which knows why, and so does the rest of that read: refusals need no
fast path.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mqlake.auth.access import AccessControl
from mqlake.auth.evaluator import need
from mqlake.auth.model import Action, Resource, User
from mqlake.auth.sources import ip_of
from mqlake.compiled.kernels.send_layout import SIGNER, SIGNER_NAME
from mqlake.remoting.connection import Connection

SIGNER_NAME_MAX = 256
"""Bytes of a user's name; longer ones take the slow path."""
SIGNERS_MAX = 1000


class Parts(Protocol):
    def __getitem__(self, which: int) -> npt.NDArray[Any]: ...


class Signers:
    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._version = -1
        self._kernels: ModuleType | None = None
        self._states: dict[str, npt.NDArray[np.int64]] = {}
        self._allowed: dict[tuple[str, str], set[str]] = {}
        """(user, address) → topics."""
        self._user: User | None = None
        self._address = self._ip = ""
        self._refused: tuple[Connection | None, int] = (None, 0)
        self._asks: tuple[Connection | None, int] = (None, 0)

    def prepare(self, kernels: ModuleType, parts: Parts) -> None:
        """For new parts, which know no signer."""
        self._kernels = kernels
        self._user = None
        parts[SIGNER][kernels.CHECKED] = 1

    def keep_up(self, connection: Connection, parts: Parts) -> bool:
        """Before a connection's sends are looked at; False if they are to take the slow path."""
        self._asks = (connection, connection.reads)
        if self._refused == self._asks:
            return False
        if self._version != self._access.version:
            self._version = self._access.version
            self._states.clear()
            self._allowed.clear()
            self._user = None
            assert self._kernels is not None
            parts[SIGNER][self._kernels.NAME_LENGTH] = 0
        if connection.remote_address != self._address:
            self._address = connection.remote_address
            self._ip = ip_of(self._address)
        return True

    def sign_in(self, raw_name: bytes, parts: Parts) -> bool:
        """Makes another user the signer; False if there is none of that name, or it is this one, whose signature was
        wrong."""
        kernels = self._kernels
        assert kernels is not None
        name = raw_name.decode("utf-8", "replace")
        user = self._access.state.users.get(name)
        same = self._user is not None and self._user.name == name
        if user is None or not user.is_enabled or same or not 0 < len(raw_name) <= SIGNER_NAME_MAX:
            return self._refuse()
        known = self._states.get(name)
        if known is None:
            if len(self._states) >= SIGNERS_MAX:
                self._states.clear()
            known = self._states[name] = kernels.states_of(user.password.encode())
        parts[SIGNER][:] = known
        parts[SIGNER][kernels.NAME_LENGTH] = len(raw_name)
        parts[SIGNER][kernels.CHECKED] = 1
        parts[SIGNER_NAME][: len(raw_name)] = np.frombuffer(raw_name, np.uint8)
        self._user = user
        return True

    def may_send(self, topics: set[str]) -> bool:
        """True if the signer may send to all of these."""
        assert self._user is not None
        key = (self._user.name, self._ip)
        allowed = self._allowed.get(key)
        if allowed is None:
            if len(self._allowed) >= SIGNERS_MAX:
                self._allowed.clear()
            allowed = self._allowed[key] = set()
        for topic in topics - allowed:
            if not self._decide(self._user, topic):
                return self._refuse()
            allowed.add(topic)
        return True

    def _decide(self, user: User, topic: str) -> bool:
        access = self._access
        if user.is_super or not access.config.authorization_enabled:
            return True
        return access.decide(user, need(Resource.topic(topic), Action.PUB), self._ip).allowed

    def _refuse(self) -> bool:
        self._refused = self._asks
        return False
