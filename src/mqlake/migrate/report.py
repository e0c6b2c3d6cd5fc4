"""The result of a migration."""

from __future__ import annotations

import dataclasses

DIRECTORY = "metaq"
"""Directory of the migration's own files, in the store."""


@dataclasses.dataclass(slots=True)
class MigratedPartition:
    """One partition and its queue. `messages`: whole ones in MetaQ; `stored`: in the queue; `before`: before."""

    topic: str
    partition: int
    to_topic: str
    messages: int = 0
    stored: int = 0
    before: int = 0
    body_bytes: int = 0
    same: bool = False
    """True if both sides hold the same messages in the same order: bodies, ids, offsets, attributes, flags."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclasses.dataclass(frozen=True, slots=True)
class MigratedPosition:
    """The position at which a consumer group continues: `topic` is the name in the store, `offset` MetaQ's, in
    bytes."""

    group: str
    topic: str
    queue_id: int
    offset: int
    queue_offset: int


@dataclasses.dataclass(slots=True)
class MigrationReport:
    source: str
    store: str
    source_in_use: bool
    partitions: list[MigratedPartition]
    positions: list[MigratedPosition]
    changed_attributes: int = 0
    """Attributes of this run's messages in which control characters 1 and 2, RocketMQ's separators, became blanks."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return all(each.same and each.messages == each.stored for each in self.partitions)
