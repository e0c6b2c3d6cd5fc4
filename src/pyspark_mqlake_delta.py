"""Spark finds this module by its name and registers the sink `mqlake-delta`; see mqlake.spark.automatic."""

from mqlake.spark.automatic import source

DefaultSource = source(__name__, "mqlake-delta", "mqlake.spark.lake.sink", "DeltaSink")
