"""The common beginning of many headers."""

from __future__ import annotations

from mqlake.remoting.headers.codec import CommandHeader


class RpcRequestHeader(CommandHeader):
    ns: str | None = None
    """Namespace."""
    nsd: bool | None = None
    """True if the names in the header already contain the namespace."""
    bname: str | None = None
    """The broker's name, for requests that a proxy passes on."""
    oway: bool | None = None


class TopicRequestHeader(RpcRequestHeader):
    lo: bool | None = None
    """True if the queue is a logical one of a static topic."""
