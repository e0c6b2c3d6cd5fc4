"""Spark finds this module by its name and registers the sink `mqlake-iceberg`; see mqlake.spark.automatic."""

from mqlake.spark.automatic import source

DefaultSource = source(__name__, "mqlake-iceberg", "mqlake.spark.lake.sink", "IcebergSink")
