"""Spark finds this module by its name and registers the source `commitlog`; see mqlake.spark.automatic."""

from mqlake.spark.automatic import source

DefaultSource = source(__name__, "commitlog", "mqlake.spark.log.commitlog", "CommitLogDataSource")
