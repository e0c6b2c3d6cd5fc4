"""Signers: whose signatures FastSend's kernel compares, and what they may send to.

    frame of a user not known yet            ─▶ sign_in ─▶ two states of SHA-1 in the kernel's SIGNERS
    first send to a queue from an address    ─▶ allow   ─▶ the decision in its ALLOWED
    all others                               ─▶ compared and looked up there

When users or acls change, all of it is forgotten: STALE keeps the kernel from using it until `keep_up` clears it.
Whatever is refused here goes to the slow path, which knows why, and so does the rest of that read: refusals need no
fast path.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mqlake import native
from mqlake.auth.access import AccessControl
from mqlake.auth.evaluator import need
from mqlake.auth.model import Action, Resource, User
from mqlake.auth.sources import ip_of
from mqlake.native.send_layout import (
    ACCESS,
    ALLOWED,
    ALLOWED_COUNT,
    ALLOWED_MAX,
    CHECKED,
    NAME_LENGTH,
    NAME_START,
    NAMES_END,
    NEWEST,
    OLDEST,
    SIGNER_FOUND,
    SIGNER_NAMES,
    SIGNER_NAMES_SIZE,
    SIGNER_SIZE,
    SIGNER_SLOTS,
    SIGNERS,
    SIGNERS_COUNT,
    SIGNERS_MAX,
    STALE,
)
from mqlake.remoting.connection import Connection

SIGNER_NAME_MAX = 256
"""Bytes of a user's name; longer ones take the slow path."""


class Parts(Protocol):
    def __getitem__(self, which: int) -> npt.NDArray[Any]: ...


class Signers:
    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._users: list[User] = []
        """By their numbers in SIGNERS."""
        self._refused: tuple[Connection | None, int] = (None, 0)
        access.on_change.append(self._changed)

    def prepare(self, parts: Parts) -> None:
        """For new parts, which know no signer."""
        self._kernels: Any = native.module("signatures")
        self._parts = parts
        self._numbers = parts[ACCESS]
        self._numbers[CHECKED] = 1
        self._users = []

    def _changed(self) -> None:
        if hasattr(self, "_numbers"):
            self._numbers[STALE] = 1

    def keep_up(self, connection: Connection) -> bool:
        """Before a connection's sends are looked at; False if they are to take the slow path."""
        if self._refused == (connection, connection.reads):
            return False
        if self._numbers[STALE]:
            self._forget()
        return True

    def keep_time(self) -> None:
        """Before sends are read, where only those of a certain age are taken."""
        if age := self._access.config.signed_send_max_age_seconds * 1000:
            now = self._access.clock_ms()
            self._numbers[[OLDEST, NEWEST]] = now - age, now + age

    def _forget(self) -> None:
        self._numbers[[STALE, SIGNERS_COUNT, NAMES_END, ALLOWED_COUNT]] = 0
        self._parts[SIGNER_SLOTS][:] = 0
        self._parts[ALLOWED][:] = 0
        self._users = []

    def sign_in(self, connection: Connection, raw_name: bytes) -> bool:
        """Makes another user a signer; False if there is none of that name, or it is one already, whose signature was
        wrong."""
        kernels, parts, numbers = self._kernels, self._parts, self._numbers
        name = raw_name.decode("utf-8", "replace")
        user = self._access.state.users.get(name)
        known = numbers[SIGNER_FOUND] >= 0
        if user is None or not user.is_enabled or known or not 0 < len(raw_name) <= SIGNER_NAME_MAX:
            return self._refuse(connection)
        if len(self._users) == SIGNERS_MAX or numbers[NAMES_END] + len(raw_name) > SIGNER_NAMES_SIZE:
            self._forget()
        number, start = len(self._users), int(numbers[NAMES_END])
        text = np.frombuffer(raw_name, np.uint8)
        parts[SIGNER_NAMES][start : start + len(raw_name)] = text
        row = kernels.states_of(user.password.encode())
        row[[NAME_START, NAME_LENGTH]] = start, len(raw_name)
        parts[SIGNERS][number * SIGNER_SIZE : (number + 1) * SIGNER_SIZE] = row
        kernels.add_signer(number, parts[SIGNERS], parts[SIGNER_SLOTS], parts[SIGNER_NAMES])
        self._users.append(user)
        numbers[[SIGNERS_COUNT, NAMES_END]] = number + 1, start + len(raw_name)
        return True

    def allow(self, connection: Connection, host: int, queue: int, topic: str) -> bool:
        """True if the signer of the last frame may send to this topic, of which the kernel knows a queue by this
        number; remembers it. `host`: the client's, as the kernel has it."""
        number = int(self._numbers[SIGNER_FOUND])
        if not self._decide(self._users[number], topic, ip_of(connection.remote_address)):
            return self._refuse(connection)
        if self._numbers[ALLOWED_COUNT] == ALLOWED_MAX:
            self._parts[ALLOWED][:] = 0
            self._numbers[ALLOWED_COUNT] = 0
        self._kernels.add_permit(host, number, queue, self._parts[ALLOWED])
        self._numbers[ALLOWED_COUNT] += 1
        return True

    def _decide(self, user: User, topic: str, ip: str) -> bool:
        access = self._access
        if user.is_super or not access.config.authorization_enabled:
            return True
        return access.decide(user, need(Resource.topic(topic), Action.PUB), ip).allowed

    def _refuse(self, connection: Connection) -> bool:
        self._refused = connection, connection.reads
        return False
