"""The private parts of pyiceberg that commits and schemas use, made for VERSIONS of it: all its private names are here.
`iceberg` calls it.

`iceberg` calls it. pyiceberg's own append retries a commit on the new main, where the rows of two runs would both
land; its requirement names the snapshot that it found, not the one that the run began with. So `land` commits with
requirements of its own. When pyiceberg changes, tests/lake/tables/test_iceberg_inside.py names what has gone; the
commits themselves are tested in test_iceberg.py and by kills (victim.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    _pyarrow_to_schema_without_ids,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID

from mqlake.lake.tables.files import WrittenFile

VERSIONS = ("0.12",)
"""Versions of pyiceberg for which this holds: the extra `iceberg` takes no other."""


class CommitTransaction(Transaction):  # type: ignore[misc]
    """pyiceberg's own copies the table's metadata, all snapshots included, each of the 16 times that a commit asks for
    it: most of what a commit took. Nobody changes what it gets, so without updates it is the table's own."""

    @property
    def table_metadata(self) -> TableMetadata:
        return super().table_metadata if self._updates else self._table.metadata


def append_producer(transaction: Transaction, properties: Mapping[str, str]) -> Any:
    """Returns a context that makes an append's snapshot and ends with its manifests written."""
    return transaction._append_snapshot_producer(properties)


def land(table: Table, transaction: Transaction, base: int | None) -> None:
    """Commits if main is still the snapshot `base`, without a retry. Raises what the catalog raises."""
    requirements = [each for each in transaction._requirements if not isinstance(each, AssertRefSnapshotId)]
    requirements += [
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=base),
        AssertTableUUID(uuid=table.metadata.table_uuid),
    ]
    table._do_commit(updates=transaction._updates, requirements=tuple(requirements))


def delete_manifests(producer: Any) -> None:
    """Deletes the manifests of a commit that certainly did not land."""
    producer._clean_all_uncommitted()


def schema_without_ids(schema: pa.Schema) -> Schema:
    """An Arrow schema as Iceberg's, whose field ids are given later."""
    return _pyarrow_to_schema_without_ids(schema)


def data_file(file: WrittenFile, metadata: TableMetadata) -> DataFile:
    """The entry of a Parquet file that is written already, with the statistics of its columns."""
    ids = parquet_path_to_id_mapping(metadata.schema())
    plan = compute_statistics_plan(metadata.schema(), metadata.properties)
    for number in _without_bounds(file.metadata):
        column = ids[file.metadata.schema.column(number).path]
        plan[column] = replace(plan[column], mode=MetricsMode(MetricModeTypes.COUNTS))
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=file.metadata, stats_columns=plan, parquet_column_mapping=ids
    )
    bounds = statistics.column_aggregates
    for column, each in list(bounds.items()):
        try:
            each.max_as_bytes()
        except UnicodeEncodeError:  # it rounds U+D7FF up to a surrogate
            del bounds[column]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=statistics.partition(metadata.spec(), metadata.schema()),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _without_bounds(metadata: pq.FileMetaData) -> set[int]:
    """The numbers of the columns whose bounds are not those of a row group, where pyiceberg would take the other
    groups' for the file's: pyarrow notes none of a text beyond 4 KB, and has no words for a year beyond 9999."""
    return {
        number
        for group in range(metadata.num_row_groups)
        for number in range(metadata.num_columns)
        if not _is_bounded(metadata.row_group(group).column(number).statistics)
    }


def _is_bounded(statistics: pq.Statistics | None) -> bool:
    try:
        return statistics is not None and (statistics.num_values == 0 or statistics.min is not None)
    except OverflowError:
        return False
    except pa.ArrowNotImplementedError:  # pyiceberg leaves such a column out itself
        return True
