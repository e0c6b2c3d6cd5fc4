"""ingest: any rows that Spark reads to messages, of a live cluster or of a new store.

Parquet, CSV, JSON, ORC, text, a table, a stream ─▶ messages.shaped() ─┬─▶ sink `rocketmq` ─▶ brokers
                                                                    └─▶ messages.write_store() ─▶ a store
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mqlake.errors import ConfigError, NotThereError
from mqlake.spark.error_messages import reason

FORMATS = ("parquet", "csv", "json", "orc", "text")
NO_FORMAT = ("DATA_SOURCE_NOT_FOUND", "DATA_SOURCE_NOT_ENABLED", "is not a valid Spark SQL Data Source")
"""Spark's messages about a format that it lacks, that only a package brings, or that is for streams only."""
_ENDINGS = {".ndjson": "json", ".jsonl": "json", ".txt": "text", ".log": "text"}
_TO_BROKERS = ("body", "topic", "tags", "keys", "properties", "shardingKey")


def read_rows(
    spark: SparkSession, *paths: str, kind: str | None = None, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Rows of files, of which `kind` (None: by their ending) is any format of Spark. CSV has a header unless said.

    ConfigError for a format that Spark lacks, an unknown option of it, and files that are not in it; NotThereError.
    """
    kind = kind or _kind_of(paths[0])
    given = (
        {"header": "true", "inferSchema": "true", **(options or {})} if kind == "csv" else dict(options or {})
    )
    try:
        rows = spark.read.format(kind).options(**given).load(list(paths))
        rows.schema  # noqa: B018 - a Connect session looks at the plan only when asked
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if any(sign in text for sign in NO_FORMAT):
            raise ConfigError(
                f"--format {kind!r}: Spark has {', '.join(FORMATS)}, mqlake's own such as commitlog, and those of "
                "packages (--conf spark.jars.packages=…)"
            ) from error
        error_kind = NotThereError if "PATH_NOT_FOUND" in text else ConfigError
        raise error_kind(f"{', '.join(paths)}, as {kind}: {reason(text)}") from error
    return rows.withColumnRenamed("value", "body") if kind == "text" else rows


def _kind_of(path: str) -> str:
    """Returns the kind of a path by the name of the file, or of the first in a directory."""
    name = path
    if os.path.isdir(path):
        found = (
            os.path.join(place, file) for place, _, files in sorted(os.walk(path)) for file in sorted(files)
        )
        visible = (file for file in found if not re.search(r"/[_.]", file.removeprefix(path)))
        name = next(visible, path)
    ending = os.path.splitext(name.removesuffix(".gz").removesuffix(".zst").removesuffix(".bz2"))[1].lower()
    kind = _ENDINGS.get(ending, ending[1:])
    if kind not in FORMATS:
        raise ConfigError(f"{path}: what format is it? (--format {', '.join(FORMATS)}, or another of Spark)")
    return kind


def to_brokers(messages: DataFrame, namesrv: str, **options: str) -> None:
    """Sends messages, at least once; `options` are those of the sink."""
    kept = messages.select(*(name for name in messages.columns if name in _TO_BROKERS))
    kept.write.format("rocketmq").mode("append").options(namesrvAddr=namesrv, **options).save()
