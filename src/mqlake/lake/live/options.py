"""The options of a read of live brokers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mqlake.lake.live.cluster import Cluster
from mqlake.lake.options import Mode, SourceOptions

MODES = (Mode.FAIL_FAST, Mode.DROP_MALFORMED)
POP_INVISIBLE_S = 600
"""How long the messages of a batch are kept from other members of `popGroup`."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions(SourceOptions):
    """One read of topics: those named, or with `pattern` all that match it."""

    cluster: Cluster
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    unpack: bool = True
    min_partitions: int | None = None
    group_id_for_commit: str | None = None
    pop_group: str | None = None
    """Pop as a member of this group instead of reading all queues; streams only."""
    pop_invisible_s: int = POP_INVISIBLE_S

    @property
    def drop_malformed(self) -> bool:
        """True if messages that cannot be decoded are left out; else they are an error."""
        return self.mode is Mode.DROP_MALFORMED

    def asks_for(self, topic: str) -> bool:
        return topic in self.topics if self.pattern is None else bool(re.fullmatch(self.pattern, topic))
