"""Spark reads the log in place: PySpark data sources and the jobs made of them.

    spark = mqlake.spark.session()                    a local session made for them, or any of your own
    mqlake.spark.register(spark)                      once: the sources below
    spark.read.format("commitlog").load("/store")     the messages, a row each

    commitlog       store directories, batch and stream     rocketmq        live brokers, both ways, batch and stream
    consumequeue    their consume queues                    mqindex         their index
    metaq           MetaQ data directories and brokers
    commitlogcounts                                         partial results of count_by()

Importing this package imports neither PySpark nor pyarrow; without them, functions raise a
MissingPartError with the command that installs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mqlake.spark.requirements import require_java, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mqlake.spark.jobs.verify import StoresReport

__all__ = ["count_by", "heads", "read_log", "read_topic", "register", "session", "verify_log"]


def session(app_name: str = "mqlake", **options: Any) -> SparkSession:
    """A local session for mqlake's sources, registered and quiet; see mqlake.spark.session_helper.session."""
    require_pyspark()
    require_java()
    from mqlake.spark.session_helper import session

    return session(app_name, **options)


def register(spark: SparkSession) -> None:
    """Makes the sources known to a session that has not found them by itself."""
    require_pyspark()
    from mqlake.spark.sources import register

    register(spark)


def read_log(spark: SparkSession, *paths: str, **options: object) -> DataFrame:
    """`spark.read.format("commitlog")` with the options checked here and now.

    Raises what log_options() raises, and NotAStoreError and its like for each of `paths`; Spark itself
    would wrap them in an exception of its own.
    """
    require_pyspark()
    from mqlake.spark.log.commitlog import read_log

    return read_log(spark, *paths, **options)


def read_topic(spark: SparkSession, file: str, topic: str, **options: Any) -> DataFrame:
    """A topic's table and the log after it as a DataFrame; see mqlake.spark.jobs.tables.read_topic."""
    require_pyspark()
    from mqlake.spark.jobs.tables import read_topic

    return read_topic(spark, file, topic, **options)


def count_by(spark: SparkSession, *paths: str, by: str | Sequence[str], **options: Any) -> DataFrame:
    """Counts, bytes and times by groups, without rows crossing to the JVM; see mqlake.spark.log.counts.count_by."""
    require_pyspark()
    from mqlake.spark.log.counts import count_by

    return count_by(spark, *paths, by=by, **options)


def heads(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    """The heads of a store's records, read by Spark's Parquet reader; see mqlake.spark.log.heads.heads."""
    require_pyspark()
    from mqlake.spark.log.heads import heads

    return heads(spark, path, **options)


def verify_log(spark: SparkSession, *paths: str, **options: Any) -> StoresReport:
    """Checks every record of one log or more in parallel; see mqlake.spark.jobs.verify.verify_log."""
    require_pyspark()
    from mqlake.spark.jobs.verify import verify_log

    return verify_log(spark, *paths, **options)
