"""RequestContext: who sends an RPC, by its metadata."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from google.protobuf.message import Message

from mqlake.base.clock import now_ms
from mqlake.remoting.codes import LanguageCode


class GrpcContext(Protocol):
    """The part of a grpc.aio.ServicerContext that methods use."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...

    def peer(self) -> str: ...

    def time_remaining(self) -> float | None: ...

    def done(self) -> bool: ...

    async def write(self, message: Message) -> None: ...


_LANGUAGES = {
    **{code.name: code for code in LanguageCode},
    "GOLANG": LanguageCode.GO,
    "DOT_NET": LanguageCode.DOTNET,
}
CLIENT_ID_MAX = 1024


@dataclass(slots=True)
class RequestContext:
    client_id: str
    language: LanguageCode
    """OTHER for a word that RocketMQ does not know."""
    client_version: str
    """As the client writes it: "5.1.2"."""
    remote_address: str
    """host:port of the client."""
    deadline: float | None
    """When the client gives up, by time.monotonic()."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    """The caller's name, if authentication is on."""
    began_at: int = field(default_factory=now_ms)
    """When the RPC came, in ms: a stream is signed when it begins."""

    def remaining_s(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.monotonic()


def request_context(metadata: Mapping[str, str], peer: str, remaining_s: float | None) -> RequestContext:
    """`peer` is gRPC's name of the client: `ipv4:127.0.0.1:1234`, `ipv6:%5B::1%5D:1234`, `unix:`."""
    return RequestContext(
        client_id=metadata.get("x-mq-client-id", "").strip()[:CLIENT_ID_MAX],
        language=_LANGUAGES.get(metadata.get("x-mq-language", "").strip().upper(), LanguageCode.OTHER),
        client_version=metadata.get("x-mq-client-version", ""),
        remote_address=_address(peer),
        deadline=None if remaining_s is None else time.monotonic() + remaining_s,
        metadata=metadata,
    )


def _address(peer: str) -> str:
    family, _, address = peer.partition(":")
    if family not in ("ipv4", "ipv6"):
        return "127.0.0.1:0"
    return address.replace("%5B", "[").replace("%5D", "]")
