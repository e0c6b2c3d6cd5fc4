"""A topic as an Iceberg table, through pyiceberg: any catalog it loads.

    snapshot 7 ──▶ snapshot 8 ──▶ snapshot 9 = main
    summary: mqlake.position, …     the state of the newest ancestor that has one counts
    table property of the same name  only when no ancestor has one any more (expired)

A commit requires that main is still the snapshot its state came from. pyiceberg's own retry would look up the new main
and append again, so rows of two runs would both land: the commit is made without it (`iceberg_inside`), and what became
of one without an answer is settled by the snapshot's id.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    NotInstalledError,
    ServerError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids, index_by_id
from pyiceberg.table import Table as NativeTable
from pyiceberg.table import Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.transforms import DayTransform
from sqlalchemy.exc import OperationalError

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import ConfigError, MissingPartError, TableConflictError, TableError, TableUnavailableError
from mqlake.lake.tables import iceberg_inside as inside
from mqlake.lake.tables.files import WriteSpec, WrittenFile, delete_paths, of_names
from mqlake.lake.tables.parquet import scan_files, unknown_files
from mqlake.lake.tables.rewrite import Small, bins, rewritten
from mqlake.lake.tables.state import POSITION, State, TableState
from mqlake.lake.tables.table import Head, TableFiles, Version

KEEP = "history.expire.min-snapshots-to-keep"
KEEP_MS = "history.expire.max-snapshot-age-ms"
CREATED_WITH = {
    "format-version": "2",
    # commits stay quick: merged manifests, few old metadata files
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # a compaction goes through while a run appends
    "write.update.isolation-level": "snapshot",
    "write.delete.isolation-level": "snapshot",
    "write.parquet.compression-codec": "zstd",
    # a commit copies and writes all versions that are kept; mqlake and other engines forget older ones by these
    KEEP: "100",
    KEEP_MS: "3600000",
}
PARTITION_ID = 1000
DAY_FORMAT = "day={}"
COMPACTION_TRIES = 5


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """One that pyiceberg knows by `name` from its configuration, or that `properties` describe.

    ConfigError; TableError for one that does not answer; MissingPartError.
    """
    where = properties.get("uri", name)
    for last in (False, True):
        try:
            return load_catalog(name, **properties)
        except NotInstalledError as error:
            command = re.search(r"pip install '[^']+'", str(error))
            part = f"what opens the catalog {where}"
            raise MissingPartError(part, command[0] if command else "pip install pyiceberg[…]") from error
        except Exception as error:  # each kind of catalog fails in its own way
            if last:  # the first time another process may have made the tables of a new SQL catalog meanwhile
                root = root_cause(error)
                if isinstance(error, OSError | ServerError):
                    raise TableUnavailableError(
                        f"catalog {where} does not answer: {root}; try again"
                    ) from error
                raise ConfigError(f"catalog {where} cannot be opened: {root}") from error
    raise AssertionError


def root_cause(error: BaseException) -> BaseException:
    """The innermost error: catalog libraries wrap that of the socket or the database."""
    for inner in (getattr(error, "orig", None), getattr(error, "reason", None), *error.args[:1]):
        if isinstance(inner, BaseException):
            return root_cause(inner)
    return error


S = TypeVar("S", bound=State)


class IcebergTable:
    """One table. Raises TableError for what pyiceberg says."""

    def __init__(self, native: NativeTable) -> None:
        self._native = native
        self.name = ".".join(native.name())
        self.location = native.location()

    @classmethod
    def load(cls, catalog: Catalog, name: str) -> IcebergTable | None:
        """None if there is no such table."""
        try:
            with _translated(name, NoSuchTableError):
                return cls(catalog.load_table(name))
        except NoSuchTableError:
            return None

    @classmethod
    def create(
        cls, catalog: Catalog, name: str, schema: pa.Schema, properties: Mapping[str, str], *, day: str
    ) -> IcebergTable:
        """A new table, or the one that another process made meanwhile. `day`: the column whose days part it, or
        empty."""
        namespace = name.rpartition(".")[0]
        with _translated(name):
            try:
                catalog.create_namespace_if_not_exists(namespace)
            except (
                Exception
            ):  # another process made it meanwhile, which SQL catalogs report in their own words
                if not catalog.namespace_exists(namespace):
                    raise
        numbered = assign_fresh_schema_ids(inside.schema_without_ids(schema))
        parts = (
            [PartitionField(numbered.find_field(day).field_id, PARTITION_ID, DayTransform(), "day")]
            if day
            else []
        )
        spec = PartitionSpec(*parts)
        created = {**CREATED_WITH, **properties}
        with _translated(name):
            try:
                return cls(catalog.create_table(name, numbered, partition_spec=spec, properties=created))
            except TableAlreadyExistsError:
                return cls(catalog.load_table(name))

    # ------------------------------------------------------------------ what is there

    @property
    def schema(self) -> pa.Schema:
        return plain_schema(schema_to_pyarrow(self._native.schema(), include_field_ids=False))

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._native.properties)

    def evolve(self, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        with _translated(self.name):
            self._native.refresh()
            transaction = self._native.transaction()
            with transaction.update_schema() as update:
                update.union_by_name(inside.schema_without_ids(schema))
            transaction.set_properties(dict(properties))
            transaction.commit_transaction()
            self._native.refresh()

    def head(self) -> Head:
        with _translated(self.name):
            self._native.refresh()
        main = self._main()
        version = main.snapshot_id if main else None
        return Head(version, self.state_of(version))

    def _main(self) -> Snapshot | None:
        found: Snapshot | None = self._native.metadata.snapshot_by_name(MAIN_BRANCH)
        return found

    def state_of(self, version: int | None) -> TableState | None:
        return self.last(TableState, version)

    def last(self, kind: type[S], version: int | None) -> S | None:
        """Returns the state of the newest snapshot with one from there back; without any, the table's property,
        which is the newest commit's. TableError where that is a later one than `version`: nothing says how far that
        is."""
        snapshot = None if version is None else self._native.metadata.snapshot_by_id(version)
        for each in ancestors_of(snapshot, self._native.metadata):
            if each.summary is not None and kind.KEY in each.summary.additional_properties:
                return kind.from_properties(each.summary.additional_properties, self.name)
        if snapshot is not None and kind.KEY in self._native.properties:
            newest = self._native.properties[kind.KEY]
            for each in self._native.metadata.snapshots:
                if each.summary is not None and each.summary.additional_properties.get(kind.KEY) == newest:
                    raise TableError(
                        f"table {self.name}: version {version} was made by another engine, and the versions that said "
                        f"how far it is are expired: go to another one (mqlake lake rewind), such as {each.snapshot_id}"
                    )
            return kind.from_properties(self._native.properties, self.name)
        return None

    def versions(self) -> list[Version]:
        found = []
        for each in ancestors_of(self._main(), self._native.metadata):
            summary = each.summary.additional_properties if each.summary else {}
            state = TableState.from_properties(summary, self.name) if POSITION in summary else None
            rows = summary.get("added-records")
            operation = each.summary.operation.value if each.summary else ""
            found.append(
                Version(each.snapshot_id, each.timestamp_ms, operation, state, int(rows) if rows else None)
            )
        return found

    def version_at(self, moment: datetime) -> int | None:
        limit = moment.timestamp() * 1000
        return next((each.version for each in self.versions() if each.at <= limit), None)

    # ------------------------------------------------------------------ writing

    def write_spec(self, target_bytes: int, names: Sequence[str] | None = None) -> WriteSpec:
        metadata = self._native.metadata
        root = metadata.properties.get("write.data.path", f"{metadata.location.rstrip('/')}/data")
        numbered = plain_schema(schema_to_pyarrow(metadata.schema(), include_field_ids=True))
        day, day_format = self._day(), ""
        if day:
            day_format = DAY_FORMAT
        spec = WriteSpec(
            root, of_names(self.schema, names), of_names(numbered, names), day_format, target_bytes
        )
        return replace(spec, day_column=day) if day else spec

    def _day(self) -> str:
        """The column whose days part the table; empty without partitions. TableError for partitions of another kind."""
        metadata = self._native.metadata
        fields = metadata.spec().fields
        if len(fields) > 1 or any(not isinstance(each.transform, DayTransform) for each in fields):
            raise TableError(
                f"table {self.name} is partitioned by {', '.join(map(str, fields))}: mqlake writes to tables without "
                "partitions, and to those by the day of a timestamp; let it make a new table"
            )
        return str(metadata.schema().find_column_name(fields[0].source_id)) if fields else ""

    def commit(
        self, files: Sequence[WrittenFile], state: State, head: Head, replaced: Sequence[str] = ()
    ) -> None:
        kept = state.to_properties()
        with _translated(self.name):
            transaction = inside.CommitTransaction(self._native)
            if replaced:
                producer = transaction.update_snapshot(snapshot_properties=kept).overwrite()
            else:
                producer = inside.append_producer(transaction, kept)
            gone = set(replaced)
            with producer:
                for file in self._entries(head.version) if gone else ():
                    if file.file_path in gone:
                        producer.delete_data_file(file)
                for each in files:
                    producer.append_data_file(inside.data_file(each, self._native.metadata))
            transaction.set_properties(kept)
        self._land(transaction, producer, head.version)

    def _land(self, transaction: Transaction, producer: Any, base: int | None) -> None:
        """Commits if main is still the snapshot `base`. Nothing is retried, nothing deleted unless it did not land."""
        try:
            inside.land(self._native, transaction, base)
        except Exception as error:  # a catalog may fail in any way after it has committed
            self._settle(producer, error)

    def _settle(self, producer: Any, error: Exception) -> None:
        """Returns if the commit is in the table. TableConflictError if it certainly is not, TableError if unknown."""
        try:
            self._native.refresh()
        except Exception as again:
            raise TableUnavailableError(
                f"table {self.name}: the outcome of a commit is unknown, and the catalog does not answer: {again}; "
                "run again: the table knows how far it is"
            ) from error
        if self._native.metadata.snapshot_by_id(producer.snapshot_id) is not None:
            return
        if isinstance(error, CommitFailedException | ValidationException):
            inside.delete_manifests(producer)
            raise TableConflictError(f"table {self.name}: {error}") from error
        root = root_cause(error)
        raise TableUnavailableError(
            f"table {self.name}: not committed, as far as the catalog says: {root or type(root).__name__}; "
            "run again: the table knows how far it is"
        ) from error

    # ------------------------------------------------------------------ reading

    def scan(
        self, version: int | None, columns: Sequence[str] | None, filter: Any
    ) -> Iterator[pa.RecordBatch]:
        if version is None:
            return
        schema = self.schema
        wanted = pa.schema([schema.field(name) for name in columns]) if columns is not None else schema
        paths = self.paths(version)
        if paths is not None:
            yield from scan_files(paths, wanted, schema, filter)
            return
        with _translated(self.name):
            native = self._native.scan(
                snapshot_id=version, selected_fields=tuple(wanted.names) if wanted.names else ("topic",)
            )
            for batch in native.to_arrow_batch_reader():
                yield from pa.Table.from_batches([batch]).select(wanted.names).cast(wanted).to_batches()

    def paths(self, version: int | None) -> list[str] | None:
        """None where a file has deletes, or may have a column by another name than it has now."""
        if version is None:
            return []
        if not self._is_read_by_names():
            return None
        with _translated(self.name):
            tasks = list(self._native.scan(snapshot_id=version).plan_files())
        if any(task.delete_files for task in tasks):
            return None
        return [task.file.file_path for task in tasks]

    def _is_read_by_names(self) -> bool:
        """True if every field of the table has kept its name, and no other has had it: so the columns of a file of any
        age are found by names, and those that it lacks are null."""
        metadata = self._native.metadata
        ids: dict[str, int] = {}
        names: dict[int, str] = {}
        for schema in metadata.schemas:
            for number, field in index_by_id(schema).items():
                name = schema.find_column_name(number)
                if ids.setdefault(name, number) != number or names.setdefault(number, name) != name:
                    return False
                if field.initial_default is not None:
                    return False
        return True

    def files(self, version: int | None) -> TableFiles:
        entries = list(self._entries(version))
        return TableFiles(
            len(entries),
            sum(file.file_size_in_bytes for file in entries),
            sum(file.record_count for file in entries),
        )

    def _entries(self, version: int | None) -> Iterator[DataFile]:
        """The data files as of a snapshot."""
        snapshot = None if version is None else self._native.metadata.snapshot_by_id(version)
        if snapshot is None:
            return
        with _translated(self.name):
            for manifest in snapshot.manifests(self._native.io):
                if manifest.content == ManifestContent.DATA:
                    for entry in manifest.fetch_manifest_entry(self._native.io, discard_deleted=True):
                        yield entry.data_file

    # ------------------------------------------------------------------ care

    def rewind(self, version: int) -> None:
        with _translated(self.name):
            self._native.manage_snapshots().rollback_to_snapshot(version).commit()

    def compact(self, target_bytes: int, report: Progress = no_progress) -> tuple[int, int]:
        head = self.head()
        files = list(self._entries(head.version))
        groups = bins(
            [(file.file_path, file.file_size_in_bytes, _day_of(file)) for file in files], target_bytes
        )
        if not groups or head.state is None:
            return len(files), len(files)
        if self.paths(head.version) is None:
            raise TableError(
                f"table {self.name} has rows that another engine deleted, or columns that were renamed: compact it "
                "with that engine"
            )
        written = self._rewritten(groups, target_bytes, report)
        replaced = [small.path for group in groups for small in group]
        for _ in range(COMPACTION_TRIES):
            try:
                self.commit(written, head.state, head, replaced)
                return len(files), self.files(self.head().version).count
            except (
                TableConflictError
            ):  # a run has appended meanwhile: its state is carried on, not the one before
                head = self.head()
        raise TableConflictError(f"table {self.name}: {COMPACTION_TRIES} other commits came first; try again")

    def _rewritten(
        self, groups: Sequence[Sequence[Small]], target_bytes: int, report: Progress
    ) -> list[WrittenFile]:
        done, total = 0, sum(small.size for group in groups for small in group)
        found: list[WrittenFile] = []
        for group in groups:
            report(done, total)
            found += rewritten([small.path for small in group], self.write_spec(target_bytes))
            done += sum(small.size for small in group)
        report(done, total)
        return found

    def tidy(self) -> None:
        properties = self._native.properties
        if KEEP not in properties or KEEP_MS not in properties:
            return
        with _translated(self.name):
            keep = int(properties[KEEP])
            limit = datetime.now(UTC) - timedelta(milliseconds=int(properties[KEEP_MS]))
        if len(self._expired(limit, keep)) >= max(1, keep // 5):  # at once, as each time is a commit
            self.expire(limit, keep)

    def _expired(self, older_than: datetime, keep: int) -> list[Snapshot]:
        metadata = self._native.metadata
        lineage = [each.snapshot_id for each in ancestors_of(self._main(), metadata)]
        protected = {*lineage[:keep], *(ref.snapshot_id for ref in metadata.refs.values())}
        limit = older_than.timestamp() * 1000
        return [
            each
            for each in metadata.snapshots
            if each.timestamp_ms < limit and each.snapshot_id not in protected
        ]

    def expire(self, older_than: datetime, keep: int, report: Progress = no_progress) -> tuple[int, int]:
        self.head()
        gone = self._expired(older_than, keep)
        if not gone:
            return 0, 0
        lineage = {each.snapshot_id for each in ancestors_of(self._main(), self._native.metadata)}
        only_appended = all(
            each.snapshot_id in lineage and each.summary and each.summary.operation == Operation.APPEND
            for each in self._native.metadata.snapshots
        )
        reached, manifests = self._reached(gone, report)
        with _translated(self.name):
            self._native.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in gone]).commit()
            self._native.refresh()
        kept, others = self._reached(self._native.metadata.snapshots, report)
        reached -= kept
        if not only_appended:  # else each data file is in the current version
            rest = [each for path, each in manifests.items() if path not in others]
            if unreached := self._data_files(rest):
                reached |= unreached - self._data_files(others.values())
        try:
            return len(gone), delete_paths(sorted(reached), report)
        except OSError as error:
            raise TableError(
                f"table {self.name}: {len(gone)} versions are forgotten, but not all of their files could be deleted: "
                f"{error}; mqlake lake orphans --delete deletes the rest"
            ) from error

    def _reached(
        self, snapshots: Sequence[Snapshot], report: Progress = no_progress
    ) -> tuple[set[str], dict[str, ManifestFile]]:
        """The manifest lists and the manifests of snapshots, and the latter by their paths."""
        manifests: dict[str, ManifestFile] = {}
        lists = set()
        with _translated(self.name):
            for number, snapshot in enumerate(snapshots):
                report(number, len(snapshots))
                lists.add(snapshot.manifest_list)
                manifests.update((each.manifest_path, each) for each in snapshot.manifests(self._native.io))
        return lists | manifests.keys(), manifests

    def _data_files(self, manifests: Iterable[ManifestFile]) -> set[str]:
        """The files that manifests name, each of which is read once."""
        with _translated(self.name):
            return {
                entry.data_file.file_path
                for manifest in manifests
                for entry in manifest.fetch_manifest_entry(self._native.io, discard_deleted=True)
            }

    def orphans(self, older_than: datetime, report: Progress = no_progress) -> list[tuple[str, int]]:
        self.head()
        metadata = self._native.metadata
        known, manifests = self._reached(metadata.snapshots, report)
        known |= self._data_files(manifests.values())
        known |= {entry.metadata_file for entry in metadata.metadata_log} | {self._native.metadata_location}
        known |= {each.statistics_path for each in metadata.statistics}
        return unknown_files(
            [self.write_spec(1).root, f"{self.location.rstrip('/')}/metadata"], known, older_than
        )


def _day_of(file: DataFile) -> object:
    return file.partition[0] if len(file.partition) else None


@contextlib.contextmanager
def _translated(name: str, but: type[Exception] = TableError) -> Iterator[None]:
    try:
        yield
    except (TableError, MemoryError, but):
        raise
    except Exception as error:  # pyiceberg's own, SQLAlchemy's, those of REST clients
        library, root = type(error).__module__.partition(".")[0], root_cause(error)
        if isinstance(error, OSError) and library != "requests":
            raise
        what = "its metadata is damaged: " if library.startswith("pydantic") else ""
        is_away = isinstance(root, OSError | ServerError) or isinstance(error, OperationalError)
        kind = TableUnavailableError if is_away else TableError
        raise kind(f"table {name}: {what}{root or type(root).__name__}") from error


# ---------------------------------------------------------------------- schemas


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """With `string` and `binary` for pyiceberg's large ones, names and metadata kept."""
    return pa.schema([_plain(field) for field in schema])


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_plain(kind.field(number)) for number in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_field), _plain(kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_field))
    return kind
