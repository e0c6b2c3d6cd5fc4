"""LogDataset: store directories, or topics of live brokers, as an Arrow dataset for DuckDB, Polars, pandas and pyarrow.

    query engine ─▶ scanner(columns, filter) ─▶ conditions ─▶ plan ─▶ tasks ─▶ batches ─▶ filter again, exactly

A query engine says which columns it needs and what it filters by; neither the bodies nor the parts of the log that it
does not need are read. Each scan finds the end of the log again, so a query sees what a broker has written by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.lake.arguments import Moment, names_in, shared_options, stores_at
from mqlake.lake.arrow.expressions import columns_of, conditions_of
from mqlake.lake.arrow.filters import Condition
from mqlake.lake.arrow.schema import COLUMNS, ON_REQUEST, arrow_schema
from mqlake.lake.bodies.body_format import BodyColumns, BodyFormat, format_of
from mqlake.lake.bodies.decoder import BODY, REASON, UNDECODED, VALUE
from mqlake.lake.bodies.inference import SAMPLE
from mqlake.lake.log.tasks import read_task
from mqlake.lake.options import VERIFY, LogOptions, archive_of, one_of
from mqlake.lake.plan import plan_read

if TYPE_CHECKING:
    from mqlake.lake.live.options import ReadOptions

Options: TypeAlias = "LogOptions | ReadOptions"

DECODED = {VALUE, UNDECODED, REASON}

Columns = Sequence[str] | Mapping[str, pc.Expression] | None
"""Names, or what each column is made of; None: all."""


def needed_columns(names: Sequence[str], columns: Columns, filter: pc.Expression | None) -> set[str]:
    """Returns those of `names` that a scan reads for its columns and its filter. UnknownKeyError."""
    if columns is None:
        wanted: Iterable[str] = names
    elif isinstance(columns, Mapping):
        wanted = [name for each in columns.values() for name in columns_of(each, names)]
    else:
        wanted = columns
    needed = {*wanted, *columns_of(filter, names)}
    for name in needed.difference(names):
        raise UnknownKeyError(name, names, what="column")
    return needed


class LogScanner:
    """One scan, with the methods of pyarrow's Scanner that query engines call.

    pyarrow's own runs a Python reader in threads that may outlive the interpreter, which then aborts.
    """

    def __init__(
        self,
        options: Options,
        columns: Columns,
        filter: pc.Expression | None,
        bodies: BodyColumns | None = None,
    ) -> None:
        self._options, self._columns, self._filter = options, columns, filter
        names = _schema_of(options, bodies).names
        needed = needed_columns(names, columns, filter)
        self._bodies = bodies if bodies is not None and not DECODED.isdisjoint(needed) else None
        if self._bodies is not None:
            needed = {*needed.difference(DECODED), BODY}
        self._read = [name for name in options.columns if name in needed] or names[:1]

    @property
    def projected_schema(self) -> pa.Schema:
        schema = arrow_schema(self._read)
        return self._projected(
            (schema if self._bodies is None else self._bodies.schema(schema)).empty_table()
        ).schema

    dataset_schema = projected_schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Raises StoreCorruptError, OffsetOutOfRangeError (a file is gone), and what planning raises (plan_read())."""
        conditions = conditions_of(self._filter)
        for batch in self._rows(conditions):
            table = pa.Table.from_batches([batch if self._bodies is None else self._bodies.replaced(batch)])
            if self._filter is not None:
                table = table.filter(self._filter)
            if table.num_rows:
                yield from self._projected(table).to_batches()

    def _rows(self, conditions: tuple[Condition, ...]) -> Iterator[pa.RecordBatch]:
        if isinstance(self._options, LogOptions):
            for task in plan_read(self._options, conditions).tasks:
                yield from read_task(task, self._options, conditions, self._read)
        else:
            from mqlake.lake.live.rows import live_batches  # with the client

            yield from live_batches(self._options, conditions, self._read)

    def _projected(self, table: pa.Table) -> pa.Table:
        if isinstance(self._columns, Mapping):
            return pyarrow.dataset.dataset(table).to_table(columns=dict(self._columns))
        return table if self._columns is None else table.select(list(self._columns))

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def count_rows(self) -> int:
        return sum(batch.num_rows for batch in self.to_batches())

    def head(self, num_rows: int) -> pa.Table:
        found: list[pa.RecordBatch] = []
        for batch in self.to_batches():
            found.append(batch.slice(0, num_rows))
            num_rows -= found[-1].num_rows
            if not num_rows:
                break
        return pa.Table.from_batches(found, self.projected_schema)


class LogDataset(pyarrow.dataset.Dataset):  # type: ignore[misc]
    """Made by `mqlake.lake.scan`. Nothing of pyarrow's Dataset is under it: what needs that is not there."""

    def __init__(self, options: Options, bodies: BodyFormat | None = None) -> None:
        self._options = options
        self._format = bodies
        self._bodies = None if bodies is None else bodies.body_columns
        self._schema = _schema_of(options, self._bodies)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(
        self, columns: Columns = None, filter: pc.Expression | None = None, **_: object
    ) -> LogScanner:
        """The rows that fulfil `filter`, of those columns (all by default)."""
        return LogScanner(self._options, columns, filter, self._bodies)

    @property
    def body_format(self) -> BodyFormat | None:
        """The format that bodies are decoded by; `body_format.schema` is what was inferred."""
        return self._format

    # ------------------------------------------------------------------ all rows

    def to_reader(self, columns: Columns = None, filter: pc.Expression | None = None) -> pa.RecordBatchReader:
        """The rows as they come, without holding them."""
        return self.scanner(columns, filter).to_reader()

    def to_table(self, columns: Columns = None, filter: pc.Expression | None = None, **_: object) -> pa.Table:
        return self.scanner(columns, filter).to_table()

    def to_batches(
        self, columns: Columns = None, filter: pc.Expression | None = None, **_: object
    ) -> Iterator[pa.RecordBatch]:
        return self.scanner(columns, filter).to_batches()

    def count_rows(self, filter: pc.Expression | None = None, **_: object) -> int:
        return self.scanner([], filter).count_rows()

    def head(
        self, num_rows: int, columns: Columns = None, filter: pc.Expression | None = None, **_: object
    ) -> pa.Table:
        return self.scanner(columns, filter).head(num_rows)

    def to_pandas(self, **scan: Any) -> Any:
        return self.to_table(**scan).to_pandas()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        options = self._options
        if isinstance(options, LogOptions):
            return f"LogDataset({', '.join(storage.root for storage in options.stores)})"
        return f"LogDataset({options.cluster.namesrv_addr}: {', '.join(options.topics)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return LogDataset, (self._options, self._format)

    # ------------------------------------------------------------------ what pyarrow's own needs its C++ side for

    @property
    def partition_expression(self) -> pc.Expression:
        return pc.scalar(True)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Any]:
        raise NotImplementedError("a log has no fragments; use scanner(columns=…, filter=…)")

    def take(self, indices: object, **_: object) -> pa.Table:
        raise NotImplementedError("take rows of a table: to_table().take(…)")

    def replace_schema(self, schema: pa.Schema) -> LogDataset:
        raise NotImplementedError("the log's columns have one type each; cast them after reading")

    def filter(self, expression: pc.Expression) -> pyarrow.dataset.Dataset:
        raise NotImplementedError("give the filter to scanner(), to_table() or to_batches()")

    def join(self, *_: object, **__: object) -> pyarrow.dataset.Dataset:
        raise NotImplementedError("join tables: to_table().join(…)")

    join_asof = join

    def sort_by(self, sorting: object, **_: object) -> pyarrow.dataset.Dataset:
        raise NotImplementedError("sort a table: to_table().sort_by(…)")


def scan(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    topics: str | Iterable[str] | None = None,
    *,
    columns: str | Sequence[str] | None = None,
    start: Moment = None,
    end: Moment = None,
    keys: str | Iterable[str] | None = None,
    verify: str = "crc",
    mode: str = "failFast",
    unpack: bool = True,
    skipping: bool | str = True,
    storage_options: Mapping[str, Any] | None = None,
    bodies: BodyFormat | Mapping[str, Any] | None = None,
    archive: str | None = None,
    namesrv: str | None = None,
    access_key: str = "",
    secret_key: str = "",
) -> LogDataset:
    """The messages of one or more store directories (or places that fsspec opens, such as s3://bucket/store).

    `archive`: where `mqlake store offload` has copied the older files to; both are read as one log.

    With `namesrv`, a name server's host:port, those of `topics` at its brokers, Java's or mqlake's, pulled as a
    consumer would; `access_key` and `secret_key` where they are asked for.

    `start` is the first and `end` the first no longer read; each a physical offset, a datetime, `earliest`, `latest`,
    or offsets of queues. `unpack`: messages as consumers see them, inner batches and compressed bodies taken apart, and
    nothing that no consumer may see; False shows every record. `verify`: none, crc or full. `mode` says what damage
    does: failFast raises StoreCorruptError with file and offset while rows are read, permissive gives a row with
    `_corrupt`, dropMalformed passes over it. `skipping`: False reads all of the log between `start` and `end`, without
    heads, queues and index; "known" believes queues and index that they know all messages, which is untrue of topics
    that were deleted.

    `bodies` makes columns of them: {"json": "id long, at timestamp_ms"}, {"json": "infer"} (from the first ones), or a
    file with a schema: {"avro": "order.avsc"}, "json_schema", "protobuf", "confluent" (BodyFormat.given). In place of
    `body` there are then `value`, `undecoded` (a body that does not fit) and `undecoded_reason`.

    Raises UnknownKeyError for an unknown column, ConfigError for an invalid value, NotAStoreError and
    ForeignFormatError for a place that is no store.
    """
    given: dict[str, Any] = {"columns": columns, "start": start, "end": end, "mode": mode, "unpack": unpack}
    options: Options
    if namesrv is not None:
        if path is not None or keys is not None or storage_options or archive:
            raise ConfigError(
                "path, archive, keys and storage_options are for store directories, not for brokers"
            )
        options = _of_brokers(namesrv, access_key, secret_key, names_in("topics", topics), given)
    else:
        stores = stores_at(path, storage_options or {})
        if not isinstance(skipping, bool) and skipping != "known":
            raise ConfigError(f"skipping is {skipping!r}; it can be True, False or 'known'")
        options = LogOptions(
            stores=stores,
            archive=None if archive is None else archive_of("archive", archive, stores),
            topics=None if topics is None else frozenset(names_in("topics", topics)),
            keys=None if keys is None else frozenset(names_in("keys", keys)),
            verify=one_of("verify", verify, VERIFY),
            skipping=skipping is not False,
            known_topics=skipping == "known",
            **shared_options(**given, known=(*COLUMNS, *ON_REQUEST)),
        )
        for storage in stores:
            storage.check()
    options.check_batch()
    format = format_of(bodies)
    if format is not None and format.needs_sample:
        sample = LogScanner(options, [BODY], None).head(SAMPLE)
        format = format.with_sample(sample.column(BODY).to_pylist())
    return LogDataset(options, format)


def _of_brokers(
    namesrv: str, access_key: str, secret_key: str, topics: Sequence[str], given: dict[str, Any]
) -> ReadOptions:
    from mqlake.lake.live.cluster import Cluster  # with the client
    from mqlake.lake.live.options import MODES, ReadOptions

    if not topics:
        raise ConfigError("a scan of brokers needs the names of topics")
    if not namesrv.strip():
        raise ConfigError("namesrv is empty: host:port, several with ; between")
    cluster = Cluster(namesrv, access_key=access_key, secret_key=secret_key)
    return ReadOptions(
        cluster=cluster, topics=tuple(topics), **shared_options(**given, modes=MODES, is_store=False)
    )


def _schema_of(options: Options, bodies: BodyColumns | None) -> pa.Schema:
    schema = arrow_schema(options.columns)
    return schema if bodies is None else bodies.schema(schema)
