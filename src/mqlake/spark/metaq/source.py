# mypy: disable-error-code="misc"
"""The source `metaq`: MetaQ data directories as a table or a stream, read in place, also while a broker writes; or
live brokers.

    spark.read.format("metaq").load(DIR)      a row per message:
    spark.readStream.format("metaq").option("zookeeper", "HOST:PORT").load()
    topic partition offset size id flag attribute body checksum path

`offset` is that of the record's first byte in its partition, `size` the record's bytes (`offset + size` is the next
offset), `checksum` the one in the record, `path` the directory, or the broker as `meta://host:port`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from mqlake.lake.offsets import EARLIEST, LATEST
from mqlake.spark.error_messages import short_errors
from mqlake.spark.filters import FilteredReader
from mqlake.spark.metaq.locations import Piece, resolve
from mqlake.spark.metaq.options import MetaqOptions, chosen_columns, schemas
from mqlake.spark.metaq.partition import Pieces, partitions_of, read_pieces
from mqlake.spark.metaq.segments import open_directory
from mqlake.spark.partitions import TaskPartition
from mqlake.spark.requirements import require_stream_readers


@short_errors
class MetaqDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "metaq"

    def schema(self) -> StructType:
        options = MetaqOptions.parse(self.options)
        for storage in options.storages:
            open_directory(storage)
        return schemas(options.columns)[0]

    def reader(self, schema: StructType) -> DataSourceReader:
        return MetaqReader(MetaqOptions.parse(self.options, stream=False), chosen_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        require_stream_readers()
        from mqlake.spark.metaq.stream import MetaqStreamReader

        return MetaqStreamReader(MetaqOptions.parse(self.options, stream=True), chosen_columns(schema))


@short_errors
class MetaqReader(FilteredReader):
    def __init__(self, options: MetaqOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> list[TaskPartition[Pieces]]:
        """NotAStoreError, OSError; in mode failFast StoreCorruptError for a gap between segments."""
        options, place = self._options, self._options.place()
        bounds = place.bounds()
        starts = resolve(options.start, bounds, EARLIEST)
        ends = resolve(options.end, bounds, LATEST)
        pieces: list[Piece] = []
        for part, (low, high) in bounds.items():
            if not self._may_match({"topic": part.topic, "partition": part.partition}):
                continue
            for offset in (starts[part], ends[part]):
                if not low <= offset <= high:
                    options.data_loss(
                        f"{part}: offset {offset} is not in the partition, which has {low} to {high}"
                    )
            start, end = max(starts[part], low), min(ends[part], high)
            pieces += place.pieces(part, start, None if end == high else end)
        return partitions_of(pieces, options.split_size)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            yield from read_pieces(partition.task, self._options, self._columns)
