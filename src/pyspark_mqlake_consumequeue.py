"""Spark finds this module by its name and registers the source `consumequeue`; see mqlake.spark.automatic."""

from mqlake.spark.automatic import source

DefaultSource = source(__name__, "consumequeue", "mqlake.spark.log.queue_and_index", "ConsumeQueueDataSource")
