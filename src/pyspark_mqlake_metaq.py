"""Spark finds this module by its name and registers the source `metaq`; see mqlake.spark.automatic."""

from mqlake.spark.automatic import source

DefaultSource = source(__name__, "metaq", "mqlake.spark.metaq.source", "MetaqDataSource")
