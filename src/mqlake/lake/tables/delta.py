"""A topic as a Delta table, through deltalake.

    commit 7 = add files
             + txn mqlake/commit   which commit
             + txn mqlake/NAME     a store's position      + txn mqlake/NAME/tail      checksum of what lies before it
             + txn mqlake/NAME/3   a queue's next offset   + txn mqlake/NAME/queues    how many there are
             + the whole state as JSON in the commit's info: quicker, and gone when the log is cleaned

A commit is made for exactly the version after the one that its state came from, without retries, so anything that
came in between is a conflict. RESTORE brings rows back and leaves the txn actions as they are; the state after one is
that of the version it restored.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import (
    CommitProperties,
    Field,
    PostCommitHookProperties,
    QueryBuilder,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake import DeltaTable as NativeTable
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.schema import VariantType
from deltalake.transaction import AddAction, RemoveAction

from mqlake.base.clock import YEAR_1_MS, YEAR_10000_MS
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import TableConflictError, TableError, TableUnavailableError
from mqlake.lake.bodies.evolution import conform
from mqlake.lake.bodies.types import VARIANT
from mqlake.lake.tables.config import s3_endpoint
from mqlake.lake.tables.delta_log import DeltaLog
from mqlake.lake.tables.files import STORE_TIME, WriteSpec, WrittenFile, of_names
from mqlake.lake.tables.parquet import scan_files, unknown_files
from mqlake.lake.tables.state import COMMIT_ID, POSITION, State, TableState
from mqlake.lake.tables.table import DAY, Head, TableFiles, Version

DATE = "date"
CREATED_WITH = {"delta.checkpointInterval": "50", "delta.logRetentionDuration": "interval 30 days"}
APP = "mqlake"
TEXT_MAX = 32
"""Characters of a text in the statistics; longer ones are cut."""


S = TypeVar("S", bound=State)


class DeltaTable:
    """One table. `names`: the stores or brokers whose positions are asked for, besides those that its history names."""

    def __init__(self, native: NativeTable, name: str, names: Collection[str] = ()) -> None:
        self._native = native
        self._names = set(names)
        self.name = name
        self.location = native.table_uri.rstrip("/")
        self._log = DeltaLog(self.location)

    @classmethod
    def load(cls, location: str, name: str, names: Collection[str] = ()) -> DeltaTable | None:
        """None if there is no such table."""
        with _translated(name):
            try:
                return cls(NativeTable(location, storage_options=storage_options()), name, names)
            except TableNotFoundError:
                return None

    @classmethod
    def create(
        cls,
        location: str,
        name: str,
        schema: pa.Schema,
        properties: Mapping[str, str],
        names: Collection[str] = (),
        *,
        day: str,
    ) -> DeltaTable:
        """A new table, or the one that another process made meanwhile. `day`: the column whose days part it, or
        empty."""
        columns = schema.append(pa.field(DATE, pa.date32())) if day else schema
        properties = {**properties, **({DAY: day} if day not in ("", STORE_TIME) else {})}
        with _translated(name):
            if "://" not in location:
                os.makedirs(location, exist_ok=True)
            try:
                native = NativeTable.create(
                    location,
                    _native_schema(columns),
                    partition_by=[DATE] if day else [],
                    configuration={**CREATED_WITH, **properties},
                    raise_if_key_not_exists=False,
                    storage_options=storage_options(),
                )
            except Exception:
                if not NativeTable.is_deltatable(location, storage_options=storage_options()):
                    raise
                native = NativeTable(location, storage_options=storage_options())
        return cls(native, name, names)

    # ------------------------------------------------------------------ what is there

    @property
    def _columns(self) -> pa.Schema:
        return pa.schema(self._native.schema().to_arrow())

    @property
    def _by_day(self) -> bool:
        """TableError for partitions of another kind."""
        found = self._native.metadata().partition_columns
        if found not in ([], [DATE]):
            raise TableError(
                f"table {self.name} is partitioned by {', '.join(found)}: mqlake writes to tables without partitions, "
                f"and to those that it has partitioned by days (column {DATE!r}); let it make a new table"
            )
        return bool(found)

    @property
    def schema(self) -> pa.Schema:
        found = self._columns
        return found.remove(found.get_field_index(DATE)) if self._by_day else found

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._native.metadata().configuration)

    def evolve(self, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        """New columns and fields are a commit of their own. Wider numbers are not in the format that other engines read
        from Python's tables, so all rows are written again, in one commit, with the table's position."""
        with _translated(self.name):
            self._native.update_incremental()
        there = self.schema
        changed = [
            each
            for each in schema
            if each.name not in there.names or there.field(each.name).type != each.type
        ]
        if any(
            each.name in there.names and widens(there.field(each.name).type, each.type) for each in changed
        ):
            kept = {each.name: each for each in changed}
            fields = [kept.pop(each.name, each) for each in there]
            self._rewrite(pa.schema([*fields, *kept.values()]))
        elif changed:
            with _translated(self.name):
                self._native.alter.add_columns(_native_schema(pa.schema(changed)).fields)
        with _translated(self.name):
            if properties:
                self._native.alter.set_table_properties(dict(properties), raise_if_not_exists=False)
            self._native.update_incremental()

    def _rewrite(self, schema: pa.Schema) -> None:
        """All rows with other columns. TableConflictError if something else was committed meanwhile."""
        head = self.head()
        there, paths, by_day = self.schema, self.paths(head.version), self._by_day
        columns = schema.append(pa.field(DATE, pa.date32())) if by_day else schema
        times = self.properties.get(DAY, STORE_TIME)
        if paths is None:
            raise TableError(
                f"table {self.name} has rows that another engine deleted, or columns that were renamed: change its "
                "columns with that engine, or write to a new table (--table)"
            )

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in scan_files(
                paths, there, there, None
            ):  # nothing of deltalake: it is waiting for these
                arrays = [
                    conform(batch.column(each.name), each.type)
                    if each.name in batch.schema.names
                    else pa.nulls(batch.num_rows, each.type)
                    for each in schema
                ]
                if by_day:
                    arrays.append(batch.column(times).cast(pa.date32()))
                yield pa.RecordBatch.from_arrays(arrays, schema=columns)

        kept = None if head.state is None else head.state.to_properties()
        try:
            with _translated(self.name):
                write_deltalake(
                    self._native,
                    pa.RecordBatchReader.from_batches(columns, batches()),
                    mode="overwrite",
                    schema_mode="overwrite",
                    partition_by=[DATE] if by_day else None,
                    commit_properties=CommitProperties(custom_metadata=kept, max_commit_retries=0),
                )
                self._native.update_incremental()
        except TableError as error:
            if isinstance(error.__cause__, CommitFailedError):
                raise TableConflictError(f"{error}; its columns are as before: try again") from error
            raise

    def head(self) -> Head:
        with _translated(self.name):
            self._native.update_incremental()
        version = self._native.version()
        return Head(version, self.state_of(version))

    def state_of(self, version: int | None) -> TableState | None:
        return self.last(TableState, version)

    def last(self, kind: type[S], version: int | None) -> S | None:
        if version is None:
            return None
        with _translated(self.name):
            for number in range(version, -1, -1):
                entry = self._log.commit(number)
                if entry is None:  # the commits' own notes are cleaned up after a month
                    break
                if entry.get("operation") == "RESTORE":
                    return self.last(kind, self._restored(number, entry))
                if kind.KEY in entry:
                    return kind.from_properties(entry, self.name)
                if number == version and self._noted(kind, version) is None:
                    return None
            return self._noted(kind, version)

    def _noted(self, kind: type[S], version: int) -> S | None:
        """Read from the txn actions, which every commit with a state has and nothing takes away."""
        native = self._native if version == self._native.version() else self._at(version)
        return kind.from_transactions(
            lambda app: native.transaction_version(f"{APP}/{app}"), sorted(self._names)
        )

    def _restored(self, number: int, entry: Mapping[str, Any]) -> int:
        """The version that a RESTORE, the commit `number`, brought back."""
        given = entry.get("operationParameters", {})
        if given.get("version") is not None:
            return int(given["version"])
        files = set(self._at(number).file_uris())  # by a time, which others may read otherwise
        for version in range(number - 1, -1, -1):
            try:
                if set(self._at(version).file_uris()) == files:
                    return version
            except Exception:  # its log was cleaned up
                break
        raise TableError(
            f"table {self.name}: version {number} restored an earlier one, and its log does not say "
            "which: restore it again by its number, or make the table again"
        )

    def _at(self, version: int) -> NativeTable:
        return NativeTable(self.location, version=version, storage_options=storage_options())

    def versions(self) -> list[Version]:
        with _translated(self.name):
            found = []
            for number, entry in self._log.commits():
                state = TableState.from_properties(entry, self.name) if POSITION in entry else None
                at, operation = int(entry.get("timestamp", 0)), str(entry.get("operation", "")).lower()
                found.append(Version(number, at, operation, state, None if state is None else state.rows))
            return found

    def version_at(self, moment: datetime) -> int | None:
        limit = moment.timestamp() * 1000
        return next((each.version for each in self.versions() if each.at <= limit), None)

    # ------------------------------------------------------------------ writing

    def write_spec(self, target_bytes: int, names: Sequence[str] | None = None) -> WriteSpec:
        day = f"{DATE}={{}}" if self._by_day else ""
        schema = of_names(self.schema, names)
        column = self.properties.get(DAY, STORE_TIME)
        return WriteSpec(self.location.removeprefix("file://"), schema, None, day, target_bytes, column)

    def commit(
        self, files: Sequence[WrittenFile], state: State, head: Head, replaced: Sequence[str] = ()
    ) -> None:
        version = self._native.version() + 1
        if version - 1 != head.version:
            raise TableConflictError(f"table {self.name}: is at version {version - 1} by now")
        actions = [self._add_action(file) for file in files] + self._remove_actions(set(replaced))
        transactions = [
            Transaction(f"{APP}/{app}", version) for app, version in state.to_transactions().items()
        ]
        properties = CommitProperties(
            custom_metadata=state.to_properties(), max_commit_retries=0, app_transactions=transactions
        )
        try:
            self._native.create_write_transaction(
                actions,
                "append",
                self._native.schema(),
                self._native.metadata().partition_columns,
                commit_properties=properties,
                post_commithook_properties=PostCommitHookProperties(True, False),
            )
        except Exception as error:  # storage may fail in any way after it has committed
            self._settle(state, version, error)

    def _settle(self, state: State, version: int, error: Exception) -> None:
        """Returns if the commit is in the table, as that version. TableConflictError if it certainly is not, TableError
        if unknown."""
        try:
            self._native.update_incremental()
            entry = self._log.commit(version)
        except Exception as again:
            raise TableUnavailableError(
                f"table {self.name}: the outcome of a commit is unknown, and the table cannot be read: {again}; "
                "run again: the table knows how far it is"
            ) from error
        if entry is not None and entry.get(COMMIT_ID) == state.commit_id:
            return
        if isinstance(error, CommitFailedError):
            raise TableConflictError(f"table {self.name}: {error}") from error
        raise TableUnavailableError(
            f"table {self.name}: not committed, as far as its log says: {error}; "
            "run again: the table knows how far it is"
        ) from error

    def _add_action(self, file: WrittenFile) -> AddAction:
        root = self.location.removeprefix("file://")
        inside = file.path.removeprefix(root).lstrip("/")
        values = {DATE: None if file.day is None else file.day.isoformat()} if self._by_day else {}
        now = round(datetime.now(UTC).timestamp() * 1000)
        return AddAction(inside, file.size, values, now, True, statistics(file))

    def _remove_actions(self, gone: set[str]) -> list[RemoveAction]:
        """Returns the actions that remove files of the current version, by their paths."""
        if not gone:
            return []
        found = []
        root = self.location.removeprefix("file://").rstrip("/")
        for each in pa.table(self._native.get_add_actions()).to_pylist():
            if f"{root}/{each['path']}" in gone:
                now = round(datetime.now(UTC).timestamp() * 1000)
                day = each["partition"][DATE] if self._by_day else None
                values = {DATE: None if day is None else day.isoformat()} if self._by_day else {}
                found.append(RemoveAction(each["path"], True, now, each["size_bytes"], values))
        return found

    # ------------------------------------------------------------------ reading

    def scan(
        self, version: int | None, columns: Sequence[str] | None, filter: Any
    ) -> Iterator[pa.RecordBatch]:
        schema = self.schema
        wanted = pa.schema([schema.field(name) for name in columns]) if columns is not None else schema
        if version is None:
            return
        paths = self.paths(version)
        if paths is not None:
            yield from scan_files(paths, wanted, schema, filter)
            return
        with _translated(
            self.name
        ):  # rows are deleted by marks: only the engine inside deltalake reads those
            names = ", ".join(f'"{name}"' for name in wanted.names or schema.names[:1])
            reader = QueryBuilder().register("t", self._at(version)).execute(f"select {names} from t")
            for batch in pa.RecordBatchReader.from_stream(reader):
                yield from pa.Table.from_batches([batch]).select(wanted.names).cast(wanted).to_batches()

    def paths(self, version: int | None) -> list[str] | None:
        if version is None:
            return []
        with _translated(self.name):
            native = self._at(version)
            configuration = native.metadata().configuration
            features = native.protocol().reader_features or []
            marked = (
                configuration.get("delta.enableDeletionVectors") == "true" or "deletionVectors" in features
            )
            if marked or configuration.get("delta.columnMapping.mode", "none") != "none":
                return None
            return [path.removeprefix("file://") for path in native.file_uris()]

    def files(self, version: int | None) -> TableFiles:
        if version is None:
            return TableFiles(0, 0, 0)
        with _translated(self.name):
            actions = pa.table(self._at(version).get_add_actions(flatten=True))
        sizes, rows = actions["size_bytes"].to_pylist(), actions["num_records"].to_pylist()
        return TableFiles(len(sizes), sum(sizes), sum(each or 0 for each in rows))

    # ------------------------------------------------------------------ care

    def rewind(self, version: int) -> None:
        with _translated(self.name):
            self._native.restore(version)
            self._native.update_incremental()

    def compact(self, target_bytes: int, report: Progress = no_progress) -> tuple[int, int]:
        report(0, 0)  # the library does it in one call
        before = self.files(self.head().version).count
        with _translated(self.name):
            self._native.optimize.compact(target_size=target_bytes)
        return before, self.files(self.head().version).count

    def tidy(self) -> None:
        """A commit does not take longer with more versions."""

    def expire(self, older_than: datetime, keep: int, report: Progress = no_progress) -> tuple[int, int]:
        """Delta keeps its log for a month; files that only older versions have go by their age."""
        report(0, 0)
        self.head()
        hours = max(1, round((datetime.now(UTC) - older_than) / timedelta(hours=1)))
        with _translated(self.name):
            before = len(self._log.versions())
            self._native.create_checkpoint()
            self._native.cleanup_metadata()
            gone = self._native.vacuum(hours, dry_run=False, enforce_retention_duration=False)
            self._native.update_incremental()
            return max(0, before - len(self._log.versions())), len(gone)

    def orphans(self, older_than: datetime, report: Progress = no_progress) -> list[tuple[str, int]]:
        self.head()
        root = self.location.removeprefix("file://")
        with _translated(self.name):
            known = {path.removeprefix("file://") for path in self._native.file_uris()}
            versions = self.versions()
            for number, each in enumerate(versions):  # an earlier version may still be read
                report(number, len(versions))
                with contextlib.suppress(TableError):
                    known |= set(self.paths(each.version) or ())
        found = unknown_files([root], known, older_than)
        log = f"{root.rstrip('/')}/_delta_log/"
        return [(path, size) for path, size in found if not path.startswith(log)]


def storage_options() -> dict[str, str] | None:
    """deltalake's, of another S3 than Amazon's."""
    endpoint = s3_endpoint()
    if not endpoint:
        return None
    return {"endpoint_url": endpoint, "allow_http": str(endpoint.startswith("http://")).lower()}


def _native_schema(schema: pa.Schema) -> Schema:
    """Delta's own, in which a Variant is a type."""
    found = Schema.from_arrow(schema).fields
    kinds = [
        Field(each.name, VariantType()) if schema.field(each.name).type == VARIANT else each for each in found
    ]
    return Schema(kinds)


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Returns True if a number in a type, or in what it is made of, has another type in `new`."""
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        later = {each.name: each.type for each in new.fields}
        return any(each.name in later and widens(each.type, later[each.name]) for each in old.fields)
    if pa.types.is_list(old) and pa.types.is_list(new):
        return widens(old.value_type, new.value_type)
    if pa.types.is_map(old) and pa.types.is_map(new):
        return widens(old.item_type, new.item_type)
    return bool(old != new)


def statistics(file: WrittenFile) -> str:
    """Delta's statistics of a file, for skipping. Readers take a column that has bounds in some files for one without
    rows in the others, so each column has all of them. In UTF-8: some readers misread text beyond the basic plane that
    JSON escapes as two characters."""
    schema, found = file.metadata.schema.to_arrow_schema(), file.statistics
    low, high = {}, {}
    for name, (least, most) in found.bounds.items():
        kind = schema.field(name).type
        low[name], high[name] = _bound(below(least), kind), _bound(above(most), kind)
    counted = {"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": found.nulls}
    return json.dumps(counted, ensure_ascii=False)


def _bound(value: Any, kind: pa.DataType) -> Any:
    """As JSON; the first or the last moment that it has words for, where a timestamp lies beyond."""
    if not pa.types.is_timestamp(kind):
        return value
    moment = _EPOCH + timedelta(microseconds=min(max(value, YEAR_1_MS * 1000), YEAR_10000_MS * 1000 - 1))
    return moment.isoformat(timespec="microseconds") + ("Z" if kind.tz else "")


_EPOCH = datetime(1970, 1, 1)


def below(value: Any) -> Any:
    """The value, or a text of at most TEXT_MAX characters that is not above it."""
    return value[:TEXT_MAX] if isinstance(value, str) else value


def above(value: Any) -> Any:
    """The value, or a text that is not below it in the order of UTF-8: of TEXT_MAX characters the last that can be one
    higher is, and what follows is cut off. A text of which none can be stays."""
    if not isinstance(value, str) or len(value) <= TEXT_MAX:
        return value
    kept = value[:TEXT_MAX].rstrip(_LAST_CHARACTER)
    if not kept:
        return value
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_AFTER_SURROGATES if following == _SURROGATES else following)


_LAST_CHARACTER = chr(0x10FFFF)
_SURROGATES, _AFTER_SURROGATES = 0xD800, 0xE000
"""UTF-8 has none of the characters between these."""


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except (TableError, MemoryError):
        raise
    except Exception as error:  # deltalake's own
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if _AWAY.search(str(error)):
            raise TableUnavailableError(
                f"table {name}: its storage does not answer: {_reason(error)}; try again"
            ) from error
        raise TableError(f"table {name}: {_reason(error)}") from error


_AWAY = re.compile(
    r"Connection (refused|reset|closed)|error sending request|dns error|timed out|os error 1[01]\d"
)


def _reason(error: Exception) -> str:
    """The object store's own message, out of an error that repeats every layer it passed through; else all of it."""
    text = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split()).replace(" : ", ": ")
    said = re.search(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", text)
    if said is not None:
        return f"the object store answers {said[1]}: {said[2]}"
    first, *layers = [each.strip() for each in text.split("↳")]
    return f"{first}: {layers[-1]}" if layers else first
