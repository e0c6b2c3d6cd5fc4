"""How far a table has come: part of the same commit as its rows, so that the two can never disagree.

    store    a physical offset of its log, and the checksum of the 64 KiB before it       Mark
    queue    "broker-a:3" → the queue offset that comes next                               dense: no gap, no repeat
             and the message before it: physical offset, store time                        LastMessage
    commit   a UUID by which a run knows its own commit again when the answer was lost

The table is its own checkpoint: there is no second place that could say something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, Self

from mqlake.errors import StoreCorruptError
from mqlake.lake.log.log_offsets import Mark
from mqlake.lake.offsets import LastMessage

POSITION, OFFSETS, COMMIT_ID = "mqlake.position", "mqlake.offsets", "mqlake.commit-id"
LASTS = "mqlake.last-messages"
ROWS, UNTIL = "mqlake.rows", "mqlake.until"
"""For people: the rows of the commit, and the latest store time in the table, in ms."""


def queue_name(broker: str, queue_id: int) -> str:
    return f"{broker}:{queue_id}"


class State(Protocol):
    """The source of a commit's rows, as its properties keep it. `KEY`: the property that holds it."""

    KEY: ClassVar[str]

    @property
    def commit_id(self) -> str: ...

    def to_properties(self) -> dict[str, str]: ...

    @classmethod
    def from_properties(cls, given: Mapping[str, str], where: str) -> Self: ...

    def to_transactions(self) -> dict[str, int]:
        """The same as Delta's txn actions, which outlive the notes in its log: a number a name."""

    @classmethod
    def from_transactions(cls, version_of: Callable[[str], int | None], names: Sequence[str]) -> Self | None:
        """Read from Delta's txn actions; `names`: the application ids to look up."""


def commit_number(commit_id: str) -> int:
    """A commit's id as a txn version."""
    return int(commit_id[:15], 16)


@dataclass(frozen=True)
class TableState:
    """`stores` by name; `queues` and `lasts` by queue_name(); `rows` of the last commit; `until`: the latest store
    time, ms. `lasts` may lack queues: tables that an earlier version filled do not have them."""

    stores: Mapping[str, Mark] = field(default_factory=dict)
    queues: Mapping[str, int] = field(default_factory=dict)
    commit_id: str = ""
    rows: int = 0
    until: int = 0
    lasts: Mapping[str, LastMessage] = field(default_factory=dict)
    KEY: ClassVar[str] = POSITION

    def to_properties(self) -> dict[str, str]:
        marks = {
            name: {"offset": mark.offset} | ({} if mark.tail is None else {"tail": mark.tail})
            for name, mark in sorted(self.stores.items())
        }
        return {
            POSITION: json.dumps(marks),
            OFFSETS: json.dumps(dict(sorted(self.queues.items()))),
            LASTS: json.dumps(
                {name: [each.physical_offset, each.store_time] for name, each in sorted(self.lasts.items())}
            ),
            COMMIT_ID: self.commit_id,
            ROWS: str(self.rows),
            UNTIL: str(self.until),
        }

    @classmethod
    def from_properties(cls, given: Mapping[str, str], where: str) -> TableState:
        """StoreCorruptError, which names the table, for properties that nothing of this kind wrote."""
        try:
            marks = json.loads(given[POSITION])
            return cls(
                {name: Mark(int(each["offset"]), each.get("tail")) for name, each in marks.items()},
                {name: int(offset) for name, offset in json.loads(given[OFFSETS]).items()},
                given.get(COMMIT_ID, ""),
                int(given.get(ROWS, 0)),
                int(given.get(UNTIL, 0)),
                {
                    name: LastMessage(*map(int, each))
                    for name, each in json.loads(given.get(LASTS, "{}")).items()
                },
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise StoreCorruptError(where, 0, f"its position cannot be read: {error!r}") from error

    def to_transactions(self) -> dict[str, int]:
        found = {"commit": commit_number(self.commit_id), "until": self.until}
        for name, mark in self.stores.items():
            found[name] = mark.offset
            if mark.tail is not None:
                found[f"{name}/tail"] = mark.tail
        for queue, following in self.queues.items():
            name, _, queue_id = queue.rpartition(":")
            found[f"{name}/{queue_id}"] = following
            found[f"{name}/queues"] = max(found.get(f"{name}/queues", 0), int(queue_id) + 1)
            if queue in self.lasts:
                found[f"{name}/{queue_id}/at"] = self.lasts[queue].physical_offset
                found[f"{name}/{queue_id}/stored"] = self.lasts[queue].store_time
        return found

    @classmethod
    def from_transactions(
        cls, version_of: Callable[[str], int | None], names: Sequence[str]
    ) -> TableState | None:
        if version_of("commit") is None:
            return None
        stores, queues, lasts = {}, {}, {}
        for name in names:
            offset = version_of(name)
            if offset is not None:
                stores[name] = Mark(offset, version_of(f"{name}/tail"))
            for queue_id in range(version_of(f"{name}/queues") or 0):
                following = version_of(f"{name}/{queue_id}")
                if following is not None:
                    queues[queue_name(name, queue_id)] = following
                at, stored = version_of(f"{name}/{queue_id}/at"), version_of(f"{name}/{queue_id}/stored")
                if at is not None and stored is not None:
                    lasts[queue_name(name, queue_id)] = LastMessage(at, stored)
        return cls(stores, queues, until=version_of("until") or 0, lasts=lasts)
