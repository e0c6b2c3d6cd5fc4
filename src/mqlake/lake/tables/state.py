"""How far a table has come: part of the same commit as its rows, so that the two can never disagree.

    store    a physical offset of its log, and the checksum of the 64 KiB before it       Mark
    queue    "broker-a:3" → the queue offset that comes next                               dense: no gap, no repeat
    commit   a UUID by which a run knows its own commit again when the answer was lost

The table is its own checkpoint: there is no second place that could say something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from mqlake.errors import StoreCorruptError
from mqlake.lake.log.log_offsets import Mark

POSITION, OFFSETS, COMMIT_ID = "mqlake.position", "mqlake.offsets", "mqlake.commit-id"
ROWS, UNTIL = "mqlake.rows", "mqlake.until"
"""For people: the rows of the commit, and the latest store time in the table, in ms."""


def queue_name(broker: str, queue_id: int) -> str:
    return f"{broker}:{queue_id}"


@dataclass(frozen=True)
class TableState:
    """`stores` by name; `queues` by queue_name(); `rows` of the last commit; `until`: the latest store time, ms."""

    stores: Mapping[str, Mark] = field(default_factory=dict)
    queues: Mapping[str, int] = field(default_factory=dict)
    commit_id: str = ""
    rows: int = 0
    until: int = 0

    def to_properties(self) -> dict[str, str]:
        marks = {
            name: {"offset": mark.offset} | ({} if mark.tail is None else {"tail": mark.tail})
            for name, mark in sorted(self.stores.items())
        }
        return {
            POSITION: json.dumps(marks),
            OFFSETS: json.dumps(dict(sorted(self.queues.items()))),
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
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise StoreCorruptError(where, 0, f"its position cannot be read: {error!r}") from error
