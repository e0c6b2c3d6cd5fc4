"""The records of stores without their bodies, most of them read by Spark's own Parquet reader.

    [0.parquet][1.parquet][2.parquet]│ commitlog from there on
      no Python worker               └ one seam: a physical offset

heads() has every record of a store, messages() what consumers see. Which heads are valid is decided when these are
called, the end of the log whenever Spark runs a query.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from mqlake.errors import UnfitHeadsError
from mqlake.lake.arrow.filters import hidden_topics
from mqlake.lake.heads.schema import COLUMNS
from mqlake.lake.heads.valid import Heads, StoreHeads, open_valid
from mqlake.lake.log.storage import Storage
from mqlake.lake.offsets import PositionKind
from mqlake.lake.options import LogOptions
from mqlake.message import UNSEEN_FLAG
from mqlake.spark.log.commitlog import read_log
from mqlake.spark.log.counts import heads_suffice, is_as_read
from mqlake.spark.options import log_options, option_texts
from mqlake.spark.requirements import found_in_workers
from mqlake.spark.schema import spark_schema

CHECKED = {"parquet.page.verify-checksum.enabled": "true"}
"""Options of Spark's Parquet reader."""


def heads(spark: SparkSession, path: str, *, out: str | None = None) -> DataFrame:
    """A row for each record of the store at `path` (every record, as with `unpack` off): the columns of
    mqlake.lake.heads.schema, no bodies. `out`: where `mqlake store heads --out` has written the heads.

    What has no valid heads is read from the log. Raises NotAStoreError, ForeignFormatError, OSError.
    """
    found = open_valid(Storage.at(path), out)
    parts = [_parquet(spark, found.valid)] if found.valid else []
    parts += [_log(spark, found, start, end) for start, end, there in found.parts if not there]
    return reduce(DataFrame.unionByName, parts or [_log(spark, found, None, None)])


def messages(spark: SparkSession, *paths: str, columns: Sequence[str], **options: object) -> DataFrame:
    """Returns the messages that mqlake.spark.read_log() gives with these columns of heads and these options, as a
    DataFrame that takes no filters: the files of whole, local logs by their heads, where consumers see each of their
    records or none of it.

    Raises what read_log() raises.
    """
    given = {**options, "columns": list(columns)}
    log = read_log(spark, *paths, **given)
    parsed = log_options(option_texts(paths, given))
    found = (
        [_as_read(open_valid(storage), parsed) for storage in parsed.stores] if _have_heads(parsed) else []
    )
    valid = [heads for each in found for heads in each.valid]
    if not valid:
        return log
    parts = [_seen(_parquet(spark, valid), parsed).select(*columns)]
    for each in found:
        for start, end, there in each.parts:
            if not there:
                parts.append(read_log(spark, each.storage.root, **{**given, **_between(start, end)}))
    return reduce(DataFrame.unionByName, parts)


def _have_heads(options: LogOptions) -> bool:
    """True if heads may be read in place of the log. Of several stores one may lack a topic, which is no mistake until
    it is read alone."""
    return (
        heads_suffice(options, options.columns)
        and (options.start.kind, options.end.kind) == (PositionKind.EARLIEST, PositionKind.LATEST)
        and options.unpack
        and options.archive is None
        and all(storage.is_local for storage in options.stores)
        and (len(options.stores) == 1 or options.topics is None)
    )


def _as_read(found: StoreHeads, options: LogOptions) -> StoreHeads:
    """Without the heads of files that have to be read, such as those with inner batches."""

    def kept(heads: Heads | None) -> Heads | None:
        try:
            return heads if heads is not None and is_as_read(heads, options) else None
        except (UnfitHeadsError, FileNotFoundError):  # damaged, or deleted with its log file
            return None

    return replace(found, files=[(file, kept(heads)) for file, heads in found.files])


def _seen(records: DataFrame, options: LogOptions) -> DataFrame:
    """The records that consumers see, of the topics that are asked for."""
    if options.topics is not None:
        records = records.where(F.col("topic").isin(*options.topics))
    is_seen = F.col("sysFlag").bitwiseAND(UNSEEN_FLAG) == 0
    return records.where(~F.col("topic").isin(*hidden_topics(options.topics)) & is_seen)


def _parquet(spark: SparkSession, valid: list[Heads]) -> DataFrame:
    paths = [_literal(heads.path) for heads in valid]
    return spark.read.schema(spark_schema(COLUMNS)).options(**CHECKED).parquet(*paths)


def _literal(path: str) -> str:
    """A path as Spark takes it, without patterns."""
    if "://" not in path:
        path = f"file://{os.path.abspath(path)}"
    return re.sub(r"([\\*?\[\]{},])", r"\\\1", path)


def _log(spark: SparkSession, found: StoreHeads, start: int | None, end: int | None) -> DataFrame:
    given = option_texts([found.storage.root], {"columns": COLUMNS, "unpack": False, **_between(start, end)})
    with found_in_workers(spark):
        return spark.read.format("commitlog").options(**given).load()


def _between(start: int | None, end: int | None) -> dict[str, object]:
    """The options for physical offsets; None: where the log begins, and where it ends."""
    given: dict[str, object] = {"startingOffsets": start, "endingOffsets": end}
    return {option: offset for option, offset in given.items() if offset is not None}
