"""SignedAcks: the check of acknowledgements that FastAck stores together.

    user, address, topic, group ─▶ may it acknowledge there?     decided once, until users or acls change
    values of the header        ─▶ its signature                 compared for each acknowledgement

Whatever is not good here goes to the slow path, which knows why.
"""

from __future__ import annotations

from mqlake.auth.access import AccessControl
from mqlake.auth.model import User
from mqlake.auth.signature import ACCESS_KEY, is_signed_with
from mqlake.auth.sources import ip_of
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand

DECISIONS_MAX = 10_000


class SignedAcks:
    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._version = -1
        self._allowed: dict[tuple[str, str, str, str], User | None] = {}
        """(user, address, topic, group) → the user if it may."""

    def may(self, values: dict[str, str], version: int, address: str) -> bool:
        """True if an acknowledgement with this header is signed by a user who may send it. `values`: its extFields,
        all of them texts; `version`: of its client; `address`: where it comes from. KeyError: a field is missing."""
        if self._version != self._access.version or len(self._allowed) > DECISIONS_MAX:
            self._version = self._access.version
            self._allowed.clear()
        command = RemotingCommand(RequestCode.ACK_MESSAGE, version=version, ext_fields=values)
        key = values[ACCESS_KEY], address, values["topic"], values["consumerGroup"]
        if key not in self._allowed:
            self._allowed[key] = self._decide(command, key[0], ip_of(address))
        user = self._allowed[key]
        return user is not None and is_signed_with(command, user.password)

    def _decide(self, command: RemotingCommand, name: str, ip: str) -> User | None:
        user = self._access.state.users.get(name)
        return user if user and user.is_enabled and self._access.may(user, command, ip) else None
