"""Spark finds this module by its name and registers the source `mqindex`; see mqlake.spark.automatic."""

from mqlake.spark.automatic import source

DefaultSource = source(__name__, "mqindex", "mqlake.spark.log.queue_and_index", "MqIndexDataSource")
