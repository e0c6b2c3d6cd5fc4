"""Guards the console: sessions, CSRF tokens, names of this host, headers that tell a browser what it may do with an
answer.

cookie     a random id, HttpOnly, SameSite=Strict; credentials stay in this process
CSRF       HMAC of that id with a key of this process; every POST has to bring it
Host       only addresses, localhost and the names given: no other site's name may lead here (DNS rebinding)
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from mqlake.console.ask import Cluster

COOKIE = "mqlake_console"
SESSION_IDLE_S = 3600.0
SESSIONS_MAX = 32
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(slots=True)
class _Session:
    cluster: Cluster
    used: float


class Sessions:
    """The users who are logged in. Anonymous visitors have a cookie and take no memory here."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    @staticmethod
    def new_id() -> str:
        return secrets.token_urlsafe(32)

    def csrf_token(self, session_id: str) -> str:
        return hmac.new(self._key, session_id.encode(), hashlib.sha256).hexdigest()

    def is_csrf_token(self, session_id: str, token: str) -> bool:
        return bool(session_id) and hmac.compare_digest(self.csrf_token(session_id), token)

    def cluster(self, session_id: str) -> Cluster | None:
        """Returns the cluster of a session which was used within the last hour."""
        session = self._sessions.get(session_id)
        now = time.monotonic()
        if session is None or now - session.used > SESSION_IDLE_S:
            return None
        session.used = now
        return session.cluster

    def log_in(self, cluster: Cluster) -> tuple[str, list[Cluster]]:
        """The id of a new session, and the clusters of those that ended: of age, or because there are too many."""
        now = time.monotonic()
        old = [key for key, each in self._sessions.items() if now - each.used > SESSION_IDLE_S]
        by_use = sorted(self._sessions, key=lambda key: self._sessions[key].used)
        old += [key for key in by_use if key not in old][
            : max(0, len(self._sessions) - len(old) - SESSIONS_MAX + 1)
        ]
        ended = [self._sessions.pop(key).cluster for key in old]
        session_id = self.new_id()
        self._sessions[session_id] = _Session(cluster, now)
        return session_id, ended

    def log_out(self, session_id: str) -> Cluster | None:
        """The cluster of the session that ends."""
        session = self._sessions.pop(session_id, None)
        return session.cluster if session is not None else None

    def end_all(self) -> list[Cluster]:
        ended = [session.cluster for session in self._sessions.values()]
        self._sessions.clear()
        return ended


def is_own_host(header: str, names: Iterable[str]) -> bool:
    """True if a Host header names this console: by an address, as localhost, or by one of `names`."""
    if header.startswith("["):
        host = header[1:].partition("]")[0]
    else:
        host = (
            header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() and ":" in header else header
        )
    if host.lower().rstrip(".") in {"localhost", *(name.lower() for name in names)}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_same_origin(origin: str | None, host: str) -> bool:
    """True if a request that says where it is from is from here. One that does not say may be from anywhere."""
    if origin is None:
        return True
    return origin.partition("://")[2] == host
