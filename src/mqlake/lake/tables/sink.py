"""Tells from what a table knows of the streams that write to it what becomes of a batch that may be there already.

    app     one stream: its query, and the last batch of it that is in the table
    queue   the queue offset that follows the highest one in the table, and the app that wrote that

Both are in the commit of the rows (property `mqlake.sink`).

    query known, batch the next one          commit
    query known, batch there already         skip: Spark runs a batch again whose end it did not note
    query known, batches left out            error: the table was taken back
    another query (a new checkpoint)         commit if no row lies below the table's offsets, else error

An error says what `onReplay` makes of it: `skip` leaves out the rows below the table's offsets, here and in all batches
of that query that follow; `append` takes all.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from mqlake.errors import StoreCorruptError, TableError
from mqlake.lake.tables.files import QueueRange
from mqlake.lake.tables.state import COMMIT_ID, ROWS, commit_number

SINK = "mqlake.sink"
FAIL, SKIP, APPEND = "fail", "skip", "append"
ON_REPLAY = (FAIL, SKIP, APPEND)


@dataclass(frozen=True)
class App:
    """`query`: the id in its checkpoint; `batch`: the last one in the table; `ends`: where that one ended in
    its queues; `floors`: rows below them are left out."""

    query: str
    batch: int
    ends: Mapping[str, int] = field(default_factory=dict)
    floors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SinkState:
    """`queues`: the next offset and the app, by sink_queue(). `is_cut`: a Delta table's log no longer has all of it."""

    apps: Mapping[str, App] = field(default_factory=dict)
    queues: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    commit_id: str = ""
    rows: int = 0
    writer: str = ""
    is_cut: bool = False
    KEY: ClassVar[str] = SINK

    def to_properties(self) -> dict[str, str]:
        apps = {
            name: {"query": a.query, "batch": a.batch, "ends": dict(a.ends), "floors": dict(a.floors)}
            for name, a in self.apps.items()
        }
        told = {"apps": apps, "queues": {name: list(each) for name, each in sorted(self.queues.items())}}
        return {SINK: json.dumps(told), COMMIT_ID: self.commit_id, ROWS: str(self.rows)}

    @classmethod
    def from_properties(cls, given: Mapping[str, str], where: str) -> SinkState:
        """StoreCorruptError, which names the table."""
        try:
            told = json.loads(given[SINK])
            return cls(
                {
                    name: App(
                        str(each["query"]),
                        int(each["batch"]),
                        _offsets(each["ends"]),
                        _offsets(each["floors"]),
                    )
                    for name, each in told["apps"].items()
                },
                {name: (int(following), str(app)) for name, (following, app) in told["queues"].items()},
                given.get(COMMIT_ID, ""),
                int(given.get(ROWS, 0)),
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise StoreCorruptError(where, 0, f"what its streams wrote cannot be read: {error!r}") from error

    def to_transactions(self) -> dict[str, int]:
        app = self.apps[self.writer]
        return {
            "commit": commit_number(self.commit_id),
            "sink": 1,
            f"sink/{self.writer}": app.batch,
            f"sink/{self.writer}/query": zlib.crc32(app.query.encode()),
        }

    @classmethod
    def from_transactions(
        cls, version_of: Callable[[str], int | None], names: Sequence[str]
    ) -> SinkState | None:
        """`names`: the app, and the query that asks (its id is kept as a checksum only)."""
        if version_of("sink") is None:
            return None
        app, query = names_of(names)
        batch, known = version_of(f"sink/{app}"), version_of(f"sink/{app}/query")
        apps = {}
        if batch is not None:
            apps[app] = App(query if known == zlib.crc32(query.encode()) else "", batch)
        return cls(apps, is_cut=True)


def _offsets(given: Mapping[str, object]) -> dict[str, int]:
    return {name: int(str(each)) for name, each in given.items()}


def asked(app: str, query: str) -> tuple[str, ...]:
    """The names by which SinkState.from_transactions() is asked."""
    return (f"a{app}", f"q{query}")


def names_of(names: Sequence[str]) -> tuple[str, str]:
    found = {each[:1]: each[1:] for each in names}
    return found.get("a", ""), found.get("q", "")


@dataclass(frozen=True)
class Batch:
    """The result of tasks: `queues` by sink_queue() with the rows written to each; None if the rows do not name their
    queue. `named`: the user gave the app its name."""

    app: str
    query: str
    number: int
    queues: Mapping[str, QueueRange] | None
    named: bool = False

    @property
    def ends(self) -> dict[str, int]:
        return {name: each.last + 1 for name, each in (self.queues or {}).items()}

    def below(self, floors: Mapping[str, int]) -> list[str]:
        """The queues with rows below these offsets."""
        return [
            name for name, each in (self.queues or {}).items() if each.first < floors.get(name, each.first)
        ]


def floors_of(state: SinkState | None, app: str, query: str, on_replay: str) -> dict[str, int]:
    """The queue offsets below which a batch's rows are left out, since the table has them already."""
    known = None if state is None else state.apps.get(app)
    if state is None or on_replay == APPEND:
        return {}
    going_on = known is not None and known.query == query
    floors = dict(known.floors) if known is not None and going_on else {}
    if on_replay == SKIP:
        for name, (following, by) in state.queues.items():
            if not going_on or by != app:
                floors[name] = max(following, floors.get(name, 0))
    return floors


def decide(state: SinkState | None, batch: Batch, on_replay: str, table: str) -> SinkState | None:
    """The state after the batch's commit; None: it is in the table already. TableError, which says what to do.

    `state` None: no stream has written to the table.
    """
    state = state or SinkState()
    known = state.apps.get(batch.app)
    again = known is not None and known.query == batch.query and batch.number <= known.batch
    if again and known is not None and _is_there(state, known, batch):
        return None
    if on_replay != APPEND:
        _check(state, known, batch, table)
    going_on = known is not None and known.query == batch.query and not again
    floors: Mapping[str, int] = known.floors if going_on and known is not None else {}
    if not going_on and on_replay == SKIP:
        floors = floors_of(state, batch.app, batch.query, on_replay)
    queues = dict(state.queues)
    for name, each in (batch.queues or {}).items():
        queues[name] = (max(each.last + 1, queues.get(name, (0, ""))[0]), batch.app)
    number = max(batch.number, known.batch) if again and known is not None else batch.number
    apps = {**state.apps, batch.app: App(batch.query, number, batch.ends, floors)}
    return replace(state, apps=apps, queues=queues, writer=batch.app, is_cut=False)


def _is_there(state: SinkState, known: App, batch: Batch) -> bool:
    """Returns True if a batch with a number that is in the table is the one that is there: Spark runs only the last
    one again, with the same rows. Others come of an older checkpoint."""
    if batch.number < known.batch:
        return False
    return batch.queues is None or state.is_cut or batch.ends == known.ends


def _check(state: SinkState, known: App | None, batch: Batch, table: str) -> None:
    """TableError unless the batch's rows are sure not to be in the table, and none before them is missing."""
    everywhere = {name: following for name, (following, _) in state.queues.items()}
    if known is None or known.query != batch.query:
        if batch.number > 0:
            raise TableError(
                f"table {table}: the stream's checkpoint says that {batch.number} batches were written, the table has "
                f"none of this query: it was created again, or rolled back. Begin the stream with a new "
                f"checkpoint{_SKIP}, or take it as it is (option onReplay=append)"
            )
        if state.is_cut or (batch.queues is None and (known is not None or (state.apps and not batch.named))):
            raise TableError(
                f"table {table}: {_whose(known, batch)}, and the rows do not say which of them the table has (columns "
                "topic, queueId and queueOffset). If it is another stream, name each by the option appId; if it is to "
                "be written again all the same, set onReplay=append; else go on with the old checkpoint"
            )
        where = batch.below(everywhere)
        if where:
            raise TableError(
                f"table {table}: {_whose(known, batch)}, and its rows of {_some(where)} begin below what the table "
                f"has: they would be there twice. A new checkpoint or a full refresh{_SKIP}; another stream of the "
                "same topic: give it another table; onReplay=append writes them a second time"
            )
        return
    if batch.number <= known.batch:
        raise TableError(
            f"table {table}: has the stream's batch {known.batch}, and batch {batch.number} comes again with other "
            f"rows: the checkpoint is older than the table. Go on with the newest checkpoint, or begin with a new "
            f"one{_SKIP}"
        )
    if batch.number > known.batch + 1:
        raise TableError(
            f"table {table}: has the stream's batch {known.batch}, now comes {batch.number}: the table was taken back "
            f"(rollback, RESTORE), and the rows between are missing. Begin the stream with a new checkpoint{_SKIP}, or "
            "go on without them (option onReplay=append)"
        )
    others = {name: following for name, (following, by) in state.queues.items() if by != batch.app}
    where = batch.below(others)
    if where:
        raise TableError(
            f"table {table}: another stream has written rows of {_some(where)} that this one writes, too: give it "
            f"another table, or leave them out{_SKIP}, or write them twice (onReplay=append)"
        )


_SKIP = " (option onReplay=skip leaves out the rows that the table has)"


def _whose(known: App | None, batch: Batch) -> str:
    return (
        f"the checkpoint of the stream {batch.app!r} began again"
        if known is not None
        else "streams have written to it before, this one not"
    )


def _some(queues: Sequence[str], most: int = 3) -> str:
    return ", ".join(sorted(queues)[:most]) + (" and others" if len(queues) > most else "")
