"""SignedPulls: the check of pulls that have everything in common but three numbers and the signature.

    "AccessKey":"alice", … "commitOffset":"17" … "queueOffset":"18" …   ─▶   alice…%d…%d…   what is signed, made once

Whether the user may pull is decided once, until users or acls change. A signature is compared for each pull. Whatever
is not good here goes to the slow path, which knows why.
"""

from __future__ import annotations

import base64
import hmac
import re

from mqlake.auth.access import AccessControl
from mqlake.auth.signature import ACCESS_KEY, SIGNATURE, UNIQUE_KEY_QUERY, V4_9_3
from mqlake.auth.sources import ip_of
from mqlake.remoting.command import RemotingCommand

_SIGNATURE_SIZE = 28
"""Characters of 20 bytes in base64."""
_SIGNATURES = re.compile(rb'("Signature":"|\x00\x09Signature\x00\x00\x00\x1c)([A-Za-z0-9+/]{27}=)')
_PLACEHOLDER = b"=" * _SIGNATURE_SIZE
_NUMBERS = ("commitOffset", "queueOffset")


def without_signature(header: bytes) -> tuple[bytes, bytes]:
    """The header with a placeholder where the signature was, and the signature; empty if there is not just one."""
    found = _SIGNATURES.findall(header)
    if len(found) != 1:
        return header, b""
    return _SIGNATURES.sub(rb"\g<1>" + _PLACEHOLDER, header), found[0][1]


class SignedPulls:
    """`may` of one plan."""

    __slots__ = ("_allowed", "_command", "_content", "_key", "_known", "_user")

    def __init__(self, command: RemotingCommand) -> None:
        """`command`: a pull with any numbers, and the placeholder for a signature."""
        fields = command.ext_fields
        left_out = {SIGNATURE, UNIQUE_KEY_QUERY} if command.version <= V4_9_3 else {SIGNATURE}
        texts = [
            "%d" if name in _NUMBERS else fields[name].replace("%", "%%")
            for name in sorted(fields.keys() - left_out)
        ]
        self._content = "".join(texts).encode() if fields.get(SIGNATURE) == _PLACEHOLDER.decode() else b""
        self._user = fields.get(ACCESS_KEY) or ""
        self._command = command
        self._known: tuple[int, str] = (-1, "")
        self._allowed = False
        self._key = b""

    def may(
        self, access: AccessControl, address: str, signature: bytes, commit_offset: int, queue_offset: int
    ) -> bool:
        """True if a pull with these numbers is signed by a user who may send it."""
        if not self._content or not signature:
            return False
        if self._known != (access.version, address):
            self._known = (access.version, address)
            self._allowed = self._decide(access, address)
        if not self._allowed:
            return False
        digest = hmac.digest(self._key, self._content % (commit_offset, queue_offset), "sha1")
        return hmac.compare_digest(base64.b64encode(digest), signature)

    def _decide(self, access: AccessControl, address: str) -> bool:
        user = access.state.users.get(self._user)
        if user is None or not user.is_enabled:
            return False
        self._key = user.password.encode()
        return access.may(user, self._command, ip_of(address))
