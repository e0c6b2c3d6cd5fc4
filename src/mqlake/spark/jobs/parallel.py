"""Work in pieces: any list of things, one task each, and the Arrow rows that come back as a DataFrame.

    driver   [piece 0, piece 1, …] ─▶ spark.range(n), a partition a number ─▶ mapInArrow ─▶ DataFrame
    task     work(piece) ─▶ record batches

A piece and what `work` looks at are pickled with the plan; nothing is shared between tasks. The DataFrame API
alone is used, so that a Spark Connect session will do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.errors import PySparkAttributeError, PySparkNotImplementedError
from pyspark.sql import DataFrame, SparkSession

from mqlake.lake.arrow.arrays import batch_of
from mqlake.spark.error_messages import short_errors_of
from mqlake.spark.schema import table_schemas

Piece = TypeVar("Piece")

CONNECT_PARALLELISM = 8
"""Assumed by a Connect client, which cannot ask for the number of cores."""


def per_piece(
    spark: SparkSession,
    pieces: Sequence[Piece],
    work: Callable[[Piece], Iterator[pa.RecordBatch]],
    columns: dict[str, str],
) -> DataFrame:
    """The rows of work(piece) for each piece, a task a piece; `columns` as in mqlake.lake.arrow.schema."""

    @short_errors_of
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(pieces[number])

    return spark.range(0, len(pieces), 1, max(1, len(pieces))).mapInArrow(run, table_schemas(columns)[0])


def rows_batch(rows: Sequence[dict[str, object]], columns: dict[str, str]) -> pa.RecordBatch:
    """A few rows (figures, not records) as a batch with these columns; what a row does not say is null."""
    return batch_of(rows, table_schemas(columns)[1])


def parallelism(spark: SparkSession) -> int:
    """Tasks that can run at the same time, as far as can be known."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except (PySparkAttributeError, PySparkNotImplementedError):
        return CONNECT_PARALLELISM


def shared_out(items: Sequence[Piece], shares: int) -> list[list[Piece]]:
    """The items in at most so many runs of about equal length, in their order."""
    count = min(len(items), max(1, shares))
    borders = [number * len(items) // count for number in range(count + 1)] if count else []
    return [list(items[first:last]) for first, last in itertools.pairwise(borders)]
