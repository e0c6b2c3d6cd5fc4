"""Signatures of requests: what a client adds, and what a broker compares.

    remoting   AccessKey, Signature = base64(HmacSHA1(secret, values in the order of their names, then the body))
    gRPC       authorization: MQv2-HMAC-SHA1 Credential=…, SignedHeaders=x-mq-date-time, Signature=hex(HmacSHA1(…))

RocketMQ's AclClientRPCHook and AclSigner. Code, flag, opaque and time are not part of it, so a captured request can be
sent again: only TLS prevents that (docs/access-control.md).
Facts: AclClientRPCHook and AclSigner of RocketMQ 5.3.3, and Signature of its gRPC clients.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import re
from collections.abc import Mapping

from mqlake.remoting.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Clients up to V4_9_3 add this field after they have signed."""
V4_9_3 = 399
_BLOCK = 64


def signed_content(fields: Mapping[str, str], body: bytes, version: int = V4_9_3 + 1) -> bytes:
    """The bytes that are signed; `version` of the client that signed."""
    left_out = (SIGNATURE, UNIQUE_KEY_QUERY) if version <= V4_9_3 else (SIGNATURE,)
    return "".join([fields[name] for name in sorted(fields) if name not in left_out]).encode() + body


@functools.lru_cache(256)
def _keyed(secret_key: str) -> tuple[hashlib._Hash, hashlib._Hash]:
    """SHA-1 after each of HMAC's two keys: with these a signature takes half the time of hmac.digest."""
    secret = secret_key.encode()
    key = (hashlib.sha1(secret).digest() if len(secret) > _BLOCK else secret).ljust(_BLOCK, b"\0")
    inner, outer = (bytes(byte ^ mask for byte in key) for mask in (0x36, 0x5C))
    return hashlib.sha1(inner), hashlib.sha1(outer)


def signature_of(secret_key: str, content: bytes) -> str:
    inner, outer = _keyed(secret_key)
    inner, outer = inner.copy(), outer.copy()
    inner.update(content)
    outer.update(inner.digest())
    return base64.b64encode(outer.digest()).decode()


def sign(command: RemotingCommand, access_key: str, secret_key: str, security_token: str = "") -> None:
    """Adds the three fields; a command that has a signature gets a new one."""
    fields = command.ext_fields
    fields[ACCESS_KEY] = access_key
    if security_token:
        fields[SECURITY_TOKEN] = security_token
    fields[SIGNATURE] = signature_of(secret_key, signed_content(fields, command.body_bytes()))


def is_signed_with(command: RemotingCommand, secret_key: str) -> bool:
    """True if the request has this secret's signature. Takes the same time for any wrong one."""
    content = signed_content(command.ext_fields, command.body_bytes(), command.version)
    given = command.ext_fields.get(SIGNATURE) or ""
    return hmac.compare_digest(signature_of(secret_key, content).encode(), given.encode("utf-8", "replace"))


_GRPC_FIELD = re.compile(r"\s*([A-Za-z]+)=([^,]*)\s*(?:,|$)")


def parse_grpc_authorization(header: str) -> tuple[str, bytes] | None:
    """User name and signature in gRPC's `authorization`; None if it has another form. The scheme is not looked at."""
    _, _, rest = header.strip().partition(" ")
    fields = {name.lower(): value.strip() for name, value in _GRPC_FIELD.findall(rest)}
    name = fields.get("credential", "").split("/")[0]
    try:
        signature = binascii.unhexlify(fields.get("signature", ""))
    except (binascii.Error, ValueError):
        return None
    return (name, signature) if name and signature else None


def is_grpc_signature(secret_key: str, date_time: str, signature: bytes) -> bool:
    return hmac.compare_digest(hmac.digest(secret_key.encode(), date_time.encode(), "sha1"), signature)
