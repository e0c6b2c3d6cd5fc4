"""The interface of a table for a run, whatever its format: Iceberg and Delta are the two implementations.

    head ──▶ version, state        what is there, read once
    commit(files, state, head)     lands whole if the table's head is still that one, or raises TableConflictError

An answer that got lost (time-out, broken connection) is settled by looking at the table again: the commit has an id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.dataset

from mqlake.base.progress import Progress, no_progress
from mqlake.lake.tables.files import WriteSpec, WrittenFile
from mqlake.lake.tables.state import State, TableState

TOPIC, DECODER, COLUMNS, DAY = "mqlake.topic", "mqlake.decoder", "mqlake.columns", "mqlake.day"
EARLIER_DECODERS, LATEST = "mqlake.decoder.earlier", "mqlake.latest"
"""Properties of the table itself: the topic's true name, the decoder's spec, the columns of the log, the column
whose days part it if that is not the store time; the specs that the decoder had before, as a JSON array, oldest first;
and of a table of latest rows its key."""


def earlier_decoders(properties: Mapping[str, str]) -> list[str]:
    """The specs that a table's decoder had before the one that it has, oldest first."""
    return [str(spec) for spec in json.loads(properties.get(EARLIER_DECODERS, "[]"))]


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Head:
    """`version`: a snapshot's id or a Delta version, None for a table without one. `state` None: nothing of a run is
    in the table."""

    version: int | None
    state: TableState | None


@dataclass(frozen=True)
class Version:
    """One entry of a table's history; `at`: when it was committed, ms. `rows`: added by it, as far as it says."""

    version: int
    at: int
    operation: str
    state: TableState | None
    rows: int | None = None


@dataclass(frozen=True)
class TableFiles:
    """The files of a table as of a version; `small`: those below a third of the target size."""

    count: int
    bytes: int
    rows: int


class Table(Protocol):
    """A table of one topic. Whatever reads it raises TableError or OSError."""

    name: str
    location: str

    @property
    def schema(self) -> pa.Schema:
        """As readers get it, without columns that only the format needs."""

    @property
    def properties(self) -> dict[str, str]: ...

    def evolve(self, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        """Gives the table the columns of `schema`, which has its own and more (bodies.evolution.merged), and
        properties. TableError, TableConflictError."""

    def head(self) -> Head:
        """Looks again."""

    def write_spec(self, target_bytes: int, names: Sequence[str] | None = None) -> WriteSpec:
        """For files with these columns (None: all of the table)."""

    def commit(
        self, files: Sequence[WrittenFile], state: State, head: Head, replaced: Sequence[str] = ()
    ) -> None:
        """Appends files, and takes away those whose rows they replace (paths as of `head`). TableConflictError if the
        table has moved since `head`: nothing of it is in the table then. TableError when that cannot be known; the
        files must stay then."""

    def versions(self) -> list[Version]:
        """Newest first."""

    def version_at(self, moment: datetime) -> int | None:
        """The last version committed at or before a moment, None if there is none."""

    def state_of(self, version: int | None) -> TableState | None: ...

    def last(self, kind: type[S], version: int | None) -> S | None:
        """The newest state of a kind as of a version; None: nothing of that kind ever committed."""

    def scan(
        self, version: int | None, columns: Sequence[str] | None, filter: Any
    ) -> Iterator[pa.RecordBatch]:
        """The rows as of a version, filtered as far as the format can; the caller filters again."""

    def files(self, version: int | None) -> TableFiles: ...

    def paths(self, version: int | None) -> list[str] | None:
        """The Parquet files as of a version; None when they alone are not the rows (deleted rows, renamed columns)."""

    def rewind(self, version: int) -> None:
        """Makes an earlier version the current one."""

    def compact(self, target_bytes: int, report: Progress = no_progress) -> tuple[int, int]:
        """Small files of one day become large ones; the number of files before and after. The state stays. Reports
        bytes of the small files."""

    def tidy(self) -> None:
        """Forgets old versions as the table's own properties say, where a commit would take longer with each of them.
        TableError."""

    def expire(self, older_than: datetime, keep: int, report: Progress = no_progress) -> tuple[int, int]:
        """Forgets versions older than a moment but for the last `keep`, deletes the files that only they have;
        the numbers of versions and of files that are gone. Reports versions looked at and files deleted."""

    def orphans(self, older_than: datetime, report: Progress = no_progress) -> list[tuple[str, int]]:
        """Files in the table's directories that no version has, with their sizes. Reports versions looked at."""
