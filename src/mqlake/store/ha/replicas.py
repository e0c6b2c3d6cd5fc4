"""Replicas: what the store asks of replication. HAService is it; a store without one has none."""

from __future__ import annotations

from typing import Protocol

from mqlake.store.results import PutMessageFuture


class Replicas(Protocol):
    def notify(self) -> None:
        """The log has grown. Called with each append, so it must cost next to nothing."""
        ...

    def refusal(self) -> str:
        """Why no message may be written (IN_SYNC_REPLICAS_NOT_ENOUGH); empty when one may."""
        ...

    def why_not(self) -> str:
        """Why this broker may not take messages now (SERVICE_NOT_AVAILABLE): it is not known to be the master."""
        ...

    def confirmed_end(self) -> int | None:
        """The physical offset up to which consumers may see messages; None: everything."""
        ...

    def needed_from(self) -> int | None:
        """The first offset that a connected slave has not got; None without slaves."""
        ...

    def wait_for_replicas(self, futures: list[PutMessageFuture]) -> None:
        """Finishes the futures, whose bytes are in the log, when enough slaves have them or their time is over."""
        ...
