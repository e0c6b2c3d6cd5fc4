"""Spark finds this module by its name and registers the source `commitlogcounts`; see mqlake.spark.automatic."""

from mqlake.spark.automatic import source

DefaultSource = source(__name__, "commitlogcounts", "mqlake.spark.log.counts", "CommitLogCountsDataSource")
